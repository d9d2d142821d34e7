"""Bugs that the simulation of the whole network must find: each is planted in the real code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent.messages import sending
from blindpost.agent.rotation import recipient
from blindpost.agent.rotation.commands import RotationCommands
from blindpost.agent.store import connections, messages, ratchets
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.store.subscriptions import SubQueue
from blindpost.agent.subscriptions.batches import Batches
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.transactions import Tx
from blindpost.chat import Draft, Unit
from blindpost.crypto.authorizers import Verifier
from blindpost.ds.model import DsRules
from blindpost.ds.state import DsState, Reach
from blindpost.ds.tables import LmdbTables, change_rows
from blindpost.ds.turn import Turn as DsTurn
from blindpost.ds.view import View, Wanted
from blindpost.engine.loop import Engine
from blindpost.engine.undo import Undo
from blindpost.ntf import ledger, outcomes, pushes
from blindpost.ntf.machines import LedgerEvent
from blindpost.router import asking, decisions, delivery, notifications, queues, subscriptions
from blindpost.router.asking import Asked
from blindpost.router.authority import Keys
from blindpost.router.events import Event
from blindpost.router.fronts.fleet import Front
from blindpost.router.model import QueueRecord
from blindpost.router.state import Registry, RouterClient
from blindpost.router.turn import Turn
from blindpost.store.contract import Durability
from blindpost.wire.smp.responses import END
from blindpost.wire.smp.transmissions import Request
from simulation.genesis import Genesis, make_genesis
from simulation.run import FailedRunError
from simulation.schedules import WEIGHTS, Schedule, draw
from simulation.shrinking import shrunk
from simulation.simulate import fast_folder, simulate
from simulation.story import story

pytestmark = [
    # A process that dies between making a coroutine and awaiting it leaves the coroutine as it is.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SEEDS_UNTIL_FOUND = 500
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def genesis() -> Iterator[Genesis]:
    folder = fast_folder()
    yield make_genesis(folder)
    shutil.rmtree(folder)
    gc.collect()  # here, not in a test that does not expect what dead processes left


def found(genesis: Genesis, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> tuple[int, FailedRunError]:
    """The first seed that fails, and how."""
    plant(monkeypatch)
    weights = {**WEIGHTS, **OFTEN.get(plant, {})}
    for seed in range(SEEDS_UNTIL_FOUND):
        schedule = draw(seed, weights=weights)
        if plant in OF_BOTS and not schedule.cast.bots:
            continue
        if plant in OF_FRONTS and not schedule.cast.fronts:
            continue
        try:
            simulate(genesis, seed, schedule)
        except FailedRunError as failure:
            return seed, failure
    pytest.fail("the simulation did not find the bug")


def lose_a_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then a message that arrives at an empty queue wakes nobody."""
    real, arrived = delivery.message_arrived, itertools.count(1)

    def message_arrived(turn: Turn, record: QueueRecord) -> None:
        if next(arrived) % 7:
            real(turn, record)

    monkeypatch.setattr(queues, "message_arrived", message_arrived)


def answer_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def turn(engine: Engine[Event], batch: list[Event]) -> None:
        await engine._plan.prepare(batch)
        for event in batch:
            engine._decide(event)
        engine._plan.release()
        await engine._plan.commit()
        engine._undo.forget()

    monkeypatch.setattr(Engine, "_turn", turn)


def tell_the_wrong_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes a queue over is told that it was taken from it."""

    def displaced(turn: Turn, client: RouterClient, loser: RouterClient | None, recipient_id: bytes) -> None:
        if loser is not None and loser is not client:
            turn.state.drop_sub(loser, recipient_id)
            turn.push(client, recipient_id, END())

    monkeypatch.setattr(subscriptions, "_displaced", displaced)


def save_the_ratchet_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratchet is stored a moment after the message: a crash in between uses a key twice."""
    grounds: dict[int, Ground] = {}
    made = Ground.__init__

    def init(ground: Ground, *args: Any) -> None:
        made(ground, *args)
        grounds[id(ground.config)] = ground

    def insert_snd(tx: Any, record: Any, message: Any, ratchet: Any, *rest: Any) -> None:
        messages.insert_snd(tx, record, message, None, *rest)
        ground = grounds[id(tx.config)]

        def store() -> None:
            with ground.store.transaction() as db:
                ratchets.set_ratchet(db, record.conn_id, ratchet)

        if ratchet is not None:
            asyncio.get_running_loop().call_later(0.0005, store)

    class Later:
        def __getattr__(self, name: str) -> Any:
            return insert_snd if name == "insert_snd" else getattr(messages, name)

    monkeypatch.setattr(Ground, "__init__", init)
    monkeypatch.setattr(sending, "messages", Later())


