"""Joining on the rows of a store: what each attempt finds, what it leaves, and what is asked of routers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from blindpost.agent import AgentError, ConnError, Failed, Joined, ProtocolError
from blindpost.agent.errors import BrokerError, CommandError, SmpError
from blindpost.agent.handshake import joining
from blindpost.agent.handshake.joining import (
    Agreed,
    JoinCommand,
    Joining,
    accept_request,
    negotiate,
    pq_offered,
    read_join,
    register_join,
)
from blindpost.agent.links.values import contact_link, invitation_link
from blindpost.agent.messages.layers import open_client_envelope
from blindpost.agent.model import ConnId, ConnMode, MessageKind, QueueStatus, RcvQueue, SndQueue
from blindpost.agent.routers.proxying import Answered
from blindpost.agent.store import commands, connections, handshakes, messages, queues, ratchets
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.handshakes import StoredInvitation
from blindpost.agent.versions import Versions
from blindpost.agent.work.commands import JOIN
from blindpost.client.calls import Call
from blindpost.client.errors import RefusedError, ResponseTimeoutError
from blindpost.crypto.ratchet import decrypt, encrypt_body
from blindpost.crypto.ratchet_state import receiving_ratchet
from blindpost.crypto.x3dh import agree_as_receiver, proposed_params
from blindpost.engine.loop import StoreFailedError
from blindpost.testing.clock import run_virtual
from blindpost.wire.addresses import Server
from blindpost.wire.agent.envelopes import Invitation, read_client_envelope
from blindpost.wire.agent.messages import AgentConnInfoReply, read_agent_message
from blindpost.wire.links.full import FullLink
from blindpost.wire.links.short import ContactType, ShortContact, ShortInvitation
from blindpost.wire.primitives import Reader, decode_whole
from blindpost.wire.queue_addresses import QueueInfo
from blindpost.wire.smp.commands import SEND
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import OK
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.versions import VersionRange
from tests.support.agent.desk import VERSION, Desk
from tests.support.agent.parties import RecordedPairs
from tests.support.agent.ratchets import seeded
from tests.support.agent.rows import CONN, ROUTER, a_key, rcv_queue, snd_queue

VERSIONS = Versions()
ADDRESS_CONN, JOINING_CONN = CONN, "joining"
NEW, SECURED, ACTIVE = QueueStatus.NEW, QueueStatus.SECURED, QueueStatus.ACTIVE
MESSAGING = QueueMode.MESSAGING
THEIRS = replace(rcv_queue(), mode=MESSAGING, snd_id=b"theirs".ljust(24))
SHORT = ShortInvitation(ROUTER, b"link id".ljust(24), b"k" * 32)
SHORT_CONTACT = ShortContact(ContactType.CONTACT, ROUTER, b"k" * 32)


def away() -> AgentError:
    return BrokerError(ROUTER, ResponseTimeoutError())


def refusal(code: Code) -> AgentError:
    return SmpError(ROUTER, RefusedError(code))


def their_keys(*, pq: bool = False) -> Any:
    return proposed_params(3, pq=pq, entropy=seeded("inviter"), kem=RecordedPairs())


def an_invitation(*, pq: bool = False, versions: Versions = VERSIONS, **queue: Any) -> FullLink:
    return invitation_link(versions, replace(THEIRS, **queue).address, their_keys(pq=pq), with_kem=True)


def an_address(versions: Versions = VERSIONS) -> FullLink:
    return contact_link(versions, replace(THEIRS, mode=QueueMode.CONTACT).address)


class Network:
    """Makes and secures queues, sends, and reads short links; or fails as it is told."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.log: list[str] = []
        self.sent: list[Call[SEND]] = []
        self.errors: dict[str, deque[AgentError]] = {}
        self.leads_to: FullLink = an_invitation()

    def _note(self, what: str) -> None:
        self.log.append(what)
        if self.errors.get(what):
            raise self.errors[what].popleft()

    def fails(self, what: str, *errors: AgentError) -> None:
        self.errors[what] = deque(errors)

    async def secure(self, queue: SndQueue) -> None:
        self._note("secure")
        with self._desk.change() as tx:
            queues.set_status(tx, queue, SECURED)

    async def make(
        self,
        conn_id: ConnId,
        user_id: int,
        mode: QueueMode,
        *,
        avoiding: Iterable[Server] = (),
        client_version: int | None = None,
    ) -> None:
        self._note("make")
        self.avoided, self.client_version = [*avoiding], client_version
        assert (user_id, mode) == (1, MESSAGING)
        with self._desk.change() as tx:
            queues.insert_rcv(
                tx,
                replace(rcv_queue(NEW), conn_id=conn_id, e2e_secret=None, client_version=client_version or 4),
            )

    async def send_to_queue(self, user_id: int, server: Server, call: Call[SEND], *, entity: str) -> Answered:
        self._note("send")
        assert (user_id, server, entity, call.key) == (1, ROUTER, JOINING_CONN, None)
        self.sent.append(call)
        return Answered(OK())

    async def read(self, user_id: int, link: Any) -> Any:
        self._note("read")
        assert user_id == 1
        return SimpleNamespace(link=self.leads_to)


