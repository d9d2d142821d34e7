"""What an operator does to a queue, on rows in memory: all that is told, changed, counted and sent."""

from __future__ import annotations

import pytest

from blindpost.crypto.secret import Secret
from blindpost.router.changes import DeleteNotifications, DeleteQueue, PutQueue
from blindpost.router.meters import Meter
from blindpost.router.model import Ends, Notification, Notifier, Status
from blindpost.router.operator import Action
from blindpost.router.state import RouterClient
from blindpost.wire.smp.commands import NSUB, SUB
from blindpost.wire.smp.errors import BLOCKED, BlockingReason
from blindpost.wire.smp.responses import DELD, ERR
from tests.support.router.in_memory import NOW, OWNER_KEY, Desk, asked
from tests.support.router.routers import new_key

Q, S, N, LINK = b"q", b"qs", b"n", b"l" * 24
NOTIFIER_KEY = new_key()
NOTIFIER = Notifier(N, NOTIFIER_KEY.public, Secret(bytes(32)), None)
SPAM = BLOCKED(BlockingReason.SPAM)
NO_QUEUE = "error: no queue with this sender or link id"


def a_desk(messages: int = 2, **fields: object) -> tuple[Desk, RouterClient]:
    """A router with one queue, to which one connection is subscribed."""
    desk = Desk()
    desk.queue(Q, messages, None, **fields)
    desk.queue(b"x", 1, None)
    client = desk.client(None)
    desk.say(client, asked(SUB(), Q, OWNER_KEY))
    return desk, client


@pytest.mark.parametrize("entity_id", [S, LINK], ids=["sender id", "link id"])
def test_a_queue_is_found_by_either_id(entity_id: bytes) -> None:
    desk, _ = a_desk(link_id=LINK)
    assert desk.operate(Action.STATUS, entity_id) == "active"
    assert (desk.turn.view.changes, desk.sent, desk.counted) == ([], [], {})


@pytest.mark.parametrize("action", Action)
def test_no_other_id_finds_a_queue(action: Action) -> None:
    desk, _ = a_desk(link_id=LINK, notifier=NOTIFIER)
    for unknown in (b"other", Q, N):
        assert desk.operate(action, unknown, SPAM) == NO_QUEUE
        assert (desk.turn.view.changes, desk.sent, desk.counted) == ([], [], {})


@pytest.mark.parametrize(
    ("status", "told"),
    [(Status.ACTIVE, "active"), (Status.OFF, "off"), (SPAM, "blocked, reason spam")],
    ids=["active", "off", "blocked"],
)
def test_the_status_of_a_queue(status: Status | BLOCKED, told: str) -> None:
    desk, _ = a_desk(status=status)
    assert desk.operate(Action.STATUS, S) == told


def test_a_queue_is_blocked_and_its_subscriber_told() -> None:
    desk, client = a_desk()
    record = desk.queues[Q]
    assert desk.operate(Action.BLOCK, S, SPAM) == "blocked"
    assert desk.turn.view.changes == [PutQueue(record._replace(status=SPAM), record)]
    assert desk.sent == [(client.client_id, Q, ERR(SPAM))]
    assert desk.counted == {Meter.QUEUES_BLOCKED: 1}


def test_a_queue_that_nobody_reads_is_blocked() -> None:
    desk, _ = a_desk()
    assert desk.operate(Action.BLOCK, b"xs", SPAM) == "blocked"
    assert (desk.sent, desk.counted) == ([], {Meter.QUEUES_BLOCKED: 1})


def test_a_queue_is_not_blocked_without_a_reason() -> None:
    desk, _ = a_desk()
    told = desk.operate(Action.BLOCK, S)
    assert told == "error: a reason is needed to block a queue: spam or content"
    assert (desk.turn.view.changes, desk.sent, desk.counted) == ([], [], {})


def test_a_queue_is_unblocked() -> None:
    desk, _ = a_desk(status=SPAM)
    record = desk.queues[Q]
    assert desk.operate(Action.UNBLOCK, S) == "unblocked"
    assert desk.turn.view.changes == [PutQueue(record._replace(status=Status.ACTIVE), record)]
    assert (desk.sent, desk.counted) == ([], {})


@pytest.mark.parametrize("status", Status)
def test_what_is_not_blocked_cannot_be_unblocked(status: Status) -> None:
    desk, _ = a_desk(status=status)
    told = desk.operate(Action.UNBLOCK, S)
    assert told == f"error: the queue is not blocked, it is {status.value}"
    assert desk.turn.view.changes == []


def test_a_queue_is_deleted_with_all_it_has() -> None:
    desk, client = a_desk(notifier=NOTIFIER)
    notified = desk.client(None)
    desk.say(notified, asked(NSUB(), N, NOTIFIER_KEY))
    desk.pending[N] = (Notification(N, 0, NOW, b"nonce", b"body"),)
    record = desk.queues[Q]
    assert desk.operate(Action.DELETE, S) == "deleted, with 2 messages"
    assert desk.turn.view.changes == [DeleteNotifications(N), DeleteQueue(record, Ends(0, 2, True))]
    assert desk.sent == [(client.client_id, Q, DELD()), (notified.client_id, N, DELD())]
    assert desk.counted == {Meter.QUEUES_DELETED: 1, Meter.MESSAGES_DELETED: 2, Meter.SUB_ENDS: 2}
    assert desk.state.queues.holder(Q) is None
    assert desk.state.notifiers.holder(N) is None


def test_an_empty_queue_without_a_notifier_is_deleted() -> None:
    desk, client = a_desk(0)
    record = desk.queues[Q]
    assert desk.operate(Action.DELETE, S) == "deleted, with 0 messages"
    assert desk.turn.view.changes == [DeleteQueue(record, Ends(0, 0, True))]
    assert desk.sent == [(client.client_id, Q, DELD())]
    assert desk.counted == {Meter.QUEUES_DELETED: 1, Meter.SUB_ENDS: 1}
