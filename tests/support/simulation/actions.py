"""Everything that may happen to a simulated router, one small action each."""

from __future__ import annotations

import random

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
from tests.support.simulation.callers import Caller, Identity, Keyring, Said
from tests.support.simulation.faults import CrashPoint
from tests.support.simulation.world import Simulation

CALLERS_MAX = 10
QUEUES_MAX = 24


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
        for _ in range(pick.choice((1, 1, 4))):
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

    async def hesitate(self, pick: random.Random) -> None:
        """A new connection of a service subscribes and does not read, so that its walk stands still."""
        simulation = self.simulation
        found = [one for one in simulation.identities if one.role is ServiceRole.MESSAGING]
        if not found or len(simulation.callers) >= CALLERS_MAX:
            return
        caller = simulation.open(pick.choice(found))
        await simulation.wait(1.0)
        if caller.ready:
            caller.session.reads = False
            simulation.say(caller, all_of(caller.identity))

    def flood(self, pick: random.Random) -> None:
        """A message to every queue, in any order."""
        caller = self._caller(pick, ServiceRole.MESSAGING)
        keyrings = [keyring for keyring in self.simulation.keyrings if not keyring.deleted]
        pick.shuffle(keyrings)
        if caller is not None and keyrings:
            sent = [(SEND(False, self.simulation.new_body()), one) for one in keyrings]
            self.simulation.say(caller, *(Said(send, one.sender_id, None, one) for send, one in sent))

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
