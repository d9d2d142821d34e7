"""The sender's side of a rotation: follows the recipient to its new queue, and loses nothing on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blindpost.agent.errors import AgentError, InternalError, ProtocolCode, ProtocolError
from blindpost.agent.events import Direction, Switched, SwitchPhase
from blindpost.agent.machines import MoveRefusedError
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.model import ConnId, MessageKind, QueueStatus, SndQueue, SndSwitch, Whole
from blindpost.agent.rotation.tables import SENDER, SenderEffect, SenderEvent
from blindpost.agent.store import connections, messages, queues
from blindpost.agent.store import rotation as rows
from blindpost.agent.work.transactions import Tx
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.agent.messages import AddedQueue, KeyedQueue, QKey, QTest, UsedQueue
from blindpost.wire.keys import Algorithm
from blindpost.wire.queue_addresses import QueueAddress, QueueInfo, SenderAddress, same_queue

_PHASES = {
    SenderEffect.TELL_STARTED: SwitchPhase.STARTED,
    SenderEffect.TELL_CONFIRMED: SwitchPhase.CONFIRMED,
    SenderEffect.TELL_SECURED: SwitchPhase.SECURED,
    SenderEffect.TELL_COMPLETED: SwitchPhase.COMPLETED,
}


@dataclass(slots=True)
class _Turn:
    """What one step is about; `old` is none when the queue it was is gone already."""

    tx: Tx
    whole: Whole
    old: SndQueue | None
    new: SndQueue | None = None
    offered: QueueInfo | None = None
    number: int = 0
    """For a new queue: one that no queue of the connection has, also none that is dropped now."""


def added(tx: Tx, whole: Whole, given: AddedQueue) -> None:
    """QADD came."""
    if given.replaced is None:
        raise _queue_error("adding queue without switching is not supported")
    version = given.queue.versions.agreed(tx.config.versions.client)
    if version is None:
        raise ProtocolError(ProtocolCode.A_VERSION)
    old = _found(whole, given.replaced)
    known = _found(whole, given.queue.address)
    # What we left last, if we followed to the queue that is offered: that one, if we followed further.
    left = given.queue.address if known is None else given.replaced
    if old is None and rows.is_left(tx, whole.conn_id, left.sender_id):
        return  # it was sent again through another queue, and its rotation has ended meanwhile
    if known is not None:
        followed = old if old is not None and known.replaces == old.number else None
        _step(_Turn(tx, whole, followed, known), SenderEvent.QADD_AGAIN, _queue_error)
        return
    if old is None:
        raise _queue_error("QADD: replaced queue address is not found in connection")
    _step(_Turn(tx, whole, old, None, given.queue.at(version)), SenderEvent.QADD, _queue_error)


def used(tx: Tx, whole: Whole, given: UsedQueue) -> None:
    """QUSE came."""
    new = _found(whole, given.address)
    if new is None and rows.is_left(tx, whole.conn_id, given.address.sender_id):
        return  # as with QADD: we have followed further
    if new is None:
        raise _queue_error("QUSE: switched queue address not found in connection")
    if new.replaces is None and not new.usable:
        raise _queue_error("QUSE: switching queue not found in connection")
    _step(_Turn(tx, whole, _replaced(whole, new), new), SenderEvent.QUSE)


def qkey_delivered(tx: Tx, whole: Whole) -> None:
    """The peer's router has QKEY."""
    for old in whole.snd:
        _step(_Turn(tx, whole, old), SenderEvent.QKEY_DELIVERED)


def qtest_delivered(tx: Tx, whole: Whole, address: SenderAddress) -> None:
    """The router of the new queue has QTEST."""
    new = _found(whole, address)
    if new is not None:
        _step(_Turn(tx, whole, _replaced(whole, new), new), SenderEvent.QTEST_DELIVERED)


def _found(whole: Whole, address: SenderAddress | QueueAddress) -> SndQueue | None:
    return next((queue for queue in whole.snd if same_queue(queue.sender_address, address)), None)


def _replaced(whole: Whole, new: SndQueue) -> SndQueue | None:
    return next((queue for queue in whole.snd if queue.number == new.replaces), None)


def _step(turn: _Turn, event: SenderEvent, refused: Callable[[str], AgentError] = InternalError) -> None:
    state = None if turn.old is None else turn.old.switch
    try:
        move = SENDER.step(state, event)
    except MoveRefusedError as error:
        raise refused(error.why) from error
    if turn.old is not None and move.to is not state:
        queues.set_switch(turn.tx, turn.old, move.to, None if move.to is None else turn.tx.now)
    for effect in move.effects:
        _do(turn, effect)


