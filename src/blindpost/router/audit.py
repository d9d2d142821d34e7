"""Do the sets of services agree with the queues? Differences are found, and repaired from the records.

A queue's own record says whose it is; counters, hashes, and the rows of members and of what waits follow
from it. They change in one transaction, so a difference means a fault: of a disk, of a program, or of
someone who wrote to the store. The walk reads in chunks; the store must not change meanwhile.
It compares counts and hashes first and keeps ids only of those sets that differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

from blindpost.crypto.ids_hash import IDS_HASH_SIZE, QueueSet, id_hash
from blindpost.router.bulk import CHUNK_ITEMS, BulkStore, Member, Page, T, chunks
from blindpost.router.changes import Change, PutQueue, PutService, SetMember, SetPending
from blindpost.router.model import Domain, QueueRecord, ServiceRecord
from blindpost.router.tables import RouterStore

REPAIRS_IN_COMMIT = 1_000

Set = tuple[Domain, bytes]
"""The queues of one service in one domain."""


@dataclass(slots=True)
class Findings:
    """How much was checked, how much of it is wrong, and the changes that repair it."""

    services: int = 0
    queues: int = 0
    counters_wrong: int = 0
    members_missing: int = 0
    members_extra: int = 0
    waiting_missing: int = 0
    waiting_extra: int = 0
    services_unknown: int = 0
    """Queues whose record names a service that does not exist."""
    changes: list[Change] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.changes

    def values(self) -> dict[str, int]:
        """Sums only; nothing that names a queue or a service."""
        return {
            "services": self.services,
            "queues": self.queues,
            "wrong counters": self.counters_wrong,
            "missing members": self.members_missing,
            "extra members": self.members_extra,
            "missing marks of waiting": self.waiting_missing,
            "extra marks of waiting": self.waiting_extra,
            "queues of unknown services": self.services_unknown,
        }


class Sums:
    """Count and hash of each set, as a running sum of ids."""

    def __init__(self) -> None:
        self._counts: dict[Set, int] = defaultdict(int)
        self._hashes: dict[Set, int] = defaultdict(int)

    def add(self, of: Set, entity_id: bytes) -> None:
        self._counts[of] += 1
        self._hashes[of] ^= int.from_bytes(id_hash(entity_id), "big")

    def __getitem__(self, of: Set) -> QueueSet:
        return QueueSet(self._counts.get(of, 0), self._hashes.get(of, 0).to_bytes(IDS_HASH_SIZE, "big"))

    def __iter__(self) -> Iterator[Set]:
        return iter(self._counts)

    def differing(self, other: Sums) -> set[Set]:
        return {of for of in {*self, *other} if self[of] != other[of]}


def memberships(record: QueueRecord) -> Iterator[tuple[Set, bytes]]:
    """The sets that a queue says it is in, and by which id."""
    if record.service_id is not None:
        yield (Domain.MESSAGES, record.service_id), record.recipient_id
    notifier = record.notifier
    if notifier is not None and notifier.service_id is not None:
        yield (Domain.NOTIFICATIONS, notifier.service_id), notifier.notifier_id


class _Walk:
    """One audit: what is known so far."""

    def __init__(self, store: BulkStore, chunk_items: int) -> None:
        self._store = store
        self._chunk_items = chunk_items
        self.found = Findings()
        self.services: dict[bytes, ServiceRecord] = {}
        self.noticed: set[bytes] = set()
        """Notifiers with waiting notifications."""
        self.members, self.waiting = Sums(), Sums()
        """As the queue records say."""

    async def _all(self, page: Page[T]) -> AsyncIterator[T]:
        async for chunk in chunks(page, self._chunk_items):
            for item in chunk.items:
                yield item

    async def run(self) -> Findings:
        async for service in self._all(self._store.services):
            self.services[service.service_id] = service
        self.found.services = len(self.services)
        async for notification in self._all(self._store.notifications):
            self.noticed.add(notification.notifier_id)
        async for record, waits in self._queues():
            self.found.queues += 1
            self._count(record, waits)
        await self._compare_rows()
        self._compare_counters()
        return self.found

    async def _queues(self) -> AsyncIterator[tuple[QueueRecord, bool]]:
        async for queue in self._all(self._store.queues):
            yield queue.record, bool(queue.ends.size)

    def _waits(self, of: Set, entity_id: bytes, has_messages: bool) -> bool:
        return has_messages if of[0] is Domain.MESSAGES else entity_id in self.noticed

    def _count(self, record: QueueRecord, has_messages: bool) -> None:
        known = record
        for of, entity_id in memberships(record):
            if of[1] not in self.services:
                self.found.services_unknown += 1
                known = _without(known, of[0])
                continue
            self.members.add(of, entity_id)
            if self._waits(of, entity_id, has_messages):
                self.waiting.add(of, entity_id)
        if known is not record:
            self.found.changes.append(PutQueue(known, record))

    async def _compare_rows(self) -> None:
        members, waiting = Sums(), Sums()
        for page, sums in ((self._store.members, members), (self._store.pending, waiting)):
            async for row in self._all(page):
                sums.add((row.domain, row.service_id), row.entity_id)
        wrong_members = members.differing(self.members)
        wrong_waiting = waiting.differing(self.waiting)
        if not wrong_members and not wrong_waiting:
            return
        right_members: dict[Set, set[bytes]] = defaultdict(set)
        right_waiting: dict[Set, set[bytes]] = defaultdict(set)
        async for record, has_messages in self._queues():
            for of, entity_id in memberships(record):
                if of[1] not in self.services:
                    continue
                if of in wrong_members:
                    right_members[of].add(entity_id)
                if of in wrong_waiting and self._waits(of, entity_id, has_messages):
                    right_waiting[of].add(entity_id)
        found = self.found
        extra, missing = await self._differences(self._store.members, wrong_members, right_members)
        found.members_extra, found.members_missing = len(extra), len(missing)
        found.changes += [_set_member(row, there=False) for row in extra]
        found.changes += [_set_member(row, there=True) for row in missing]
        extra, missing = await self._differences(self._store.pending, wrong_waiting, right_waiting)
        found.waiting_extra, found.waiting_missing = len(extra), len(missing)
        found.changes += [_set_waiting(row, there=False) for row in extra]
        found.changes += [_set_waiting(row, there=True) for row in missing]

    async def _differences(
        self, page: Page[Member], wrong: set[Set], right: dict[Set, set[bytes]]
    ) -> tuple[list[Member], list[Member]]:
        """Rows to delete and rows to add; `right` is consumed."""
        extra: list[Member] = []
        if not wrong:
            return [], []
        async for row in self._all(page):
            of = row.domain, row.service_id
            if of not in wrong:
                continue
            if row.entity_id in right[of]:
                right[of].discard(row.entity_id)
            else:
                extra.append(row)
        missing = [Member(*of, entity_id) for of, ids in right.items() for entity_id in sorted(ids)]
        return extra, missing

    def _compare_counters(self) -> None:
        for service_id, service in self.services.items():
            queues = self.members[Domain.MESSAGES, service_id]
            notifiers = self.members[Domain.NOTIFICATIONS, service_id]
            wrong = (service.queues != queues) + (service.notifiers != notifiers)
            if wrong:
                self.found.counters_wrong += wrong
                self.found.changes.append(PutService(replace(service, queues=queues, notifiers=notifiers)))


def _without(record: QueueRecord, domain: Domain) -> QueueRecord:
    if domain is Domain.MESSAGES:
        return record._replace(service_id=None)
    assert record.notifier is not None
    return record._replace(notifier=replace(record.notifier, service_id=None))


def _set_member(row: Member, *, there: bool) -> SetMember:
    return SetMember(row.domain, row.service_id, row.entity_id, there)


def _set_waiting(row: Member, *, there: bool) -> SetPending:
    return SetPending(row.domain, row.service_id, row.entity_id, there)


async def audit(store: BulkStore, chunk_items: int = CHUNK_ITEMS) -> Findings:
    """Compare everything; the store must not change meanwhile."""
    return await _Walk(store, chunk_items).run()


async def repair(store: RouterStore, findings: Findings) -> None:
    """Repair what was found, in several commits; after an interruption, audit again."""
    changes = findings.changes
    for start in range(0, len(changes), REPAIRS_IN_COMMIT):
        await store.commit(changes[start : start + REPAIRS_IN_COMMIT])


async def looks_right(bulk: BulkStore, store: RouterStore) -> bool:
    """A cheap check: whether there are as many rows as all services together count.

    It reads the services but no queues, so it can run at every start.
    """
    counted = 0
    async for chunk in chunks(bulk.services, CHUNK_ITEMS):
        counted += sum(service.queues.count + service.notifiers.count for service in chunk.items)
    counts = store.counts()
    return counted == counts["members"] and counts["pending"] <= counts["members"]


async def check_at_start(bulk: BulkStore, store: RouterStore) -> Findings | None:
    """Run the cheap check; if it fails, audit and repair. Returns what was repaired, or None."""
    if await looks_right(bulk, store):
        return None
    found = await audit(bulk)
    await repair(store, found)
    return found
