"""The source side of a certificate: files of the reference, tallied without going through a router's store.

Queues are kept as lines in a scratch store on disk, so that memory does not grow with them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from blindpost.router.model import Notification
from blindpost.router.moving.certificate import Tally
from blindpost.router.moving.journal import queue_folders, read_queue
from blindpost.router.moving.lines import read_lines
from blindpost.router.moving.progress import Progress, untold
from blindpost.router.moving.values import decode_line, readable_lines
from blindpost.router.moving.waiting import decode_message, decode_notification, is_expired, stored_of
from blindpost.router.records import NOTIFICATIONS_WAITING_MAX
from blindpost.store.contract import Durability
from blindpost.store.lmdb import LmdbStore, Write
from blindpost.wire.errors import WireError
from blindpost.wire.message_log import Saved
from blindpost.wire.store_log import (
    Activity,
    AddNotifier,
    BlockQueue,
    CreateLink,
    CreateQueue,
    DeleteLink,
    DeleteNotifier,
    DeleteQueue,
    NewService,
    Party,
    QueueService,
    SecureQueue,
    StoreRecord,
    SuspendQueue,
    UnblockQueue,
    UpdateKeys,
    UpdateTime,
    decode_store_line,
    encode_store_line,
)

QUEUES, IDS, SERVICES, COUNTS = "queues", "ids", "services", "counts"
SENDER, NOTIFIER, LINK, FINGERPRINT = b"s", b"n", b"l", b"f"
CHECK = "checking the source"
_SCRATCH_SIZE = 1 << 30

T = TypeVar("T")


class Ledger:
    """A tally of source files. Use as a context: the scratch store goes with it."""

    def __init__(self, progress: Progress = untold) -> None:
        self.tally = Tally()
        self._folder = tempfile.TemporaryDirectory(prefix="blindpost-ledger-")
        self._store = LmdbStore(
            Path(self._folder.name),
            (QUEUES, IDS, SERVICES, COUNTS),
            owner="ledger",
            durability=Durability.OS,
            map_size=_SCRATCH_SIZE,
        )
        self._progress = progress

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self._store.close()
        self._folder.cleanup()

    def read_store_log(self, path: Path) -> None:
        for lines in read_lines(path):
            step = _Step(tuple(_decoded(lines.content, decode_line)))
            self._store.write(step.run)
            for service in step.services:
                self.tally.add_service(service)
            for queue_id, queue in step.after.items():
                old = step.before[queue_id]
                if old is not None:
                    self.tally.remove_queue(old)
                if queue is not None:
                    self.tally.add_queue(queue)
            self._progress(CHECK, lines.following.offset, path.stat().st_size)

    def read_messages(self, path: Path, expire_before: int | None) -> None:
        marked: bytes | None = None
        for lines in read_lines(path):
            found = tuple(_decoded(lines.content, decode_message))
            marked = self._count([(line.recipient_id, line.message) for line in found], expire_before, marked)
            self._progress(CHECK, lines.following.offset, path.stat().st_size)

    def read_journal(self, folder: Path, expire_before: int | None) -> None:
        for done, (name, place) in enumerate(queue_folders(folder), start=1):
            queue = read_queue(name, place)
            if queue is not None:
                listed = [(queue.recipient_id, message) for message in queue.messages]
                self._count(listed, expire_before, None, can_write=queue.can_write)
            self._progress(CHECK, done, None)

    def _count(
        self,
        found: Sequence[tuple[bytes, Saved]],
        expire_before: int | None,
        marked: bytes | None,
        *,
        can_write: bool = True,
    ) -> bytes | None:
        """Tally messages; returns the last one's queue if it was a marker. `counts` are those of queues."""
        counts: dict[bytes, tuple[int, bool]] = {}
        with self._store.read() as read:
            for recipient_id, saved in found:
                message = stored_of(saved)
                if recipient_id not in counts:
                    if read.get(QUEUES, recipient_id) is None:
                        continue
                    row = read.get(COUNTS, recipient_id) or bytes(9)
                    counts[recipient_id] = int.from_bytes(row[1:], "big"), row[0] == 1
                if is_expired(message, expire_before) or (message.is_marker and marked == recipient_id):
                    continue
                marked = recipient_id if message.is_marker else None
                count, full = counts[recipient_id]
                self.tally.add_message(recipient_id, count, message)
                if not full and (message.is_marker or not can_write):
                    self.tally.full.add(recipient_id)
                    full = True
                counts[recipient_id] = count + 1, full
        self._store.commit(
            [
                (COUNTS, recipient_id, bytes((full,)) + count.to_bytes(8, "big"))
                for recipient_id, (count, full) in counts.items()
            ]
        )
        return marked

    def read_notifications(self, path: Path, expire_before: int) -> None:
        kept: defaultdict[bytes, deque[Notification]] = defaultdict(
            lambda: deque(maxlen=NOTIFICATIONS_WAITING_MAX)
        )
        for lines in read_lines(path):
            with self._store.read() as read:
                for line in _decoded(lines.content, decode_notification):
                    if line.seconds >= expire_before and read.get(IDS, NOTIFIER + line.notifier_id):
                        kept[line.notifier_id].append(
                            Notification(line.notifier_id, 0, line.seconds, line.nonce, line.encrypted_meta)
                        )
            self._progress(CHECK, lines.following.offset, path.stat().st_size)
        for waiting in kept.values():
            for notification in waiting:
                self.tally.add_notification(notification)


