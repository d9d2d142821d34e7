"""The recipient's side of a rotation: moves its receive queue to another router, step by step."""

from __future__ import annotations

from collections.abc import Callable

from blindpost.agent.errors import AgentError, InternalError, ProtocolCode, ProtocolError
from blindpost.agent.events import Direction, Switched, SwitchPhase
from blindpost.agent.machines import MoveRefusedError
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.model import ConnId, MessageKind, QueueStatus, RcvQueue, RcvSwitch, Whole
from blindpost.agent.notifications.supervisor import queue_changed
from blindpost.agent.rotation.tables import RECIPIENT, RecipientEffect, RecipientEvent
from blindpost.agent.store import commands, connections, queues
from blindpost.agent.store import rotation as rows
from blindpost.agent.work.transactions import Tx
from blindpost.wire.agent.messages import AddedQueue, KeyedQueue, QAdd, QUse, UsedQueue
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_auth_key, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.queue_addresses import QueueUri, same_queue
from blindpost.wire.value import Value

SWITCH, SECURE, DELETE_OLD, DELETE_NEW = "SWCH", "QSECURE", "QDELETE", "DELETE_RCV_QUEUE"
"""The commands of a recipient."""

_PHASES = {
    RecipientEffect.TELL_STARTED: SwitchPhase.STARTED,
    RecipientEffect.TELL_CONFIRMED: SwitchPhase.CONFIRMED,
    RecipientEffect.TELL_SECURED: SwitchPhase.SECURED,
    RecipientEffect.TELL_COMPLETED: SwitchPhase.COMPLETED,
}


@dataclass(frozen=True, slots=True, repr=False)
class SecureQueue(Value):
    """The content of a command that secures a queue."""

    rcv_id: bytes
    sender_key: PublicKey


def read_secure_queue(reader: Reader) -> SecureQueue:
    return SecureQueue(reader.short(), read_auth_key(reader))


def write_secure_queue(writer: Writer, content: SecureQueue) -> None:
    writer.short(content.rcv_id)
    write_key(writer, content.sender_key)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one step is about."""

    tx: Tx
    whole: Whole
    old: RcvQueue
    new: RcvQueue | None = None
    keyed: KeyedQueue | None = None


def switching(whole: Whole) -> RcvQueue | None:
    """The receive queue that is being replaced."""
    return next((queue for queue in whole.rcv if queue.switch is not None), None)


def replacing(whole: Whole, old: RcvQueue) -> RcvQueue | None:
    """The queue that is to replace this one."""
    return next((queue for queue in whole.rcv if queue.replaces == old.number), None)


def replaced(whole: Whole, new: RcvQueue) -> RcvQueue | None:
    """The queue that this one is to replace."""
    return next((queue for queue in whole.rcv if queue.number == new.replaces), None)


def step(turn: _Turn, event: RecipientEvent, refused: Callable[[str], AgentError] = InternalError) -> None:
    """Take the move for this event, and do what it entails."""
    try:
        move = RECIPIENT.step(turn.old.switch, event)
    except MoveRefusedError as error:
        raise refused(error.why) from error
    if move.to is not turn.old.switch:
        queues.set_switch(turn.tx, turn.old, move.to, None if move.to is None else turn.tx.now)
    for effect in move.effects:
        _do(turn, effect)


def ask(tx: Tx, whole: Whole, event: RecipientEvent, refused: Callable[[str], AgentError]) -> None:
    """What the application wants of a rotation."""
    step(_Turn(tx, whole, switching(whole) or whole.rcv[0]), event, refused)


def queue_made(tx: Tx, conn_id: ConnId, new: RcvQueue) -> None:
    """The new queue is stored. While nothing can be sent, QADD waits for `resume`."""
    _when_in_step(tx, conn_id, new, RecipientEvent.QUEUE_MADE)


def secured(tx: Tx, conn_id: ConnId, new: RcvQueue) -> None:
    """The new queue took the sender's key. While nothing can be sent, QUSE waits for `resume`."""
    queues.set_status(tx, new, QueueStatus.SECURED)
    _when_in_step(tx, conn_id, new, RecipientEvent.SECURED)


def _when_in_step(tx: Tx, conn_id: ConnId, new: RcvQueue, event: RecipientEvent) -> None:
    whole = connections.load_whole(tx, conn_id)
    old = replaced(whole, new)
    if old is not None and not whole.record.sync_state.send_prohibited:
        step(_Turn(tx, whole, old, new), event)


