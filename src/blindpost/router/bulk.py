"""Reads a whole store in chunks: what moving between stores needs beyond `RouterStore`.

Writing goes through `RouterStore.commit`, where a `PutMark` among the changes records progress: it is
committed with them, so an interrupted job resumes after its last commit. Each chunk is a separate short
read and says where the next one starts, in the store's own format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from blindpost.router.changes import Change, DeleteQueue, PutEnds, PutQueue, PutService
from blindpost.router.model import Domain, Ends, Notification, QueueRecord, ServiceRecord, StoredMessage
from blindpost.wire.smp.values import LinkData
from blindpost.wire.value import Value

T = TypeVar("T")

CHUNK_ITEMS = 1_000
CHUNK_MESSAGES = 100
"""Fewer, since each may be 16 KB."""


@dataclass(frozen=True, slots=True)
class Chunk(Generic[T]):
    """Some items in the store's order, and where the next chunk starts (None: there is none)."""

    items: tuple[T, ...]
    following: bytes | None


@dataclass(frozen=True, slots=True, repr=False)
class WholeQueue(Value):
    """A queue with everything but its messages."""

    record: QueueRecord
    link: LinkData | None
    ends: Ends


@dataclass(frozen=True, slots=True, repr=False)
class HeldMessage(Value):
    """A message, the queue that holds it and its number there."""

    recipient_id: bytes
    number: int
    message: StoredMessage


@dataclass(frozen=True, slots=True, repr=False)
class Member(Value):
    """A row that says which service a queue belongs to, or in which queue of a service something waits."""

    domain: Domain
    service_id: bytes
    entity_id: bytes


class BulkStore(Protocol):
    """All that a store holds, in chunks of about `limit` items from `start` on (`b""`: the beginning)."""

    async def mark(self, name: bytes) -> bytes | None:
        """What the last committed `PutMark` of this name said."""

    async def services(self, start: bytes, limit: int) -> Chunk[ServiceRecord]: ...

    async def queues(self, start: bytes, limit: int) -> Chunk[WholeQueue]: ...

    async def messages(self, start: bytes, limit: int) -> Chunk[HeldMessage]:
        """Messages of one queue come one after another, in their order."""

    async def notifications(self, start: bytes, limit: int) -> Chunk[Notification]:
        """Notifications for one notifier come one after another."""

    async def members(self, start: bytes, limit: int) -> Chunk[Member]:
        """The rows of the services' sets."""

    async def pending(self, start: bytes, limit: int) -> Chunk[Member]:
        """The rows of what waits in the services' queues."""


Page = Callable[[bytes, int], Awaitable[Chunk[T]]]


async def chunks(page: Page[T], limit: int, start: bytes = b"") -> AsyncIterator[Chunk[T]]:
    """One chunk after the other, until the end."""
    following: bytes | None = start
    while following is not None:
        chunk = await page(following, limit)
        following = chunk.following
        yield chunk


def settled(changes: Iterable[Change]) -> list[Change]:
    """The same changes, but each queue, service and pair of ends is written once, in its final state."""
    kept: list[Change] = []
    places: dict[tuple[type, bytes], int] = {}
    for change in changes:
        if isinstance(change, DeleteQueue):
            for kind in (PutQueue, PutEnds):
                places.pop((kind, change.record.recipient_id), None)
        key = _written_once(change)
        earlier = None if key is None or key not in places else kept[places[key]]
        merged = None if earlier is None else _merged(earlier, change)
        if key is not None and merged is not None:
            kept[places[key]] = merged
            continue
        if key is not None:
            places[key] = len(kept)
        kept.append(change)
    return kept


def _written_once(change: Change) -> tuple[type, bytes] | None:
    """What a change writes completely, so that a later one of the same kind replaces it."""
    match change:
        case PutQueue(record):
            return PutQueue, record.recipient_id
        case PutService(service):
            return PutService, service.service_id
        case PutEnds(recipient_id):
            return PutEnds, recipient_id
        case _:
            return None


def _merged(earlier: Change, later: Change) -> Change | None:
    """One change for two; None if the row that finds a queue by its notifier changes between them."""
    if isinstance(earlier, PutQueue) and isinstance(later, PutQueue):
        old, new = earlier.record.notifier, later.record.notifier
        same = (old and old.notifier_id) == (new and new.notifier_id)
        return PutQueue(later.record, earlier.before) if same else None
    return later
