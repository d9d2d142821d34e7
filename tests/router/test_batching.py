"""Commands decided in one turn have the same effect as one after another.

A scenario is played once with a turn for each event, then again, byte for byte, in turns of many: the
answers, the events, the store and the subscriptions must be the same. Nothing here opens a connection.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.authorizers import AuthenticatorKeys
from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.events import Gone
from blindpost.router.config import RouterRules
from blindpost.router.events import Commands, Event, Expire
from blindpost.router.meters import Meter
from blindpost.router.operator import Action, OperatorCommand
from blindpost.router.records import ends_from_row
from blindpost.router.server import Router
from blindpost.router.state import RouterClient, Sub
from blindpost.router.tables import ENDS, TABLES, LmdbTables
from blindpost.router.turn import Delivery, Outgoing
from blindpost.store.contract import Durability
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    LDEL,
    LGET,
    LKEY,
    LSET,
    NDEL,
    NEW,
    NSUB,
    OFF,
    QUE,
    RKEY,
    SEND,
    SKEY,
    SUB,
    Command,
)
from blindpost.wire.smp.errors import BLOCKED, BlockingReason
from blindpost.wire.smp.responses import IDS
from blindpost.wire.smp.transmissions import Request, parse_request
from blindpost.wire.smp.values import LinkData, NewLink, NtfCreds, QueueMode, QueueRequest, SubMode
from blindpost.wire.smp.versions import connection_layout
from tests.support.wire.speaking import Speaker

NOW = 1_700_000_000
LAYOUT = connection_layout(20, bytes(32))
SPAM = BLOCKED(BlockingReason.SPAM)


def keys(seed: str, algorithm: Algorithm = Algorithm.ED25519) -> PrivateKey:
    return PrivateKey.generate(algorithm, random.Random(seed).randbytes)


SESSION = keys("session", Algorithm.X25519)
RECIPIENT_KEYS = [keys(f"recipient {number}") for number in range(2)]
SENDER_KEYS = [keys("sender"), keys("sender too", Algorithm.X25519)]
NOTIFIER_KEY, DH_KEY = keys("notifier"), keys("dh", Algorithm.X25519)
LINKS = [b"first link", b"second link"]
DATA = [LinkData(b"fixed", b"user"), LinkData(b"fixed", b"other"), LinkData(b"more", b"user")]


class Machine:
    """The router's decisions and store, stepped by hand with fixed entropy and time."""

    def __init__(self, folder: Path) -> None:
        self.store = LmdbTables(folder, Durability.OS)
        self.sent: list[Outgoing] = []
        entropy = random.Random("router").randbytes
        router = Router(self.store, RouterRules(quota=3), entropy=entropy, now=lambda: NOW)
        self.plan, self.engine = router.plan, router.engine
        self.plan._send = self.sent.extend
        session = AuthenticatorKeys(SESSION)
        self.clients = [RouterClient(number, 20, LAYOUT, session, self.plan.undo) for number in range(3)]

    async def turn(self, events: Sequence[Event]) -> list[Outgoing]:
        before = len(self.sent)
        await self.engine._turn(list(events))
        return self.sent[before:]

    def rows(self) -> dict[str, tuple[tuple[bytes, bytes], ...]]:
        with self.store.store.read() as read:
            return {table: read.page(table, b"", 10_000).rows for table in TABLES}

    def size(self, recipient_id: bytes) -> int:
        """How many messages a queue has."""
        with self.store.store.read() as read:
            row = read.get(ENDS, recipient_id)
        return 0 if row is None else ends_from_row(row).size

    def subs(self) -> list[list[tuple[bytes, str]]]:
        """Who is subscribed to what, with what in flight."""
        return [
            sorted((entity_id, _shown(sub)) for entity_id, sub in client.subs.items())
            for client in self.clients
        ]


def _shown(sub: Sub) -> str:
    return f"{sub.kind} {sub.delivered.msg_id.hex() if sub.delivered else None}"


@dataclass(frozen=True)
class Step:
    """What one client does, or the operator (no client), in terms of the two queues."""

    client: int
    what: str
    queue: int
    key: int
    choice: int


WHAT = [
    *("SUB", "GET", "ACK", "KEY", "SKEY", "RKEY", "LSET", "LDEL", "LKEY", "LGET"),
    *("NDEL", "NSUB", "OFF", "DEL", "QUE", "NEW", "gone", "expire", "block", "unblock"),
]


def steps_of(menu: list[str]) -> st.SearchStrategy[list[Step]]:
    """Few kinds of steps, each repeated often, mixed with messages that arrive and are acknowledged."""
    kinds = st.sampled_from([*menu, *menu, "SEND", "SEND", "ACK"])
    step = st.builds(Step, st.integers(0, 2), kinds, st.integers(0, 1), st.integers(0, 2), st.integers(0, 2))
    return st.lists(step, min_size=2, max_size=25)


STEPS = st.lists(st.sampled_from(WHAT), min_size=1, max_size=4, unique=True).flatmap(steps_of)


