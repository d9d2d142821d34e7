"""Receiving: one SMP message at a time through its layers to its handler; then its acknowledgement.

What comes of a message is one transaction: the ratchet, the message, what follows from it and that it is
to be acknowledged. An error that would come again is reported and acknowledged; when the store itself fails
nothing has happened, and the message is tried again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from blindpost.agent.errors import AgentError, CriticalError, InternalError, ProtocolCode, ProtocolError
from blindpost.agent.events import AgentFailed, Failed
from blindpost.agent.handshake.confirming import (
    Arrived,
    confirmation_received,
    invitation_received,
    parsed,
    refused,
)
from blindpost.agent.messages import content
from blindpost.agent.messages.acking import ack_later
from blindpost.agent.messages.content import Fate
from blindpost.agent.messages.flows import Flow
from blindpost.agent.messages.layers import Inner, open_client_envelope, open_delivery
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.model import ConnType, QueueStatus, RcvQueue, SyncState, Whole
from blindpost.agent.notifications.supervisor import message_came
from blindpost.agent.rotation import recipient
from blindpost.agent.rotation.draining import Draining
from blindpost.agent.routers.sessions import ELSEWHERE, Session
from blindpost.agent.store import connections, messages, queues, ratchets
from blindpost.agent.store.intake import Came
from blindpost.agent.sync import synchronisation
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.retries import MESSAGE_FAST, Retry
from blindpost.agent.work.suspension import Operation
from blindpost.agent.work.transactions import Tx
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.kem import KemSource
from blindpost.crypto.ratchet import RatchetErrorKind, RatchetFailure, decrypt
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.addresses import Server
from blindpost.wire.agent.envelopes import (
    ClientEnvelope,
    Confirmation,
    Invitation,
    MessageEnvelope,
    RatchetKey,
    read_client_envelope,
)
from blindpost.wire.agent.messages import AgentMessage, AMsg, AQCont
from blindpost.wire.errors import WireError
from blindpost.wire.keys import PublicKey
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.messages import Message, QuotaMarker
from blindpost.wire.smp.responses import MSG
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.value import Buffer
from blindpost.wire.versions import VersionRange

log = logging.getLogger(__name__)


class _NotForProgramError(Exception):
    """A message that is known, or between agents."""


class Reception:
    """Where sessions bring messages to."""

    def __init__(self, ground: Ground, draining: Draining, flow: Flow) -> None:
        self._ground = ground
        self._draining = draining
        self._flow = flow
        self._in_hand: dict[tuple[Server, bytes], MSG] = {}
        """The last message that came from a queue and is not processed yet."""

    async def received(self, session: Session, rcv_id: bytes, msg: MSG) -> None:
        """Process one message; when this returns it is stored what becomes of it. A store that is broken
        takes nothing until the next start, and the router has the message still."""
        place = session.key.server, rcv_id
        queue = await self._found(place)
        if queue is not None and not session.key.carries(queue):
            session.blame(ELSEWHERE)
            return
        self._in_hand[place] = msg
        try:
            await self._received(place, msg)
        finally:
            if self._in_hand.get(place) is msg:
                del self._in_hand[place]

    async def _found(self, place: tuple[Server, bytes]) -> RcvQueue | None:
        """The queue; while the disk cannot be read it is not known whose message this is."""
        retry = Retry.first(MESSAGE_FAST)
        while not self._ground.store.is_broken:
            try:
                return queues.find_rcv(self._ground.store.reading, *place)
            except StoreFailedError as error:
                self._ground.stream.put(AgentFailed(CriticalError(str(error), temporary=True)))
            await asyncio.sleep(retry.delay_s)
            retry = retry.next()
        return None

    async def _received(self, place: tuple[Server, bytes], msg: MSG) -> None:
        """Try until it is stored, or until another one comes from its queue: then a new session has brought
        this one again. Once that copy is stored, this one is out of date: a later ratchet cannot read it."""
        retry = Retry.first(MESSAGE_FAST)
        while True:
            queue = await self._found(place)
            if queue is None or queue.deleted:
                return None
            try:
                if queue.replaces is not None and queue.status is not QueueStatus.ACTIVE:
                    await self._draining.drained(queue)
                async with self._ground.operations.under_way(Operation.RECEIVING):
                    if self._in_hand.get(place) is not msg:
                        return None
                    return await self.process(queue, msg)
            except StoreFailedError as error:
                if self._ground.store.is_broken:
                    return None
                critical = CriticalError(str(error), temporary=True)
                self._ground.stream.put(Failed(self._ground.handle(queue.conn_id), critical))
            await asyncio.sleep(retry.delay_s)
            retry = retry.next()

    def receive_again(self) -> None:
        """What came one after the other before the program was killed or the power failed: the store may not
        have it, and its routers may have forgotten it. Nobody is told here: what is not acknowledged is shown
        again. What is not for the program is with its routers still, and is left to them."""
        store = self._ground.store
        for record in store.intake.left:
            self._receive_again(record.came, record.body)
            for came in record.done:
                self._done_again(came)
        store.commit()
        store.intake.forget_left()

    def _receive_again(self, came: Came, body: Buffer) -> None:
        ground, db = self._ground, self._ground.store.reading
        queue = queues.find_rcv_number(db, came.conn_id, came.queue_number)
        if queue is None or queue.deleted or messages.find_by_broker_id(db, *came) is not None:
            return
        try:
            with ground.untold() as tx:
                if _opened(tx, queue, MSG(came.broker_id, body)) is not Fate.PENDING:
                    raise _NotForProgramError
        except StoreFailedError:
            raise
        except (_NotForProgramError, AgentError):
            return
        except Exception:
            log.exception("a message that came before the start could not be processed")
            return
        stored = messages.find_by_broker_id(db, *came)
        assert stored is not None
        ground.store.unsure.add((came.conn_id, stored.internal_id))

    def _done_again(self, came: Came) -> None:
        stored = messages.find_by_broker_id(self._ground.store.reading, *came)
        if stored is not None and not stored.user_ack:
            with self._ground.untold() as tx:
                messages.acknowledged(tx, came.conn_id, stored.internal_id)
            self._ground.store.unsure.discard((came.conn_id, stored.internal_id))

    async def process(self, queue: RcvQueue, msg: MSG) -> None:
        """One message, alone with its connection."""
        async with (
            self._ground.locked(queue.conn_id),
            self._ground.kem_source(self._may_need_pair(queue)) as kem,
        ):
            if self._flow.is_of(queue.conn_id):
                tx = self._at_once(queue, msg, kem)
            else:
                tx = self._process(queue, msg, kem)
        await tx.written()

    def _at_once(self, queue: RcvQueue, msg: MSG, kem: KemSource) -> Tx:
        """The disk makes it durable as it came, and it is opened and committed meanwhile."""
        intake = self._ground.store.intake
        entry = self._ground.store.came(Came(queue.conn_id, queue.number, msg.msg_id), msg.enc_body)
        try:
            tx = self._process(queue, msg, kem)
        except BaseException:
            if entry is not None:
                intake.release(entry)
            raise
        if entry is not None:
            tx.group.when_ended(lambda _: intake.release(entry))
        tx.group.at_once(awaited=entry is None)
        return tx

    def _may_need_pair(self, queue: RcvQueue) -> bool:
        """Whether a step of the ratchet could ask for a KEM key pair."""
        db = self._ground.store.reading
        ratchet = ratchets.find_ratchet(db, queue.conn_id)
        if ratchet is not None:
            return ratchet.enable_kem
        record = connections.find(db, queue.conn_id)
        return record is not None and record.pq_support and queue.mode is not QueueMode.CONTACT

    def _process(self, queue: RcvQueue, msg: MSG, kem: KemSource) -> Tx:
        try:
            with self._ground.joined(kem, seldom=True) as tx:
                if _opened(tx, queue, msg) is Fate.ACK:
                    ack_later(tx, queue, msg.msg_id)
            return tx
        except StoreFailedError:
            raise
        except AgentError as error:
            failure = error
        except Exception as error:
            log.exception("a message could not be processed")
            failure = InternalError(repr(error))
        with self._ground.joined(kem) as tx:
            tx.failed(queue.conn_id, failure)
            ack_later(tx, queue, msg.msg_id)
        return tx


def _opened(tx: Tx, queue: RcvQueue, msg: MSG) -> Fate:
    """Open what the router and the queue put around a message. Nothing is stored when this raises."""
    stored = queues.find_rcv_number(tx, queue.conn_id, queue.number)
    if stored is None or connections.find(tx, queue.conn_id) is None:
        return Fate.ACK
    queue, whole = stored, connections.load_whole(tx, queue.conn_id)
    try:
        delivered = open_delivery(queue, msg)
        message_came(tx, queue, delivered.seconds)
        if isinstance(delivered, QuotaMarker):
            return _drained(tx, whole, queue)
        envelope = read_client_envelope(Reader(delivered.body))
        own, version = tx.config.versions.client, envelope.header.client_version
        if version not in own and version > queue.client_version:
            raise ProtocolError(ProtocolCode.A_VERSION)
        dh_key = envelope.header.dh_key
        if queue.e2e_secret is None and dh_key is not None:
            inner = open_client_envelope(queue.e2e_key.agree(dh_key), envelope)
            return _first(tx, whole, queue, envelope, dh_key, inner)
        if queue.e2e_secret is None:
            raise refused("msg: no key and no secret")
        inner = open_client_envelope(queue.e2e_secret, envelope)
    except CryptoError as error:
        raise ProtocolError(ProtocolCode.A_CRYPTO, detail="DECRYPT_CB") from error
    except WireError as error:
        raise ProtocolError(ProtocolCode.A_MESSAGE, str(error)) from error
    if dh_key is not None:
        if isinstance(inner.envelope, Confirmation):
            return Fate.ACK
        raise refused("msg: key on a queue with a secret")
    return _next(tx, whole, queue, msg.msg_id, delivered, inner)


def _drained(tx: Tx, whole: Whole, queue: RcvQueue) -> Fate:
    """The queue was full, and everything in it is read: the peer may continue.

    If both queues were full, the message that says so waits behind others for the peer's queue:
    they are tried at once, or each side would wait for the other.
    """
    if whole.type is ConnType.DUPLEX and not whole.record.sync_state.send_prohibited:
        enqueue(tx, whole, AQCont(queue.sender_address))
        for snd in whole.snd:
            tx.hurry_delivery(snd)
    return Fate.ACK


def _first(
    tx: Tx, whole: Whole, queue: RcvQueue, envelope: ClientEnvelope, dh_key: PublicKey, inner: Inner
) -> Fate:
    """A message with a key, for a queue that has no secret: the start of a connection."""
    match inner.envelope:
        case Confirmation() as confirmation:
            if inner.sender_key is None and queue.mode is not QueueMode.MESSAGING:
                raise refused("handshake: missing sender key")
            arrived = Arrived(envelope.header, dh_key, inner.sender_key, confirmation)
            confirmation_received(tx, whole, queue, arrived)
        case Invitation() as invitation if inner.sender_key is None:
            invitation_received(tx, whole, invitation)
        case _:
            raise refused("handshake: incorrect state")
    return Fate.ACK


def _next(tx: Tx, whole: Whole, queue: RcvQueue, broker_id: bytes, delivered: Message, inner: Inner) -> Fate:
    """A message under the queue's secret."""
    if inner.sender_key is not None:
        raise refused("msg: bad client msg")
    match inner.envelope:
        case RatchetKey() as key:
            _upgrade(tx, whole, key.agent_version)
            synchronisation.key_received(tx, whole, key)
            return Fate.ACK
        case MessageEnvelope() as envelope:
            _upgrade(tx, whole, envelope.agent_version)
            return _message(tx, whole, queue, broker_id, delivered, envelope)
    raise refused("msg: bad client msg")


