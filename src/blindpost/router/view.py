"""The part of the store that a batch touches, with the batch's own changes on top.

Reads see the writes of earlier commands of the same batch. Every change leaves its inverse in the
engine's `Undo`; the list of changes becomes durable in one commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.undo import Table, Undo
from blindpost.router.changes import (
    AddMessage,
    AddNotification,
    Change,
    DeleteLink,
    DeleteMessage,
    DeleteNotifications,
    DeleteQueue,
    DeleteService,
    PutEnds,
    PutLink,
    PutQueue,
    PutService,
    SetMember,
    SetPending,
)
from blindpost.router.model import (
    EMPTY,
    Domain,
    Ends,
    Notification,
    Notifier,
    QueueRecord,
    ServiceRecord,
    StoredMessage,
)
from blindpost.wire.smp.values import LinkData

log = logging.getLogger(__name__)

DAMAGED = "this queue cannot be read; its operator must restore it"


class View:
    """The part of the store that this batch touches, with its own changes on top."""

    def __init__(self, undo: Undo, fault: Callable[[], None] = lambda: None) -> None:
        self._add_undo = undo.add
        self._fault = fault
        self.changes: list[Change] = []
        self._unchange = (self.changes.pop,)
        self.records: Table[bytes, QueueRecord] = Table(undo)
        self.senders: Table[bytes, bytes] = Table(undo)
        self.notifiers: Table[bytes, bytes] = Table(undo)
        self.links: Table[bytes, bytes] = Table(undo)
        self.link_data: Table[bytes, LinkData] = Table(undo)
        self.services: Table[bytes, ServiceRecord] = Table(undo)
        self.fingerprints: Table[bytes, bytes] = Table(undo)
        self.damaged: set[bytes] = set()
        """Recipient ids of queues whose rows are unreadable."""
        self._ends: Table[bytes, Ends] = Table(undo)
        self._messages: Table[tuple[bytes, int], StoredMessage] = Table(undo)
        self._pending: Table[bytes, tuple[Notification, ...]] = Table(undo)
        self._tables: tuple[Table[Any, Any], ...] = (
            self.records,
            self.senders,
            self.notifiers,
            self.links,
            self.link_data,
            self.services,
            self.fingerprints,
            self._ends,
            self._messages,
            self._pending,
        )

    def empty(self) -> None:
        """Let the next batch begin: it touches nothing yet."""
        for table in self._tables:
            table.empty()
        self.changes.clear()
        self.damaged.clear()

    def fill_ends(self, recipient_id: bytes, ends: Ends) -> None:
        self._ends.fill(recipient_id, ends)

    def fill_message(self, recipient_id: bytes, number: int, message: StoredMessage) -> None:
        self._messages.fill((recipient_id, number), message)

    def fill_pending(self, notifier_id: bytes, notifications: tuple[Notification, ...]) -> None:
        self._pending.fill(notifier_id, notifications)

    def loaded_ends(self, recipient_id: bytes) -> Ends | None:
        """The ends of a queue, if they are known already."""
        return self._ends.get(recipient_id)

    def ends(self, recipient_id: bytes) -> Ends:
        return self._ends.get(recipient_id) or EMPTY

    def readable(self, recipient_id: bytes, number: int) -> StoredMessage | None:
        """A message of a queue, if its row is readable."""
        return self._messages.get((recipient_id, number))

    def message(self, recipient_id: bytes, number: int) -> StoredMessage:
        """A message of a queue. The batch loaded every one that its commands may reach."""
        message = self.readable(recipient_id, number)
        assert message is not None, "a message that was not loaded"
        return message

    def pending(self, notifier_id: bytes) -> tuple[Notification, ...]:
        return self._pending.get(notifier_id) or ()

    def put_queue(self, record: QueueRecord) -> None:
        before = self.records.put(record.recipient_id, record)
        self.senders.put(record.sender_id, record.recipient_id)
        if before is not None and before.notifier is not None and before.notifier != record.notifier:
            self.notifiers.pop(before.notifier.notifier_id)
        if record.notifier is not None:
            self.notifiers.put(record.notifier.notifier_id, record.recipient_id)
        self._change(PutQueue(record, before))
        self._associate(before, record)

    def delete_queue(self, record: QueueRecord) -> None:
        recipient_id = record.recipient_id
        self._associate(record, None)
        self._change(DeleteQueue(record, self.ends(recipient_id)))
        self.records.pop(recipient_id)
        self.senders.pop(record.sender_id)
        self._ends.pop(recipient_id)
        if record.notifier is not None:
            self.notifiers.pop(record.notifier.notifier_id)
            self._pending.pop(record.notifier.notifier_id)
        if record.link_id is not None:
            self.links.pop(record.link_id)
            self.link_data.pop(record.link_id)

    def put_ends(self, recipient_id: bytes, ends: Ends) -> None:
        before = self._ends.put(recipient_id, ends) or EMPTY
        self._change(PutEnds(recipient_id, ends))
        record = self.records.get(recipient_id)
        if record is not None and record.service_id is not None and bool(before.size) is not bool(ends.size):
            pending = bool(ends.size)
            self._change(SetPending(Domain.MESSAGES, record.service_id, recipient_id, pending))

    def add_message(self, recipient_id: bytes, number: int, message: StoredMessage) -> None:
        self._messages.put((recipient_id, number), message)
        self._change(AddMessage(recipient_id, number, message))

    def delete_message(self, recipient_id: bytes, number: int) -> None:
        self._messages.pop((recipient_id, number))
        self._change(DeleteMessage(recipient_id, number))

    def put_link(self, link_id: bytes, recipient_id: bytes, data: LinkData) -> None:
        self.links.put(link_id, recipient_id)
        self.link_data.put(link_id, data)
        self._change(PutLink(link_id, recipient_id, data))

    def delete_link(self, link_id: bytes) -> None:
        self.links.pop(link_id)
        self.link_data.pop(link_id)
        self._change(DeleteLink(link_id))

    def add_notification(self, notifier: Notifier, notification: Notification) -> None:
        notifier_id = notifier.notifier_id
        self._pending.put(notifier_id, (*self.pending(notifier_id), notification))
        self._change(AddNotification(notification))
        if notifier.service_id is not None:
            self._change(SetPending(Domain.NOTIFICATIONS, notifier.service_id, notifier_id, True))

    def delete_notifications(self, notifier: Notifier) -> None:
        self._pending.pop(notifier.notifier_id)
        self._change(DeleteNotifications(notifier.notifier_id))
        if notifier.service_id is not None:
            self._change(SetPending(Domain.NOTIFICATIONS, notifier.service_id, notifier.notifier_id, False))

    def put_service(self, service: ServiceRecord) -> None:
        self.services.put(service.service_id, service)
        self.fingerprints.put(service.fingerprint, service.service_id)
        self._change(PutService(service))

    def delete_service(self, service: ServiceRecord) -> None:
        """Forget a service that has no queues."""
        self.services.pop(service.service_id)
        self.fingerprints.pop(service.fingerprint)
        self._change(DeleteService(service.service_id, service.fingerprint))

    def _associate(self, before: QueueRecord | None, after: QueueRecord | None) -> None:
        """Keep the sets of services in step with the records: the only place where they change."""
        for domain in Domain:
            old, new = _membership(before, domain), _membership(after, domain)
            if old == new:
                continue
            if old is not None:
                self._set_member(domain, *old, member=False)
            if new is not None:
                self._set_member(domain, *new, member=True)

    def _set_member(self, domain: Domain, service_id: bytes, entity_id: bytes, *, member: bool) -> None:
        service = self.services.get(service_id)
        assert service is not None, "a service that was not loaded"
        one, members = QueueSet.of((entity_id,)), service.members(domain)
        if not member and (not members.count or (members.count == 1 and members != one)):
            # Subtraction would hide it: the count cannot go below zero.
            log.error("a service loses a queue that it does not count; run `blindpost router audit`")
            self._fault()
        changed = members + one if member else members - one
        if domain is Domain.MESSAGES:
            self.put_service(replace(service, queues=changed))
            pending = bool(self.ends(entity_id).size)
        else:
            self.put_service(replace(service, notifiers=changed))
            pending = bool(self.pending(entity_id))
        self._change(SetMember(domain, service_id, entity_id, member))
        if pending or not member:
            self._change(SetPending(domain, service_id, entity_id, member and pending))

    def _change(self, change: Change) -> None:
        self.changes.append(change)
        self._add_undo(self._unchange)


def _membership(record: QueueRecord | None, domain: Domain) -> tuple[bytes, bytes] | None:
    """The service that holds the queue in this domain, and the id by which it does."""
    if record is None:
        return None
    if domain is Domain.MESSAGES:
        return None if record.service_id is None else (record.service_id, record.recipient_id)
    notifier = record.notifier
    if notifier is None or notifier.service_id is None:
        return None
    return notifier.service_id, notifier.notifier_id