class Scenario:
    """Turns steps into events, knowing what the router answered so far."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.ids: list[IDS] = []
        self.delivered: dict[int, list[bytes]] = {0: [b""], 1: [b""], 2: [b""]}
        self._numbers = iter(range(1 << 20))

    def request(
        self, command: Command, entity_id: bytes, key: PrivateKey | None, corr_id: bytes = b""
    ) -> Request:
        corr_id = corr_id or next(self._numbers).to_bytes(24, "big")
        whole = Speaker(20, LAYOUT, SESSION.public).spoken(command, entity_id, key, corr_id)
        request = parse_request(Reader(whole.done()), LAYOUT, 20)
        assert isinstance(request, Request)
        return request

    def new(self, number: int) -> Request:
        """The NEW of a queue; it is the same each time."""
        corr_id, key = b"%d" % number * 24, RECIPIENT_KEYS[0]
        mode = (QueueMode.MESSAGING, QueueMode.CONTACT)[number]
        link = NewLink(sender_id_of(corr_id), DATA[0], LINKS[0] if mode is QueueMode.CONTACT else None)
        creds = NtfCreds(NOTIFIER_KEY.public, DH_KEY.public)
        command = NEW(key.public, DH_KEY.public, None, SubMode.SUBSCRIBE, QueueRequest(mode, link), creds)
        return self.request(command, b"", key, corr_id)

    def event(self, step: Step) -> Event:
        client, ids = self.machine.clients[step.client], self.ids[step.queue]
        match step.what:
            case "gone":
                return Gone(client)
            case "expire":
                return Expire([(ids.recipient_id, self.machine.size(ids.recipient_id))], NOW + 1)
            case "block" | "unblock":
                return OperatorCommand(Action(step.what), ids.sender_id, lambda outcome: None, SPAM)
            case "NEW":
                return Commands(client, [self.new(step.queue)])
            case _:
                return Commands(client, [self.command(step, ids)])

    def command(self, step: Step, ids: IDS) -> Request:
        recipient = RECIPIENT_KEYS[step.key % 2]
        sender = (None, *SENDER_KEYS)[step.key]
        asked = SENDER_KEYS[step.choice % 2]
        match step.what:
            case "SEND":
                return self.request(SEND(step.choice > 0, b"%d" % step.choice), ids.sender_id, sender)
            case "SKEY":
                return self.request(SKEY(asked.public), ids.sender_id, asked)
            case "LKEY":
                return self.request(LKEY(asked.public), ids.link_id or LINKS[1], asked)
            case "LGET":
                return self.request(LGET(), LINKS[step.choice % 2], None)
            case "NSUB":
                assert ids.ntf_creds is not None
                return self.request(NSUB(), ids.ntf_creds.notifier_id, NOTIFIER_KEY)
        chosen = tuple(key.public for key in RECIPIENT_KEYS)[: step.choice or None][::-1]
        commands: dict[str, Command] = {
            "SUB": SUB(),
            "GET": GET(),
            "ACK": ACK(self.delivered[step.client][-1 if step.choice else 0]),
            "KEY": KEY(asked.public),
            "RKEY": RKEY(chosen),
            "LSET": LSET(LINKS[step.choice % 2], DATA[step.key]),
            "LDEL": LDEL(),
            "NDEL": NDEL(),
            "OFF": OFF(),
            "DEL": DEL(),
            "QUE": QUE(),
        }
        return self.request(commands[step.what], ids.recipient_id, recipient)

    def heard(self, sent: Sequence[Outgoing]) -> None:
        for outgoing in sent:
            if isinstance(outgoing.response, Delivery):
                self.delivered[outgoing.client_id].append(outgoing.response.message.msg_id)


async def prepared(machine: Machine) -> Scenario:
    """Two queues, each with a message waiting."""
    scenario = Scenario(machine)
    for number in range(2):
        (answer,) = await machine.turn([Commands(machine.clients[0], [scenario.new(number)])])
        assert isinstance(answer.response, IDS)
        scenario.ids.append(answer.response)
        waiting = scenario.request(SEND(True, b"waiting"), answer.response.sender_id, None)
        scenario.heard(await machine.turn([Commands(machine.clients[1], [waiting])]))
    return scenario


@settings(max_examples=150)
@given(STEPS, st.lists(st.integers(1, 12), min_size=25, max_size=25))
async def test_one_turn_of_many_commands_equals_many_turns(steps: list[Step], sizes: list[int]) -> None:
    with TemporaryDirectory() as one_folder, TemporaryDirectory() as many_folder:
        one, many = Machine(Path(one_folder)), Machine(Path(many_folder))
        scenario = await prepared(one)
        await prepared(many)
        events: list[Event] = []
        expected: list[Outgoing] = []
        for step in steps:
            event = scenario.event(step)
            sent = await one.turn([event])
            scenario.heard(sent)
            events.append(event)
            expected += sent
        heard: list[Outgoing] = []
        moved = [_moved(event, many) for event in events]
        while moved:
            size = sizes.pop()
            heard += await many.turn(moved[:size])
            del moved[:size]
        assert heard == expected
        assert many.rows() == one.rows()
        assert many.subs() == one.subs()
        for machine in (one, many):
            assert machine.plan.meters[Meter.INTERNAL_ERRORS] == 0
            assert machine.engine.meters.events_failed == 0
            machine.store.close()


def _moved(event: Event, machine: Machine) -> Event:
    """The same event about the same client of another machine."""
    match event:
        case Commands(client, items):
            return Commands(machine.clients[client.client_id], items)
        case Gone(client):
            return Gone(machine.clients[client.client_id])
        case _:
            return event
