"""What to push next: one unacknowledged message for each subscription, and none past a full outbox."""

from __future__ import annotations

from dataclasses import replace

from blindpost.router.meters import Meter
from blindpost.router.model import Domain, Ends, QueueRecord, StoredMessage
from blindpost.router.state import Delivered, RouterClient, SubKind, Walk
from blindpost.router.turn import Delivery, Turn


def delivered_of(message: StoredMessage, number: int, now: int) -> Delivered:
    return Delivered(message.msg_id, number, now, message.is_marker, message.notify)


def take_head(turn: Turn, client: RouterClient, record: QueueRecord) -> Delivery | None:
    """Mark the head message as handed to `client` and return it; None if the queue is empty."""
    recipient_id = record.recipient_id
    ends = turn.view.ends(recipient_id)
    if not ends.size:
        return None
    message = turn.view.message(recipient_id, ends.head)
    turn.state.delivered(client, recipient_id, delivered_of(message, ends.head, turn.now))
    return Delivery(record.secret, message)


def holder_of(turn: Turn, record: QueueRecord) -> RouterClient | None:
    """The connection that receives from a queue: that of its service if it has one, else its own."""
    if record.service_id is not None:
        return turn.state.services(Domain.MESSAGES).holder(record.service_id)
    return turn.state.queues.holder(record.recipient_id)


def wait(client: RouterClient, record: QueueRecord) -> None:
    """A message is due when the connection has drained; for a service a walk finds it, without an entry."""
    if record.service_id is not None:
        walk_again(client, Domain.MESSAGES)
    else:
        client.waiting.put(record.recipient_id, True)


def wait_again(client: RouterClient, recipient_ids: tuple[bytes, ...]) -> None:
    """Queues due for a retry wait with the others, if the connection is still subscribed."""
    for recipient_id in recipient_ids:
        if recipient_id in client.subs:
            client.waiting.put(recipient_id, True)


def walk_again(client: RouterClient, domain: Domain) -> None:
    """Schedule a walk over the queues of a service, after any walk under way."""
    walk = client.walks.get(domain)
    client.walks.put(domain, Walk() if walk is None else replace(walk, again=True))


def push_head(turn: Turn, client: RouterClient, record: QueueRecord) -> None:
    """Push the head message to a subscribed connection, now or when it has drained."""
    recipient_id = record.recipient_id
    if client.congested:
        if turn.view.ends(recipient_id).size:
            wait(client, record)
        return
    delivery = take_head(turn, client, record)
    if delivery is not None:
        turn.push(client, recipient_id, delivery)


def may_push(client: RouterClient, record: QueueRecord) -> bool:
    """Whether the connection is free for a message: it pushes, and nothing waits for its ACK.

    A service has an entry for a queue only while a message is in flight.
    """
    sub = client.subs.get(record.recipient_id)
    if sub is None:
        return record.service_id is not None
    return sub.kind is SubKind.PUSH and sub.delivered is None


def message_arrived(turn: Turn, record: QueueRecord) -> None:
    """The queue was empty and has a message now: push it to the subscriber."""
    client = holder_of(turn, record)
    if client is not None and may_push(client, record):
        push_head(turn, client, record)


def deliver_waiting(turn: Turn, client: RouterClient, recipient_id: bytes) -> None:
    """A delivery had to wait: check whether it is still due."""
    client.waiting.pop(recipient_id)
    record = turn.view.records.get(recipient_id)
    if record is not None and holder_of(turn, record) is client and may_push(client, record):
        push_head(turn, client, record)


def remove_head(turn: Turn, recipient_id: bytes, ends: Ends) -> Ends:
    """The head message leaves the queue; an empty queue may be written to again."""
    turn.view.delete_message(recipient_id, ends.head)
    left = Ends(ends.head + 1, ends.tail, ends.can_write or ends.head + 1 == ends.tail)
    turn.view.put_ends(recipient_id, left)
    return left


def append(turn: Turn, record: QueueRecord, message: StoredMessage) -> bool:
    """Put a message behind the others; False, with a marker stored once, when the queue is full."""
    recipient_id, quota = record.recipient_id, turn.rules.quota
    ends = turn.view.ends(recipient_id)
    if not ends.can_write and ends.size:
        return False
    accepted = ends.size < quota
    stored = message if accepted else StoredMessage(message.msg_id, message.seconds, False, None)
    turn.view.add_message(recipient_id, ends.tail, stored)
    turn.view.put_ends(recipient_id, Ends(ends.head, ends.tail + 1, accepted))
    if not accepted:
        turn.count(Meter.MARKERS)
    return accepted


def count_deleted(turn: Turn, recipient_id: bytes) -> int:
    """A queue is about to be deleted: how many messages, markers among them, leave with it."""
    ends = turn.view.ends(recipient_id)
    markers = int(ends.size > 0 and not ends.can_write)
    if ends.size:
        turn.count(Meter.MESSAGES_DELETED, ends.size - markers)
        turn.count(Meter.MARKERS_GONE, markers)
    return ends.size


def count_received(turn: Turn, recipient_id: bytes, delivered: Delivered, kind: SubKind) -> None:
    """A message was acknowledged; markers do not count as messages."""
    if delivered.is_marker:
        turn.count(Meter.MARKERS_GONE)
        return
    turn.count(Meter.RECEIVED)
    if kind is SubKind.GET:
        turn.count(Meter.RECEIVED_GET)
    if delivered.notify:
        turn.count(Meter.RECEIVED_NTF)
    turn.used(recipient_id, delivered.notify)
    turn.acknowledged(turn.now - delivered.seconds)
