"""Export to the files of a reference router: what its formats can express, in lines that it can read back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from blindpost.router.bulk import CHUNK_ITEMS, CHUNK_MESSAGES, BulkStore, chunks
from blindpost.router.model import Notification, StoredMessage
from blindpost.router.moving.certificate import Certificate
from blindpost.router.moving.ledger import Ledger
from blindpost.router.moving.progress import Progress, Report, untold
from blindpost.router.moving.values import as_told, can_be_told, created_of, new_service_of, readable_lines
from blindpost.wire.message_log import (
    MessageLine,
    NotificationLine,
    Saved,
    SavedMessage,
    SavedQuota,
    encode_message_line,
    encode_notification_line,
)
from blindpost.wire.store_log import encode_store_line

UNTOLD_ID = bytes(24)
"""Placeholder for the message id of a notification: readers of these files do not use it."""
NO_LINK = "the queue is there without its link: the format cannot tell link data with an empty part"
NO_BODY = "a message with an empty body is left out: the format cannot tell it"


@dataclass(frozen=True, slots=True)
class Files:
    """Where the three parts go."""

    store_log: Path
    messages: Path
    notifications: Path


async def export(
    store: BulkStore, files: Files, report: Report, progress: Progress = untold
) -> dict[str, int]:
    """Write everything; returns the number of lines in each file. A file appears whole or not at all."""
    parts = {
        "queues": (files.store_log, _store_lines(store, report, files.store_log.name)),
        "messages": (files.messages, _message_lines(store, report, files.messages.name)),
        "notifications": (files.notifications, _notification_lines(store)),
    }
    return {part: await _write(path, lines, progress) for part, (path, lines) in parts.items()}


def certificate_of_files(files: Files) -> Certificate:
    """The certificate of the written files, read back from disk."""
    with Ledger() as ledger:
        ledger.read_store_log(files.store_log)
        ledger.read_messages(files.messages, None)
        ledger.read_notifications(files.notifications, -(2**63))
        return ledger.tally.certificate()


async def _write(path: Path, lines: AsyncIterator[bytes], progress: Progress) -> int:
    count = 0
    with _whole_file(path) as file:
        async for line in lines:
            file.write(line + b"\n")
            count += 1
            if count % CHUNK_ITEMS == 0:
                progress(path.name, count, None)
    return count


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its place when it is complete."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)


async def _store_lines(store: BulkStore, report: Report, name: str) -> AsyncIterator[bytes]:
    """Services first, as readers expect."""
    number = 0
    async for services in chunks(store.services, CHUNK_ITEMS):
        for service in services.items:
            number += 1
            yield encode_store_line(new_service_of(service))
    async for queues in chunks(store.queues, CHUNK_ITEMS):
        for queue in queues.items:
            created = created_of(queue)
            told = as_told(created)
            if told != created:
                report.add(name, number + 1, NO_LINK)
            for line in readable_lines(told):
                number += 1
                yield encode_store_line(line)


async def _message_lines(store: BulkStore, report: Report, name: str) -> AsyncIterator[bytes]:
    number = 0
    async for messages in chunks(store.messages, CHUNK_MESSAGES):
        for held in messages.items:
            if not can_be_told(held.message):
                report.add(name, number + 1, NO_BODY)
                continue
            number += 1
            yield encode_message_line(MessageLine(held.recipient_id, _saved(held.message)))


def _saved(message: StoredMessage) -> Saved:
    if message.body is None:
        return SavedQuota(message.msg_id, message.seconds)
    return SavedMessage(message.msg_id, message.seconds, message.notify, bytes(message.body))


async def _notification_lines(store: BulkStore) -> AsyncIterator[bytes]:
    """In order of arrival."""
    waiting: list[Notification] = []
    async for notifications in chunks(store.notifications, CHUNK_ITEMS):
        for notification in notifications.items:
            if waiting and waiting[0].notifier_id != notification.notifier_id:
                for line in _told(waiting):
                    yield line
                waiting = []
            waiting.append(notification)
    for line in _told(waiting):
        yield line


def _told(waiting: list[Notification]) -> Iterator[bytes]:
    for found in sorted(waiting, key=lambda notification: notification.number):
        yield encode_notification_line(
            NotificationLine(found.notifier_id, UNTOLD_ID, found.seconds, found.nonce, found.enc_meta)
        )
