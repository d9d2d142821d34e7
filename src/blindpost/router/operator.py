"""What an operator may do to a queue: look, block, unblock, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from blindpost.router.changes import Needed, Wanted
from blindpost.router.delivery import count_deleted
from blindpost.router.meters import Meter
from blindpost.router.model import QueueRecord, Status
from blindpost.router.notifications import notifier_gone
from blindpost.router.subscriptions import queue_gone
from blindpost.router.turn import Turn
from blindpost.router.view import View
from blindpost.wire.smp.errors import BLOCKED
from blindpost.wire.smp.responses import ERR


class Action(Enum):
    STATUS = "status"
    BLOCK = "block"
    UNBLOCK = "unblock"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """An action on the queue with this sender or link id; `done` hears the outcome after the commit."""

    action: Action
    entity_id: bytes
    done: Callable[[str], None]
    blocked: BLOCKED | None = None


def want_operator(wanted: Wanted, command: OperatorCommand) -> None:
    wanted.senders.add(command.entity_id)
    wanted.links.add(command.entity_id)


def need_operator(needed: Needed, command: OperatorCommand, turn: Turn) -> None:
    record = _found(turn.view, command.entity_id)
    if record is not None:
        needed.ends.add(record.recipient_id)
        if record.notifier is not None:
            needed.notifications.add(record.notifier.notifier_id)


def _found(view: View, entity_id: bytes) -> QueueRecord | None:
    recipient_id = view.senders.get(entity_id) or view.links.get(entity_id)
    return None if recipient_id is None else view.records.get(recipient_id)


def operate(turn: Turn, command: OperatorCommand) -> None:
    """Carry out an operator's command; the outcome is reported once it is durable."""
    record = _found(turn.view, command.entity_id)
    outcome = "error: no queue with this sender or link id"
    if record is not None:
        outcome = _ACTIONS[command.action](turn, command, record)
    turn.tell(command.done, outcome)


def _status(turn: Turn, command: OperatorCommand, record: QueueRecord) -> str:
    if isinstance(record.status, BLOCKED):
        return f"blocked, reason {record.status.reason.value.decode()}"
    return record.status.value


def _block(turn: Turn, command: OperatorCommand, record: QueueRecord) -> str:
    if command.blocked is None:
        return "error: a reason is needed to block a queue: spam or content"
    turn.view.put_queue(record._replace(status=command.blocked))
    turn.count(Meter.QUEUES_BLOCKED)
    holder = turn.state.queues.holder(record.recipient_id)
    if holder is not None:
        turn.push(holder, record.recipient_id, ERR(command.blocked))
    return "blocked"


def _unblock(turn: Turn, command: OperatorCommand, record: QueueRecord) -> str:
    if not isinstance(record.status, BLOCKED):
        return f"error: the queue is not blocked, it is {record.status.value}"
    turn.view.put_queue(record._replace(status=Status.ACTIVE))
    return "unblocked"


def _delete(turn: Turn, command: OperatorCommand, record: QueueRecord) -> str:
    queue_gone(turn, None, record)
    if record.notifier is not None:
        notifier_gone(turn, None, record.notifier)
    messages = count_deleted(turn, record.recipient_id)
    turn.view.delete_queue(record)
    turn.count(Meter.QUEUES_DELETED)
    return f"deleted, with {messages} messages"


_ACTIONS: dict[Action, Callable[[Turn, OperatorCommand, QueueRecord], str]] = {
    Action.STATUS: _status,
    Action.BLOCK: _block,
    Action.UNBLOCK: _unblock,
    Action.DELETE: _delete,
}
