"""Confirmations on both sides of a handshake, and requests that come to an address."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from blindpost.agent.connection import Confirmation as ReceivedConfirmation
from blindpost.agent.connection import ContactRequest
from blindpost.agent.errors import InternalError, ProtocolCode, ProtocolError
from blindpost.agent.events import ConfirmationReceived, Connected, ContactRequested, InfoReceived
from blindpost.agent.handshake.allowing import allow, duplex_secure
from blindpost.agent.handshake.joining import Agreed, accept_request, pq_offered
from blindpost.agent.model import ConnType, QueueStatus, RcvQueue, Whole
from blindpost.agent.store import connections, handshakes, queues, ratchets
from blindpost.agent.store.handshakes import StoredConfirmation, StoredInvitation
from blindpost.agent.work.transactions import Tx
from blindpost.crypto.ratchet import decrypt
from blindpost.crypto.ratchet_state import receiving_ratchet
from blindpost.crypto.x3dh import agree_as_receiver
from blindpost.wire.agent.envelopes import Confirmation, Invitation, PublicHeader
from blindpost.wire.agent.messages import (
    AgentConnInfo,
    AgentConnInfoReply,
    AnyAgentMessage,
    read_agent_message,
)
from blindpost.wire.e2e import E2EParams
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey
from blindpost.wire.primitives import decode_whole
from blindpost.wire.value import Buffer, Value

REQUESTS_MAX = 10_000
"""How many requests may wait at an address, so that nobody can fill the disk with them."""


def refused(message: str) -> ProtocolError:
    return ProtocolError(ProtocolCode.A_PROHIBITED, message)


def parsed(plain: Buffer) -> AnyAgentMessage:
    """The message inside the ratchet, or A_MESSAGE."""
    try:
        return decode_whole(plain, read_agent_message)
    except WireError as error:
        raise ProtocolError(ProtocolCode.A_MESSAGE, str(error)) from error


@dataclass(frozen=True, slots=True, repr=False)
class Arrived(Value):
    """A confirmation with its surrounding data."""

    header: PublicHeader
    dh_key: PublicKey
    sender_key: PublicKey | None
    envelope: Confirmation


def confirmation_received(tx: Tx, whole: Whole, queue: RcvQueue, arrived: Arrived) -> None:
    """A confirmation for a queue that has none yet. A refused one changes nothing."""
    own, envelope = tx.config.versions, arrived.envelope
    agent_fits = envelope.agent_version in own.agent or envelope.agent_version <= whole.record.agent_version
    version = arrived.header.client_version
    if not agent_fits or not (version in own.client or version <= queue.client_version):
        raise ProtocolError(ProtocolCode.A_VERSION)
    if queue.status is not QueueStatus.NEW:
        raise refused("conf: status /= new")
    if whole.type is ConnType.RCV and envelope.e2e is not None:
        _initiator_confirmed(tx, whole, queue, arrived, envelope.e2e)
    elif whole.type is ConnType.DUPLEX and envelope.e2e is None:
        _joiner_confirmed(tx, whole, queue, arrived)
    else:
        raise refused("conf: incorrect state")


def _initiator_confirmed(tx: Tx, whole: Whole, queue: RcvQueue, arrived: Arrived, e2e: E2EParams) -> None:
    """Somebody joined our invitation: the ratchet is made from the keys of both and must open the rest."""
    config, envelope, conn_id = tx.config, arrived.envelope, whole.conn_id
    if e2e.version not in config.versions.e2e:
        raise ProtocolError(ProtocolCode.A_VERSION)
    own = ratchets.find_params(tx, conn_id)
    if own is None:
        raise InternalError("the keys of the invitation are gone")
    usable = Agreed(envelope.agent_version, arrived.header.client_version, e2e.version).pq_usable
    pq = whole.record.pq_support and usable
    try:
        keys = agree_as_receiver(own, e2e)
    except WireError as error:
        raise refused("conf: key agreement") from error
    ratchet = receiving_ratchet(e2e.version, config.versions.e2e.high, own.key2, keys, pq_support=pq)
    opened = decrypt(ratchet, {}, envelope.encrypted_info, entropy=config.entropy, kem=tx.kem)
    if opened.plaintext is None:
        raise refused("conf: decrypt error")
    content = parsed(opened.plaintext)
    if not isinstance(content, AgentConnInfoReply):
        raise refused("conf: not AgentConnInfoReply")
    connections.set_version(tx, conn_id, envelope.agent_version)
    connections.set_pq_support(tx, conn_id, pq)
    ratchets.set_ratchet(tx, conn_id, opened.ratchet)
    ratchets.change_skipped(tx, conn_id, opened.skipped, tx.now)
    secret = queue.e2e_key.agree(arrived.dh_key)
    queues.set_rcv_confirmed(tx, queue, secret, arrived.header.client_version)
    confirmation = StoredConfirmation(
        tx.new_id(),
        conn_id,
        arrived.sender_key,
        arrived.dh_key,
        bytes(content.info),
        content.queues,
        arrived.header.client_version,
    )
    handshakes.insert_confirmation(tx, confirmation)
    connections.confirmation_counted(tx, conn_id, hashlib.sha256(opened.plaintext).digest())
    servers = tuple(info.address.server for info in content.queues)
    conn = tx.handle(conn_id)
    shown = ReceivedConfirmation(conn, confirmation.confirmation_id, confirmation.info, pq, servers)
    tx.emit(ConfirmationReceived(conn, shown))
    if whole.record.auto_allow:
        allow(tx, conn_id, confirmation.confirmation_id, whole.record.own_info)


def _joiner_confirmed(tx: Tx, whole: Whole, queue: RcvQueue, arrived: Arrived) -> None:
    """The initiator has allowed the connection that we joined."""
    conn_id, conn = whole.conn_id, tx.handle(whole.conn_id)
    ratchet = ratchets.find_ratchet(tx, conn_id)
    if ratchet is None:
        raise InternalError("the connection has no ratchet")
    skipped = ratchets.skipped_keys(tx, conn_id)
    encrypted, entropy = arrived.envelope.encrypted_info, tx.config.entropy
    opened = decrypt(ratchet, skipped, encrypted, entropy=entropy, kem=tx.kem)
    if opened.plaintext is None:
        raise refused("conf: decrypt error")
    content = parsed(opened.plaintext)
    if not isinstance(content, AgentConnInfo):
        raise refused("conf: not AgentConnInfo")
    ratchets.set_ratchet(tx, conn_id, opened.ratchet)
    ratchets.change_skipped(tx, conn_id, opened.skipped, tx.now)
    secret = queue.e2e_key.agree(arrived.dh_key)
    queues.set_rcv_confirmed(tx, queue, secret, arrived.header.client_version)
    connections.confirmation_counted(tx, conn_id, hashlib.sha256(opened.plaintext).digest())
    tx.emit(InfoReceived(conn, bytes(content.info), whole.record.pq_support))
    if arrived.sender_key is not None:
        duplex_secure(tx, queue, arrived.sender_key)
    else:
        queues.set_status(tx, queue, QueueStatus.ACTIVE)
        tx.emit(Connected(conn, opened.ratchet.rcv_kem))


# Requests to an address


def invitation_received(tx: Tx, whole: Whole, envelope: Invitation) -> None:
    """Somebody wants to connect to an address. A repeated request is not shown again."""
    if whole.type is not ConnType.CONTACT:
        raise refused("inv: sent to message conn")
    if handshakes.has_invitation(tx, whole.conn_id, envelope.link):
        return
    if handshakes.count_invitations(tx, whole.conn_id) >= REQUESTS_MAX:
        raise refused("inv: too many requests wait for an answer")
    pq = pq_offered(tx.config.versions, envelope.link)
    invitation_id, info = tx.new_id(), bytes(envelope.info)
    invitation = StoredInvitation(invitation_id, whole.conn_id, envelope.link, info)
    handshakes.insert_invitation(tx, invitation, tx.now)
    servers = tuple(queue.address.server for queue in envelope.link.queues)
    conn = tx.handle(whole.conn_id)
    request = ContactRequest(conn, invitation_id, info, pq, servers)
    if whole.record.auto_allow:
        with tx.attempt(whole.conn_id):
            info, wanted = whole.record.own_info, whole.record.pq_support
            accepted = accept_request(tx, whole.conn_id, invitation_id, info, wanted)
            request = replace(request, accepted=tx.handle(accepted))
    tx.emit(ContactRequested(conn, request))
