"""Events that only take are decided beside a commit unless it, or an earlier event, concerns the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from blindpost.engine.beside import BESIDE, Beside
from blindpost.engine.loop import Engine, StoreFailedError
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
        self._puts: list[str] = []

    def subject(self, event: str) -> str | None:
        return event.split()[1]

    def takes(self, event: str) -> str | None:
        return event.split()[1] if event.startswith("take") else None

    async def prepare(self, batch: Sequence[str]) -> None:
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

    async def commit(self) -> None:
        if self._puts:
            self.committing.set()
            await self.gate.wait()
            if self.commit_fails:
                raise StoreFailedError("no disk")
            self.stored.update(self._puts)

    def release(self) -> None:
        self.said += self.replies
        self.replies.clear()

    def refuse(self, batch: Sequence[str], error: StoreFailedError) -> None:
        self.said += [f"refused {event}" for event in batch]

    async def prepare_beside(self, events: Sequence[str]) -> list[str]:
        if self.loads_fail:
            raise StoreFailedError("away")
        return []

    def take(self, prepared: list[str], event: str) -> bool:
        if event == "take much":
            return False
        self._decide(prepared, event)
        return True

    def release_beside(self, prepared: list[str]) -> None:
        self.said += prepared


@asynccontextmanager
async def committing(plan: Shelf) -> AsyncIterator[Engine[str]]:
    """An engine in the middle of committing "put a"; the commit ends with the block."""
    engine = Engine(plan, plan.undo, beside=Beside(plan, plan.undo))
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
