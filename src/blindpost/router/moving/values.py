"""Lines of the reference's store log as values of this router, and back."""

from __future__ import annotations

from dataclasses import replace

from blindpost.crypto.secret import Secret
from blindpost.router.bulk import WholeQueue
from blindpost.router.model import Notifier, QueueRecord, ServiceRecord, Status, StoredMessage
from blindpost.wire.errors import WireError
from blindpost.wire.smp.errors import BLOCKED
from blindpost.wire.smp.values import LinkData
from blindpost.wire.store_log import (
    Activity,
    AddNotifier,
    BlockQueue,
    CreateLink,
    CreateQueue,
    NewService,
    NotifierRecord,
    QueueService,
    StoreRecord,
    UpdateKeys,
    decode_store_line,
)
from blindpost.wire.value import Buffer

SHORT_MAX = 255
LARGE_MAX = 65_535


def decode_line(line: Buffer) -> StoreRecord:
    """A line of the store log whose parts have the sizes that the protocol can carry."""
    record = decode_store_line(line)
    ids: list[bytes | None] = []
    link: LinkData | None = None
    match record:
        case CreateQueue():
            ids = [record.recipient_id, record.sender_id, record.service_id]
            if record.link is not None:
                ids.append(record.link[0])
                link = record.link[1]
            if record.notifier is not None:
                ids += [record.notifier.notifier_id, record.notifier.service_id]
            _check(len(record.recipient_keys), SHORT_MAX, "keys")
        case CreateLink(recipient_id, link_id, data):
            ids, link = [recipient_id, link_id], data
        case AddNotifier(recipient_id, notifier):
            ids = [recipient_id, notifier.notifier_id, notifier.service_id]
        case QueueService(recipient_id, _, service_id):
            ids = [recipient_id, service_id]
        case UpdateKeys(recipient_id, keys):
            ids = [recipient_id]
            _check(len(keys), SHORT_MAX, "keys")
        case NewService():
            ids = [record.service_id, record.cert_hash]
            _check(len(record.chain), SHORT_MAX, "certificates")
            _check(max(map(len, record.chain)), LARGE_MAX, "bytes of a certificate")
        case _:
            ids = [record.recipient_id]
    for entity_id in ids:
        _check(len(entity_id or b""), SHORT_MAX, "bytes of an id")
    if link is not None:
        _check(max(len(link.fixed), len(link.user)), LARGE_MAX, "bytes of link data")
    return record


def _check(size: int, most: int, what: str) -> None:
    if size > most:
        raise WireError(f"at most {most} {what} expected")


def queue_of(created: CreateQueue) -> QueueRecord:
    """A queue as its line describes it. The DH keys behind its secret are not in the line."""
    return QueueRecord(
        recipient_id=created.recipient_id,
        sender_id=created.sender_id,
        recipient_keys=created.recipient_keys,
        recipient_dh_key=None,
        secret=Secret(created.dh_secret),
        router_dh_key=None,
        mode=created.mode,
        sender_key=created.sender_key,
        link_id=None if created.link is None else created.link[0],
        notifier=None if created.notifier is None else notifier_of(created.notifier),
        status=created.status if isinstance(created.status, BLOCKED) else Status[created.status.name],
        updated_day=created.updated_at or 0,
        service_id=created.service_id,
    )


def notifier_of(line: NotifierRecord) -> Notifier:
    return Notifier(line.notifier_id, line.key, Secret(line.dh_secret), None, line.service_id)


def service_of(line: NewService) -> ServiceRecord:
    """Its queues are counted as they arrive."""
    return ServiceRecord(line.service_id, line.role, line.cert_hash, line.chain, line.created_at)


def created_of(queue: WholeQueue) -> CreateQueue:
    """The one line that describes a queue, without its messages."""
    record = queue.record
    notifier = record.notifier
    return CreateQueue(
        record.recipient_id,
        record.recipient_keys,
        record.secret.raw,
        record.sender_id,
        record.sender_key,
        record.mode,
        None if record.link_id is None or queue.link is None else (record.link_id, queue.link),
        None
        if notifier is None
        else NotifierRecord(notifier.notifier_id, notifier.key, notifier.secret.raw, notifier.service_id),
        record.updated_day or None,
        record.status if isinstance(record.status, BLOCKED) else Activity[record.status.name],
        record.service_id,
    )


def new_service_of(service: ServiceRecord) -> NewService:
    return NewService(
        service.service_id, service.role, service.chain, service.fingerprint, service.created_day
    )


def as_told(created: CreateQueue) -> CreateQueue:
    """As much of a queue as lines can express: link data cannot have an empty part there."""
    if created.link is None or (created.link[1].fixed and created.link[1].user):
        return created
    return replace(created, link=None)


def can_be_told(message: StoredMessage) -> bool:
    """Whether a line can hold this message: an empty body is written as nothing, which no reader accepts."""
    return message.body is None or len(message.body) > 0


def readable_lines(created: CreateQueue) -> tuple[StoreRecord, ...]:
    """The lines that describe a queue so that they can be read back.

    The notice of a blocked queue takes the rest of its line, so a service after it needs a separate line.
    """
    blocked = created.status
    if isinstance(blocked, BLOCKED) and created.service_id is not None:
        return replace(created, status=Activity.ACTIVE), BlockQueue(created.recipient_id, blocked)
    return (created,)
