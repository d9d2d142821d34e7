"""Copy everything from one store into another, such as from the embedded one into PostgreSQL or back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from blindpost.router.bulk import (
    CHUNK_ITEMS,
    CHUNK_MESSAGES,
    BulkStore,
    HeldMessage,
    Member,
    Page,
    WholeQueue,
    chunks,
)
from blindpost.router.changes import (
    AddMessage,
    AddNotification,
    Change,
    PutEnds,
    PutLink,
    PutMark,
    PutQueue,
    PutService,
    SetMember,
    SetPending,
)
from blindpost.router.model import EMPTY
from blindpost.router.moving.progress import NAME, Mark, Progress, untold
from blindpost.router.tables import RouterStore
from blindpost.serving.failures import OperatorError
from blindpost.wire.text import b64, unb64

T = TypeVar("T")
PARTS = ("services", "queues", "messages", "notifications", "members", "pending")


class Copier:
    """One copy, from its beginning or from where it was stopped."""

    def __init__(
        self,
        source: BulkStore,
        source_name: str,
        store: RouterStore,
        bulk: BulkStore,
        progress: Progress = untold,
    ) -> None:
        self._source = source
        self._store = store
        self._bulk = bulk
        self._progress = progress
        self.mark = Mark(source_name, None, 0)

    async def run(self) -> bool:
        """Copy what is missing; False if the copy was already complete and checked."""
        stored = await self._bulk.mark(NAME)
        if stored is not None:
            mark = Mark.decoded(stored)
            if mark.source != self.mark.source:
                raise OperatorError("the store holds another import. Copy into a new router.")
            self.mark = mark
        elif any(self._store.counts().values()):
            raise OperatorError("the store is not empty. Copy into a new router.")
        if self.mark.checked:
            return False
        while self.mark.phase < len(PARTS):
            part = PARTS[self.mark.phase]
            async for items, changes, following in self._part(part):
                self.mark.folder = b64(following or b"")
                self.mark.phase += following is None
                self.mark.counts[part] = self.mark.counts.get(part, 0) + items
                await self._store.commit([*changes, PutMark(NAME, self.mark.encoded())])
                self._progress(part, self.mark.counts[part], None)
        return True

    async def finish(self) -> None:
        """The certificates were equal: this copy is final."""
        self.mark.checked = True
        await self._store.commit([PutMark(NAME, self.mark.encoded())])

    def _part(self, part: str) -> AsyncIterator[tuple[int, list[Change], bytes | None]]:
        source = self._source
        match part:
            case "services":
                return self._walk(source.services, CHUNK_ITEMS, lambda service: [PutService(service)])
            case "queues":
                return self._walk(source.queues, CHUNK_ITEMS, _queue_changes)
            case "messages":
                return self._walk(source.messages, CHUNK_MESSAGES, _message_changes)
            case "notifications":
                return self._walk(source.notifications, CHUNK_ITEMS, lambda found: [AddNotification(found)])
            case "members":
                return self._walk(source.members, CHUNK_ITEMS, _member_changes)
        return self._walk(source.pending, CHUNK_ITEMS, _pending_changes)

    async def _walk(
        self, page: Page[T], limit: int, changes_of: Callable[[T], Iterable[Change]]
    ) -> AsyncIterator[tuple[int, list[Change], bytes | None]]:
        start = unb64(self.mark.folder) if self.mark.folder else b""
        async for chunk in chunks(page, limit, start):
            changes = [change for item in chunk.items for change in changes_of(item)]
            yield len(chunk.items), changes, chunk.following


def _queue_changes(queue: WholeQueue) -> list[Change]:
    record = queue.record
    changes: list[Change] = [PutQueue(record, None)]
    if record.link_id is not None and queue.link is not None:
        changes.append(PutLink(record.link_id, record.recipient_id, queue.link))
    if queue.ends != EMPTY:
        changes.append(PutEnds(record.recipient_id, queue.ends))
    return changes


def _message_changes(held: HeldMessage) -> list[Change]:
    return [AddMessage(held.recipient_id, held.number, held.message)]


def _member_changes(member: Member) -> list[Change]:
    return [SetMember(member.domain, member.service_id, member.entity_id, True)]


def _pending_changes(member: Member) -> list[Change]:
    return [SetPending(member.domain, member.service_id, member.entity_id, True)]