class Joins(Desk):
    """Somebody who joins."""

    def __init__(self, store: AgentStore) -> None:
        super().__init__(store)
        self.network = Network(self)
        anything = cast(Any, self.network)
        self.joining = Joining(self.ground, anything, anything, anything)

    def asks(self, link: str, *, pq: bool = False, **fields: Any) -> StoredCommand:
        with self.change() as tx:
            register_join(tx, JOINING_CONN, 1, JoinCommand(link, b"who I am", pq), **fields)
        return self.command()

    def command(self, conn_id: ConnId = JOINING_CONN) -> StoredCommand:
        found = commands.next_command(self.store.reading, conn_id, None)
        assert found is not None
        return found

    def run(self, command: StoredCommand) -> None:
        run_virtual(self.joining.run_join(command))

    def fails(self, command: StoredCommand, kind: type[Exception] = AgentError) -> str:
        with pytest.raises(kind) as raised:
            self.run(command)
        assert self.is_stored, "whoever runs it decides whether it is tried again"
        return str(raised.value)

    @property
    def is_stored(self) -> bool:
        return commands.has_command(self.store.reading, JOINING_CONN, JOIN)

    @property
    def record(self) -> Any:
        return connections.load(self.store.reading, JOINING_CONN)

    @property
    def queues(self) -> tuple[tuple[SndQueue, ...], tuple[RcvQueue, ...]]:
        whole = connections.load_whole(self.store.reading, JOINING_CONN)
        return whole.snd, whole.rcv

    def joined(self) -> bool:
        """Whether it is so that messages are read before it is allowed; the command is done."""
        (event,) = self.events
        assert isinstance(event, Joined)
        assert not self.is_stored
        self.events.clear()
        return event.secured

    def confirmation(self) -> AgentConnInfoReply:
        """What waits to be sent, as the inviter reads it."""
        pending = messages.next_delivery(self.store.reading, JOINING_CONN, 1)
        assert pending is not None
        assert (pending.kind, pending.others) == (MessageKind.CONN_INFO_REPLY, False)
        public = ratchets.find_public(self.store.reading, JOINING_CONN)
        assert public is not None
        assert pending.body_key is not None
        own = their_keys(pq=public.kem is not None)
        ratchet = receiving_ratchet(3, 3, own.key2, agree_as_receiver(own, public), pq_support=True)
        encrypted = encrypt_body(pending.body_key, pending.body, pending.padded_size)
        opened = decrypt(ratchet, {}, encrypted, entropy=seeded("x"), kem=RecordedPairs())
        assert opened.plaintext is not None
        content = decode_whole(opened.plaintext, read_agent_message)
        assert isinstance(content, AgentConnInfoReply)
        return content


@pytest.fixture
def joins(store: AgentStore) -> Joins:
    return Joins(store)


# Versions


