"""Parts of a group: what one that fails takes with it; and what a store does without syncs, and erases."""

from __future__ import annotations

import asyncio

import pytest

from blindpost.agent.store.database import ERASED_AFTER_S, AgentStore
from blindpost.engine.loop import StoreFailedError
from blindpost.testing.clock import run_virtual
from tests.support.agent.bench import Bench, started, stumble, told

# Parts


def test_a_part_inside_of_another_is_a_mistake(bench: Bench) -> None:
    async def main() -> None:
        with bench.store.part(), pytest.raises(RuntimeError, match="inside of another"):
            bench.change()
        bench.change()

    bench.run(main())


def test_a_first_part_that_fails_leaves_no_group(bench: Bench) -> None:
    async def main() -> None:
        stumble(bench)
        assert bench.store._group is None
        await bench.change().written()
        assert (bench.stored, bench.commits) == (1, 1)

    bench.run(main())


def test_a_later_part_that_fails_takes_nothing_with_it(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        stumble(bench)
        assert bench.change() is group
        await group.written()
        assert (bench.stored, group.parts) == (2, 2)

    bench.run(main())


def test_one_that_was_sure_not_to_fail_and_does_takes_all_with_it(bench: Bench) -> None:
    async def main() -> None:
        group = bench.change()
        stumble(bench, sure=True)
        assert await told(started(group.written())) == "it was taken back"
        assert bench.stored == 0

    bench.run(main())


@pytest.mark.parametrize("seldom", [True, False])
@pytest.mark.parametrize("spare", [True, False])
def test_only_what_would_be_done_again_is_taken_back_with_another_part(
    bench: Bench, spare: bool, seldom: bool
) -> None:
    """And only by one that almost never raises after it has changed something; before, it takes nothing."""

    async def main() -> None:
        group = bench.change(sure=True, spare=spare)
        stumble(bench, changed=False, seldom=seldom)
        assert not group.failed
        stumble(bench, seldom=seldom)
        assert group.failed is (spare and seldom)
        bench.store.commit()
        assert bench.stored == (not group.failed)

    bench.run(main())


@pytest.mark.parametrize(
    ("how", "asked"),
    [
        ({}, ["SAVEPOINT part", "RELEASE part"]),
        ({"sure": True}, []),
        ({"seldom": True}, ["SAVEPOINT part", "RELEASE part"]),
        ({"spare": True}, ["SAVEPOINT part", "RELEASE part"]),
    ],
)
def test_a_part_has_a_savepoint_only_if_it_needs_one(
    bench: Bench, how: dict[str, bool], asked: list[str]
) -> None:
    """The first of a group has none: with it the group is taken back."""
    statements: list[str] = []

    async def main() -> None:
        bench.store.reading.sql.set_trace_callback(statements.append)
        bench.change()
        bench.change(**how)
        bench.store.reading.sql.set_trace_callback(None)

    bench.run(main())
    assert [one for one in statements if "INSERT" not in one] == ["BEGIN IMMEDIATE", *asked]


@pytest.mark.parametrize("changed", [True, False])
def test_a_savepoint_ends_with_its_part_although_it_fails(bench: Bench, changed: bool) -> None:
    statements: list[str] = []

    async def main() -> None:
        bench.change()
        bench.store.reading.sql.set_trace_callback(statements.append)
        stumble(bench, changed=changed)
        stumble(bench, changed=False, sure=True)
        bench.store.reading.sql.set_trace_callback(None)

    bench.run(main())
    asked = [one for one in statements if "INSERT" not in one]
    assert asked == ["SAVEPOINT part", "ROLLBACK TO part", "RELEASE part"]


def test_a_group_is_spare_only_if_all_its_parts_are(bench: Bench) -> None:
    async def main() -> None:
        assert bench.change(spare=True).spare
        assert bench.change(spare=True).spare
        assert not bench.change().spare
        assert not bench.change(spare=True).spare

    bench.run(main())


def test_an_error_of_sqlite_ends_the_whole_group(bench: Bench) -> None:
    """After some of them, such as a full disk, SQLite has taken back everything by itself."""

    async def main() -> None:
        group = bench.change()
        with pytest.raises(StoreFailedError, match="no such table"), bench.store.part():
            bench.store.reading.sql.execute("INSERT INTO absent VALUES (1)")
        assert "no such table" in await told(started(group.written()))
        await bench.change().written()
        assert bench.stored == 1

    bench.run(main())


# A store that leaves it to the system when the disk has it


def test_without_syncs_what_is_committed_counts_as_durable(store: AgentStore) -> None:
    async def main() -> None:
        bench = Bench(store)
        group = bench.change()
        await asyncio.gather(group.written(), group.durable(), bench.store.durable())
        with bench.store.transaction():
            pass
        assert (bench.commits, bench.syncs, bench.store._committed) == (2, 0, [])

    run_virtual(main())


# What was deleted


def test_what_was_deleted_is_erased_some_time_after_a_commit(bench: Bench) -> None:
    """Once for all commits of that time; what waits is committed before."""
    erased: list[int] = []
    bench._file.erase = lambda: erased.append(bench.stored)  # type: ignore[method-assign]

    async def main() -> None:
        await asyncio.sleep(2 * ERASED_AFTER_S)
        assert erased == []
        for _ in range(2):
            await bench.change().written()
        bench.change()
        await asyncio.sleep(ERASED_AFTER_S - 0.001)
        assert erased == []
        await asyncio.sleep(0.002)
        assert (erased, bench.syncs) == ([3], 1)
        await asyncio.sleep(3 * ERASED_AFTER_S)
        assert erased == [3, 3], "its own commit was the last"
        await bench.change().written()
        await asyncio.sleep(ERASED_AFTER_S + 0.001)
        assert erased == [3, 3, 4]

    bench.run(main())
