"""Services in the simulation: fights for one identity, SUBs beside SUBS, deletions and failures in a walk.

`BLINDPOST_FIGHTS=1000 pytest tests/router/test_simulation_services.py` draws more schedules than the suite.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.secret import Secret
from blindpost.engine.undo import Undo
from blindpost.router.changes import Wanted
from blindpost.router.meters import Meter
from blindpost.router.model import Ends, QueueRecord, StoredMessage, day_of
from blindpost.router.view import View
from blindpost.testing.clock import run_virtual
from blindpost.wire.smp.commands import ACK, DEL, NEW, SEND, SUB
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ALLS, ENDS, ERR, MSG, SOKS, Response
from blindpost.wire.smp.values import QueueMode, QueueRequest
from tests.support.simulation.actions import all_of
from tests.support.simulation.callers import Caller, Keyring, Said
from tests.support.simulation.promises import Message, Queue
from tests.support.simulation.schedules import drain, perform
from tests.support.simulation.world import START_S, Simulation, World

FIGHTS = int(os.environ.get("BLINDPOST_FIGHTS", "80"))
FIGHT = (
    *("open_service", "subscribe_service", "sub", "new", "send", "ack", "delete", "cut", "stall", "read_on"),
    *("open_plain", "slow_store", "failing_store", "break_queue", "hesitate", "flood", "settle"),
)
ONE_SERVICE = World(services=1, notifier_services=0)
STEPS = st.lists(st.tuples(st.sampled_from(FIGHT), st.integers(0, 2**32 - 1)), max_size=60)


@pytest.fixture(autouse=True)
def _quiet_logs(caplog: pytest.LogCaptureFixture) -> None:
    """The router tells of every planned failure."""
    caplog.set_level(logging.CRITICAL, "blindpost")


def staged(folder: Path, scene: Callable[[Simulation], Awaitable[None]], world: World = ONE_SERVICE) -> None:
    """Play a scene; at its end everything promised must arrive."""

    async def played() -> None:
        simulation = Simulation(folder, "a scene", world)
        simulation.start()
        try:
            await scene(simulation)
            await drain(simulation)
            await simulation.stop()
        except BaseException:
            simulation.abandon()
            raise

    run_virtual(played())


async def service(simulation: Simulation) -> Caller:
    caller = simulation.open(simulation.identities[0])
    await simulation.settle()
    return caller


async def queues_of(simulation: Simulation, caller: Caller, count: int) -> list[Keyring]:
    """New queues of the connection's service."""
    keyrings = [simulation.new_keyring() for _ in range(count)]
    for keyring in keyrings:
        request = QueueRequest(QueueMode.MESSAGING)
        command = NEW(keyring.key.public, keyring.dh_key.public, request=request)
        simulation.say(caller, Said(command, b"", keyring.key, keyring))
    await simulation.settle()
    return keyrings


def send(simulation: Simulation, caller: Caller, keyrings: list[Keyring]) -> None:
    """Send a message to each of these queues, in one block if they fit."""
    sayings = [Said(SEND(False, simulation.new_body()), one.sender_id, None, one) for one in keyrings]
    simulation.say(caller, *sayings)


def about(keyring: Keyring, command: SUB | ACK | DEL) -> Said:
    return Said(command, keyring.recipient_id, keyring.key, keyring)


def kinds(caller: Caller, *wanted: type[Response]) -> list[Response]:
    """The events of these kinds that a connection received, in order."""
    return [received.response for received in caller.heard if isinstance(received.response, wanted)]


async def waiting_service(simulation: Simulation, count: int) -> tuple[list[Keyring], Caller]:
    """A service with a message in each of its queues and nobody connected; and a sender."""
    creator, sender = await service(simulation), simulation.open()
    keyrings = await queues_of(simulation, creator, count)
    simulation.cut(creator)
    await simulation.settle()
    send(simulation, sender, keyrings)
    await simulation.settle()
    return keyrings, sender


@pytest.mark.timeout(120 + FIGHTS)
@settings(
    max_examples=FIGHTS, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=STEPS, step_size=st.sampled_from((1, 2, 16)))
def test_services_fight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, int]], step_size: int
) -> None:
    """Any schedule: two clients with one identity, SUBs racing SUBS, deletions in a walk, a failing queue."""
    monkeypatch.setattr("blindpost.router.plan.SERVE_STEP", step_size)
    place = tmp_path / "store"

    async def scene(simulation: Simulation) -> None:
        await waiting_service(simulation, 5)
        for caller in (await service(simulation), await service(simulation)):
            simulation.say(caller, all_of(caller.identity))
        for name, drawn in steps:
            await perform(simulation, name, random.Random(drawn))

    try:
        staged(place, scene)
    finally:
        shutil.rmtree(place)


