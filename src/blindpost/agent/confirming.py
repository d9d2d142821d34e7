"""The second half of a handshake: confirmations on both sides, allowing a connection, HELLO, requests.

Which of the two handshakes runs is decided for each direction by its queue: one that its sender can secure
needs no HELLO, any other one is secured by its recipient with the key in the confirmation.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from blindpost.agent.connection import Confirmation as ReceivedConfirmation
from blindpost.agent.connection import ContactRequest
from blindpost.agent.errors import (
    AgentError,
    InternalError,
    ProtocolCode,
    ProtocolError,
    prohibited,
)
from blindpost.agent.events import ConfirmationReceived, Connected, ContactRequested, InfoReceived
from blindpost.agent.joining import Agreed, negotiate
from blindpost.agent.model import ConnId, ConnType, QueueStatus, RcvQueue, Whole
from blindpost.agent.queue_making import new_snd_queue, secure
from blindpost.agent.runtime import Runtime, Tx
from blindpost.agent.sending import enqueue, enqueue_confirmation
from blindpost.agent.store import commands, connections, handshakes, queues, ratchets
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.store.handshakes import StoredConfirmation, StoredInvitation
from blindpost.client.calls import Call
from blindpost.crypto.ratchet import decrypt
from blindpost.crypto.ratchet_state import receiving_ratchet
from blindpost.crypto.x3dh import agree_as_receiver
from blindpost.wire.agent.envelopes import Confirmation, Invitation, PublicHeader
from blindpost.wire.agent.messages import (
    AgentConnInfo,
    AgentConnInfoReply,
    AnyAgentMessage,
    Hello,
    read_agent_message,
)
from blindpost.wire.e2e import E2EParams
from blindpost.wire.errors import WireError
from blindpost.wire.keys import PublicKey, read_auth_key, write_key
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.smp.commands import KEY
from blindpost.wire.value import Buffer, Value

ALLOW_SECURE = "ALLOW_SECURE"
DUPLEX_SECURE = "DUPLEX_SECURE"


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
    """A confirmation with what came around it."""

    header: PublicHeader
    dh_key: PublicKey
    sender_key: PublicKey | None
    envelope: Confirmation


def confirmation_received(tx: Tx, whole: Whole, queue: RcvQueue, arrived: Arrived) -> None:
    """A confirmation for a queue that has none yet. Refused ones leave everything as it was."""
    own, envelope = tx.runtime.config.versions, arrived.envelope
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
    config, envelope, conn_id = tx.runtime.config, arrived.envelope, whole.conn_id
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
        tx.runtime.new_id(),
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
    encrypted, entropy = arrived.envelope.encrypted_info, tx.runtime.config.entropy
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
        content_row = encode(SecureCommand(queue.number, arrived.sender_key), _write_secure)
        tx.command(conn_id, queue.server, DUPLEX_SECURE, content_row)
    else:
        queues.set_rcv_status(tx, queue, QueueStatus.ACTIVE)
        tx.emit(Connected(conn, opened.ratchet.rcv_kem))


# Allowing


def allow(tx: Tx, conn_id: ConnId, confirmation_id: str, own_info: bytes) -> None:
    """Let the one who joined in: the rest is done by a stored command."""
    whole = connections.load_whole(tx, conn_id)
    if whole.type is not ConnType.RCV:
        raise prohibited("the connection is not waiting to be allowed")
    if handshakes.find_confirmation(tx, conn_id, confirmation_id) is None:
        raise prohibited("there is no such confirmation, or it was allowed before")
    handshakes.accept_confirmation(tx, confirmation_id, own_info)
    tx.command(conn_id, whole.rcv[0].server, ALLOW_SECURE, confirmation_id.encode())


async def run_allow_secure(rt: Runtime, command: StoredCommand) -> None:
    """Secure our queue if we must, make the send queue, and confirm."""
    conn_id = command.conn_id
    with rt.transaction() as tx:
        whole = connections.load_whole(tx, conn_id)
        confirmation = handshakes.find_confirmation(tx, conn_id, command.content.decode(), accepted=True)
        if confirmation is None or whole.type not in (ConnType.RCV, ConnType.DUPLEX):
            raise InternalError("the confirmation to allow is gone")
    if confirmation.sender_key is not None and whole.rcv[0].status is QueueStatus.CONFIRMED:
        await _secure_own(rt, whole.rcv[0], confirmation.sender_key)
    if whole.type is ConnType.RCV:
        with rt.transaction() as tx:
            info = confirmation.reply_queues[0]
            if info.version not in rt.config.versions.client:
                raise ProtocolError(ProtocolCode.A_VERSION)
            new_snd_queue(tx, conn_id, whole.record.user_id, info)
            whole = connections.load_whole(tx, conn_id)
    try:
        await secure(rt, whole.snd[0])
    except AgentError as error:
        if error.temporary and command.server is not None and whole.snd[0].server != command.server:
            with rt.transaction() as tx:
                commands.move(tx, command.command_id, whole.snd[0].server)
                tx.wake_commands(conn_id, whole.snd[0].server)
            return
        raise
    with rt.transaction() as tx:
        info_message = AgentConnInfo(confirmation.own_info or b"")
        enqueue_confirmation(tx, whole.record, whole.snd[0], info_message)
        commands.delete(tx, command.command_id)


async def _secure_own(rt: Runtime, queue: RcvQueue, sender_key: PublicKey) -> None:
    call = Call(KEY(sender_key), queue.rcv_id, queue.key)
    await rt.sessions.send(queue.user_id, queue.server, call, entity=queue.conn_id)
    with rt.transaction() as tx:
        queues.set_rcv_status(tx, queue, QueueStatus.SECURED)


@dataclass(frozen=True, slots=True, repr=False)
class SecureCommand(Value):
    """Which of our queues to secure, with which key of its sender."""

    queue_number: int
    sender_key: PublicKey


def _write_secure(writer: Writer, secure_command: SecureCommand) -> None:
    write_key(writer.i64(secure_command.queue_number), secure_command.sender_key)


def _read_secure(reader: Reader) -> SecureCommand:
    return SecureCommand(reader.i64(), read_auth_key(reader))


async def run_duplex_secure(rt: Runtime, command: StoredCommand) -> None:
    """In the slow handshake the joiner secures its queue and says HELLO."""
    content = decode_whole(command.content, _read_secure)
    queue = queues.find_rcv_number(rt.store.reading, command.conn_id, content.queue_number)
    if queue is None:
        raise InternalError("the queue to secure is gone")
    if queue.status is QueueStatus.CONFIRMED:
        await _secure_own(rt, queue, content.sender_key)
    with rt.transaction() as tx:
        whole = connections.load_whole(tx, command.conn_id)
        enqueue(tx, whole, Hello(), queues=whole.snd[:1])
        commands.delete(tx, command.command_id)


def hello_received(tx: Tx, whole: Whole, queue: RcvQueue, *, pq: bool) -> None:
    """HELLO tells that a queue which its recipient secured works; it is answered once."""
    if queue.status is QueueStatus.ACTIVE:
        raise refused("hello: active")
    if whole.type is not ConnType.DUPLEX:
        return
    if whole.snd[0].status is QueueStatus.ACTIVE:
        tx.emit(Connected(tx.handle(whole.conn_id), pq))
    else:
        enqueue(tx, whole, Hello(), queues=whole.snd[:1])


# Requests to an address


def invitation_received(tx: Tx, whole: Whole, envelope: Invitation) -> None:
    """Somebody wants to connect to an address. The same request again is not shown again."""
    if whole.type is not ConnType.CONTACT:
        raise refused("inv: sent to message conn")
    if handshakes.has_invitation(tx, whole.conn_id, envelope.link):
        return
    try:
        pq = negotiate(tx.runtime, envelope.link).pq_usable
    except ProtocolError:
        pq = False
    invitation_id, info = tx.runtime.new_id(), bytes(envelope.info)
    invitation = StoredInvitation(invitation_id, whole.conn_id, envelope.link, info)
    handshakes.insert_invitation(tx, invitation, tx.now)
    servers = tuple(queue.address.server for queue in envelope.link.queues)
    conn = tx.handle(whole.conn_id)
    tx.emit(ContactRequested(conn, ContactRequest(conn, invitation_id, info, pq, servers)))
