"""Files of a reference router that never was: as many queues as wanted, from a seed, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blindpost.router.moving.importing import Source
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.message_log import (
    MessageLine,
    NotificationLine,
    SavedMessage,
    SavedQuota,
    encode_message_line,
    encode_notification_line,
)
from blindpost.wire.smp.errors import BLOCKED, BlockingReason
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.values import LinkData, QueueMode
from blindpost.wire.store_log import (
    AddNotifier,
    BlockQueue,
    CreateLink,
    CreateQueue,
    DeleteQueue,
    NewService,
    NotifierRecord,
    Party,
    QueueService,
    SecureQueue,
    StoreRecord,
    SuspendQueue,
    UpdateTime,
    encode_store_line,
)

ID_SIZE = 24


@dataclass(frozen=True)
class Shape:
    """How many of what; shares are of all queues, in thousandths."""

    queues: int
    services: int = 3
    served: int = 300
    notified: int = 300
    linked: int = 100
    secured_later: int = 300
    changed: int = 200
    deleted: int = 50
    waiting: int = 200
    messages_each: int = 2
    body_size: int = 200
    full: int = 10
    seed: int = 1


def write_files(folder: Path, shape: Shape, now: int) -> Source:
    """The three files of one router, in `folder`."""
    source = Source(
        folder / "smp-server-store.log",
        folder / "smp-server-messages.log",
        notifications=folder / "smp-server-ntfs.log",
    )
    assert source.messages is not None
    assert source.notifications is not None
    made = Maker(shape, now)
    with (
        source.store_log.open("wb") as store,
        source.messages.open("wb") as messages,
        source.notifications.open("wb") as notifications,
    ):
        for line in made.services():
            store.write(encode_store_line(line) + b"\n")
        for _ in range(shape.queues):
            lines, waiting, notices = made.queue()
            store.writelines(encode_store_line(line) + b"\n" for line in lines)
            messages.writelines(encode_message_line(line) + b"\n" for line in waiting)
            notifications.writelines(encode_notification_line(line) + b"\n" for line in notices)
    return source


class Maker:
    """Makes one queue after another."""

    def __init__(self, shape: Shape, now: int) -> None:
        self._shape = shape
        self._now = now
        self._random = random.Random(shape.seed)  # noqa: S311 - nothing here is secret
        self._bytes: Callable[[int], bytes] = self._random.randbytes
        self._messaging: list[bytes] = []
        self._notifying: list[bytes] = []

    def services(self) -> Iterator[NewService]:
        for role, listed in (
            (ServiceRole.MESSAGING, self._messaging),
            (ServiceRole.NOTIFIER, self._notifying),
        ):
            for _ in range(self._shape.services):
                listed.append(self._bytes(ID_SIZE))
                chain = (self._bytes(300), self._bytes(300))
                yield NewService(listed[-1], role, chain, self._bytes(32), self._now // 86_400 * 86_400)

    def _chance(self, thousandths: int) -> bool:
        return self._random.randrange(1000) < thousandths

    def _key(self) -> PublicKey:
        return PublicKey(Algorithm.ED25519, self._bytes(32))

    def queue(self) -> tuple[list[StoreRecord], list[MessageLine], list[NotificationLine]]:
        """The lines of a queue's life, what waits in it, and its notifications."""
        shape, chance = self._shape, self._chance
        later = chance(shape.secured_later)
        created = CreateQueue(
            self._bytes(ID_SIZE),
            (self._key(),),
            self._bytes(32),
            self._bytes(ID_SIZE),
            None if later else self._key(),
            self._random.choice((QueueMode.MESSAGING, QueueMode.CONTACT, None)),
            (self._bytes(ID_SIZE), LinkData(self._bytes(60), self._bytes(120)))
            if chance(shape.linked)
            else None,
            self._notifier() if chance(shape.notified) else None,
            self._now // 86_400 * 86_400,
            service_id=self._random.choice(self._messaging) if chance(shape.served) else None,
        )
        lines: list[StoreRecord] = [created]
        if later:
            lines.append(SecureQueue(created.recipient_id, self._key()))
        if chance(shape.changed):
            lines += self._changes(created)
        if chance(shape.deleted):
            return [*lines, DeleteQueue(created.recipient_id)], [], []
        waiting = self._waiting(created.recipient_id) if chance(shape.waiting) else []
        notifier = created.notifier
        notices = [self._notice(notifier.notifier_id)] if waiting and notifier is not None else []
        return lines, waiting, notices

    def _notifier(self) -> NotifierRecord:
        service_id = self._random.choice(self._notifying) if self._chance(500) else None
        return NotifierRecord(self._bytes(ID_SIZE), self._key(), self._bytes(32), service_id)

    def _changes(self, created: CreateQueue) -> list[StoreRecord]:
        queue_id = created.recipient_id
        changes: list[StoreRecord] = [UpdateTime(queue_id, self._now // 86_400 * 86_400 + 86_400)]
        match self._random.randrange(5):
            case 0:
                changes.append(SuspendQueue(queue_id))
            case 1:
                changes.append(BlockQueue(queue_id, BLOCKED(BlockingReason.SPAM)))
            case 2:
                changes.append(QueueService(queue_id, Party.RECIPIENT, self._random.choice(self._messaging)))
            case 3 if created.notifier is None:
                changes.append(AddNotifier(queue_id, self._notifier()))
            case 4 if created.link is None:
                data = LinkData(self._bytes(60), self._bytes(120))
                changes.append(CreateLink(queue_id, self._bytes(ID_SIZE), data))
        return changes

    def _waiting(self, queue_id: bytes) -> list[MessageLine]:
        messages: list[MessageLine] = [
            MessageLine(
                queue_id,
                SavedMessage(
                    self._bytes(ID_SIZE),
                    self._now - self._random.randrange(30 * 86_400),
                    self._chance(500),
                    self._bytes(self._shape.body_size),
                ),
            )
            for _ in range(self._shape.messages_each)
        ]
        if self._chance(self._shape.full):
            messages.append(MessageLine(queue_id, SavedQuota(self._bytes(ID_SIZE), self._now)))
        return messages

    def _notice(self, notifier_id: bytes) -> NotificationLine:
        seconds = self._now - self._random.randrange(2 * 86_400)
        return NotificationLine(notifier_id, self._bytes(ID_SIZE), seconds, self._bytes(24), self._bytes(144))
