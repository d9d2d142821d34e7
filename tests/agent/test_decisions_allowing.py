"""Letting a joiner in, on the rows of a store: who secures which queue, and who says HELLO."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, cast

import pytest

from blindpost.agent import AgentError, Connected, ProtocolError
from blindpost.agent.errors import BrokerError, CommandError, InternalError, SmpError
from blindpost.agent.handshake.allowing import (
    ALLOW_SECURE,
    DUPLEX_SECURE,
    Allowing,
    allow,
    duplex_secure,
    hello_received,
)
from blindpost.agent.model import MessageKind, QueueStatus, SndQueue
from blindpost.agent.store import commands, connections, handshakes, messages, queues, ratchets
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.handshakes import StoredConfirmation
from blindpost.client.calls import Call
from blindpost.client.errors import RefusedError, ResponseTimeoutError
from blindpost.testing.clock import run_virtual
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import PublicKey
from blindpost.wire.queue_addresses import QueueInfo
from blindpost.wire.smp.commands import KEY
from blindpost.wire.smp.errors import Code
from tests.support.agent.desk import Desk
from tests.support.agent.parties import joined
from tests.support.agent.rows import CONN, PEER_KEY, ROUTER, a_key, rcv_queue, snd_queue

NEW, CONFIRMED, SECURED, ACTIVE = (
    QueueStatus.NEW,
    QueueStatus.CONFIRMED,
    QueueStatus.SECURED,
    QueueStatus.ACTIVE,
)
OTHER = Server((Host("other.example"),), "5223", b"o" * 32)
SENDER = a_key("sender").public
REPLY = QueueInfo(4, replace(rcv_queue(), snd_id=b"reply".ljust(24)).address)


def away() -> AgentError:
    return BrokerError(ROUTER, ResponseTimeoutError())


def refusal() -> AgentError:
    return SmpError(ROUTER, RefusedError(Code.AUTH))


class Network:
    """Secures queues of both sides, or fails as it is told."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.log: list[str] = []
        self.errors: dict[str, deque[AgentError]] = {}

    def _note(self, what: str) -> None:
        self.log.append(what)
        if self.errors.get(what):
            raise self.errors[what].popleft()

    async def secure(self, queue: SndQueue) -> None:
        self._note(f"secure theirs {queue.snd_id.decode().strip()}")

    async def send(self, user_id: int, server: Server, call: Call[KEY], *, entity: str) -> None:
        assert (user_id, server, entity) == (1, ROUTER, CONN)
        assert (call.command, call.entity_id, call.key) == (KEY(SENDER), rcv_queue().rcv_id, rcv_queue().key)
        self._note("secure ours")


class Allows(Desk):
    """A connection that somebody joined."""

    def __init__(self, store: AgentStore) -> None:
        super().__init__(store)
        self.network = Network(self)
        network = cast(Any, self.network)
        self.allowing = Allowing(self.ground, network, network)
        self.own, self.peer = joined()
        with self.change() as tx:
            ratchets.set_ratchet(tx, CONN, self.own.ratchet)

    def confirmed(self, sender_key: PublicKey | None = None, reply: QueueInfo = REPLY) -> None:
        confirmation = StoredConfirmation(
            "confirmation", CONN, sender_key, PEER_KEY.public, b"info", (reply,), 4
        )
        self.receives(status=CONFIRMED, duplex=False)
        with self.change() as tx:
            handshakes.insert_confirmation(tx, confirmation)

    def allow(self, name: str = "confirmation") -> None:
        with self.change() as tx:
            allow(tx, CONN, name, b"welcome")

    def command(self, server: Server | None = ROUTER) -> StoredCommand:
        found = commands.next_command(self.store.reading, CONN, server)
        assert found is not None
        return found

    def run(self, command: StoredCommand) -> None:
        handler = {
            ALLOW_SECURE: self.allowing.run_allow_secure,
            DUPLEX_SECURE: self.allowing.run_duplex_secure,
        }[command.tag]
        run_virtual(cast(Any, handler(command)))

    def fails(self, kind: type[Exception] = AgentError, server: Server | None = ROUTER) -> str:
        with pytest.raises(kind) as raised:
            self.run(self.command(server))
        return str(raised.value)

    @property
    def waits(self) -> list[MessageKind]:
        """What is to be sent, once for each queue."""
        query = "SELECT m.msg_type FROM snd_message_deliveries d JOIN messages m USING (conn_id, internal_id)"
        return [MessageKind(kind) for (kind,) in self.store.reading.sql.execute(query)]

    @property
    def tags(self) -> list[str]:
        query = "SELECT command_tag FROM commands"
        return [tag for (tag,) in self.store.reading.sql.execute(query)]


