"""What the lines of a store log do to the queues and services, decided over a `View` like commands are.

Each line is applied, or skipped with a reason; a skipped line changes nothing and does not stop the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from blindpost.router.changes import Needed, Wanted
from blindpost.router.model import QueueRecord, Status
from blindpost.router.moving.values import notifier_of, queue_of, service_of
from blindpost.router.view import View
from blindpost.wire.smp.values import LinkData
from blindpost.wire.store_log import (
    AddNotifier,
    BlockQueue,
    CreateLink,
    CreateQueue,
    DeleteLink,
    DeleteNotifier,
    DeleteQueue,
    NewService,
    NotifierRecord,
    Party,
    QueueService,
    SecureQueue,
    StoreRecord,
    SuspendQueue,
    UnblockQueue,
    UpdateKeys,
    UpdateTime,
)

NO_QUEUE = "no such queue: it was deleted, or its line was not taken"
NO_SERVICE = "no such service"
NO_NOTIFIER = "the queue has no notifier"
RECIPIENT_TAKEN = "another queue has this recipient id"
SENDER_TAKEN = "another queue has this sender id"
NOTIFIER_TAKEN = "another queue has this notifier id"
LINK_TAKEN = "another queue has this link"
OTHER_KEY = "the queue was secured with another key"
OTHER_LINK = "the queue has another link"
SERVICE_TAKEN = "another service has this id or this certificate"


def wanted_by(records: Iterable[StoreRecord]) -> Wanted:
    """What must be loaded before these lines can be decided."""
    wanted = Wanted()
    for record in records:
        if isinstance(record, NewService):
            wanted.services.add(record.service_id)
            wanted.fingerprints.add(record.cert_hash)
            continue
        wanted.recipients.add(record.recipient_id)
        match record:
            case CreateQueue():
                wanted.senders.add(record.sender_id)
                if record.link is not None:
                    wanted.links.add(record.link[0])
                if record.service_id is not None:
                    wanted.services.add(record.service_id)
                if record.notifier is not None:
                    _want_notifier(wanted, record.notifier)
            case CreateLink(_, link_id):
                wanted.links.add(link_id)
            case AddNotifier(_, notifier):
                _want_notifier(wanted, notifier)
            case QueueService(_, _, service_id) if service_id is not None:
                wanted.services.add(service_id)
    return wanted


def _want_notifier(wanted: Wanted, notifier: NotifierRecord) -> None:
    wanted.notifiers.add(notifier.notifier_id)
    if notifier.service_id is not None:
        wanted.services.add(notifier.service_id)


def needed_by(records: Iterable[StoreRecord], view: View) -> Needed:
    """The link data that a line may be about to replace."""
    needed = Needed()
    for record in records:
        if isinstance(record, CreateLink):
            queue = view.records.get(record.recipient_id)
            if queue is not None and queue.link_id is not None:
                needed.link_data.add(queue.link_id)
    return needed


def take(view: View, line: StoreRecord) -> str | None:
    """Apply a line; returns the reason if it is skipped."""
    if isinstance(line, NewService):
        return _take_service(view, line)
    if isinstance(line, CreateQueue):
        return _create(view, line)
    queue = view.records.get(line.recipient_id)
    if queue is None:
        return NO_QUEUE
    match line:
        case CreateLink(_, link_id, data):
            return _link(view, queue, link_id, data)
        case SecureQueue(_, key):
            if queue.sender_key not in (None, key):
                return OTHER_KEY
            view.put_queue(queue._replace(sender_key=key))
        case AddNotifier(_, notifier):
            return _notify(view, queue, notifier)
        case QueueService():
            return _serve(view, queue, line)
        case DeleteQueue():
            view.delete_queue(queue)
        case DeleteLink():
            if queue.link_id is not None:
                view.delete_link(queue.link_id)
                view.put_queue(queue._replace(link_id=None))
        case UpdateKeys(_, keys):
            view.put_queue(queue._replace(recipient_keys=keys))
        case DeleteNotifier():
            view.put_queue(queue._replace(notifier=None))
        case SuspendQueue():
            view.put_queue(queue._replace(status=Status.OFF))
        case BlockQueue(_, blocked):
            view.put_queue(queue._replace(status=blocked))
        case UnblockQueue():
            view.put_queue(queue._replace(status=Status.ACTIVE))
        case UpdateTime(_, seconds):
            view.put_queue(queue._replace(updated_day=seconds))
    return None


def _create(view: View, line: CreateQueue) -> str | None:
    services = [line.service_id, None if line.notifier is None else line.notifier.service_id]
    if line.recipient_id in view.records:
        return RECIPIENT_TAKEN
    if line.sender_id in view.senders:
        return SENDER_TAKEN
    if line.notifier is not None and line.notifier.notifier_id in view.notifiers:
        return NOTIFIER_TAKEN
    if line.link is not None and line.link[0] in view.links:
        return LINK_TAKEN
    if any(service_id is not None and service_id not in view.services for service_id in services):
        return NO_SERVICE
    view.put_queue(queue_of(line))
    if line.link is not None:
        view.put_link(line.link[0], line.recipient_id, line.link[1])
    return None


def _link(view: View, queue: QueueRecord, link_id: bytes, data: LinkData) -> str | None:
    if queue.link_id is None:
        if link_id in view.links:
            return LINK_TAKEN
        view.put_queue(queue._replace(link_id=link_id))
    else:
        stored = view.link_data.get(queue.link_id)
        if queue.link_id != link_id or (stored is not None and stored.fixed != data.fixed):
            return OTHER_LINK
    view.put_link(link_id, queue.recipient_id, data)
    return None


def _notify(view: View, queue: QueueRecord, line: NotifierRecord) -> str | None:
    if line.notifier_id in view.notifiers:
        return NOTIFIER_TAKEN
    if line.service_id is not None and line.service_id not in view.services:
        return NO_SERVICE
    view.put_queue(queue._replace(notifier=notifier_of(line)))
    return None


def _serve(view: View, queue: QueueRecord, line: QueueService) -> str | None:
    if line.service_id is not None and line.service_id not in view.services:
        return NO_SERVICE
    if line.party is Party.RECIPIENT:
        view.put_queue(queue._replace(service_id=line.service_id))
    elif queue.notifier is None:
        return NO_NOTIFIER
    else:
        view.put_queue(queue._replace(notifier=replace(queue.notifier, service_id=line.service_id)))
    return None


def _take_service(view: View, line: NewService) -> str | None:
    known = view.fingerprints.get(line.cert_hash)
    if known == line.service_id:
        service = view.services.get(known)
        return None if service is not None and service.role is line.role else SERVICE_TAKEN
    if known is not None or line.service_id in view.services:
        return SERVICE_TAKEN
    view.put_service(service_of(line))
    return None
