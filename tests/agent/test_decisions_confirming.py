"""Confirmations and requests on the rows of a store: whom a new connection is with, and whom it is not."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from blindpost.agent import (
    ConfirmationReceived,
    Connected,
    ContactRequested,
    Failed,
    InfoReceived,
    Received,
)
from blindpost.agent.handshake import confirming
from blindpost.agent.handshake.allowing import ALLOW_SECURE, DUPLEX_SECURE
from blindpost.agent.links.values import invitation_link
from blindpost.agent.model import ConnMode, QueueStatus
from blindpost.agent.store import connections, handshakes, queues, ratchets
from blindpost.agent.store.database import AgentStore
from blindpost.agent.work.commands import JOIN
from blindpost.crypto.ratchet_state import sending_ratchet
from blindpost.crypto.x3dh import agree_as_sender, answering_params, proposed_params
from blindpost.crypto.x448 import generate_x448
from blindpost.wire.agent.envelopes import Confirmation, Invitation, PublicHeader
from blindpost.wire.agent.messages import (
    AgentConnInfo,
    AgentConnInfoReply,
    AMsg,
    AnyAgentMessage,
    write_agent_message,
)
from blindpost.wire.e2e import E2EParams
from blindpost.wire.keys import PublicKey
from blindpost.wire.primitives import encode
from blindpost.wire.queue_addresses import QueueInfo
from blindpost.wire.smp.values import QueueMode
from tests.support.agent.desk import KEYED, VERSION, Desk
from tests.support.agent.parties import Party, RecordedPairs, joined
from tests.support.agent.ratchets import seeded
from tests.support.agent.rows import CONFIG, CONN, PEER_KEY, ROUTER, a_key, rcv_queue

NEW, CONFIRMED, ACTIVE = QueueStatus.NEW, QueueStatus.CONFIRMED, QueueStatus.ACTIVE
SENDER = a_key("sender").public
REPLY = QueueInfo(4, replace(rcv_queue(), snd_id=b"reply".ljust(24)).address)
INFO, OWN_INFO = AgentConnInfoReply((REPLY,), b"who I am"), AgentConnInfo(b"who we are")

Said = AnyAgentMessage | bytes
"""What is said in a confirmation, or bytes that say nothing."""


class Handshake(Desk):
    """A connection that has no peer yet."""

    def anew(self, mode: ConnMode = ConnMode.INVITATION, **fields: Any) -> None:
        """Another connection than the usual one."""
        given = {"agent_version": VERSION, "pq_support": False, "auto_allow": False, **fields}
        with self.change() as tx:
            connections.delete(tx, CONN)
            connections.insert(tx, CONN, 1, mode, **given)

    @property
    def commands(self) -> list[tuple[str, str]]:
        """What is to be done, besides acknowledging: the connection, and what."""
        query = "SELECT conn_id, command_tag FROM commands WHERE command_tag <> 'ACK'"
        return list(self.store.reading.sql.execute(query))

    def confirmation(self, *, accepted: bool = False) -> handshakes.StoredConfirmation | None:
        return handshakes.find_confirmation(self.store.reading, CONN, accepted=accepted)

    def untouched(self) -> bool:
        """Whether the queue still waits for its first confirmation."""
        (queue,) = self.whole.rcv
        return (queue.status, queue.e2e_secret) == (NEW, None) and not self.commands


class Initiator(Handshake):
    """Made an invitation, which somebody joins."""

    def invited(self, *, pq: bool = False, keys: bool = True, **fields: Any) -> None:
        self.anew(pq_support=pq, **fields)
        self.own = proposed_params(3, pq=pq, entropy=seeded("initiator"), kem=RecordedPairs())
        if keys:
            with self.change() as tx:
                ratchets.set_params(tx, CONN, self.own)
        self.receives(e2e_secret=None, status=NEW, duplex=False)

    def joiner(
        self,
        content: Said = INFO,
        *,
        version: int = VERSION,
        e2e: int = 3,
        pq: bool = False,
        missed: int = 0,
    ) -> Confirmation:
        """Its confirmation, and its ratchet in `peer`."""
        peer = self.own.public(e2e)
        keys = answering_params(peer, pq=pq, entropy=seeded("joiner"), kem=RecordedPairs())
        ratchet = sending_ratchet(e2e, 3, peer.key2, generate_x448(seeded("dh")), agree_as_sender(keys, peer))
        self.peer = Party("joiner", ratchet)
        for _ in range(missed):
            self.peer.send(b"?")
        plain = content if isinstance(content, bytes) else encode(content, write_agent_message)
        self._said, self._hash = 1, hashlib.sha256(plain).digest()
        return Confirmation(version, keys.public(e2e), self.peer.send(plain, padded=2000))

    def came(
        self, confirmation: Confirmation, header: PublicHeader = KEYED, sender_key: PublicKey | None = SENDER
    ) -> None:
        self.take(self.sealed(confirmation, header=header, sender_key=sender_key))


@pytest.fixture
def initiator(store: AgentStore) -> Initiator:
    found = Initiator(store)
    found.invited()
    return found


# Somebody joins our invitation


@pytest.mark.parametrize("sender_key", [SENDER, None])
def test_somebody_joined(initiator: Initiator, sender_key: PublicKey | None) -> None:
    initiator.came(initiator.joiner(), sender_key=sender_key)
    (event,) = initiator.events
    assert isinstance(event, ConfirmationReceived)
    shown = event.confirmation
    assert (shown.info, shown.pq, shown.servers) == (b"who I am", False, (ROUTER,))
    stored = initiator.confirmation()
    assert stored == handshakes.StoredConfirmation(
        shown.id, CONN, sender_key, PEER_KEY.public, b"who I am", (REPLY,), 4
    )
    (queue,) = initiator.whole.rcv
    assert (queue.status, queue.client_version) == (CONFIRMED, 4)
    assert queue.e2e_secret == initiator.queue.e2e_key.agree(PEER_KEY.public)
    record = initiator.whole.record
    assert (record.agent_version, record.pq_support, record.last_external_id) == (VERSION, False, 1)
    assert record.last_rcv_hash == initiator._hash
    assert (initiator.commands, initiator.acks) == ([], 1), "the program decides"
    initiator.queue = queue
    initiator.events.clear()
    initiator.take(initiator.said(AMsg(b"next")))
    assert initiator.heard() == [b"next"], "the ratchet is made, and has made its step"


def test_keys_of_what_is_missing_before_a_confirmation_are_kept(initiator: Initiator) -> None:
    initiator.came(initiator.joiner(missed=2))
    assert [type(event) for event in initiator.events] == [ConfirmationReceived]
    (kept,) = ratchets.skipped_keys(initiator.store.reading, CONN).values()
    assert len(kept) == 2


def test_everybody_is_let_in(store: AgentStore) -> None:
    initiator = Initiator(store)
    initiator.invited(auto_allow=True, own_info=b"who we are")
    initiator.came(initiator.joiner())
    assert [type(event) for event in initiator.events] == [ConfirmationReceived]
    assert initiator.commands == [(CONN, ALLOW_SECURE)]
    stored = initiator.confirmation(accepted=True)
    assert stored is not None
    assert stored.own_info == b"who we are"


@pytest.mark.parametrize(
    ("before", "said", "taken"),
    [(7, 7, True), (7, 2, True), (7, 8, False), (8, 8, True), (7, 1, True), (1, 9, False)],
)
def test_the_version_of_its_agent(store: AgentStore, before: int, said: int, taken: bool) -> None:
    """One that we know, or at most what the connection has."""
    initiator = Initiator(store)
    initiator.invited(agent_version=before)
    initiator.came(initiator.joiner(version=said))
    if taken:
        assert initiator.whole.record.agent_version == said
        assert [type(event) for event in initiator.events] == [ConfirmationReceived]
    else:
        assert initiator.refused().startswith("AGENT A_VERSION")
        assert initiator.untouched()


@pytest.mark.parametrize(
    ("said", "of_queue", "taken"), [(1, 4, True), (4, 1, True), (5, 5, True), (0, 4, True)]
)
def test_the_version_of_its_client(store: AgentStore, said: int, of_queue: int, taken: bool) -> None:
    initiator = Initiator(store)
    initiator.queue = replace(initiator.queue, client_version=of_queue)
    initiator.invited()
    initiator.came(initiator.joiner(), PublicHeader(said, PEER_KEY.public))
    assert [type(event) for event in initiator.events] == [ConfirmationReceived]
    assert initiator.whole.rcv[0].client_version == min(said, of_queue)


@pytest.mark.parametrize(("e2e", "taken"), [(1, False), (2, True), (3, True)])
def test_the_version_of_its_ratchet(initiator: Initiator, e2e: int, taken: bool) -> None:
    made = initiator.joiner(e2e=max(e2e, 2))
    assert made.e2e is not None
    initiator.came(replace(made, e2e=replace(made.e2e, version=e2e)))
    if taken:
        assert [type(event) for event in initiator.events] == [ConfirmationReceived]
    else:
        assert initiator.refused().startswith("AGENT A_VERSION")
        assert initiator.untouched()


@pytest.mark.parametrize(
    ("wanted", "offered", "version", "e2e", "used"),
    [
        (True, True, 7, 3, True),
        (False, True, 7, 3, False),
        (True, False, 7, 3, True),
        (True, False, 4, 3, False),
        (True, False, 7, 2, False),
    ],
)
def test_whether_it_is_post_quantum(
    store: AgentStore, wanted: bool, offered: bool, version: int, e2e: int, used: bool
) -> None:
    """If we want it, and the versions of both can."""
    initiator = Initiator(store)
    initiator.invited(pq=wanted)
    initiator.came(initiator.joiner(pq=offered, version=version, e2e=e2e))
    (event,) = initiator.events
    assert isinstance(event, ConfirmationReceived)
    assert event.confirmation.pq is used
    assert initiator.whole.record.pq_support is used
    ratchet = ratchets.find_ratchet(store.reading, CONN)
    assert ratchet is not None
    assert ratchet.support_kem is used


def test_the_keys_of_the_invitation_are_gone(store: AgentStore) -> None:
    initiator = Initiator(store)
    initiator.invited(keys=False)
    initiator.came(initiator.joiner())
    assert "the keys of the invitation are gone" in initiator.refused()
    assert initiator.untouched()


def test_keys_that_cannot_be_agreed_on(store: AgentStore) -> None:
    """A KEM is accepted that was not proposed."""
    initiator = Initiator(store)
    initiator.invited()
    proposing = proposed_params(3, pq=True, entropy=seeded("x"), kem=RecordedPairs())
    accepting = answering_params(proposing.public(3), pq=True, entropy=seeded("y"), kem=RecordedPairs())
    initiator.came(replace(initiator.joiner(), e2e=accepting.public(3)))
    assert "conf: key agreement" in initiator.refused()
    assert initiator.untouched()


def test_what_it_says_is_of_another_ratchet(initiator: Initiator) -> None:
    stranger, _ = joined(seed="other")
    made = initiator.joiner()
    initiator.came(replace(made, encrypted_info=stranger.send(b"?")))
    assert "conf: decrypt error" in initiator.refused()
    assert initiator.untouched()


def test_what_it_says_cannot_be_read(initiator: Initiator) -> None:
    initiator.came(initiator.joiner(b"?"))
    assert initiator.refused().startswith("AGENT A_MESSAGE")
    assert initiator.untouched()


def test_what_it_says_is_what_an_initiator_says(initiator: Initiator) -> None:
    initiator.came(initiator.joiner(AgentConnInfo(b"who I am")))
    assert "conf: not AgentConnInfoReply" in initiator.refused()
    assert initiator.untouched()
    assert ratchets.find_ratchet(initiator.store.reading, CONN) is None


def test_a_joiner_without_keys(initiator: Initiator) -> None:
    initiator.came(replace(initiator.joiner(), e2e=None))
    assert "conf: incorrect state" in initiator.refused()
    assert initiator.untouched()


@pytest.mark.parametrize("status", [CONFIRMED, ACTIVE])
def test_a_queue_that_is_past_its_confirmation(store: AgentStore, status: QueueStatus) -> None:
    initiator = Initiator(store)
    initiator.invited()
    with initiator.change() as tx:
        queues.set_status(tx, initiator.queue, status)
    initiator.came(initiator.joiner())
    assert "conf: status /= new" in initiator.refused()
    assert initiator.whole.rcv[0].status is status


# The initiator of what we joined answers


class Joiner(Handshake):
    """Joined an invitation, and waits to be let in."""

    def waits(self, *, pq: bool = False, ratchet: bool = True) -> None:
        self.anew(pq_support=pq)
        self.receives(e2e_secret=None, status=NEW)
        own, self.peer = joined(pq_s=pq, pq_r=pq)
        if ratchet:
            with self.change() as tx:
                ratchets.set_ratchet(tx, CONN, own.ratchet)
        self.peer.read(own.send(b"confirmation"))
        with self.change() as tx:
            if ratchet:
                ratchets.set_ratchet(tx, CONN, own.ratchet)

    def initiator(self, content: Said = OWN_INFO) -> Confirmation:
        plain = content if isinstance(content, bytes) else encode(content, write_agent_message)
        self._said, self._hash = 1, hashlib.sha256(plain).digest()
        return Confirmation(VERSION, None, self.peer.send(plain, padded=2000))

    def came(self, confirmation: Confirmation, sender_key: PublicKey | None = None) -> None:
        self.take(self.sealed(confirmation, header=KEYED, sender_key=sender_key))


@pytest.fixture
def joiner(store: AgentStore) -> Joiner:
    found = Joiner(store)
    found.waits()
    return found


@pytest.mark.parametrize("pq", [True, False])
def test_we_are_let_in(store: AgentStore, pq: bool) -> None:
    """The queue was secured by its sender: the connection works at once."""
    joiner = Joiner(store)
    joiner.waits(pq=pq)
    before = ratchets.find_ratchet(store.reading, CONN)
    joiner.came(joiner.initiator())
    assert ratchets.find_ratchet(store.reading, CONN) != before
    info, connected = joiner.events
    assert isinstance(info, InfoReceived)
    assert (info.info, info.pq) == (b"who we are", pq)
    assert isinstance(connected, Connected)
    assert connected.pq is pq
    (queue,) = joiner.whole.rcv
    assert (queue.status, queue.client_version) == (ACTIVE, 4)
    assert queue.e2e_secret == joiner.queue.e2e_key.agree(PEER_KEY.public)
    assert (joiner.whole.record.last_external_id, joiner.whole.record.last_rcv_hash) == (1, joiner._hash)
    assert (joiner.commands, joiner.acks) == ([], 1)
    joiner.queue = queue
    joiner.events.clear()
    joiner.take(joiner.said(AMsg(b"next")))
    assert joiner.heard() == [b"next"]


def test_we_are_let_in_and_secure_our_queue(joiner: Joiner) -> None:
    joiner.came(joiner.initiator(), SENDER)
    assert [type(event) for event in joiner.events] == [InfoReceived]
    assert joiner.whole.rcv[0].status is CONFIRMED
    assert (joiner.commands, joiner.acks) == ([(CONN, DUPLEX_SECURE)], 1)


def test_messages_that_came_before_the_confirmation(joiner: Joiner) -> None:
    """Its key was kept when they were read; it is the first message only if nothing came before."""
    early = joiner.initiator()
    with joiner.change() as tx:
        queues.set_rcv_confirmed(tx, joiner.queue, joiner.queue.e2e_key.agree(PEER_KEY.public), 4)
    joiner.queue, waiting = joiner.whole.rcv[0], joiner.queue
    joiner.take(joiner.said(AMsg(b"second")))
    assert [event.msg.body for event in joiner.events if isinstance(event, Received)] == [b"second"]
    assert len(ratchets.skipped_keys(joiner.store.reading, CONN)) == 1
    joiner.events.clear()
    with joiner.change() as tx:
        tx.sql.execute("UPDATE rcv_queues SET e2e_dh_secret = NULL, status = 'new'")
    joiner.queue = waiting
    joiner.came(early)
    assert [type(event) for event in joiner.events] == [InfoReceived, Connected]
    assert not any(ratchets.skipped_keys(joiner.store.reading, CONN).values())
    assert joiner.whole.record.last_external_id == 2


def test_a_joiner_without_a_ratchet(store: AgentStore) -> None:
    joiner = Joiner(store)
    joiner.waits(ratchet=False)
    joiner.came(joiner.initiator())
    assert "the connection has no ratchet" in joiner.refused()
    assert joiner.untouched()


def test_an_answer_of_another_ratchet(joiner: Joiner) -> None:
    stranger, _ = joined(seed="other")
    joiner.came(replace(joiner.initiator(), encrypted_info=stranger.send(b"?")))
    assert "conf: decrypt error" in joiner.refused()
    assert joiner.untouched()


def test_an_answer_that_cannot_be_read(joiner: Joiner) -> None:
    joiner.came(joiner.initiator(b"?"))
    assert joiner.refused().startswith("AGENT A_MESSAGE")
    assert joiner.untouched()


def test_an_answer_that_is_what_a_joiner_says(joiner: Joiner) -> None:
    before = ratchets.find_ratchet(joiner.store.reading, CONN)
    joiner.came(joiner.initiator(INFO))
    assert "conf: not AgentConnInfo" in joiner.refused()
    assert joiner.untouched()
    assert ratchets.find_ratchet(joiner.store.reading, CONN) == before


def test_an_answer_with_keys_of_its_own(joiner: Joiner) -> None:
    keys: E2EParams = proposed_params(3, pq=False, entropy=seeded("k"), kem=RecordedPairs()).public(3)
    joiner.came(replace(joiner.initiator(), e2e=keys))
    assert "conf: incorrect state" in joiner.refused()
    assert joiner.untouched()


# Requests to an address


class Address(Handshake):
    """Anybody may ask it for a connection."""

    def opened(self, **fields: Any) -> None:
        self.anew(ConnMode.CONTACT, **fields)
        self.receives(e2e_secret=None, status=NEW, mode=QueueMode.CONTACT, duplex=False)

    def asked(self, name: str = "somebody", *, pq: bool = False) -> None:
        own = proposed_params(3, pq=pq, entropy=seeded(name), kem=RecordedPairs())
        link = invitation_link(CONFIG.versions, rcv_queue().address, own, with_kem=True)
        self.take(self.sealed(Invitation(VERSION, link, name.encode()), header=KEYED))

    def request(self) -> ContactRequested:
        (event,) = self.events
        assert isinstance(event, ContactRequested)
        self.events.clear()
        return event

    @property
    def waiting(self) -> list[str]:
        return handshakes.invitations_of(self.store.reading, CONN)


@pytest.fixture
def address(store: AgentStore) -> Address:
    found = Address(store)
    found.opened()
    return found


def test_somebody_asks(address: Address) -> None:
    address.asked("ann")
    request = address.request().request
    assert (request.info, request.pq, request.servers, request.accepted) == (b"ann", True, (ROUTER,), None)
    assert address.waiting == [request.id]
    stored = handshakes.find_invitation(address.store.reading, request.id)
    assert stored is not None
    assert (stored.info, stored.contact_conn_id) == (b"ann", CONN)
    assert (address.commands, address.acks) == ([], 1), "the program decides"


def test_a_request_that_comes_again_is_not_shown_again(address: Address) -> None:
    address.asked("ann")
    address.request()
    address.asked("ann")
    assert (address.events, len(address.waiting), address.acks) == ([], 1, 2)
    address.asked("ben")
    assert address.request().request.info == b"ben"


def test_an_address_that_accepts_everybody(store: AgentStore) -> None:
    address = Address(store)
    address.opened(auto_allow=True, own_info=b"who we are", pq_support=True)
    address.asked("ann")
    request = address.request().request
    assert request.accepted is not None
    assert address.commands == [(request.accepted.id, JOIN)]
    record = connections.load(store.reading, request.accepted.id)
    assert (record.own_info, record.pq_support) == (b"who we are", True)
    assert address.waiting == [], "it is accepted"


def test_too_many_requests_wait(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "REQUESTS_MAX", 2)
    for name in ("ann", "ben"):
        address.asked(name)
        address.request()
    address.asked("cat")
    (event,) = address.events
    assert isinstance(event, Failed)
    assert "inv: too many requests wait for an answer" in str(event.error)
    assert (len(address.waiting), address.acks) == (2, 3)
    address.events.clear()
    address.asked("ann")
    assert address.events == [], "one that waits already is no further one"


def test_a_request_to_what_is_no_address(store: AgentStore) -> None:
    address = Address(store)
    address.anew()
    address.receives(e2e_secret=None, status=NEW, duplex=False)
    address.asked("ann")
    assert "inv: sent to message conn" in address.refused()
    assert address.waiting == []