@pytest.fixture
def allows(store: AgentStore) -> Allows:
    return Allows(store)


# The program lets somebody in


def test_it_is_stored_what_is_to_be_done(allows: Allows) -> None:
    allows.confirmed()
    allows.allow()
    assert (allows.command().tag, allows.command().content) == (ALLOW_SECURE, b"confirmation")
    stored = handshakes.find_confirmation(allows.store.reading, CONN, accepted=True)
    assert stored is not None
    assert stored.own_info == b"welcome"


def test_nobody_is_let_in_twice(allows: Allows) -> None:
    allows.confirmed()
    allows.allow()
    with pytest.raises(CommandError, match="allowed before"):
        allows.allow()
    assert allows.tags == [ALLOW_SECURE]


def test_nobody_is_let_in_who_did_not_come(allows: Allows) -> None:
    allows.confirmed()
    with pytest.raises(CommandError, match="no such confirmation"):
        allows.allow("another")
    assert allows.tags == []


def test_a_connection_that_works_already(allows: Allows) -> None:
    allows.confirmed()
    with allows.change() as tx:
        queues.insert_snd(tx, snd_queue())
    with pytest.raises(CommandError, match="not waiting to be allowed"):
        allows.allow()
    assert allows.tags == []


# What is done then


@pytest.mark.parametrize("sender_key", [SENDER, None])
def test_a_joiner_is_let_in(allows: Allows, sender_key: PublicKey | None) -> None:
    """Our queue is secured, unless its sender has done so; then theirs; then they are told."""
    allows.confirmed(sender_key)
    allows.allow()
    allows.run(allows.command())
    assert allows.network.log == [*(["secure ours"] if sender_key else []), "secure theirs reply"]
    assert allows.whole.rcv[0].status is (SECURED if sender_key else CONFIRMED)
    (snd,) = allows.whole.snd
    assert (snd.snd_id, snd.server, snd.status) == (b"reply".ljust(24), ROUTER, NEW)
    assert (allows.waits, allows.tags) == ([MessageKind.CONN_INFO], [])
    pending = messages.next_delivery(allows.store.reading, CONN, 1)
    assert pending is not None
    assert pending.body == b"Iwelcome"


def test_the_next_attempt_goes_on_where_this_one_ended(allows: Allows) -> None:
    allows.confirmed(SENDER)
    allows.allow()
    allows.network.errors["secure ours"] = deque([away()])
    allows.network.errors["secure theirs reply"] = deque([refusal(), refusal()])
    for _ in range(3):
        allows.fails()
    keys = [queue.key for queue in allows.whole.snd]
    allows.run(allows.command())
    assert allows.network.log == ["secure ours"] * 2 + ["secure theirs reply"] * 3, "each is secured once"
    assert [queue.key for queue in allows.whole.snd] == keys
    assert (allows.waits, allows.tags) == ([MessageKind.CONN_INFO], [])


def test_a_reply_queue_of_a_version_that_we_do_not_know(allows: Allows) -> None:
    allows.confirmed(reply=replace(REPLY, version=9))
    allows.allow()
    assert allows.fails(ProtocolError).startswith("AGENT A_VERSION")
    assert (allows.whole.snd, allows.waits, allows.network.log) == ((), [], [])


def test_the_confirmation_is_gone(allows: Allows) -> None:
    allows.confirmed()
    allows.allow()
    with allows.change() as tx:
        handshakes.delete_confirmations(tx, CONN)
    assert "the confirmation to allow is gone" in allows.fails(InternalError)


def test_the_queue_that_they_came_to_is_gone(allows: Allows) -> None:
    allows.confirmed()
    allows.allow()
    with allows.change() as tx:
        queues.delete(tx, allows.queue)
    assert "the confirmation to allow is gone" in allows.fails(InternalError)