def _decoded(lines: Iterable[bytes | None], decode: Callable[[bytes], T]) -> Iterator[T]:
    """The lines that can be read; the others are in the report."""
    for line in lines:
        if line is not None:
            with contextlib.suppress(WireError):
                yield decode(line)


class _Step:
    """Some lines of the store log, and the queues they change, as they were and as they are after."""

    def __init__(self, records: Sequence[StoreRecord]) -> None:
        self._records = records
        self.before: dict[bytes, CreateQueue | None] = {}
        self.after: dict[bytes, CreateQueue | None] = {}
        self.services: list[NewService] = []

    def run(self, write: Write) -> None:
        """May run again if the store had to grow."""
        self.before, self.after, self.services = {}, {}, []
        for record in self._records:
            if isinstance(record, NewService):
                self._service(write, record)
                continue
            queue_id = record.recipient_id
            if queue_id not in self.after:
                self.before[queue_id] = self.after[queue_id] = _kept(write, queue_id)
            queue = self.after[queue_id]
            changed = _created(write, queue, record) if queue is None else _changed(write, queue, record)
            if changed is not queue:
                _keep_ids(write, queue, changed)
                self.after[queue_id] = changed
        for queue_id, queue in self.after.items():
            if queue is None:
                write.delete(QUEUES, queue_id)
            else:
                row = b"\n".join(map(encode_store_line, readable_lines(queue)))
                write.put(QUEUES, queue_id, row)

    def _service(self, write: Write, record: NewService) -> None:
        known = write.get(SERVICES, record.service_id)
        if known is None and write.get(IDS, FINGERPRINT + record.cert_hash) is None:
            write.put(SERVICES, record.service_id, b"-")
            write.put(IDS, FINGERPRINT + record.cert_hash, record.service_id)
            self.services.append(record)


def _kept(write: Write, queue_id: bytes) -> CreateQueue | None:
    row = write.get(QUEUES, queue_id)
    if row is None:
        return None
    first, *others = map(decode_store_line, row.split(b"\n"))
    assert isinstance(first, CreateQueue)
    for other in others:
        assert isinstance(other, BlockQueue)
        first = replace(first, status=other.blocked)
    return first


def _ids(queue: CreateQueue | None) -> set[bytes]:
    """The ids under which a queue is found, and no other may be."""
    if queue is None:
        return set()
    found = {SENDER + queue.sender_id}
    if queue.notifier is not None:
        found.add(NOTIFIER + queue.notifier.notifier_id)
    if queue.link is not None:
        found.add(LINK + queue.link[0])
    return found


def _keep_ids(write: Write, before: CreateQueue | None, after: CreateQueue | None) -> None:
    old, new = _ids(before), _ids(after)
    for key in old - new:
        write.delete(IDS, key)
    for key in new - old:
        write.put(IDS, key, b"-")


def _served(write: Write, *services: bytes | None) -> bool:
    return all(service is None or write.get(SERVICES, service) is not None for service in services)


def _created(write: Write, queue: CreateQueue | None, line: StoreRecord) -> CreateQueue | None:
    """A queue that does not exist yet, after this line."""
    if not isinstance(line, CreateQueue) or any(write.get(IDS, key) for key in _ids(line)):
        return queue
    notifier_service = None if line.notifier is None else line.notifier.service_id
    if not _served(write, line.service_id, notifier_service):
        return queue
    return replace(line, updated_at=line.updated_at or None)


def _changed(write: Write, queue: CreateQueue, line: StoreRecord) -> CreateQueue | None:
    """A queue that exists, after this line."""
    match line:
        case DeleteQueue():
            return None
        case SecureQueue(_, key):
            return replace(queue, sender_key=queue.sender_key or key)
        case UpdateKeys(_, keys):
            return replace(queue, recipient_keys=keys)
        case UpdateTime(_, seconds):
            return replace(queue, updated_at=seconds or None)
        case SuspendQueue():
            return replace(queue, status=Activity.OFF)
        case BlockQueue(_, blocked):
            return replace(queue, status=blocked)
        case UnblockQueue():
            return replace(queue, status=Activity.ACTIVE)
        case DeleteLink():
            return replace(queue, link=None)
        case DeleteNotifier():
            return replace(queue, notifier=None)
        case CreateLink(_, link_id, data):
            if queue.link is None:
                return queue if write.get(IDS, LINK + link_id) else replace(queue, link=(link_id, data))
            same = queue.link[0] == link_id and queue.link[1].fixed == data.fixed
            return replace(queue, link=(link_id, data)) if same else queue
        case AddNotifier(_, notifier):
            taken = write.get(IDS, NOTIFIER + notifier.notifier_id) is not None
            free = not taken and _served(write, notifier.service_id)
            return replace(queue, notifier=notifier) if free else queue
        case QueueService(_, party, service_id) if _served(write, service_id):
            if party is Party.RECIPIENT:
                return replace(queue, service_id=service_id)
            if queue.notifier is not None:
                return replace(queue, notifier=replace(queue.notifier, service_id=service_id))
    return queue
