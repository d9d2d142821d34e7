"""Import from the files of a reference router: in chunks, each committed with the place where it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from blindpost.engine.undo import Undo
from blindpost.router.bulk import BulkStore, settled
from blindpost.router.changes import Needed, PutMark, Wanted
from blindpost.router.config import RouterRules
from blindpost.router.model import Ends
from blindpost.router.moving.certificate import Certificate
from blindpost.router.moving.journal import queue_folders, read_queue
from blindpost.router.moving.ledger import Ledger
from blindpost.router.moving.lines import CHUNK_LINES, Lines, Position, read_lines
from blindpost.router.moving.progress import NAME, Mark, Progress, Report, identity_of, untold
from blindpost.router.moving.replay import needed_by, take, wanted_by
from blindpost.router.moving.values import decode_line
from blindpost.router.moving.waiting import (
    EXPIRED,
    MERGED,
    Mailbag,
    decode_message,
    decode_notification,
    take_notification,
)
from blindpost.router.tables import RouterStore
from blindpost.router.view import View
from blindpost.serving.failures import OperatorError
from blindpost.wire.errors import WireError
from blindpost.wire.store_log import StoreRecord
from blindpost.wire.text import b64, unb64

T = TypeVar("T")

TOO_LONG = "the line is longer than any that a router writes"
FOLDERS_AT_ONCE = 200
QUEUES, MESSAGES, NOTIFICATIONS = "queues", "messages", "notifications"
DROPPED = (EXPIRED, MERGED)
"""Counted, but not reported line by line: the reference drops them as well."""


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one reference router."""

    store_log: Path
    messages: Path | None = None
    journal: Path | None = None
    notifications: Path | None = None

    @property
    def parts(self) -> list[tuple[str, Path]]:
        """What is read, in this order."""
        listed = [
            (QUEUES, self.store_log),
            (MESSAGES, self.messages or self.journal),
            (NOTIFICATIONS, self.notifications),
        ]
        return [(name, path) for name, path in listed if path is not None]

    @property
    def identity(self) -> str:
        return identity_of(path for _, path in self.parts)