@pytest.mark.parametrize(
    ("error", "server", "moves"),
    [(away(), OTHER, True), (away(), ROUTER, False), (refusal(), OTHER, False)],
)
def test_a_router_that_is_away_does_not_hold_the_commands_of_another(
    allows: Allows, error: AgentError, server: Server, moves: bool
) -> None:
    """The command waits with those of the router that it waits for."""
    woken: list[Server | None] = []
    allows.confirmed(reply=replace(REPLY, address=replace(REPLY.address, server=server)))
    allows.allow()
    allows.ground.work.commands.listen(lambda key: woken.append(key[1]))
    allows.network.errors["secure theirs reply"] = deque([error])
    if not moves:
        allows.fails()
        assert allows.command().tag == ALLOW_SECURE
        assert woken == []
        return
    allows.run(allows.command())
    assert (woken, allows.waits) == ([OTHER], [])
    assert commands.next_command(allows.store.reading, CONN, ROUTER) is None
    allows.network.errors["secure theirs reply"] = deque([error])
    allows.fails(server=OTHER)
    allows.run(allows.command(OTHER))
    assert (allows.waits, allows.tags) == ([MessageKind.CONN_INFO], [])


def test_a_host_that_is_wrong_does_not_move_it(allows: Allows) -> None:
    """It is told at once: only what is away for a moment goes elsewhere."""
    error = away()
    error.kind = type(error.kind).HOST
    allows.confirmed(reply=replace(REPLY, address=replace(REPLY.address, server=OTHER)))
    allows.allow()
    allows.network.errors["secure theirs reply"] = deque([error])
    allows.fails()
    assert allows.command().tag == ALLOW_SECURE


# A joiner whose queue the initiator could not secure


def duplex(allows: Allows, status: QueueStatus = CONFIRMED) -> None:
    allows.receives(status=status)
    with allows.change() as tx:
        queues.insert_snd(tx, replace(snd_queue(), number=2, snd_id=b"second".ljust(24), replaces=1))
        duplex_secure(tx, allows.queue, SENDER)


@pytest.mark.parametrize(("status", "log"), [(CONFIRMED, ["secure ours"]), (SECURED, []), (ACTIVE, [])])
def test_our_queue_is_secured_once_and_hello_is_said(
    allows: Allows, status: QueueStatus, log: list[str]
) -> None:
    duplex(allows, status)
    allows.run(allows.command())
    assert allows.network.log == log
    assert allows.whole.rcv[0].status is (SECURED if status is CONFIRMED else status)
    assert (allows.waits, allows.tags) == ([MessageKind.HELLO], [])


def test_our_queue_cannot_be_secured_now(allows: Allows) -> None:
    duplex(allows)
    allows.network.errors["secure ours"] = deque([away()])
    allows.fails()
    assert (allows.waits, allows.whole.rcv[0].status) == ([], CONFIRMED)
    allows.run(allows.command())
    assert (allows.waits, allows.whole.rcv[0].status) == ([MessageKind.HELLO], SECURED)


def test_our_queue_is_gone(allows: Allows) -> None:
    duplex(allows)
    with allows.change() as tx:
        queues.delete(tx, allows.queue)
    assert "the queue to secure is gone" in allows.fails(InternalError)
    assert allows.waits == []


# HELLO


def hello(allows: Allows, *, pq: bool = False) -> None:
    with allows.change() as tx:
        hello_received(tx, connections.load_whole(tx, CONN), allows.queue, pq=pq)


def test_hello_on_a_queue_that_works(allows: Allows) -> None:
    allows.receives()
    with pytest.raises(ProtocolError, match="hello: active"):
        hello(allows)
    assert allows.waits == []


def test_hello_before_we_can_answer(allows: Allows) -> None:
    allows.receives(status=SECURED, duplex=False)
    hello(allows)
    assert (allows.events, allows.tags) == ([], [])


@pytest.mark.parametrize("pq", [True, False])
def test_hello_when_we_have_said_it(allows: Allows, pq: bool) -> None:
    allows.receives(status=SECURED)
    hello(allows, pq=pq)
    (event,) = allows.events
    assert isinstance(event, Connected)
    assert (event.pq, allows.waits) == (pq, [])


def test_hello_is_answered(allows: Allows) -> None:
    allows.receives(status=SECURED, duplex=False)
    with allows.change() as tx:
        queues.insert_snd(tx, snd_queue(status=CONFIRMED))
        queues.insert_snd(tx, replace(snd_queue(), number=2, snd_id=b"second".ljust(24), replaces=1))
    hello(allows)
    assert (allows.events, allows.waits) == ([], [MessageKind.HELLO])