def _upgrade(tx: Tx, whole: Whole, version: int) -> None:
    """A peer that speaks a newer version is spoken to in it; there is no way back."""
    own = tx.config.versions.agent
    peer = VersionRange(own.low, version) if version >= own.low else VersionRange(version, version)
    agreed = own.agreed(peer)
    if agreed is not None and agreed > whole.record.agent_version:
        connections.set_version(tx, whole.conn_id, agreed)


def _message(
    tx: Tx, whole: Whole, queue: RcvQueue, broker_id: bytes, delivered: Message, envelope: MessageEnvelope
) -> Fate:
    """A message under the ratchet. From here on what was stored stays, whatever the content is."""
    conn_id = whole.conn_id
    if queue.status is not QueueStatus.ACTIVE:
        queues.set_status(tx, queue, QueueStatus.ACTIVE)
        if queue.replaces is not None:
            with tx.attempt(conn_id):
                recipient.first_message(tx, whole, queue)
    ratchet = ratchets.find_ratchet(tx, conn_id)
    if ratchet is None:
        raise refused("msg: no ratchet")
    encrypted, skipped = envelope.encrypted_message, ratchets.skipped_keys(tx, conn_id)
    opened = decrypt(ratchet, skipped, encrypted, entropy=tx.config.entropy, kem=tx.kem)
    if opened.failure is not None:  # as all that was read before, for its key is gone
        again = messages.find_by_broker_id(tx, conn_id, queue.number, broker_id)
        if again is not None:
            return content.redelivered(tx, whole, again)
    stepped = None if opened.ratchet is ratchet else opened.ratchet
    message = None if opened.plaintext is None else _agent_message(opened.plaintext)
    if stepped is not None and not _is_plain(whole, message):
        ratchets.step_ratchet(tx, conn_id, stepped)
        stepped = None
    ratchets.change_skipped(tx, conn_id, opened.skipped, tx.now)
    encrypted_hash = hashlib.sha256(encrypted).digest()
    if opened.failure is not None:
        _unreadable(tx, whole, opened.failure, encrypted_hash)
        return Fate.ACK
    assert opened.plaintext is not None
    assert message is not None
    if isinstance(message, AgentError):
        tx.failed(conn_id, message)
        return Fate.ACK
    synchronisation.decrypted(tx, whole)
    had_chain = ratchet.snd is not None
    arrival = content.Arrival(queue, broker_id, delivered.seconds, encrypted_hash, had_chain, stepped)
    return content.received(tx, whole, arrival, message, opened.plaintext, pq=opened.ratchet.rcv_kem)


