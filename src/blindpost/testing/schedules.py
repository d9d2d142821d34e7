"""What happens to a simulated router: actions, drawn from a seed or given one by one."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from blindpost.testing.callers import Caller, Identity, Keyring, Said
from blindpost.testing.clock import run_virtual
from blindpost.testing.faults import CrashPoint
from blindpost.testing.promises import Violation
from blindpost.testing.simulation import Simulation, World
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    NDEL,
    NEW,
    NKEY,
    NSUB,
    NSUBS,
    OFF,
    PING,
    SEND,
    SUB,
    SUBS,
)
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.values import NtfCreds, QueueMode, QueueRequest, SubMode

CALLERS_MAX = 10
QUEUES_MAX = 24
ROUNDS_MAX = 40

Action = Callable[["Actions", random.Random], Awaitable[None] | None]


class Actions:
    """Everything that may happen, each with what it draws from `pick`."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def _caller(self, pick: random.Random, role: ServiceRole | None, *, plain: bool = True) -> Caller | None:
        """A connection of this role, or one that is of no service."""
        found = [
            caller
            for caller in self.simulation.callers
            if caller.ready
            and ((caller.identity is None and plain) or (caller.identity and caller.identity.role is role))
        ]
        return pick.choice(found) if found else None

    def _keyring(self, pick: random.Random) -> Keyring | None:
        """A queue, seldom one that is deleted."""
        keyrings = self.simulation.keyrings
        found = [keyring for keyring in keyrings if not keyring.deleted or pick.random() < 0.02]
        return pick.choice(found) if found else None

    # Connections

    def open_plain(self, pick: random.Random) -> None:
        if len(self.simulation.callers) < CALLERS_MAX:
            self.simulation.open(None, pick.choice((0.0, 0.0, 0.05)))

    def open_service(self, pick: random.Random) -> None:
        simulation = self.simulation
        if len(simulation.callers) < CALLERS_MAX and simulation.identities:
            simulation.open(pick.choice(simulation.identities), pick.choice((0.0, 0.0, 0.05)))

    def cut(self, pick: random.Random) -> None:
        if self.simulation.callers:
            self.simulation.cut(pick.choice(self.simulation.callers), pick.choice((0.0, 0.1, 2.0)))

    def stall(self, pick: random.Random) -> None:
        """Somebody stops reading."""
        if self.simulation.callers:
            pick.choice(self.simulation.callers).session.reads = False

    def read_on(self, pick: random.Random) -> None:
        for caller in self.simulation.callers:
            if pick.random() < 0.7:
                caller.session.reads = True

    # Queues

    def new(self, pick: random.Random) -> None:
        caller = self._caller(pick, ServiceRole.MESSAGING)
        if caller is None or len(self.simulation.keyrings) >= QUEUES_MAX:
            return
        keyring = self.simulation.new_keyring()
        creds = None
        if pick.random() < 0.4:
            creds = NtfCreds(keyring.notifier_key.public, keyring.dh_key.public)
        mode = pick.choice((SubMode.SUBSCRIBE, SubMode.SUBSCRIBE, SubMode.ONLY_CREATE))
        request = QueueRequest(QueueMode.MESSAGING)
        command = NEW(keyring.key.public, keyring.dh_key.public, None, mode, request, creds)
        self.simulation.say(caller, Said(command, b"", keyring.key, keyring))

    def sub(self, pick: random.Random) -> None:
        caller = self._caller(pick, ServiceRole.MESSAGING)
        keyrings = [self._keyring(pick) for _ in range(pick.choice((1, 1, 2, 5)))]
        sayings = [self._said(SUB(), keyring, pick) for keyring in keyrings if keyring is not None]
        if caller is not None and sayings:
            self.simulation.say(caller, *sayings)

    def send(self, pick: random.Random) -> None:
        caller = self._caller(pick, ServiceRole.MESSAGING)
        sayings = []
        for _ in range(pick.choice((1, 1, 3, 8))):
            keyring = self._keyring(pick)
            if keyring is not None:
                body = self.simulation.new_body()
                sayings.append(Said(SEND(pick.random() < 0.4, body), keyring.sender_id, None, keyring))
        if caller is not None and sayings:
            self.simulation.say(caller, *sayings)

    def ack(self, pick: random.Random) -> None:
        """Acknowledge what was received, or something else, or on a connection that lost the queue."""
        found = [caller for caller in self.simulation.callers if caller.ready and caller.unacked]
        if not found:
            return
        caller = pick.choice(found)
        sayings = []
        for recipient_id, msg_id in list(caller.unacked.items())[: pick.choice((1, 3, 20))]:
            keyring = self.simulation.by_recipient[recipient_id]
            chosen = pick.choices((msg_id, b"", self.simulation.entropy(24)), (20, 1, 1))[0]
            sayings.append(self._said(ACK(chosen), keyring, pick))
            if chosen == msg_id and pick.random() < 0.9:
                del caller.unacked[recipient_id]
        self.simulation.say(caller, *sayings)

    def get(self, pick: random.Random) -> None:
        self._on_queue(pick, GET())

    def off(self, pick: random.Random) -> None:
        self._on_queue(pick, OFF())

    def delete(self, pick: random.Random) -> None:
        self._on_queue(pick, DEL())

    def ping(self, pick: random.Random) -> None:
        caller = self._caller(pick, ServiceRole.NOTIFIER)
        if caller is not None:
            self.simulation.say(caller, Said(PING()))

    def _on_queue(self, pick: random.Random, command: GET | OFF | DEL | NDEL) -> None:
        caller, keyring = self._caller(pick, ServiceRole.MESSAGING), self._keyring(pick)
        if caller is not None and keyring is not None:
            self.simulation.say(caller, self._said(command, keyring, pick))

    def _said(
        self, command: SUB | ACK | GET | OFF | DEL | NDEL, keyring: Keyring, pick: random.Random
    ) -> Said:
        forged = pick.random() < 0.02
        return Said(command, keyring.recipient_id, keyring.key, keyring, forged)

    # Notifications and services

    def set_notifier(self, pick: random.Random) -> None:
        caller, keyring = self._caller(pick, ServiceRole.MESSAGING), self._keyring(pick)
        if caller is not None and keyring is not None:
            command = NKEY(NtfCreds(keyring.notifier_key.public, keyring.dh_key.public))
            self.simulation.say(caller, Said(command, keyring.recipient_id, keyring.key, keyring))

    def remove_notifier(self, pick: random.Random) -> None:
        self._on_queue(pick, NDEL())

    def nsub(self, pick: random.Random) -> None:
        caller, keyring = self._caller(pick, ServiceRole.NOTIFIER), self._keyring(pick)
        if caller is not None and keyring is not None and keyring.notifier_id is not None:
            said = Said(NSUB(), keyring.notifier_id, keyring.notifier_key, keyring)
            self.simulation.say(caller, said)

    def subscribe_service(self, pick: random.Random) -> None:
        role = pick.choice((ServiceRole.MESSAGING, ServiceRole.MESSAGING, ServiceRole.NOTIFIER))
        caller = self._caller(pick, role, plain=False)
        if caller is not None:
            self.simulation.say(caller, all_of(caller.identity))

    # The machine

    def slow_store(self, pick: random.Random) -> None:
        self.simulation.store.commit_s = pick.choice((0.0, 0.01, 0.2))
        self.simulation.store.load_s = pick.choice((0.0, 0.0, 0.05))

    def failing_store(self, pick: random.Random) -> None:
        store = self.simulation.store
        match pick.choice(("commit", "commit", "load", "doubt")):
            case "commit":
                store.failures = pick.choice((1, 1, 3))
            case "load":
                store.load_failures = pick.choice((1, 2))
            case "doubt":
                store.doubts.append(pick.random() < 0.5)

    def break_queue(self, pick: random.Random) -> None:
        """The messages of a queue cannot be read, for some time."""
        simulation = self.simulation
        keyring = self._keyring(pick)
        simulation.store.broken.clear()
        if keyring is not None and pick.random() < 0.7:
            simulation.store.broken.add(keyring.recipient_id)
            simulation.model.broken.add(keyring.recipient_id)

    async def crash(self, pick: random.Random) -> None:
        point = pick.choice((None, *CrashPoint))
        await self.simulation.crash(point, pick.randrange(4))

    async def age(self, pick: random.Random) -> None:
        """Time passes, and what is too old goes."""
        await self.simulation.wait(self.simulation.world.message_ttl_s * pick.choice((0.3, 0.6, 1.1)))
        await self.simulation.router.expire_messages()

    async def settle(self, pick: random.Random) -> None:
        await self.simulation.settle()


