"""Look inside a router: do its tables in memory and in the store say what the model says?"""

from __future__ import annotations

from blindpost.crypto.ids_hash import QueueSet
from blindpost.router.model import Domain, QueueRecord, Status
from blindpost.router.records import (
    ends_from_row,
    message_from_row,
    message_key,
    queue_from_row,
    service_from_row,
    service_prefix,
)
from blindpost.router.server import Router
from blindpost.router.state import RouterClient, SubKind
from blindpost.router.tables import (
    ENDS,
    MEMBERS,
    MESSAGES,
    NOTIFICATIONS,
    PENDING,
    QUEUES,
    SENDERS,
    SERVICES,
    LmdbTables,
)
from blindpost.store.lmdb import Read
from tests.support.simulation.model import RouterModel
from tests.support.simulation.promises import Connection, Queue, Violation

_ALL = 1 << 20


def compare_memory(model: RouterModel, router: Router) -> None:
    """One subscriber for each queue, one message in flight for each subscription, as promised."""
    for connection in model.connections.values():
        client = connection.client
        _equal(_subs_of(client), _promised_subs(connection), "subscriptions of a connection")
        for domain in Domain:
            found = client.service_sub(domain)
            _equal(found.members, connection.members[domain], "queues that a connection serves")
    state = router.plan.state
    for recipient_id in model.queues:
        holder = model.holders.get(recipient_id)
        expected = None if holder is None else holder.client
        _equal(state.queues.holder(recipient_id), expected, "the subscriber of a queue")
    _equal(len(state.queues), len(model.holders), "how many queues have a subscriber")
    for notifier_id in model.notifiers:
        holder = model.notifier_holders.get(notifier_id)
        expected = None if holder is None else holder.client
        _equal(state.notifiers.holder(notifier_id), expected, "the subscriber of a notifier")


def _subs_of(client: RouterClient) -> dict[bytes, tuple[bool, bytes | None]]:
    return {
        recipient_id: (
            sub.kind is SubKind.PUSH,
            None if sub.delivered is None else sub.delivered.msg_id,
        )
        for recipient_id, sub in client.subs.items()
    }


def _promised_subs(connection: Connection) -> dict[bytes, tuple[bool, bytes | None]]:
    return {
        recipient_id: (sub.push, None if sub.in_flight is None else sub.in_flight.msg_id)
        for recipient_id, sub in connection.subs.items()
    }


def compare_store(model: RouterModel, tables: LmdbTables) -> None:
    """Every promised message is stored in its order, and every service counts exactly its queues."""
    with tables.store.read() as read:
        records = _records(read)
        _equal(set(records), set(model.queues), "the queues that are stored")
        _equal(read.count(SENDERS), len(model.queues), "how many sender ids are stored")
        for recipient_id, queue in model.queues.items():
            _compare_queue(read, records[recipient_id], queue)
        stored = sum(len(queue.messages) for queue in model.queues.values())
        _equal(read.count(MESSAGES), stored, "how many messages are stored")
        for _, row in read.page(SERVICES, b"", _ALL).rows:
            service = service_from_row(row)
            for domain in Domain:
                _compare_service(read, model, service.service_id, domain, service.members(domain))


def _records(read: Read) -> dict[bytes, QueueRecord]:
    return {key: queue_from_row(row) for key, row in read.page(QUEUES, b"", _ALL).rows}


def _compare_queue(read: Read, record: QueueRecord, queue: Queue) -> None:
    recipient_id = queue.recipient_id
    _equal(record.service_id, queue.service_id, "the service of a queue")
    _equal(record.status is Status.OFF, queue.off, "whether a queue is off")
    row = read.get(ENDS, recipient_id)
    bodies: list[bytes | None] = []
    if row is not None:
        ends = ends_from_row(row)
        for number in range(ends.head, ends.tail):
            message = read.get(MESSAGES, message_key(recipient_id, number))
            if message is None:
                raise Violation("a message is not stored although its queue counts it")
            body = message_from_row(message).body
            bodies.append(None if body is None else bytes(body))
    _equal(bodies, [message.body for message in queue.messages], "the messages of a queue")
    notifier, promised = record.notifier, queue.notifier
    ids = None if notifier is None else (notifier.notifier_id, notifier.service_id)
    expected = None if promised is None else (promised.notifier_id, promised.service_id)
    _equal(ids, expected, "the notifier of a queue")
    if promised is not None:
        waiting = len(read.keys(NOTIFICATIONS, promised.notifier_id))
        _equal(waiting, promised.pending, "the notifications that wait")


def _compare_service(
    read: Read, model: RouterModel, service_id: bytes, domain: Domain, counted: QueueSet
) -> None:
    prefix = service_prefix(domain, service_id)
    promised = model.members(domain, service_id)
    members = {key[len(prefix) :] for key in read.keys(MEMBERS, prefix)}
    _equal(members, promised, "the queues of a service")
    _equal(counted, QueueSet.of(promised), "count and hash of a service")
    if domain is Domain.MESSAGES:
        waiting = {one for one in promised if model.queues[one].messages}
    else:
        waiting = {one for one in promised if _pending(model, one)}
    pending = {key[len(prefix) :] for key in read.keys(PENDING, prefix)}
    _equal(pending, waiting, "the queues of a service in which something waits")


def _pending(model: RouterModel, notifier_id: bytes) -> int:
    notifier = model.notifiers[notifier_id].notifier
    return 0 if notifier is None else notifier.pending


def _equal(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise Violation(f"{what}: {found!r}, promised: {expected!r}")