def test_a_service_without_queues_gets_alls_at_once(tmp_path: Path) -> None:
    async def scene(simulation: Simulation) -> None:
        caller = await service(simulation)
        for _ in range(2):
            simulation.say(caller, all_of(caller.identity))
            await simulation.settle()
        assert kinds(caller, SOKS, ALLS) == [SOKS(0), ALLS(), SOKS(0)]

    staged(tmp_path, scene)


def test_a_walk_ends_although_its_queues_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blindpost.router.plan.SERVE_STEP", 1)

    async def scene(simulation: Simulation) -> None:
        keyrings, sender = await waiting_service(simulation, 6)
        caller = await service(simulation)
        simulation.store.commit_s = 0.1
        simulation.say(caller, all_of(caller.identity))
        await simulation.wait(0.3)
        simulation.say(sender, *(about(keyring, DEL()) for keyring in keyrings))
        await simulation.settle()
        came = len(kinds(caller, MSG))
        assert 0 < came < 6
        assert len(kinds(caller, ALLS)) == 1

    staged(tmp_path, scene)


def test_a_failing_queue_is_named_before_alls_and_holds_up_no_other(tmp_path: Path) -> None:
    async def scene(simulation: Simulation) -> None:
        keyrings, _ = await waiting_service(simulation, 4)
        caller = await service(simulation)
        failing = keyrings[2].recipient_id
        simulation.store.broken.add(failing)
        simulation.model.broken.add(failing)
        simulation.say(caller, all_of(caller.identity))
        await simulation.wait(1.0)
        assert len(kinds(caller, MSG)) == 3
        error, last = caller.heard[-2:]
        assert (error.entity_id, error.response) == (failing, ERR(Code.INTERNAL))
        assert (last.corr_id, last.entity_id, last.response) == (b"", b"", ALLS())

    staged(tmp_path, scene)


def test_a_takeover_stops_the_walk_and_the_late_ack_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.router.plan.SERVE_STEP", 1)

    async def scene(simulation: Simulation) -> None:
        keyrings, _ = await waiting_service(simulation, 8)
        old, new = await service(simulation), await service(simulation)
        simulation.store.commit_s = 0.1
        simulation.say(old, all_of(old.identity))
        await simulation.wait(0.7)
        simulation.say(new, all_of(new.identity))
        await simulation.settle()
        heard = [type(received.response) for received in old.heard]
        came = heard.count(MSG)
        assert heard == [SOKS, *[MSG] * came, ENDS]
        assert 0 < came < 8
        assert kinds(old, ENDS) == [ENDS(8, QueueSet.of(one.recipient_id for one in keyrings).ids_hash)]
        assert [type(received.response) for received in new.heard] == [SOKS, *[MSG] * 8, ALLS]
        for recipient_id, msg_id in old.unacked.items():
            simulation.say(old, about(simulation.by_recipient[recipient_id], ACK(msg_id)))
        await simulation.settle()
        assert kinds(old, ERR) == [ERR(Code.NO_MSG)] * came
        assert all(len(simulation.model.queues[one.recipient_id].messages) == 1 for one in keyrings)

    staged(tmp_path, scene)


@pytest.mark.parametrize("by", ["SUB", "NEW"])
def test_a_takeover_gets_what_was_in_flight(tmp_path: Path, by: str) -> None:
    """Also if one queue's command took over: otherwise the others would stay silent until a reconnect."""

    async def scene(simulation: Simulation) -> None:
        keyrings, _ = await waiting_service(simulation, 3)
        one, two = await service(simulation), await service(simulation)
        for caller in (one, two):
            simulation.say(caller, all_of(caller.identity))
            await simulation.settle()
        assert (len(kinds(one, MSG)), len(kinds(two, MSG))) == (3, 3)
        if by == "SUB":
            simulation.say(one, about(keyrings[0], SUB()))
            await simulation.settle()
        else:
            await queues_of(simulation, one, 1)
        assert len(kinds(two, ENDS)) == 1
        assert {received.entity_id for received in one.heard[5:] if received.entity_id} >= {
            keyring.recipient_id for keyring in keyrings
        }

    staged(tmp_path, scene)


