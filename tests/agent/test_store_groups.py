"""Groups of changes: when they are committed, when they are durable, and who is told if they are not."""

from __future__ import annotations

import asyncio
import logging

import pytest

from blindpost.agent.store.grouping import LAZY_S, PARTS_MAX, TURNS_MAX, UNSYNCED_MAX, Group
from blindpost.engine.loop import StoreFailedError
from tests.support.agent.bench import FULL, LOST, Bench, settled, started, stumble, told

# Committed


def test_what_is_written_is_committed_and_not_synced(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        assert bench.stored == 0
        await group.written()
        assert (bench.stored, bench.commits, bench.busy, bench.syncs) == (1, 1, 0, 0)
        await group.written()
        assert bench.commits == 1

    bench.run(main())


def test_parts_of_several_are_one_commit(bench: Bench) -> None:
    async def main() -> None:
        groups = [bench.change() for _ in range(3)]
        assert groups[0] is groups[1] is groups[2]
        assert groups[0].parts == 3
        await asyncio.gather(*(group.written() for group in groups))
        assert (bench.stored, bench.commits) == (3, 1)
        assert bench.change() is not groups[0]

    bench.run(main())


def test_a_group_waits_a_turn_for_each_part_that_a_turn_has_brought(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        written = started(group.written())
        await asyncio.sleep(0)
        for _ in range(4):
            assert bench.change() is group
            await asyncio.sleep(0)
        assert bench.commits == 0
        await asyncio.sleep(0)
        assert bench.commits == 1
        await written
        assert bench.stored == 5

    bench.run(main())


def test_a_group_does_not_wait_for_ever_for_more(bench: Bench) -> None:
    async def main() -> None:
        group, turns = bench.change(), 0
        group.soon()
        while bench.commits == 0:
            bench.change()
            await asyncio.sleep(0)
            turns += 1
        assert turns == TURNS_MAX + 1
        assert bench.stored == 1 + turns

    bench.run(main())


def test_a_group_that_is_wanted_at_once_waits_for_nobody(bench: Bench) -> None:
    """Its sync begins before what follows from it."""

    async def main() -> None:
        group, order = bench.change(lazily=True), []
        group.follow(lambda: order.append(bench.busy))
        group.at_once()
        assert (bench.stored, bench.commits, bench.busy, order) == (1, 1, 1, [1])
        group.at_once()
        assert bench.commits == 1
        durable = started(group.durable())
        await settled()
        assert not durable.done()
        await bench.let_go()
        assert durable.done()
        assert bench.syncs == 1
        bench.change()
        group.at_once()
        assert bench.commits == 1, "the next group is not this one's business"

    bench.run(main())


def test_a_group_that_nobody_waits_for_is_committed_at_once_and_not_synced(bench: Bench) -> None:
    async def main() -> None:
        group, ended = bench.change(), list[bool]()
        group.when_ended(ended.append)
        await settled()
        assert bench.commits == 0, "that is no hurry"
        group.at_once(awaited=False)
        assert (bench.commits, bench.busy, ended) == (1, 0, [])
        other = bench.change()
        other.at_once(awaited=False)
        await settled()
        assert (bench.commits, bench.busy, ended) == (2, 0, [])
        durable = started(bench.store.durable())
        await settled()
        await bench.let_go()
        await durable
        assert (ended, bench.syncs) == ([True], 1)

    bench.run(main())


def test_who_waited_before_still_waits_for_the_disk(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        durable = started(group.durable())
        await asyncio.sleep(0)
        group.at_once(awaited=False)
        assert (bench.commits, bench.busy) == (1, 1)
        await bench.let_go()
        await durable

    bench.run(main())


def test_what_is_wanted_at_once_waits_for_a_busy_disk(bench: Bench) -> None:
    async def main() -> None:
        bench.change().at_once()
        second = bench.change()
        second.at_once()
        assert (bench.commits, bench.busy) == (1, 1)
        await bench.let_go()
        assert (bench.commits, bench.busy) == (2, 1)
        await bench.let_go()
        await second.durable()
        assert bench.syncs == 2

    bench.run(main())


def test_who_waits_is_told_that_what_was_wanted_at_once_is_not_stored(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        group, bench.full = bench.change(), True
        waiting = started(group.written())
        await asyncio.sleep(0)
        group.at_once()
        assert group.failed
        assert not group.is_committed
        assert await told(waiting) == FULL
        bench.full = False
        later = bench.change()
        assert not later.is_committed
        later.at_once()
        assert later.is_committed
        await bench.let_go()

    bench.run(main())
    assert not caplog.records


def test_a_group_that_nobody_joins_is_committed_in_the_next_turn(bench: Bench) -> None:
    """However many wait for it, and whenever they begin to."""

    async def main() -> None:
        group = bench.change()
        group.soon()
        group.soon()
        await asyncio.sleep(0)
        assert bench.commits == 1
        waiting = bench.change()
        waiting.soon()
        asyncio.get_running_loop().call_soon(waiting.soon)
        await asyncio.sleep(0)
        assert bench.commits == 2

    bench.run(main())


def test_who_waits_for_a_group_that_grows_does_not_hold_it_back(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        for turns in range(TURNS_MAX + 1):
            assert bench.commits == 0, turns
            group.soon()
            bench.change()
            await asyncio.sleep(0)
        assert bench.commits == 1

    bench.run(main())


def test_a_group_that_ended_hurries_no_other(bench: Bench) -> None:
    """Whether it was committed, or taken back before its time."""

    async def main() -> None:
        ended = [bench.change(lazily=True)]
        bench.store.commit()
        ended.append(bench.change(lazily=True))
        bench.store.write()
        ended.append(bench.change())
        bench.store.write()
        ended.append(bench.change(lazily=True))
        stumble(bench, sure=True)
        bench.change()
        for group in ended:
            group.soon()
            group.lazily()
        await asyncio.sleep(10 * LAZY_S)
        assert bench.commits == 3

    bench.run(main())


def test_what_nobody_waits_for_is_committed_after_a_while(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change(lazily=True)
        await asyncio.sleep(LAZY_S / 2)
        group.lazily()
        assert bench.change(lazily=True) is group
        assert bench.commits == 0
        await asyncio.sleep(LAZY_S / 2 + 0.001)
        assert (bench.commits, bench.stored, bench.busy) == (1, 2, 0)
        bench.change()
        await asyncio.sleep(10 * LAZY_S)
        assert bench.commits == 1, "this one was not told to be"

    bench.run(main())


def test_it_may_take_another_while(bench: Bench) -> None:
    async def main() -> None:
        bench.change().lazily(5.0)
        await asyncio.sleep(4.9)
        assert bench.commits == 0
        await asyncio.sleep(0.2)
        assert bench.commits == 1

    bench.run(main())


def test_what_somebody_waits_for_takes_along_what_nobody_waits_for(bench: Bench) -> None:
    async def main() -> None:
        lazy = bench.change(lazily=True)
        await bench.change().written()
        assert (bench.commits, bench.stored) == (1, 2)
        await lazy.written()
        other = bench.change()
        await asyncio.sleep(10 * LAZY_S)
        assert bench.commits == 1, "the timer of the first went with it"
        await other.written()

    bench.run(main())


def test_after_so_many_parts_a_group_waits_for_no_more(bench: Bench) -> None:
    async def main() -> None:
        first = bench.change(lazily=True)
        for _ in range(PARTS_MAX - 1):
            assert bench.change() is first
        assert bench.commits == 0
        second = bench.change()
        assert second is not first
        assert (bench.commits, bench.stored, second.parts) == (1, PARTS_MAX, 1)

    bench.run(main())


def test_what_follows_happens_when_it_is_committed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """In its order, before those who wait go on; one that fails keeps no other from it."""
    happened: list[object] = []

    def fail() -> None:
        raise LookupError

    async def waiting(group: Group) -> None:
        await group.written()
        happened.append("written")

    async def main() -> None:
        group = bench.change()
        for work in (lambda: happened.append(bench.stored), fail, lambda: happened.append("last")):
            group.follow(work)
        task = started(waiting(group))
        await settled()
        assert happened == [1, "last", "written"]
        assert bench.busy == 0
        await task

    bench.run(main())
    assert "what follows from a change that was stored failed" in caplog.text


def test_what_follows_may_make_it_durable(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        group.follow(bench.store.commit)
        await group.written()
        assert bench.syncs == 1
        await group.durable()
        await bench.store.durable()
        assert (bench.syncs, bench.busy) == (1, 0)

    bench.run(main())


# Durable


def test_what_is_durable_was_synced(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        durable = started(group.durable())
        await settled()
        assert (bench.stored, bench.busy, durable.done()) == (1, 1, False)
        await bench.let_go()
        assert (bench.syncs, durable.done()) == (1, True)
        await group.durable()
        await bench.store.durable()
        assert (bench.commits, bench.syncs, bench.busy) == (1, 1, 0)

    bench.run(main())


def test_what_was_only_written_is_synced_for_who_waits_for_it(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        await group.written()
        durable = started(group.durable())
        await settled()
        assert (bench.commits, bench.busy, durable.done()) == (1, 1, False)
        await bench.let_go()
        assert durable.done()

    bench.run(main())


@pytest.mark.parametrize("grows", [0, 3])
def test_a_sync_takes_along_what_is_about_to_be_committed(bench: Bench, grows: int) -> None:
    """One for both, whoever asked first."""

    async def main() -> None:
        first = bench.change()
        await first.written()
        waiting = [started(first.durable()), started(bench.change().durable())]
        for _ in range(grows):
            await asyncio.sleep(0)
            bench.change()
        await settled()
        assert (bench.stored, bench.busy) == (2 + grows, 1)
        await bench.let_go()
        await asyncio.gather(*waiting)
        assert (bench.syncs, bench.busy) == (1, 0)

    bench.run(main())


@pytest.mark.parametrize("refused", [False, True], ids=["taken back", "refused"])
def test_what_fails_keeps_nobody_from_the_sync_that_it_was_to_share(bench: Bench, refused: bool) -> None:
    async def main() -> None:
        first = bench.change()
        await first.written()
        waiting, second = started(first.durable()), started(bench.change().durable())
        for _ in range(3):
            await asyncio.sleep(0)
            bench.change()
        assert bench.busy == 0, "it waits for the second"
        if refused:
            bench.full = True
        else:
            stumble(bench, sure=True)
        await settled()
        assert bench.busy == 1
        await bench.let_go()
        await waiting
        assert await told(second) == (FULL if refused else "it was taken back")

    bench.run(main())


def test_what_comes_during_a_sync_is_the_next(bench: Bench) -> None:
    """It is not even committed before: others may join it."""

    async def main() -> None:
        first = started(bench.change().durable())
        await settled()
        second = started(bench.change().durable())
        await settled()
        third = started(bench.change().written())
        await settled()
        assert (bench.commits, bench.stored, bench.busy) == (1, 1, 1)
        await bench.let_go()
        assert (first.done(), second.done(), third.done()) == (True, False, True)
        assert (bench.commits, bench.stored, bench.busy) == (2, 3, 1)
        await bench.let_go()
        assert second.done()
        assert (bench.syncs, bench.busy) == (2, 0)

    bench.run(main())


def test_who_waits_for_what_was_committed_during_a_sync_is_next(bench: Bench) -> None:
    async def main() -> None:
        first = started(bench.change().durable())
        await settled()
        bench.change()
        bench.store._write()
        second = started(bench.store.durable())
        await settled()
        assert (bench.busy, second.done()) == (1, False)
        await bench.let_go()
        assert (first.done(), second.done(), bench.busy) == (True, False, 1)
        await bench.let_go()
        assert second.done()

    bench.run(main())


def test_what_nobody_waits_for_is_left_alone_after_a_sync(bench: Bench) -> None:
    async def main() -> None:
        durable = started(bench.change().durable())
        await settled()
        bench.change(lazily=True)
        await bench.let_go()
        assert durable.done()
        assert (bench.commits, bench.busy) == (1, 0), "it is not due"
        await asyncio.sleep(LAZY_S)
        assert (bench.commits, bench.busy) == (2, 0)

    bench.run(main())


def test_what_was_due_during_a_sync_is_committed_after_it(bench: Bench) -> None:
    async def main() -> None:
        durable = started(bench.change().durable())
        await settled()
        bench.change(lazily=True)
        await asyncio.sleep(2 * LAZY_S)
        assert bench.commits == 1
        await bench.let_go()
        assert durable.done()
        assert (bench.commits, bench.busy) == (2, 0)

    bench.run(main())


def test_so_many_groups_are_not_left_to_a_power_loss(bench: Bench) -> None:
    async def main() -> None:
        for count in range(1, UNSYNCED_MAX + 1):
            await bench.change().written()
            assert bench.busy == (count == UNSYNCED_MAX)
        await bench.let_go()
        assert (bench.syncs, bench.store._committed) == (1, [])

    bench.run(main())


def test_a_transaction_is_durable_when_it_ends(bench: Bench) -> None:
    async def main() -> None:
        joined = bench.change()
        with bench.store.transaction():
            assert bench.stored == 0
        assert (bench.stored, bench.syncs) == (1, 1)
        await joined.durable()
        bench.store.commit()
        assert (bench.commits, bench.syncs) == (1, 1), "there is nothing more to do"

    bench.run(main())


def test_a_transaction_does_not_wait_for_the_thread(bench: Bench) -> None:
    """Its own sync makes durable what the thread was given too, which then has nothing to tell."""

    async def main() -> None:
        first = started(bench.change().durable())
        await settled()
        with bench.store.transaction():
            pass
        await settled()
        assert first.done()
        assert (bench.busy, bench.syncs) == (1, 1)
        second = started(bench.change().durable())
        await settled()
        assert (bench.busy, second.done()) == (2, False)
        await bench.let_go()
        third = started(bench.store.durable())
        await settled()
        assert (second.done(), third.done()) == (False, False), "it was the other sync"
        await bench.let_go()
        assert second.done()
        assert third.done()

    bench.run(main())


def test_only_what_has_a_name_is_waited_for_by_that_name(bench: Bench) -> None:
    async def main() -> None:
        bench.change().names.add("one")
        await bench.store.durable("other")
        assert bench.commits == 0
        one = started(bench.store.durable("one"))
        await settled()
        assert (bench.busy, one.done()) == (1, False)
        bench.change().names.add("two")
        again = started(bench.store.durable("one"))
        await settled()
        await bench.let_go()
        assert (one.done(), again.done()) == (True, True)
        assert (bench.commits, bench.busy) == (1, 0), "nobody waits for the second"
        assert await bench.store.is_durable("one")
        assert bench.commits == 1

    bench.run(main())


def test_all_that_can_be_read_is_waited_for(bench: Bench) -> None:
    async def main() -> None:
        bench.change()
        bench.store._write()
        everything = started(bench.store.durable())
        await settled()
        assert (bench.busy, everything.done()) == (1, False)
        bench.change()
        more = started(bench.store.durable())
        await settled()
        await bench.let_go()
        assert (everything.done(), more.done()) == (True, False)
        await bench.let_go()
        assert more.done()

    bench.run(main())


# Leaving at once


def test_what_leaves_when_something_is_durable_waits_for_no_turn(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It leaves before anybody else goes on; one that fails keeps no other from it."""
    happened: list[object] = []

    def fail(_: bool) -> None:
        raise LookupError

    async def waiting(group: Group) -> None:
        await group.durable()
        happened.append("durable")

    async def main() -> None:
        group = bench.change()
        group.names.add("one")
        task = started(waiting(group))
        await settled()
        for work in (lambda kept: happened.append((bench.syncs, kept)), fail, happened.append):
            bench.store.once_durable("one", work)
        assert (bench.busy, happened) == (1, [])
        await bench.let_go()
        assert happened == [(1, True), True, "durable"]
        await task
        bench.store.once_durable("one", happened.append)
        assert happened[3:] == [True], "it is durable already"
        assert bench.syncs == 1

    bench.run(main())
    assert "what follows from a change that was stored failed" in caplog.text


@pytest.mark.parametrize("committed", [False, True])
def test_what_is_to_leave_is_synced_for_that(bench: Bench, committed: bool) -> None:
    async def main() -> None:
        happened: list[object] = []
        bench.change().names.add("one")
        if committed:
            bench.store._write()
        bench.store.once_durable("one", happened.append)
        await settled()
        assert (bench.commits, bench.busy, happened) == (1, 1, [])
        await bench.let_go()
        assert happened == [True]

    bench.run(main())


def test_nothing_leaves_that_is_not_stored(bench: Bench) -> None:
    async def main() -> None:
        happened: list[object] = []
        bench.change().names.add("one")
        bench.store.once_durable("one", happened.append)
        bench.full = True
        await settled()
        assert happened == [False]
        bench.full = False
        bench.change().names.add("two")
        bench.store._write()
        bench.store.once_durable("two", happened.append)
        await settled()
        bench.lost = True
        await bench.let_go()
        assert happened == [False, False]
        with pytest.raises(StoreFailedError, match=LOST):
            bench.store.once_durable("two", happened.append)

    bench.run(main())


# Cancelled


@pytest.mark.parametrize("what", ["written", "durable"])
def test_who_is_cancelled_finds_it_durable(bench: Bench, what: str) -> None:
    async def main() -> None:
        group = bench.change()
        task = started(getattr(group, what)())
        other = started(group.durable())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (bench.stored, bench.syncs) == (1, 1)
        await other

    bench.run(main())


def test_who_is_cancelled_while_the_disk_is_full_is_cancelled(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        task, other = started(group.written()), started(group.written())
        await asyncio.sleep(0)
        bench.full = True
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await told(other) == FULL

    bench.run(main())


def test_who_is_cancelled_when_it_is_durable_asks_nothing_of_the_disk(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        task = started(group.durable())
        await asyncio.sleep(0)
        bench.store.commit()
        bench.change()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (bench.commits, bench.syncs) == (1, 1), "the other change waits for its own time"

    bench.run(main())


# Failed


@pytest.mark.parametrize("waited", [["written"], ["durable"], ["written", "durable"]])
def test_of_a_group_that_fails_nothing_happened(
    bench: Bench, caplog: pytest.LogCaptureFixture, waited: list[str]
) -> None:
    """All who wait are told, also those who come later; what should follow does not."""

    async def main() -> None:
        bench.full = True
        group = bench.change()
        group.follow(lambda: pytest.fail("it did not happen"))
        tasks = [started(getattr(group, what)()) for what in waited]
        assert [await told(task) for task in tasks] == [FULL] * len(waited)
        assert [await told(started(group.written())), await told(started(group.durable()))] == [FULL, FULL]
        assert (group.failed, bench.stored, bench.busy) == (True, 0, 0)
        bench.full = False
        later = bench.change()
        await later.written()
        assert (later.failed, bench.stored) == (False, 1)

    bench.run(main())
    assert caplog.text == ""


def test_what_needed_no_hurry_and_failed_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bench.full = True
        group = bench.change(lazily=True)
        await asyncio.sleep(2 * LAZY_S)
        assert group.failed

    with caplog.at_level(logging.WARNING):
        bench.run(main())
    assert "what needed no hurry was not stored, and will be done again: the disk is full" in caplog.text


def test_who_waits_for_a_group_that_a_sync_held_back_is_told_that_it_failed(bench: Bench) -> None:
    async def main() -> None:
        first = started(bench.change().durable())
        await settled()
        second = started(bench.change().written())
        await settled()
        bench.full = True
        await bench.let_go()
        assert first.done()
        assert await told(second) == FULL
        assert bench.stored == 1

    bench.run(main())


def test_what_was_read_and_taken_back_is_to_be_read_again(bench: Bench) -> None:
    async def main() -> None:
        bench.full = True
        bench.change()
        assert not await bench.store.is_durable()
        assert await bench.store.is_durable(), "there is nothing left that is not"

    bench.run(main())


@pytest.mark.parametrize("in_thread", [True, False])
def test_a_disk_that_lost_something_is_trusted_no_more(
    bench: Bench, caplog: pytest.LogCaptureFixture, in_thread: bool
) -> None:
    """Everybody is told, nothing is taken, and it is said once."""
    broke: list[StoreFailedError] = []
    bench.store.on_break = broke.append

    async def main() -> None:
        first = started(bench.change().durable())
        await settled()
        bench.change()
        bench.store._write()
        second, third = started(bench.store.durable()), bench.change()
        waiting = started(third.written())
        await settled()
        assert not bench.store.is_broken
        bench.lost = True
        if in_thread:
            await bench.let_go()
        else:
            with pytest.raises(StoreFailedError, match=LOST):
                bench.store.commit()
        assert [await told(task) for task in (first, second, waiting)] == [LOST] * 3
        assert bench.store.is_broken
        for refused in (bench.store.durable(), bench.store.is_durable()):
            with pytest.raises(StoreFailedError, match=LOST):
                await refused
        with pytest.raises(StoreFailedError, match=LOST):
            bench.change()

    bench.run(main())
    assert [str(error) for error in broke] == [LOST]
    assert f"the store needs a repaired disk, then a restart: {LOST}" in caplog.text


def test_a_disk_that_lost_something_where_nobody_listens(bench: Bench) -> None:
    async def main() -> None:
        bench.lost = True
        with pytest.raises(StoreFailedError, match=LOST), bench.store.transaction():
            pass
        assert bench.store.is_broken

    bench.run(main())


def test_a_bug_in_the_thread_ends_the_trust_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        def bug() -> None:
            raise LookupError("a bug")

        monkeypatch.setattr(bench._file, "sync", bug)
        task = started(bench.change().durable())
        await settled()
        await bench.let_go()
        assert await told(task) == "LookupError('a bug')"
        assert bench.store.is_broken
        monkeypatch.undo()

    bench.run(main())


@pytest.mark.parametrize("lost", [False, True])
def test_where_no_thread_can_be_started_nobody_waits_for_one(bench: Bench, lost: bool) -> None:
    async def main() -> None:
        def refused(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        asyncio.get_running_loop().run_in_executor = refused  # type: ignore[assignment]
        bench.lost = lost
        tasks = [started(bench.change().durable()) for _ in range(2)]
        await settled()
        if lost:
            assert [await told(task) for task in tasks] == [LOST] * 2
        else:
            await asyncio.gather(*tasks)
            await bench.change().durable()
            assert (bench.stored, bench.syncs) == (3, 2)
        assert bench.store.is_broken is lost
        assert asyncio.get_running_loop().time() == 0

    bench.run(main())