@pytest.mark.parametrize(
    ("agent", "client", "e2e", "agreed"),
    [
        ((2, 7), (1, 4), (2, 3), Agreed(7, 4, 3)),
        ((2, 5), (1, 3), (2, 2), Agreed(5, 3, 2)),
        ((7, 9), (4, 9), (3, 9), Agreed(7, 4, 3)),
        ((8, 9), (1, 4), (2, 3), None),
        ((2, 7), (5, 6), (2, 3), None),
        ((2, 7), (1, 4), (4, 5), None),
    ],
)
def test_versions_that_both_know(
    agent: tuple[int, int], client: tuple[int, int], e2e: tuple[int, int], agreed: Agreed | None
) -> None:
    versions = Versions(VersionRange(*agent), VersionRange(*client), VersionRange(*e2e))
    link, address = an_invitation(versions=versions), an_address(versions)
    if agreed is not None:
        assert negotiate(VERSIONS, link) == agreed
        assert negotiate(VERSIONS, address) == replace(agreed, e2e=None)
        assert pq_offered(VERSIONS, link) is (agreed.agent >= 5 and agreed.e2e == 3)
        return
    with pytest.raises(ProtocolError, match="A_VERSION"):
        negotiate(VERSIONS, link)
    assert pq_offered(VERSIONS, link) is False


def test_an_address_says_nothing_of_the_ratchet() -> None:
    versions = Versions(e2e=VersionRange(8, 9))
    assert negotiate(VERSIONS, an_address(versions)) == Agreed(7, 4, None)


@pytest.mark.parametrize(
    ("agreed", "usable"),
    [
        (Agreed(5, 4, 3), True),
        (Agreed(4, 4, 3), False),
        (Agreed(5, 4, 2), False),
        (Agreed(5, 4, None), True),
        (Agreed(4, 4, None), False),
    ],
)
def test_whether_it_can_be_post_quantum(agreed: Agreed, usable: bool) -> None:
    assert agreed.pq_usable is usable


# What is stored before anything is sent


@pytest.mark.parametrize("pq", [True, False])
@pytest.mark.parametrize("agent", [4, 6])
@pytest.mark.parametrize("of", [an_invitation, an_address])
def test_a_full_link_says_what_the_connection_will_be(
    joins: Joins, of: Callable[..., FullLink], agent: int, pq: bool
) -> None:
    link = of(versions=Versions(VersionRange(2, agent)))
    command = joins.asks(link.text, pq=pq, corr_id="7")
    assert (joins.record.agent_version, joins.record.pq_support) == (agent, pq and agent >= 5)
    assert (joins.record.mode, joins.record.own_info) == (ConnMode.INVITATION, b"who I am")
    assert decode_whole(command.content, read_join) == JoinCommand(link.text, b"who I am", pq)
    assert (command.tag, command.server, command.corr_id) == (JOIN, None, "7")


@pytest.mark.parametrize("pq", [True, False])
def test_a_short_link_says_nothing_yet(joins: Joins, pq: bool) -> None:
    joins.asks(SHORT.text, pq=pq, reply=b"another")
    assert (joins.record.agent_version, joins.record.pq_support) == (VERSION, pq)
    assert joins.record.own_info == b"another"


@pytest.mark.parametrize("link", ["nonsense", an_invitation(versions=Versions(VersionRange(8, 9))).text])
def test_a_link_that_leads_nowhere_stores_nothing(joins: Joins, link: str) -> None:
    with pytest.raises(ProtocolError):
        joins.asks(link)
    assert list(connections.conn_ids(joins.store.reading)) == [CONN]


# An invitation


@pytest.mark.parametrize("pq", [True, False])
def test_an_invitation_is_joined(joins: Joins, pq: bool) -> None:
    joins.run(joins.asks(an_invitation(pq=pq).text, pq=pq))
    assert joins.network.log == ["secure", "make"]
    assert (joins.network.avoided, joins.network.client_version) == ([ROUTER], 4)
    assert joins.joined()
    (snd,), (rcv,) = joins.queues
    assert (snd.server, snd.snd_id, snd.status, snd.client_version) == (ROUTER, THEIRS.snd_id, SECURED, 4)
    assert (joins.record.agent_version, joins.record.pq_support) == (VERSION, pq)
    assert joins.pairs.asked == pq
    said = joins.confirmation()
    assert said == AgentConnInfoReply((QueueInfo(4, rcv.address),), b"who I am")


@pytest.mark.parametrize(
    ("mode", "agent", "secured"), [(MESSAGING, 7, True), (MESSAGING, 6, False), (None, 7, False)]
)
def test_whether_messages_are_read_before_it_is_allowed(
    joins: Joins, mode: QueueMode | None, agent: int, secured: bool
) -> None:
    link = an_invitation(versions=Versions(VersionRange(2, agent)), mode=mode)
    joins.run(joins.asks(link.text))
    assert joins.joined() is secured