class Importer:
    """One import into one store, from its beginning or from where it was stopped."""

    def __init__(
        self,
        source: Source,
        store: RouterStore,
        bulk: BulkStore,
        report_path: Path,
        rules: RouterRules,
        *,
        now: Callable[[], float] = time.time,
        progress: Progress = untold,
        chunk_lines: int = CHUNK_LINES,
    ) -> None:
        self._source = source
        self._store = store
        self._bulk = bulk
        self._report_path = report_path
        self._rules = rules
        self._now = now
        self._progress = progress
        self._chunk_lines = chunk_lines
        self.mark = Mark("", None, 0)

    async def run(self) -> bool:
        """Import everything; False if that was already done and checked."""
        self.mark = await self._begin()
        if self.mark.checked:
            return False
        report = Report(self._report_path, self.mark.report_bytes)
        try:
            parts = self._source.parts
            while self.mark.phase < len(parts):
                name, path = parts[self.mark.phase]
                if name == QUEUES:
                    await self._take_queues(path, report)
                elif name == MESSAGES and path == self._source.journal:
                    await self._take_journal(path, report)
                elif name == MESSAGES:
                    await self._take_messages(path, report)
                else:
                    await self._take_notifications(path, report)
                self.mark.phase += 1
                self.mark.offset, self.mark.lines, self.mark.folder = 0, 0, ""
                await self._commit(View(Undo()), report)
        finally:
            report.close()
        return True

    async def _begin(self) -> Mark:
        stored = await self._bulk.mark(NAME)
        identity = self._source.identity
        if stored is not None:
            mark = Mark.decoded(stored)
            if mark.source != identity:
                raise OperatorError(
                    "the store holds the import of other files, or these files have changed since. "
                    "Import into a new router."
                )
            return mark
        if any(self._store.counts().values()):
            raise OperatorError("the store is not empty. Import into a new router.")
        now, ttl = int(self._now()), self._rules.message_ttl_s
        return Mark(identity, None if ttl is None else now - ttl, now - self._rules.notification_ttl_s)

    async def check(self) -> Certificate:
        """The certificate of the source, read again."""
        with Ledger(self._progress) as ledger:
            for name, path in self._source.parts:
                if name == QUEUES:
                    ledger.read_store_log(path)
                elif name == MESSAGES and path == self._source.journal:
                    ledger.read_journal(path, self.mark.expire_before)
                elif name == MESSAGES:
                    ledger.read_messages(path, self.mark.expire_before)
                else:
                    ledger.read_notifications(path, self.mark.notifications_before)
            return ledger.tally.certificate()

    async def finish(self) -> None:
        """The certificates were equal: this import is final."""
        self.mark.checked = True
        await self._store.commit([PutMark(NAME, self.mark.encoded())])

    async def _commit(self, view: View, report: Report) -> None:
        self.mark.report_bytes = report.sync()
        await self._store.commit([*settled(view.changes), PutMark(NAME, self.mark.encoded())])

    def _settle(self, report: Report, part: str, line: int, reason: str | None, *, file: str = "") -> None:
        """Count a line, and report it if it was not taken."""
        key = f"{part}: {'taken' if reason is None else reason if reason in DROPPED else 'not taken'}"
        self.mark.counts[key] = self.mark.counts.get(key, 0) + 1
        if reason is not None and reason not in DROPPED:
            report.add(file, line, reason)

    def _read(self, path: Path) -> Iterator[Lines]:
        return read_lines(path, Position(self.mark.offset, self.mark.lines), self._chunk_lines)

    async def _done(self, part: str, path: Path, lines: Lines, view: View, report: Report) -> None:
        self.mark.offset, self.mark.lines = lines.following.offset, lines.following.lines
        await self._commit(view, report)
        self._progress(part, lines.following.offset, file_size(path))

    async def _take_queues(self, path: Path, report: Report) -> None:
        for lines in self._read(path):
            read: list[StoreRecord | str] = [_or_reason(decode_line, line) for line in lines.content]
            records = [record for record in read if not isinstance(record, str)]
            view = View(Undo())
            await self._store.load(wanted_by(records), view)
            await self._store.load_needed(needed_by(records, view), view)
            for number, record in enumerate(read, start=lines.first):
                reason = record if isinstance(record, str) else take(view, record)
                self._settle(report, QUEUES, number, reason, file=path.name)
            await self._done(QUEUES, path, lines, view, report)

    async def _take_messages(self, path: Path, report: Report) -> None:
        mark = self.mark
        bag = Mailbag(mark.expire_before, unb64(mark.after_marker) if mark.after_marker else None)
        for lines in self._read(path):
            read = [_or_reason(decode_message, line) for line in lines.content]
            named = {line.recipient_id for line in read if not isinstance(line, str)}
            view = await self._view_of(named)
            for number, line in enumerate(read, start=lines.first):
                taken = line if isinstance(line, str) else bag.take(view, line.recipient_id, line.message)
                self._settle(report, MESSAGES, number, taken, file=path.name)
            mark.after_marker = b64(bag.after_marker or b"")
            await self._done(MESSAGES, path, lines, view, report)

    async def _view_of(self, recipient_ids: set[bytes]) -> View:
        view = View(Undo())
        await self._store.load(Wanted(recipients=set(recipient_ids)), view)
        await self._store.load_needed(Needed(ends=set(recipient_ids)), view)
        return view

    async def _take_journal(self, root: Path, report: Report) -> None:
        folders = queue_folders(root, self.mark.folder)
        done = 0
        while some := list(islice(folders, FOLDERS_AT_ONCE)):
            await self._take_folders(root, some, report)
            self.mark.folder = some[-1][0]
            done += len(some)
            self._progress(MESSAGES, done, None)

    async def _take_folders(self, root: Path, folders: Sequence[tuple[str, Path]], report: Report) -> None:
        queues = [(name, read_queue(name, folder)) for name, folder in folders]
        view = await self._view_of({queue.recipient_id for _, queue in queues if queue is not None})
        for name, queue in queues:
            if queue is None:
                self._settle(report, MESSAGES, 0, "not the folder of a queue", file=f"{root.name}/{name}")
                continue
            for file, number, problem in queue.problems:
                self._settle(report, MESSAGES, number, problem, file=f"{root.name}/{name}/{file}")
            bag = Mailbag(self.mark.expire_before)
            for message in queue.messages:
                taken = bag.take(view, queue.recipient_id, message)
                self._settle(report, MESSAGES, 0, taken, file=f"{root.name}/{name}")
            ends = view.ends(queue.recipient_id)
            if ends.size and not queue.can_write:
                view.put_ends(queue.recipient_id, Ends(ends.head, ends.tail, False))
        self.mark.folder = folders[-1][0]
        await self._commit(view, report)

    async def _take_notifications(self, path: Path, report: Report) -> None:
        for lines in self._read(path):
            read = [_or_reason(decode_notification, line) for line in lines.content]
            named = {line.notifier_id for line in read if not isinstance(line, str)}
            view = View(Undo())
            await self._store.load(Wanted(notifiers=set(named)), view)
            owners = {owner for notifier in named if (owner := view.notifiers.get(notifier)) is not None}
            await self._store.load_needed(Needed(ends=owners, notifications=named), view)
            for number, line in enumerate(read, start=lines.first):
                before = self.mark.notifications_before
                reason = line if isinstance(line, str) else take_notification(view, line, before)
                self._settle(report, NOTIFICATIONS, number, reason, file=path.name)
            await self._done(NOTIFICATIONS, path, lines, view, report)


def file_size(path: Path) -> int:
    return path.stat().st_size


def _or_reason(decode: Callable[[bytes], T], line: bytes | None) -> T | str:
    """A decoded line, or why it cannot be read."""
    if line is None:
        return TOO_LONG
    try:
        return decode(line)
    except WireError as error:
        return str(error)