def _agent_message(plain: Buffer) -> AgentMessage | AgentError:
    try:
        message = parsed(plain)
    except AgentError as error:
        return error
    return message if isinstance(message, AgentMessage) else refused("msg: bad agent msg")


def _is_plain(whole: Whole, message: AgentMessage | AgentError | None) -> bool:
    """Whether it is for the application and nothing else follows from it: then it is stored together with the
    step of the ratchet, and before that nobody looks at the ratchet."""
    is_message = isinstance(message, AgentMessage) and isinstance(message.message, AMsg)
    return is_message and whole.record.sync_state is SyncState.OK


_PLAIN_ERRORS = {
    RatchetErrorKind.MALFORMED: ProtocolError(ProtocolCode.A_MESSAGE, "not a ratchet message"),
    RatchetErrorKind.DUPLICATE: ProtocolError(ProtocolCode.A_DUPLICATE),
    RatchetErrorKind.KEM_STATE: InternalError("a KEM was accepted that was not proposed"),
    RatchetErrorKind.PADDING: InternalError("the message is badly padded"),
}


def _unreadable(tx: Tx, whole: Whole, failure: RatchetFailure, encrypted_hash: bytes) -> None:
    """A copy of what was read before is not reported; any other failure is."""
    if messages.is_known_hash(tx, whole.conn_id, encrypted_hash):
        return
    error = _PLAIN_ERRORS.get(failure.kind)
    if error is not None:
        tx.failed(whole.conn_id, error)
        return
    with tx.attempt(whole.conn_id):
        synchronisation.decryption_failed(tx, whole, failure)