def test_post_quantum_secrets_that_only_we_want(joins: Joins) -> None:
    """The peer is too old for them."""
    joins.run(joins.asks(an_invitation(versions=Versions(VersionRange(2, 4))).text, pq=True))
    assert joins.record.pq_support is False
    assert joins.pairs.asked == 0
    public = ratchets.find_public(joins.store.reading, JOINING_CONN)
    assert public is not None
    assert public.kem is None


@pytest.mark.parametrize("fails", ["secure", "make"])
def test_the_next_attempt_goes_on_with_the_same_keys(joins: Joins, fails: str) -> None:
    command = joins.asks(an_invitation().text)
    joins.network.fails(fails, away(), away())
    before = None
    for _ in range(2):
        joins.fails(command)
        (snd,), rcv = joins.queues
        ratchet = ratchets.find_ratchet(joins.store.reading, JOINING_CONN)
        assert before in (None, (snd.key, snd.e2e_public, ratchet))
        assert (joins.events, rcv) == ([], ())
        before = (snd.key, snd.e2e_public, ratchet)
    joins.run(command)
    assert joins.joined()
    assert before is not None
    assert joins.queues[0][0].key == before[0]
    joins.confirmation()


def test_a_queue_that_was_made_before_is_not_made_again(
    joins: Joins, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = joins.asks(an_invitation().text)

    def full(*_: object) -> None:
        raise StoreFailedError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(joining, "enqueue_confirmation", full)
        joins.fails(command, StoreFailedError)
    assert [len(some) for some in joins.queues] == [1, 1]
    joins.run(command)
    assert joins.network.log == ["secure", "make", "secure"]
    assert joins.joined()


@pytest.mark.parametrize(
    ("ours", "theirs", "goes_on"),
    [(NEW, NEW, True), (NEW, SECURED, True), (NEW, QueueStatus.CONFIRMED, False), (ACTIVE, SECURED, False)],
)
def test_a_join_that_went_on_without_us_is_not_continued(
    joins: Joins, ours: QueueStatus, theirs: QueueStatus, goes_on: bool
) -> None:
    command = joins.asks(an_invitation().text)
    joins.network.fails("make", away())
    joins.fails(command)
    with joins.change() as tx:
        queues.set_status(tx, joins.queues[0][0], theirs)
        queues.insert_rcv(tx, replace(rcv_queue(ours), conn_id=JOINING_CONN))
    if goes_on:
        joins.run(command)
        assert joins.joined()
    else:
        assert "cannot join again" in joins.fails(command, CommandError)
        assert joins.events == []


def test_a_connection_that_only_receives_cannot_join_an_invitation(joins: Joins) -> None:
    command = joins.asks(an_invitation().text)
    with joins.change() as tx:
        queues.insert_rcv(tx, replace(rcv_queue(NEW), conn_id=JOINING_CONN))
    assert "cannot join again" in joins.fails(command, CommandError)


# Short links


def test_a_short_invitation_is_read_and_joined(joins: Joins) -> None:
    """The key that it was read with secures the queue already."""
    fresh = a_key("given")
    with joins.change() as tx:
        handshakes.short_link_key(tx, ROUTER, SHORT.link_id, SHORT.link_key, fresh)
        handshakes.set_short_link_sender(tx, ROUTER, SHORT.link_id, THEIRS.snd_id)
    joins.run(joins.asks(SHORT.text))
    assert joins.network.log == ["read", "secure", "make"]
    assert joins.queues[0][0].key == fresh
    assert joins.joined()
    assert handshakes.given_key(joins.store.reading, ROUTER, THEIRS.snd_id) is None, "it is not needed again"


@pytest.mark.parametrize("agent", [4, 6])
def test_what_a_short_invitation_leads_to_says_what_the_connection_will_be(joins: Joins, agent: int) -> None:
    joins.network.leads_to = an_invitation(pq=True, versions=Versions(VersionRange(2, agent)))
    joins.run(joins.asks(SHORT.text, pq=True))
    assert (joins.record.agent_version, joins.record.pq_support) == (agent, agent >= 5)
    assert joins.pairs.asked == (agent >= 5)


@pytest.mark.parametrize("fails", ["secure", "make"])
def test_a_short_invitation_is_read_once(joins: Joins, fails: str) -> None:
    command = joins.asks(SHORT.text)
    joins.network.fails(fails, away())
    joins.fails(command)
    joins.run(command)
    assert joins.network.log.count("read") == 1
    assert joins.joined()


def test_a_short_invitation_that_is_left_with_both_queues(
    joins: Joins, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = joins.asks(SHORT.text)

    def full(*_: object) -> None:
        raise StoreFailedError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(joining, "enqueue_confirmation", full)
        joins.fails(command, StoreFailedError)
    joins.run(command)
    assert joins.network.log.count("read") == 1
    assert joins.joined()


def test_a_short_link_cannot_be_read_now(joins: Joins) -> None:
    command = joins.asks(SHORT.text)
    joins.network.fails("read", away())
    joins.fails(command)
    assert [len(some) for some in joins.queues] == [0, 0]


# An address


def request_of(joins: Joins, place: int = 0) -> Invitation:
    call = joins.network.sent[place]
    assert (call.command.notify, call.entity_id) == (True, THEIRS.snd_id)
    envelope = read_client_envelope(Reader(call.command.body))
    assert envelope.header.dh_key is not None
    assert envelope.header.client_version == 4
    inner = open_client_envelope(THEIRS.e2e_key.agree(envelope.header.dh_key), envelope)
    assert isinstance(inner.envelope, Invitation)
    assert inner.sender_key is None
    return inner.envelope


@pytest.mark.parametrize("pq", [True, False])
@pytest.mark.parametrize("short", [True, False])
def test_an_address_is_asked(joins: Joins, short: bool, pq: bool) -> None:
    joins.network.leads_to = an_address()
    joins.run(joins.asks(SHORT_CONTACT.text if short else an_address().text, pq=pq))
    assert joins.network.log == [*(["read"] if short else []), "make", "send"]
    assert joins.joined() is False
    (snd, (rcv,)) = joins.queues
    assert (snd, joins.record.pq_support, joins.pairs.asked) == ((), pq, pq)
    request = request_of(joins)
    assert (request.agent_version, request.info) == (VERSION, b"who I am")
    assert request.link.queues[0].address == rcv.address
    params = ratchets.find_params(joins.store.reading, JOINING_CONN)
    assert params is not None
    assert request.link.e2e.key1 == params.key1.public
    assert (request.link.e2e.kem is not None) is pq


def test_an_old_address_gets_no_post_quantum_secrets(joins: Joins) -> None:
    joins.network.leads_to = an_address(Versions(VersionRange(2, 4)))
    joins.run(joins.asks(SHORT_CONTACT.text, pq=True))
    assert (joins.record.pq_support, joins.pairs.asked, request_of(joins).agent_version) == (False, 0, 4)


@pytest.mark.parametrize("fails", ["make", "send"])
@pytest.mark.parametrize("short", [True, False])
def test_a_request_is_tried_again_with_the_same_keys(joins: Joins, short: bool, fails: str) -> None:
    joins.network.leads_to = an_address()
    command = joins.asks(SHORT_CONTACT.text if short else an_address().text)
    joins.network.fails(fails, away(), away())
    before = None
    for _ in range(2):
        joins.fails(command)
        params = ratchets.find_params(joins.store.reading, JOINING_CONN)
        assert params is not None
        assert before in (None, params)
        before = params
    joins.run(command)
    assert joins.joined() is False
    assert request_of(joins).link.e2e.key1 == cast(Any, before).key1.public
    assert joins.network.log.count("make") == (3 if fails == "make" else 1)


@pytest.mark.parametrize(("code", "retried"), [(Code.QUOTA, True), (Code.AUTH, False)])
def test_an_address_that_is_full_or_gone(joins: Joins, code: Code, retried: bool) -> None:
    command = joins.asks(an_address().text)
    joins.network.fails("send", refusal(code))
    with pytest.raises(SmpError) as raised:
        joins.run(command)
    assert raised.value.retried is retried
    assert joins.is_stored


def test_a_request_that_was_taken_is_not_sent_again(joins: Joins, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk kept that from being stored."""
    command = joins.asks(an_address().text)

    def full() -> None:
        joins.store._file.rollback()
        raise StoreFailedError("the disk is full")

    async def taken(*args: Any, **kwargs: Any) -> Answered:
        monkeypatch.setattr(joins.store._file, "commit", full)
        return await Network.send_to_queue(joins.network, *args, **kwargs)

    with monkeypatch.context():
        joins.network.send_to_queue = taken  # type: ignore[method-assign]
        for _ in range(2):
            joins.fails(command, StoreFailedError)
    monkeypatch.undo()
    assert joins.joining._taken == {JOINING_CONN}
    joins.run(command)
    assert (joins.joined(), len(joins.network.sent), joins.joining._taken) == (False, 1, set())


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("duplex", [True, False])
def test_the_owner_answers_before_the_request_is_known_to_be_sent(
    joins: Joins, short: bool, duplex: bool
) -> None:
    """Our keys are gone, for they are used: nothing is asked any more."""
    joins.network.leads_to = an_address()
    command = joins.asks(SHORT_CONTACT.text if short else an_address().text)
    joins.network.fails("send", away())
    joins.fails(command)
    joins.network.log.clear()
    with joins.change() as tx:
        if duplex:
            queues.insert_snd(tx, replace(snd_queue(), conn_id=JOINING_CONN))
        else:
            ratchets.forget_params(tx, JOINING_CONN)
    joins.run(command)
    assert (joins.network.log, joins.joined()) == ([], False)


def test_an_address_is_not_asked_by_what_sends_already(joins: Joins) -> None:
    command = joins.asks(an_address().text)
    with joins.change() as tx:
        queues.insert_snd(tx, replace(snd_queue(), conn_id=JOINING_CONN))
    assert "cannot join again" in joins.fails(command, CommandError)
    assert joins.network.sent == []


# Accepting a request


def requested(joins: Joins, link: FullLink) -> None:
    """Somebody asks our address."""
    with joins.change() as tx:
        connections.delete(tx, CONN)
        connections.insert(tx, CONN, 1, ConnMode.CONTACT, agent_version=7, pq_support=True)
        handshakes.insert_invitation(tx, StoredInvitation("request", CONN, cast(Any, link), b"info"), 1)


def accepted(joins: Joins, *, pq: bool = False) -> ConnId:
    with joins.change() as tx:
        return accept_request(tx, CONN, "request", b"welcome", pq)


@pytest.mark.parametrize(("wanted", "agent", "pq"), [(True, 7, True), (False, 7, False), (True, 4, False)])
def test_a_request_is_accepted_once(joins: Joins, wanted: bool, agent: int, pq: bool) -> None:
    link = an_invitation(pq=True, versions=Versions(VersionRange(2, agent)))
    requested(joins, link)
    conn_id = accepted(joins, pq=wanted)
    record = connections.load(joins.store.reading, conn_id)
    assert (record.user_id, record.own_info, record.pq_support) == (1, b"welcome", pq)
    command = joins.command(conn_id)
    assert decode_whole(command.content, read_join) == JoinCommand(link.text, b"welcome", pq, "request")
    with pytest.raises(ConnError, match="accepted before"):
        accepted(joins)


@pytest.mark.parametrize(("error", "again"), [(refusal(Code.AUTH), True), (away(), False)])
def test_a_request_whose_answer_failed_can_be_accepted_again(
    joins: Joins, error: AgentError, again: bool
) -> None:
    """If it failed for good; otherwise it is tried again."""
    requested(joins, an_invitation())
    conn_id = accepted(joins)
    joins.network.fails("secure", error)
    with pytest.raises(AgentError):
        joins.run(joins.command(conn_id))
    found = handshakes.find_invitation(joins.store.reading, "request")
    assert (found is not None) is again


def test_joining_for_nobody_opens_no_request(joins: Joins) -> None:
    """A join that fails for good, and is no answer to a request, leaves requests alone."""
    requested(joins, an_invitation())
    accepted(joins)
    command = joins.asks(an_invitation(snd_id=b"others".ljust(24)).text)
    joins.network.fails("secure", refusal(Code.AUTH))
    joins.fails(command)
    assert handshakes.find_invitation(joins.store.reading, "request") is None
    assert not any(isinstance(event, Failed) for event in joins.events)