def test_a_queue_that_fails_while_it_waits_holds_up_no_other(tmp_path: Path) -> None:
    """A plain connection drains: the other queues deliver at once, the failing one is retried.

    If the connection is full at that time, it waits with the rest.
    """

    async def scene(simulation: Simulation) -> None:
        reader, sender = simulation.open(), simulation.open()
        keyrings = await queues_of(simulation, reader, 16)
        failing = keyrings[8]
        reader.session.reads = False
        send(simulation, sender, keyrings[:4])
        await simulation.settle()
        send(simulation, sender, keyrings[4:12])
        await simulation.settle()
        simulation.store.broken.add(failing.recipient_id)
        reader.session.reads = True
        await simulation.wait(0.5)
        assert len(kinds(reader, MSG)) == 11
        reader.session.reads = False
        send(simulation, sender, keyrings[12:])
        await simulation.wait(3.0)
        await simulation.settle()
        assert len(kinds(reader, MSG)) == 11
        reader.session.reads = True
        await simulation.settle()
        assert len(kinds(reader, MSG)) == 16

    staged(tmp_path, scene)


def test_a_damaged_queue_is_retried_after_growing_pauses(tmp_path: Path) -> None:
    """Its message arrives within a minute of its repair."""

    async def scene(simulation: Simulation) -> None:
        reader, sender = simulation.open(), simulation.open()
        keyrings = await queues_of(simulation, reader, 8)
        reader.session.reads = False
        for part in (keyrings[:4], keyrings[4:]):
            send(simulation, sender, part)
            await simulation.settle()
        broken = keyrings[-1].recipient_id
        simulation.store.broken.add(broken)
        reader.session.reads = True
        await simulation.wait(3600.0)
        assert len(kinds(reader, MSG)) == 7
        failures = simulation.router.plan.meters[Meter.INTERNAL_ERRORS]
        assert 60 < failures < 80
        simulation.store.broken.clear()
        await simulation.wait(61.0)
        assert len(kinds(reader, MSG)) == 8
        assert simulation.router.plan.meters[Meter.INTERNAL_ERRORS] == failures

    staged(tmp_path, scene)


MANY = 10_000
PENDING = 600


async def many_queues(simulation: Simulation, service_id: bytes) -> list[Keyring]:
    """Queues of a service, put into the store as the router would put them; the first have a message."""
    template = simulation.new_keyring()
    router_key = simulation.new_keyring().dh_key
    secret = Secret(router_key.agree(template.dh_key.public))
    view = View(Undo())
    await simulation.store.load(Wanted(services={service_id}), view)
    keyrings = []
    for number in range(MANY):
        keyring = replace(template, label=f"one of many {number}", secret=BoxKey(secret.raw))
        keyring.recipient_id, keyring.sender_id = simulation.entropy(24), simulation.entropy(24)
        record = QueueRecord(
            keyring.recipient_id,
            keyring.sender_id,
            (template.key.public,),
            template.dh_key.public.raw,
            secret,
            router_key.public.raw,
            QueueMode.MESSAGING,
            updated_day=day_of(START_S),
            service_id=service_id,
        )
        queue = Queue(record.recipient_id, record.sender_id, service_id=service_id)
        if number < PENDING:
            body = simulation.new_body()
            view.add_message(
                record.recipient_id, 0, StoredMessage(simulation.entropy(24), START_S, False, body)
            )
            view.put_ends(record.recipient_id, Ends(0, 1))
            queue.messages.append(Message(body, START_S))
        view.put_queue(record)
        simulation.model.queues[queue.recipient_id] = simulation.model.senders[queue.sender_id] = queue
        simulation.by_recipient[queue.recipient_id] = keyring
        keyrings.append(keyring)
    await simulation.store.tables.commit(view.changes)
    return keyrings


def test_ten_thousand_queues_come_back_with_one_command(tmp_path: Path) -> None:
    """Meanwhile senders send, queues are deleted and another client of the service takes over midway."""

    async def scene(simulation: Simulation) -> None:
        old, new = await service(simulation), await service(simulation)
        sender = simulation.open()
        assert old.identity is not None
        assert old.identity.service_id is not None
        keyrings = await many_queues(simulation, old.identity.service_id)
        chance = random.Random(1)
        simulation.say(old, all_of(old.identity))
        await simulation.wait(0)
        for _ in range(8):
            send(simulation, sender, chance.sample(keyrings, 4))
            simulation.say(sender, about(chance.choice(keyrings[:PENDING]), DEL()))
            await simulation.wait(0)
        simulation.say(new, all_of(new.identity))
        await simulation.settle()
        assert 0 < len(kinds(old, MSG)) < PENDING
        assert kinds(old, SOKS)[0] == SOKS(MANY, QueueSet.of(k.recipient_id for k in keyrings).ids_hash)
        assert len(kinds(new, ALLS)) == len(kinds(old, ENDS)) == 1
        pushed = [one.entity_id for one in new.heard if isinstance(one.response, MSG)]
        full = [one for one, queue in simulation.model.queues.items() if queue.messages]
        assert sorted(pushed) == sorted(full)
        assert len(full) > PENDING - 10

    staged(tmp_path, scene, World(services=1, notifier_services=0, inspects_memory=False))