def _do(turn: _Turn, effect: SenderEffect) -> None:
    tx, old, new, conn_id = turn.tx, turn.old, turn.new, turn.whole.conn_id
    match effect:
        case SenderEffect.DROP_SUPERSEDED:
            assert old is not None
            turn.number = queues.next_snd_number(tx, conn_id)
            for delivery_id, internal_id, kind in rows.left(tx, old, kept_only=True):
                _forget(tx, conn_id, delivery_id, internal_id, kind)
            for queue in turn.whole.snd:
                if queue.replaces == old.number:
                    queues.delete(tx, queue)
                    tx.hurry_delivery(queue)
        case SenderEffect.MAKE_SEND_QUEUE:
            assert old is not None
            turn.new = _new_queue(turn, old)
            queues.insert_snd(tx, turn.new)
            turn.whole = connections.load_whole(tx, conn_id)
        case SenderEffect.SEND_QKEY:
            assert new is not None
            address = QueueAddress(new.server, new.snd_id, new.e2e_public, new.mode)
            keyed = KeyedQueue(QueueInfo(new.client_version, address), new.key.public)
            enqueue(tx, turn.whole, QKey((keyed,)))
        case SenderEffect.SECURE_QUEUE:
            assert old is not None
            assert new is not None
            queues.set_status(tx, new, QueueStatus.SECURED)
            rows.deliver_also(tx, old, new)
            tx.wake_delivery(new)
        case SenderEffect.SEND_QTEST:
            assert new is not None
            if not rows.is_waiting(tx, conn_id, MessageKind.QTEST, queue=new):
                enqueue(tx, turn.whole, QTest((new.sender_address,)), queues=[new])
        case SenderEffect.USE_QUEUE:
            assert new is not None
            queues.set_status(tx, new, QueueStatus.ACTIVE)
            queues.set_primary(tx, new)
        case SenderEffect.DROP_OLD:
            assert old is not None
            for delivery_id, internal_id, kind in rows.left(tx, old):
                _forget(tx, conn_id, delivery_id, internal_id, kind)
            queues.delete(tx, old)
            rows.remember_left(tx, old)
            tx.hurry_delivery(old)
        case _:
            tx.emit(Switched(tx.handle(conn_id), Direction.SND, _PHASES[effect]))


def kept_for_rotation(tx: Tx, queue: SndQueue, delivery_id: int, kind: MessageKind) -> bool:
    """A queue took a message. While its recipient is leaving it, the message is kept.

    A recipient may delete the queue with what it has not read, as soon as something came through the new one.
    What was taken before QKEY was read before QKEY was; what was taken after it goes out again through the
    new queue, before QTEST and as the same encrypted bytes. A recipient knows them by their hash, and is
    silent about a copy.
    """
    if queue.switch is not SndSwitch.SENDING_QKEY:
        return False
    if kind is not MessageKind.QKEY and not rows.is_keyed(tx, queue):
        return False
    rows.keep(tx, delivery_id)
    if rows.count_kept(tx, queue) > rows.KEPT_MAX:
        _forget(tx, queue.conn_id, *rows.oldest_kept(tx, queue))
    return True


def _forget(tx: Tx, conn_id: ConnId, delivery_id: int, internal_id: int, kind: MessageKind) -> None:
    messages.delivered(tx, conn_id, delivery_id, internal_id, keep=kind is MessageKind.A_MSG)


def _new_queue(turn: _Turn, old: SndQueue) -> SndQueue:
    """Keys for the queue that is offered."""
    assert turn.offered is not None
    tx, address = turn.tx, turn.offered.address
    entropy = tx.config.entropy
    e2e_key = PrivateKey.generate(Algorithm.X25519, entropy)
    return SndQueue(
        conn_id=old.conn_id,
        user_id=old.user_id,
        number=turn.number,
        server=address.server,
        snd_id=address.sender_id,
        mode=address.mode,
        key=PrivateKey.generate(Algorithm.ED25519, entropy),
        e2e_public=e2e_key.public,
        e2e_secret=e2e_key.agree(address.dh_key),
        client_version=turn.offered.version,
        status=QueueStatus.NEW,
        replaces=old.number,
    )


def _queue_error(message: str) -> ProtocolError:
    return ProtocolError(ProtocolCode.A_QUEUE, message)