def all_of(identity: Identity | None) -> Said:
    """SUBS or NSUBS of a service."""
    assert identity is not None
    assert identity.service_id is not None
    command = SUBS() if identity.role is ServiceRole.MESSAGING else NSUBS()
    return Said(command, identity.service_id)


ACTIONS: Mapping[str, Action] = {
    name: getattr(Actions, name) for name in dir(Actions) if not name.startswith("_")
}

EVERYTHING: Mapping[str, int] = {
    "open_plain": 8,
    "open_service": 6,
    "cut": 4,
    "stall": 4,
    "read_on": 6,
    "new": 10,
    "sub": 12,
    "send": 30,
    "ack": 24,
    "get": 3,
    "off": 1,
    "delete": 1,
    "ping": 1,
    "set_notifier": 2,
    "remove_notifier": 1,
    "nsub": 6,
    "subscribe_service": 8,
    "slow_store": 3,
    "failing_store": 2,
    "crash": 1,
    "age": 1,
    "settle": 4,
}
"""How often each action happens, against the others."""

SERVICES: Mapping[str, int] = {
    "open_plain": 2,
    "open_service": 8,
    "cut": 4,
    "stall": 4,
    "read_on": 6,
    "new": 12,
    "sub": 8,
    "send": 40,
    "ack": 14,
    "get": 1,
    "delete": 2,
    "nsub": 3,
    "subscribe_service": 16,
    "slow_store": 3,
    "failing_store": 2,
    "break_queue": 2,
    "crash": 1,
    "settle": 4,
}
"""Mostly services that fight."""