def keyed(tx: Tx, whole: Whole, given: KeyedQueue) -> None:
    """QKEY came."""
    new = next((queue for queue in whole.rcv if same_queue(queue.sender_address, given.queue.address)), None)
    if new is None:
        if rows.is_aborted(tx, whole.conn_id, given.queue.address.sender_id):
            return
        raise ProtocolError(ProtocolCode.A_QUEUE, "QKEY: queue address not found in connection")
    event = RecipientEvent.QKEY if new.status is QueueStatus.NEW else RecipientEvent.QKEY_AGAIN
    step(_Turn(tx, whole, replaced(whole, new) or new, new, given), event)


def first_message(tx: Tx, whole: Whole, new: RcvQueue) -> None:
    old = replaced(whole, new)
    if old is None:
        raise InternalError("a queue replaces one that does not exist")
    step(_Turn(tx, whole, old, new), RecipientEvent.FIRST_MESSAGE)


def old_deleted(tx: Tx, conn_id: ConnId, old: RcvQueue) -> None:
    step(_Turn(tx, connections.load_whole(tx, conn_id), old), RecipientEvent.OLD_DELETED)


def resume(tx: Tx, conn_id: ConnId) -> None:
    """Continue a rotation where it stopped: after a start, or when the ratchets are in step again."""
    whole = connections.load_whole(tx, conn_id)
    old = switching(whole)
    if old is None or whole.record.sync_state.send_prohibited:
        return
    new = replacing(whole, old)
    turn = _Turn(tx, whole, old, new)
    if new is None:
        if old.switch is RcvSwitch.SWITCH_STARTED and not commands.has_command(tx, conn_id, SWITCH):
            tx.command(conn_id, None, SWITCH)
    elif old.switch is RcvSwitch.SWITCH_STARTED:
        step(turn, RecipientEvent.QUEUE_MADE)
    elif old.switch is RcvSwitch.SENDING_QADD and new.status is QueueStatus.SECURED:
        step(turn, RecipientEvent.SECURED)
    elif not _is_under_way(tx, old, new):
        step(turn, RecipientEvent.RESUMED)


def _is_under_way(tx: Tx, old: RcvQueue, new: RcvQueue) -> bool:
    """Whether the next step is ours, or the last message still on its way: then nothing is sent again."""
    if old.switch is RcvSwitch.SENDING_QADD and new.status is not QueueStatus.NEW:
        return True
    kind = MessageKind.QADD if old.switch is RcvSwitch.SENDING_QADD else MessageKind.QUSE
    return rows.is_waiting(tx, old.conn_id, kind)


def _do(turn: _Turn, effect: RecipientEffect) -> None:
    tx, old, new = turn.tx, turn.old, turn.new
    conn_id = old.conn_id
    match effect:
        case RecipientEffect.STORE_SWITCH:
            tx.command(conn_id, None, SWITCH)
        case RecipientEffect.SEND_QADD:
            assert new is not None
            offered = QueueUri(tx.config.versions.client, new.address)
            enqueue(tx, turn.whole, QAdd((AddedQueue(offered, old.sender_address),)))
        case RecipientEffect.AGREE_KEYS:
            assert new is not None
            assert turn.keyed is not None
            info = turn.keyed.queue
            queues.set_rcv_confirmed(tx, new, new.e2e_key.agree(info.address.dh_key), info.version)
        case RecipientEffect.STORE_SECURE:
            assert new is not None
            assert turn.keyed is not None
            writer = Writer()
            write_secure_queue(writer, SecureQueue(new.rcv_id, turn.keyed.sender_key))
            tx.command(conn_id, new.server, SECURE, writer.done())
        case RecipientEffect.SEND_QUSE:
            assert new is not None
            enqueue(tx, turn.whole, QUse((UsedQueue(new.sender_address, True),)))
        case RecipientEffect.MAKE_PRIMARY:
            assert new is not None
            queues.set_primary(tx, new)
            queue_changed(tx, conn_id, is_new=True)
        case RecipientEffect.STORE_DELETE_OLD:
            # Not among the commands for its router: it waits for acknowledgements that are.
            tx.command(conn_id, None, DELETE_OLD, old.rcv_id)
        case RecipientEffect.REMOVE_OLD:
            queues.delete(tx, old)
        case RecipientEffect.STORE_DELETE_NEW:
            queues.delete_request(tx, conn_id, old.number)
            for queue in turn.whole.rcv:
                if queue.replaces == old.number:
                    queues.set_rcv_deleted(tx, queue)
                    rows.remember_aborted(tx, queue)
                    tx.command(conn_id, queue.server, DELETE_NEW, queue.rcv_id)
        case _:
            tx.emit(Switched(tx.handle(conn_id), Direction.RCV, _PHASES[effect]))
