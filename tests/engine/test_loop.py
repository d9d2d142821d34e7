"""A turn answers nobody OK before its commit, and a failure rolls back exactly what it must."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from blindpost.engine import loop
from blindpost.engine.inbox import DEBT_MAX, Budget
from blindpost.engine.loop import Cut, Engine, OutcomeUnknownError, StoreFailedError
from blindpost.engine.undo import Table, Undo
from blindpost.testing.clock import VirtualClock, run_virtual


class Peer:
    account = None

    def hold(self, reason: str) -> None: ...

    def let_go(self, reason: str) -> None: ...


class Counting:
    """A plan that counts words: the smallest one possible."""

    def __init__(self) -> None:
        self.undo = Undo()
        self.counts: Table[str, int] = Table(self.undo)
        self.stored: dict[str, int] = {}
        self.replies: list[str] = []
        self.sent: list[str] = []
        self.steps: list[str] = []
        self.commit_fails = 0
        self.batch_max = 1024
        self.debt = 1.0
        self.commit_s = 0.0
        self.commit_is_broken = False
        self.fails_after: set[str] = set()
        self.failing = asyncio.Event()
        self.outcome: asyncio.Future[bool] | None = None
        self.gate: asyncio.Event | None = None
        self.committing = asyncio.Event()
        self.released = asyncio.Event()
        self.refused = asyncio.Event()

    async def prepare(self, batch: Sequence[str]) -> Cut[str] | None:
        self.steps.append(f"prepare {len(batch)}")
        if "poison" in batch:
            self.counts.put("loaded", 1)
            raise KeyError("poison")
        if len(batch) <= self.batch_max:
            return None
        later = list(enumerate(batch))[self.batch_max :]
        return Cut(batch[: self.batch_max], later, [(place, self.debt) for place, _ in later])

    def decide(self, event: str) -> None:
        self.counts.put(event, (self.counts.get(event) or 0) + 1)
        self.replies.append(f"OK {event}")
        self.undo.add((self.replies.pop,))
        if event == "bug":
            raise KeyError(event)

    def failed(self, event: str) -> None:
        self.fail_if("failed")
        self.replies.append(f"INTERNAL {event}")

    async def commit(self) -> None:
        self.steps.append("commit")
        self.committing.set()
        if self.commit_s:
            await asyncio.sleep(self.commit_s)
        if self.commit_is_broken:
            raise KeyError("commit")
        if self.gate is not None:
            await self.gate.wait()
        if self.commit_fails:
            self.commit_fails -= 1
            raise StoreFailedError("no disk")
        if self.outcome is not None:
            outcome, self.outcome = self.outcome, None
            raise OutcomeUnknownError("lost", outcome)
        self.stored = dict(self.counts.items())

    def release(self) -> None:
        self.steps.append("release")
        self.fail_if("release")
        self.sent += self.replies
        self.replies.clear()
        self.released.set()

    def fail_if(self, step: str) -> None:
        if step in self.fails_after:
            self.fails_after.discard(step)
            self.failing.set()
            raise KeyError(step)

    def refuse(self, batch: Sequence[str], error: StoreFailedError) -> None:
        self.fail_if("refuse")
        self.sent += [f"STORE {event}" for event in batch]
        self.refused.set()


@asynccontextmanager
async def running(plan: Counting, budget: Budget | None = None) -> AsyncIterator[Engine[str]]:
    engine = Engine(plan, plan.undo, budget)
    task = asyncio.create_task(engine.run())
    yield engine
    engine.stop()
    await task


async def test_the_steps_run_in_order_and_one_commit_serves_a_batch() -> None:
    plan = Counting()
    async with running(plan) as engine:
        for word in ("a", "b", "a"):
            engine.put(Peer(), word)
    assert plan.steps == ["prepare 3", "commit", "release"]
    assert plan.sent == ["OK a", "OK b", "OK a"]
    assert plan.stored == {"a": 2, "b": 1}


async def test_nothing_is_released_before_the_commit_returned() -> None:
    plan = Counting()
    plan.gate = asyncio.Event()
    async with running(plan) as engine:
        engine.put(Peer(), "a")
        await plan.committing.wait()
        assert plan.sent == []
        engine.put(Peer(), "b")
        plan.gate.set()
    assert plan.sent == ["OK a", "OK b"]


async def test_a_refused_commit_rolls_back_memory_and_replies_and_the_next_turn_runs() -> None:
    plan = Counting()
    plan.commit_fails = 1
    async with running(plan) as engine:
        engine.put(Peer(), "a")
        await plan.released.wait()
        assert dict(plan.counts.items()) == {}
        engine.put(Peer(), "a")
    assert plan.sent == ["STORE a", "OK a"]
    assert plan.stored == {"a": 1}
    assert engine.meters.turns_refused == 1


async def test_a_bug_in_one_event_changes_nothing_and_spares_the_others() -> None:
    plan = Counting()
    async with running(plan) as engine:
        for word in ("a", "bug", "b"):
            engine.put(Peer(), word)
    assert plan.sent == ["OK a", "INTERNAL bug", "OK b"]
    assert plan.stored == {"a": 1, "b": 1}
    assert engine.meters.events_failed == 1


async def test_stopping_decides_what_was_accepted_and_cancels_timers() -> None:
    plan = Counting()
    async with running(plan, Budget(batch_commands=1)) as engine:
        engine.after(3600, "never")
        for word in ("a", "b", "c"):
            engine.put(Peer(), word)
    assert plan.sent == ["OK a", "OK b", "OK c"]


async def test_a_timer_becomes_an_event() -> None:
    plan = Counting()
    async with running(plan) as engine:
        engine.after(0, "tick")
        await plan.released.wait()
    assert plan.sent == ["OK tick"]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_commit_in_doubt_is_answered_when_it_is_known_and_others_are_refused_meanwhile(
    committed: bool,
) -> None:
    plan = Counting()
    plan.outcome = outcome = asyncio.get_running_loop().create_future()
    async with running(plan) as engine:
        engine.put(Peer(), "a")
        await plan.committing.wait()
        engine.put(Peer(), "b")
        await plan.refused.wait()
        assert plan.sent == ["STORE b"]
        assert dict(plan.counts.items()) == {"a": 1}
        outcome.set_result(committed)
        await plan.released.wait()
        engine.put(Peer(), "c")
    assert plan.sent == ["STORE b", "OK a" if committed else "STORE a", "OK c"]
    assert plan.stored == ({"a": 1, "c": 1} if committed else {"c": 1})
    assert engine.meters.turns_refused == (1 if committed else 2)


async def test_a_commit_that_stays_in_doubt_until_the_end_is_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "OUTCOME_AT_STOP_S", 0)
    plan = Counting()
    plan.outcome = asyncio.get_running_loop().create_future()
    async with running(plan) as engine:
        engine.put(Peer(), "a")
        await plan.committing.wait()
    assert plan.sent == []
    assert dict(plan.counts.items()) == {}


async def test_a_stopping_engine_waits_for_an_outcome_that_comes_soon() -> None:
    plan = Counting()
    plan.outcome = outcome = asyncio.get_running_loop().create_future()
    async with running(plan) as engine:
        engine.put(Peer(), "a")
        await plan.committing.wait()
        engine.stop()
        await asyncio.sleep(0)
        outcome.set_result(True)
    assert plan.sent == ["OK a"]


async def test_a_bug_in_shared_work_of_a_batch_refuses_it_and_the_server_continues() -> None:
    plan = Counting()
    async with running(plan) as engine:
        engine.put(Peer(), "poison")
        await plan.refused.wait()
        engine.put(Peer(), "a")
    assert plan.sent == ["STORE poison", "OK a"]
    assert plan.stored == {"a": 1}
    assert engine.meters.turns_refused == 1


async def test_an_event_that_cannot_be_prepared_is_refused_alone_and_order_is_kept() -> None:
    plan = Counting()
    async with running(plan) as engine:
        one, other = Peer(), Peer()
        for number in range(5):
            engine.put(one, f"a{number}")
        for event in ("b0", "poison", "b1"):
            engine.put(other, event)
    assert sorted(plan.sent) == [*(f"OK a{n}" for n in range(5)), "OK b0", "OK b1", "STORE poison"]
    for prefix in ("OK a", "OK b"):
        told = [said for said in plan.sent if said.startswith(prefix)]
        assert told == sorted(told)
    assert plan.sent.index("OK b0") < plan.sent.index("STORE poison") < plan.sent.index("OK b1")
    assert engine.meters.turns_refused == 1


@pytest.mark.parametrize(
    ("first", "commit_s", "turns"),
    [
        (("a", "b"), 0.01, [2, 2]),  # they had company, and a commit is worth the wait
        (("a", "b"), 0.0, [2, 1, 1]),
        (("a",), 0.01, [1, 1, 1]),
    ],
)
def test_clients_answered_together_share_the_next_commit_if_commits_are_slow(
    first: Sequence[str], commit_s: float, turns: list[int]
) -> None:
    async def main() -> None:
        plan = Counting()
        plan.commit_s = commit_s
        async with running(plan) as engine:
            for event in first:
                engine.put_own(event)
            await plan.released.wait()
            await asyncio.sleep(0.1)
            engine.put_own("c")
            asyncio.get_running_loop().call_later(loop.GATHER_S / 2, engine.put_own, "d")
            await asyncio.sleep(0.1)
        assert [step for step in plan.steps if step.startswith("prepare")] == [f"prepare {n}" for n in turns]

    run_virtual(main())


@pytest.mark.parametrize("step", ["release", "refuse", "failed"])
async def test_a_failure_after_a_turn_does_not_end_the_loop(step: str) -> None:
    plan = Counting()
    plan.fails_after = {step}
    plan.commit_fails = step == "refuse"
    async with running(plan) as engine:
        engine.put(Peer(), "bug" if step == "failed" else "a")
        await plan.failing.wait()
        engine.put(Peer(), "b")
    assert plan.sent[-1] == "OK b"
    assert engine.meters.releases_failed == 1


async def test_a_batch_with_too_much_work_is_decided_in_parts_and_in_order() -> None:
    plan = Counting()
    plan.batch_max = 2
    peer = Peer()
    async with running(plan) as engine:
        for word in ("a", "b", "c", "d", "e"):
            engine.put(peer, word)
    assert plan.sent == [f"OK {word}" for word in "abcde"]
    assert plan.steps.count("commit") == 3
    assert engine.meters.turns_cut == 2


async def test_a_source_that_asks_for_too_much_work_is_in_debt() -> None:
    plan = Counting()
    plan.batch_max, plan.debt = 1, DEBT_MAX + 100
    peer = Peer()
    async with running(plan) as engine:
        for word in ("a", "b"):
            engine.put(peer, word)
        await plan.released.wait()
        assert engine.in_debt == 1


async def test_an_event_that_cannot_be_prepared_leaves_nothing_that_was_loaded_for_it() -> None:
    plan = Counting()
    async with running(plan) as engine:
        engine.put(Peer(), "a")
        engine.put(Peer(), "poison")
    assert plan.sent == ["OK a", "STORE poison"]
    assert dict(plan.counts.items()) == {"a": 1}


async def test_a_bug_in_a_commit_takes_everything_back() -> None:
    plan = Counting()
    plan.commit_is_broken = True
    async with running(plan) as engine:
        engine.put(Peer(), "a")
    assert plan.sent == ["STORE a"]
    assert dict(plan.counts.items()) == {}
    assert engine.meters.turns_refused == 1


def test_turns_are_counted_and_timed() -> None:
    class Clock(VirtualClock):
        ahead = 7.0

        def time(self) -> float:
            return super().time() + self.ahead

    class Slow(Counting):
        def release(self) -> None:
            super().release()
            Clock.ahead += 2.0

    async def main() -> None:
        plan = Slow()
        plan.commit_s = 0.25
        async with running(plan, Budget(batch_commands=2)) as engine:
            for word in ("a", "b", "c"):
                engine.put(Peer(), word)
        meters = engine.meters
        assert (meters.turns, meters.events, meters.batch_events_max) == (2, 3, 2)
        assert (meters.commit_s.count, meters.turn_s.count) == (2, 2)
        assert meters.commit_s.total == pytest.approx(0.5)
        assert meters.turn_s.total == pytest.approx(4.5)

    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(main())


def test_others_have_their_turn_between_two_batches() -> None:
    class Watched(Counting):
        async def commit(self) -> None:
            await super().commit()
            asyncio.get_running_loop().call_soon(self.steps.append, "another")

    async def main() -> None:
        plan = Watched()
        async with running(plan, Budget(batch_commands=1)) as engine:
            for word in ("a", "b"):
                engine.put(Peer(), word)
        assert plan.steps.index("another") < len(plan.steps) - 1 - plan.steps[::-1].index("prepare 1")

    run_virtual(main())


def test_one_can_wait_until_nothing_is_undecided_but_not_forever() -> None:
    async def main() -> None:
        plan = Counting()
        time = asyncio.get_running_loop().time
        async with running(plan) as engine:
            began = time()
            await engine.settled()
            assert time() == began
            for commit_s, waited_s in ((0.5, 0.5), (3600.0, loop.SETTLED_TRIES * loop.SETTLED_S)):
                plan.commit_s = commit_s
                plan.committing.clear()
                engine.put(Peer(), "a")
                await plan.committing.wait()
                began = time()
                await engine.settled()
                assert time() - began == pytest.approx(waited_s, abs=2 * loop.SETTLED_S)

    run_virtual(main())


def test_timers_end_with_the_engine_and_are_forgotten_when_they_were_due() -> None:
    async def main() -> None:
        plan = Counting()
        async with running(plan) as engine:
            engine.after(1, "tick")
            engine.after(3, "never")
            await asyncio.sleep(2)
            assert plan.sent == ["OK tick"]
            assert len(engine._timers) == 1
        await asyncio.sleep(2)
        assert engine.waiting == 0

    run_virtual(main())


def test_an_engine_that_sleeps_in_doubt_wakes_when_the_outcome_is_known() -> None:
    async def main() -> None:
        plan = Counting()
        plan.outcome = outcome = asyncio.get_running_loop().create_future()
        async with running(plan) as engine:
            engine.put(Peer(), "a")
            await asyncio.sleep(1)
            outcome.set_result(True)
            await asyncio.sleep(1)
            assert plan.sent == ["OK a"]

    run_virtual(main())


def test_in_doubt_everybody_is_refused_at_once_and_others_have_their_turn() -> None:
    class Watched(Counting):
        def refuse(self, batch: Sequence[str], error: StoreFailedError) -> None:
            super().refuse(batch, error)
            asyncio.get_running_loop().call_soon(self.sent.append, "another")

    async def main() -> None:
        plan = Watched()
        plan.outcome = outcome = asyncio.get_running_loop().create_future()
        async with running(plan, Budget(batch_commands=1)) as engine:
            engine.put(Peer(), "a")
            await asyncio.sleep(1)
            for word in ("b", "c"):
                engine.put(Peer(), word)
            await asyncio.sleep(0.5)
            assert plan.sent == ["STORE b", "another", "STORE c", "another"]
            outcome.set_result(True)

    run_virtual(main())