PAUSES_S = (0.0, 0.0, 0.0, 0.001, 0.01, 0.1, 1.5)


async def perform(simulation: Simulation, name: str, pick: random.Random) -> None:
    """One step: an action, and perhaps some time."""
    simulation.step += 1
    simulation.note(f"step {simulation.step}: {name}")
    done = ACTIONS[name](Actions(simulation), pick)
    if done is not None:
        await done
    pause = pick.choice((None, *PAUSES_S))
    if pause is not None:
        await simulation.wait(pause)


async def drain(simulation: Simulation) -> None:
    """Heal everything; then every message that was promised comes, in its order, to whoever asks."""
    store = simulation.store
    store.commit_s = store.load_s = 0.0
    store.failures = store.load_failures = 0
    store.doubts.clear()
    for caller in simulation.callers:
        caller.session.reads = True
    await simulation.settle()
    for caller in list(simulation.callers):
        simulation.cut(caller)
    await simulation.settle()
    simulation.model.broken.clear()
    expected = {
        keyring.label: [message.body for message in simulation.model.queues[keyring.recipient_id].messages]
        for keyring in simulation.keyrings
        if keyring.recipient_id in simulation.model.queues
    }
    simulation.delivered.clear()
    for identity in simulation.identities:
        if identity.role is ServiceRole.MESSAGING:
            caller = simulation.open(identity)
            await simulation.settle()
            simulation.say(caller, all_of(identity))
            await _acknowledge(simulation)
    caller = simulation.open()
    for keyring in simulation.keyrings:
        if keyring.label in expected:
            simulation.say(caller, Said(SUB(), keyring.recipient_id, keyring.key, keyring))
    await _acknowledge(simulation)
    for label, bodies in expected.items():
        found = [body for one, body in simulation.delivered if one == label]
        if found != bodies:
            raise Violation(f"{label} delivered {found}, promised {bodies}")


async def _acknowledge(simulation: Simulation) -> None:
    """Acknowledge until nothing comes any more."""
    for _ in range(ROUNDS_MAX):
        await simulation.settle()
        waiting = [caller for caller in simulation.callers if caller.unacked]
        if not waiting:
            return
        for caller in waiting:
            for recipient_id, msg_id in caller.unacked.items():
                keyring = simulation.by_recipient[recipient_id]
                simulation.say(caller, Said(ACK(msg_id), recipient_id, keyring.key, keyring))
            caller.unacked.clear()
    raise Violation("messages come without end")


async def play(simulation: Simulation, steps: Sequence[tuple[str, random.Random]]) -> None:
    """Do these steps and then drain; what fails is told with the seed and the step."""
    simulation.start()
    try:
        for name, pick in steps:
            await perform(simulation, name, pick)
        simulation.step += 1
        await drain(simulation)
        await simulation.stop()
    except BaseException as error:
        simulation.abandon()
        raise Violation(simulation.report(error)) from error


def world_of(chance: random.Random, *, inspects_memory: bool = True) -> World:
    """A world drawn from a seed."""
    return World(
        quota=chance.choice((2, 4, 8)),
        expire_on_send=chance.random() < 0.3,
        batch_commands=chance.choice((3, 1024)),
        source_commands=chance.choice((2, 512)),
        inspects_memory=inspects_memory,
    )


def drawn(
    seed: int | str, count: int, weights: Mapping[str, int] = EVERYTHING
) -> list[tuple[str, random.Random]]:
    """So many steps, drawn from a seed."""
    chance = random.Random(f"{seed}/steps")
    names = chance.choices(list(weights), list(weights.values()), k=count)
    return [(name, random.Random(chance.getrandbits(64))) for name in names]


def simulate(
    folder: Path,
    seed: int | str,
    steps: int = 150,
    weights: Mapping[str, int] = EVERYTHING,
    *,
    inspects_memory: bool = True,
) -> Simulation:
    """Run one seed from the start to the end; `Violation` if the router broke a promise."""
    world = world_of(random.Random(f"{seed}/world"), inspects_memory=inspects_memory)
    simulation = Simulation(folder, seed, world)
    run_virtual(play(simulation, drawn(seed, steps, weights)))
    return simulation