def mark_before_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications end as accepted when their push is asked for; not all, as a bug of some other cause."""
    real, asked = pushes._message_push, itertools.count(1)

    def message_push(turn: Any, token: Any, job: int) -> Any:
        push = real(turn, token, job)
        if push is not None and next(asked) % 3 == 0:
            outcomes._settle(turn, push, LedgerEvent.PUSH_ACCEPTED)
        return push

    monkeypatch.setattr(pushes, "_message_push", message_push)


def lose_leases_at_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery service that begins again takes what was leased for taken."""
    init, hold = LmdbTables.__init__, DsState.hold
    leased: dict[tuple[bytes, int], bytes] = {}
    seen: set[Path] = set()

    def held(
        state: Any, peer: Any, question: int, queue: bytes, entries: Any, until: float, request: Any
    ) -> None:
        hold(state, peer, question, queue, entries, until, request)
        leased.update(((queue, entry.number), entry.tag) for entry in entries)

    def opened(tables: LmdbTables, folder: Path, durability: Durability) -> None:
        init(tables, folder, durability)
        view, reaches = View(Undo()), dict[bytes, Reach]()
        wanted = Wanted(queues={queue for queue, _ in leased}, entries=set(leased))
        with contextlib.suppress(StopIteration):
            tables.load(wanted, view, reaches.__getitem__, DsRules()).send(None)
        for (queue, number), tag in leased.items():
            entry = view.entry(queue, number)
            if folder in seen and entry is not None and entry.tag == tag:
                view.delete(queue, entry)
        tables.store.commit(list(change_rows(view.changes)))
        seen.add(folder)
        leased.clear()

    monkeypatch.setattr(LmdbTables, "__init__", opened)
    monkeypatch.setattr(DsState, "hold", held)


def deliver_twice_after_a_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lost a queue is told so, and keeps the message that was in flight to it."""

    def displaced(turn: Turn, client: RouterClient, loser: RouterClient | None, recipient_id: bytes) -> None:
        if loser is not None and loser is not client:
            turn.push(loser, recipient_id, END())

    monkeypatch.setattr(subscriptions, "_displaced", displaced)


def delete_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotation deletes the old queue when the sender is told of the new one, not when it has come there."""
    real = RotationCommands._secure

    async def secure(commands: RotationCommands, command: StoredCommand) -> None:
        await real(commands, command)
        old = recipient.switching(connections.load_whole(commands._ground.store.reading, command.conn_id))
        if old is not None:
            await commands._delete(old)

    monkeypatch.setattr(RotationCommands, "_secure", secure)


def keep_a_stale_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is judged by the keys that its queue had when its batch was loaded."""

    def still_authorized(record: QueueRecord | None, verifier: Verifier, asked: Asked) -> bool:
        return asked.authorized

    monkeypatch.setattr(decisions, "still_authorized", still_authorized)


def forget_a_queue_in_the_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that differs from its router asks for all of its queues but the last."""
    real = Batches.associated_pages

    def associated_pages(batches: Batches) -> Iterator[list[SubQueue]]:
        for page in real(batches):
            yield page[:-1]

    monkeypatch.setattr(Batches, "associated_pages", associated_pages)


def answer_before_the_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a bot says is committed by itself, a moment before the message that it answers is done."""

    async def done(unit: Unit, draft: Draft | None = None) -> None:
        for part in (draft, unit._settle):
            if part is not None:
                await unit._chats.commit(part)
            await asyncio.sleep(0)

    monkeypatch.setattr(Unit, "done", done)


def believe_a_stale_verdict_of_a_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever key a front verified with, the engine takes it for the one that the queue has now."""

    def is_settled(client: RouterClient, request: Request, keys: Keys, verified_with: bytes) -> bool:
        return keys is not None and len(keys) == 1 and client.service is None

    monkeypatch.setattr(asking, "is_settled", is_settled)


def keep_the_connections_of_a_dead_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that ends is replaced, and its connections stay subscribed."""
    monkeypatch.setattr(Front, "_lost", lambda front: front._fleet.ended(front))


def forget_what_waits_for_a_notifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """NSUB is answered, and what came before it stays in the router until it is too old."""

    def deliver_pending(turn: Turn, client: RouterClient, notifier_id: bytes) -> None:
        client.waiting_notifiers.pop(notifier_id)

    monkeypatch.setattr(notifications, "deliver_pending", deliver_pending)


def keep_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that ends stays the holder of what it was subscribed to."""
    monkeypatch.setattr(Registry, "leave", lambda registry, entity_id, client: None)


