"""Events that only take are decided beside a commit unless it, or an earlier event, concerns the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from blindpost.engine.beside import BESIDE, Beside
from blindpost.engine.inbox import Budget
from blindpost.engine.loop import Engine, OutcomeUnknownError, StoreFailedError
from blindpost.engine.undo import Table, Undo


class Peer:
    account = None

    def __init__(self) -> None:
        self.held: list[str] = []

    def hold(self, reason: str) -> None:
        self.held.append(reason)

    def let_go(self, reason: str) -> None:
        self.held.remove(reason)


class Shelf:
    """A plan with named places: "put x" is committed, "take x" changes memory alone."""

    def __init__(self) -> None:
        self.undo = Undo()
        self.taken: Table[str, int] = Table(self.undo)
        self.stored: set[str] = set()
        self.said: list[str] = []
        self.replies: list[str] = []
        self.busy: set[str] = set()
        self.commit_fails = False
        self.loads_fail = False
        self.gate = asyncio.Event()
        self.committing = asyncio.Event()
        self.loading: asyncio.Event | None = None
        self.loaded: list[Sequence[str]] = []
        self.beside: list[str] = []
        self.batches: list[Sequence[str]] = []
        self.outcome: asyncio.Future[bool] | None = None
        self._puts: list[str] = []

    def subject(self, event: str) -> str | None:
        words = event.split()
        return words[1] if len(words) > 1 else None

    def takes(self, event: str) -> str | None:
        return event.split()[1] if event.startswith("take") else None

    async def prepare(self, batch: Sequence[str]) -> None:
        self.batches.append(batch)
        self.busy = {event.split()[1] for event in batch}
        self._puts = [event.split()[1] for event in batch if event.startswith("put")]

    def decide(self, event: str) -> None:
        self._decide(self.replies, event)

    def _decide(self, replies: list[str], event: str) -> None:
        place = event.split()[1]
        if event.startswith("take"):
            self.taken.put(place, (self.taken.get(place) or 0) + 1)
        replies.append(event)
        self.undo.add((replies.pop,))
        if place == "bug":
            raise KeyError(place)

    def failed(self, event: str) -> None:
        self.said.append(f"failed {event}")
        self.undo.add((self.said.pop,))

    async def commit(self) -> None:
        if self._puts:
            self.committing.set()
            await self.gate.wait()
            if self.commit_fails:
                raise StoreFailedError("no disk")
            if self.outcome is not None:
                outcome, self.outcome = self.outcome, None
                raise OutcomeUnknownError("lost", outcome)
            self.stored.update(self._puts)

    def release(self) -> None:
        self.said += self.replies
        self.replies.clear()

    def refuse(self, batch: Sequence[str], error: StoreFailedError) -> None:
        self.said += [f"refused {event}" for event in batch]

    async def prepare_beside(self, events: Sequence[str]) -> list[str]:
        if self.loads_fail:
            raise StoreFailedError("away")
        self.loaded.append(events)
        if self.loading is not None:
            await self.loading.wait()
        return []

    def take(self, prepared: list[str], event: str) -> bool:
        if event == "take much":
            return False
        self.beside.append(event)
        self._decide(prepared, event)
        return True

    def release_beside(self, prepared: list[str]) -> None:
        self.said += prepared


@asynccontextmanager
async def committing(plan: Shelf, budget: Budget | None = None) -> AsyncIterator[Engine[str]]:
    """An engine in the middle of committing "put a"; the commit ends with the block."""
    engine = Engine(plan, plan.undo, budget, beside=Beside(plan, plan.undo))
    task = asyncio.create_task(engine.run())
    engine.put(Peer(), "put a")
    await plan.committing.wait()
    yield engine
    plan.gate.set()
    engine.stop()
    await task


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_event_that_only_takes_is_answered_during_the_commit_and_holds_its_source() -> None:
    plan, peer = Shelf(), Peer()
    async with committing(plan) as engine:
        engine.put(peer, "take b")
        engine.put_own("take c")
        assert peer.held == [BESIDE]
        await turns()
        assert (plan.said, peer.held) == (["take b", "take c"], [])
    assert plan.said[2:] == ["put a"]


async def test_events_about_the_same_place_or_that_would_overtake_wait_for_the_commit() -> None:
    plan = Shelf()
    async with committing(plan) as engine:
        engine.put(Peer(), "take a")
        engine.put(Peer(), "put b")
        engine.put(Peer(), "take b")
        engine.put(Peer(), "take much")
        await turns()
        assert plan.said == []
    assert plan.said == ["put a", "take a", "put b", "take b", "take much"]


async def test_an_event_may_be_decided_beside_a_commit_once_earlier_ones_are() -> None:
    plan = Shelf()
    async with committing(plan) as engine:
        engine.put(Peer(), "put b")
        plan.gate.set()
        await turns(10)
        plan.gate.clear()
        plan.committing.clear()
        engine.put(Peer(), "put c")
        await plan.committing.wait()
        engine.put(Peer(), "take b")
        await turns()
        assert plan.said == ["put a", "put b", "take b"]


async def test_a_failed_commit_does_not_roll_back_what_was_taken_beside_it() -> None:
    plan = Shelf()
    plan.commit_fails = True
    async with committing(plan) as engine:
        engine.put(Peer(), "take b")
        await turns()
    assert plan.said == ["take b", "refused put a"]
    assert dict(plan.taken.items()) == {"b": 1}


async def test_a_bug_in_one_event_rolls_back_only_that_event() -> None:
    plan = Shelf()
    async with committing(plan) as engine:
        engine.put(Peer(), "take bug")
        engine.put(Peer(), "take b")
        await turns()
    assert dict(plan.taken.items()) == {"b": 1}
    assert plan.said == ["failed take bug", "take b", "put a"]


async def test_an_event_that_cannot_be_loaded_beside_a_commit_waits_for_a_turn() -> None:
    plan, peer = Shelf(), Peer()
    plan.loads_fail = True
    async with committing(plan) as engine:
        engine.put(peer, "take b")
        await turns()
        assert (plan.said, peer.held) == ([], [])
    assert plan.said == ["put a", "take b"]


async def test_an_event_is_left_to_the_next_turn_if_the_commit_ends_meanwhile() -> None:
    plan = Shelf()
    async with committing(plan) as engine:
        engine.put(Peer(), "take b")
        plan.gate.set()
        engine.stop()
    assert plan.said == ["put a", "take b"] or plan.said == ["take b", "put a"]
    assert dict(plan.taken.items()) == {"b": 1}


async def test_events_that_come_together_are_loaded_together_and_every_source_is_let_go() -> None:
    plan, peer = Shelf(), Peer()
    async with committing(plan) as engine:
        engine.put_own("take c")
        engine.put(peer, "take b")
        await turns()
        assert plan.loaded == [["take c", "take b"]]
        assert peer.held == []


async def test_an_event_whose_commit_ended_wakes_the_engine_and_is_decided_in_a_turn() -> None:
    plan = Shelf()
    plan.loading = asyncio.Event()
    async with committing(plan) as engine:
        engine.put(Peer(), "take b")
        await turns()
        plan.gate.set()
        await turns()
        assert plan.said == ["put a"]
        plan.loading.set()
        await turns()
        assert plan.said == ["put a", "take b"]
    assert plan.beside == []


async def test_a_stopping_engine_waits_for_what_is_being_loaded_beside() -> None:
    plan = Shelf()
    plan.loading = asyncio.Event()
    async with committing(plan) as engine:
        engine.put(Peer(), "take b")
        await turns()
        plan.gate.set()
        await turns()
        engine.stop()
        await turns()
        plan.loading.set()
    assert plan.said == ["put a", "take b"]


async def test_what_could_not_be_decided_beside_is_not_overtaken_and_counts_as_one_command() -> None:
    plan = Shelf()
    async with committing(plan, Budget(batch_commands=3, batch_bytes=1)) as engine:
        engine.put_own("take much")
        engine.put(Peer(), "take c")
        plan.loads_fail = True
        await turns()
        plan.loads_fail = False
        engine.put(Peer(), "take much more")
        await turns()
        assert plan.said == []
    assert plan.said == ["put a", "take much", "take c", "take much more"]
    assert plan.batches[1:] == [["take much", "take c", "take much more"]]


async def test_what_was_refused_in_doubt_waits_no_more() -> None:
    plan = Shelf()
    plan.outcome = outcome = asyncio.get_running_loop().create_future()
    async with committing(plan) as engine:
        plan.gate.set()
        await turns()
        engine.put(Peer(), "put b")
        await turns()
        assert plan.said == ["refused put b"]
        outcome.set_result(True)
        await turns()
        plan.gate.clear()
        plan.committing.clear()
        engine.put(Peer(), "put c")
        await plan.committing.wait()
        engine.put(Peer(), "take b")
        await turns()
        assert plan.said == ["refused put b", "put a", "take b"]


async def test_a_place_waits_until_the_last_event_about_it_is_collected() -> None:
    plan = Shelf()
    beside = Beside(plan, plan.undo)
    await beside.done()
    waiting = ["put b first", "put b second", "nothing"]
    for event in waiting:
        assert not beside.offer(None, event)
    beside.collected(["put z"])
    beside.collected(waiting[:1])
    with beside.commit():
        assert not beside.offer(None, "take b")
    beside.collected(["take b", *waiting[1:]])
    assert beside._coming == {}