def tell_nobody_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue has room again, and its sender tries when it would have tried anyway."""
    monkeypatch.setattr(Tx, "tell_room", lambda tx, queue: None)


def wake_nobody_for_a_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers who wait for a payload get it when they ask the next time."""
    monkeypatch.setattr(DsTurn, "wake", lambda turn, queue, delay_s=0.0: None)


def accept_what_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that is accepted also ends the notifications that came while it was under way."""

    def settle(turn: Any, push: Any, event: LedgerEvent) -> None:
        for subscription_id, _ in push.carried:
            notification = turn.view.notifications.get(subscription_id)
            if notification is not None:
                ledger.settle(turn, notification, event)

    monkeypatch.setattr(outcomes, "_settle", settle)


OFTEN: dict[Plant, dict[str, int]] = {
    answer_before_the_acknowledgement: {"ask": 60, "bot crash": 40},
    answer_before_the_commit: {"refused commits": 0, "doubtful commit": 0},
    deliver_twice_after_a_take_over: {"take over": 20, "write": 20},
    delete_too_early: {"switch": 12},
    keep_a_stale_verdict: {"re-key": 20},
    believe_a_stale_verdict_of_a_front: {"take over": 30, "re-key": 30},
    forget_a_queue_in_the_repair: {"drift": 20, "switch": 12, "connect": 10},
}
"""What happens more often than otherwise, so that a bug is found soon; and what does not happen, since it
would show the bug for another reason than the one it is planted for."""
OF_BOTS = (answer_before_the_acknowledgement,)
"""What only runs with a bot can show."""
OF_FRONTS = (believe_a_stale_verdict_of_a_front, keep_the_connections_of_a_dead_front)
"""What only runs with fronts can show."""
BUGS: dict[Plant, tuple[str, ...]] = {
    lose_a_wake_up: (
        "messages are missing",
        "keeps",
        "not acknowledged",
        "rotation",
        "were not given",
        "under way",
    ),
    answer_before_the_commit: (
        "messages are missing",
        "payloads are missing",
        "AUTH",
        "were not given",
        "came again",
        "takes no key",
    ),
    tell_the_wrong_session: (
        "is not subscribed",
        "nobody else asked for it",
        "was not told",
        "was asked although",
    ),
    save_the_ratchet_later: ("is told of a failure", "messages are missing"),
    mark_before_it_is_accepted: ("marked as accepted",),
    deliver_twice_after_a_take_over: (
        "after it was told that it lost",
        "acknowledged twice",
        "came again",
        "that another one holds",
    ),
    delete_too_early: ("AUTH", "messages are missing", "will not be sent"),
    keep_a_stale_verdict: ("a key that it had replaced", "the key that it had just taken"),
    forget_a_queue_in_the_repair: ("although it knows all that routers have", "counts"),
    lose_leases_at_a_restart: ("payloads are missing", "not acknowledged"),
    answer_before_the_acknowledgement: ("was answered twice",),
    believe_a_stale_verdict_of_a_front: ("a key that it had replaced",),
    keep_the_connections_of_a_dead_front: ("of fronts that are gone",),
    forget_what_waits_for_a_notifier: ("notifications",),
    keep_who_is_gone: ("is subscribed still",),
    tell_nobody_of_room: ("under way", "messages are missing"),
    wake_nobody_for_a_payload: ("payloads",),
    accept_what_is_newer: ("marked as accepted",),
}
"""Each bug, and what of it may be seen."""


@pytest.mark.skipif(os.environ.get("BLINDPOST_PLANTED") != "1", reason="`make simulate-long` plants them")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_it_finds(plant: Plant, genesis: Genesis, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, failure = found(genesis, plant, monkeypatch)
    assert any(symptom in failure.what for symptom in BUGS[plant]), failure
    print(f"{plant.__name__}: seed {seed}, {failure.what}")


def test_a_failing_run_is_shrunk_to_a_short_story(genesis: Genesis, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, failure = found(genesis, save_the_ratchet_later, monkeypatch)
    schedule, last = shrunk(genesis, seed, draw(seed), failure)
    assert len(schedule.steps) < len(draw(seed).steps)
    (kind,) = {step.kind for step in schedule.steps}
    assert kind in ("send", "ask", "bot crash"), "somebody says something, and may die of it"
    told = story(schedule, last.report)
    assert kind in told
    assert last.what in told
    assert simulate_again(genesis, seed, schedule) == last.report.trace


def simulate_again(genesis: Genesis, seed: int, schedule: Schedule) -> list[str]:
    with pytest.raises(FailedRunError) as raised:
        simulate(genesis, seed, schedule)
    return raised.value.report.trace
