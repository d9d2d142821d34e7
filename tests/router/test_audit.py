"""Drift planted in a store is found completely, reported as sums and repaired; a good store is left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from blindpost.crypto.ids_hash import QueueSet
from blindpost.router import audit as auditing
from blindpost.router.audit import Findings, audit, looks_right, repair
from blindpost.router.bulk import BulkStore
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.bulk_postgres import PostgresBulk
from blindpost.router.changes import Change, PutQueue, PutService, SetMember, SetPending
from blindpost.router.model import NO_QUEUES, Domain
from blindpost.router.tables import LmdbTables
from blindpost.router.tables_postgres import PostgresTables
from blindpost.wire.smp.commands import SUB
from blindpost.wire.smp.responses import SOK
from tests.support.router.lines import Queue, create, open_line, pushed
from tests.support.router.routers import RunningRouter
from tests.support.router.services import (
    NOTIFIER,
    ServiceLine,
    members,
    new_service,
    nsub,
    open_service,
    queue_record,
    service_queues,
    service_record,
    set_of,
    waiting_in,
)

MESSAGES, NOTIFICATIONS = Domain.MESSAGES, Domain.NOTIFICATIONS


def bulk_of(running: RunningRouter) -> BulkStore:
    store = running.router.store
    if isinstance(store, LmdbTables):
        return LmdbBulk(store)
    assert isinstance(store, PostgresTables)
    return PostgresBulk(store.store)


@dataclass
class Case:
    """A router with a service of each kind; something waits in queues[0] and for its notifier."""

    running: RunningRouter
    line: ServiceLine
    notifier: ServiceLine
    queues: list[Queue]

    async def audited(self, chunk_items: int = 2) -> Findings:
        return await audit(bulk_of(self.running), chunk_items)

    async def drift(self, *changes: Change) -> None:
        await self.running.router.store.commit(changes)

    async def check_all_good(self) -> None:
        line, notifier, queues = self.line, self.notifier, self.queues
        assert await members(self.running, line) == set_of(queues)
        noticed = QueueSet.of(queue.notifier_id for queue in queues)
        assert await members(self.running, notifier, NOTIFICATIONS) == noticed
        assert await waiting_in(self.running, line.service_id) == {queues[0].recipient_id}
        assert await waiting_in(self.running, notifier.service_id, NOTIFICATIONS) == {queues[0].notifier_id}


@pytest.fixture
async def case(running: RunningRouter) -> AsyncIterator[Case]:
    owner = await open_line(running)
    line = await open_service(running, new_service())
    notifier = await open_service(running, new_service(), NOTIFIER)
    queues = [await create(owner, notifier=True) for _ in range(5)]
    for queue in queues:
        assert await queue.ask(line, SUB()) == SOK(line.service_id)
        assert await nsub(notifier, queue) == SOK(notifier.service_id)
    await create(owner, notifier=True)
    for one in (line, notifier):
        await one.stream.close()
    await queues[0].send(owner, b"waits", notify=True)
    yield Case(running, line, notifier, queues)
    await owner.stream.close()


async def test_a_good_store_is_left_alone(case: Case) -> None:
    found = await case.audited()
    assert found.clean
    assert (found.services, found.queues) == (2, 6)
    assert set(found.values().values()) == {2, 6, 0}
    assert await looks_right(bulk_of(case.running), case.running.router.store)
    await case.check_all_good()


async def test_an_empty_store_is_good(running: RunningRouter) -> None:
    assert (await audit(bulk_of(running))).clean
    assert await looks_right(bulk_of(running), running.router.store)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-70")
@pytest.mark.parametrize(
    "wrong",
    [QueueSet(4, bytes(16)), QueueSet(5, bytes(16)), NO_QUEUES, QueueSet(7, bytes(range(16)))],
    ids=["count and hash", "hash", "nothing", "too many"],
)
@pytest.mark.parametrize("domain", list(Domain))
async def test_a_corrupted_counter_is_found_and_repaired(
    case: Case, tmp_path: Path, wrong: QueueSet, domain: Domain
) -> None:
    line = case.line if domain is MESSAGES else case.notifier
    record = await service_record(case.running, line.service_id)
    broken = replace(record, queues=wrong) if domain is MESSAGES else replace(record, notifiers=wrong)
    await case.drift(PutService(broken))
    found = await case.audited()
    assert found.counters_wrong == 1
    assert len(found.changes) == 1
    await repair(case.running.router.store, found)
    assert (await case.audited()).clean
    assert await service_record(case.running, line.service_id) == record
    await case.check_all_good()


@pytest.mark.both_stores
@pytest.mark.claim("SVC-70")
async def test_a_queue_is_in_a_set_only_once(case: Case, tmp_path: Path) -> None:
    """An id counted twice would cancel out of the hash, so this must be impossible."""
    running = case.running
    line = await open_service(running, new_service())
    (queue,) = await service_queues(line, 1)
    for _ in range(3):
        assert await queue.ask(line, SUB()) == SOK(line.service_id)
        assert await members(running, line) == set_of([queue])
    await line.ask_many([queue.said(SUB()) for _ in range(5)])
    assert await members(running, line) == set_of([queue])
    count = running.router.store.counts()["members"]
    await case.drift(SetMember(MESSAGES, line.service_id, queue.recipient_id, True))
    assert running.router.store.counts()["members"] == count
    assert (await case.audited()).clean


@pytest.mark.parametrize("domain", list(Domain))
@pytest.mark.parametrize("there", [True, False], ids=["extra", "missing"])
@pytest.mark.parametrize("kind", [SetMember, SetPending])
async def test_rows_that_differ_from_the_records_are_found_and_repaired(
    case: Case, domain: Domain, there: bool, kind: type[SetMember] | type[SetPending]
) -> None:
    line = case.line if domain is MESSAGES else case.notifier
    known = case.queues[0]
    entity_id = known.recipient_id if domain is MESSAGES else known.notifier_id
    if there:
        entity_id = case.queues[1].recipient_id if kind is SetPending else bytes(24)
    await case.drift(kind(domain, line.service_id, entity_id, there))
    found = await case.audited()
    values = found.values()
    name = "members" if kind is SetMember else "marks of waiting"
    assert values.pop(f"{'extra' if there else 'missing'} {name}") == 1
    assert sorted(values.values()) == [0, 0, 0, 0, 0, 2, 6]
    await repair(case.running.router.store, found)
    assert (await case.audited()).clean
    await case.check_all_good()


async def test_rows_of_a_missing_service_are_removed(case: Case) -> None:
    unknown = bytes(range(24))
    await case.drift(SetMember(MESSAGES, unknown, case.queues[0].recipient_id, True))
    await case.drift(SetPending(NOTIFICATIONS, unknown, case.queues[0].notifier_id, True))
    found = await case.audited()
    assert (found.members_extra, found.waiting_extra) == (1, 1)
    await repair(case.running.router.store, found)
    assert (await case.audited()).clean
    await case.check_all_good()


async def test_a_queue_of_a_missing_service_is_detached(case: Case) -> None:
    record = await queue_record(case.running, case.queues[1])
    assert record.notifier is not None
    lost = record._replace(service_id=bytes(24), notifier=replace(record.notifier, service_id=bytes(24)))
    await case.drift(PutQueue(lost, record))
    found = await case.audited()
    assert found.services_unknown == 2
    assert (found.members_extra, found.counters_wrong) == (2, 2)
    await repair(case.running.router.store, found)
    assert (await case.audited()).clean
    repaired = await queue_record(case.running, case.queues[1])
    assert repaired.service_id is None
    assert repaired.notifier is not None
    assert repaired.notifier.service_id is None
    del case.queues[1]
    await case.check_all_good()


async def test_everything_wrong_at_once_is_repaired_in_short_commits(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "REPAIRS_IN_COMMIT", 2)
    await case.drift(*[SetMember(MESSAGES, case.line.service_id, bytes([n]) * 24, True) for n in range(9)])
    await case.drift(
        *[SetMember(MESSAGES, case.line.service_id, queue.recipient_id, False) for queue in case.queues]
    )
    record = await service_record(case.running, case.line.service_id)
    await case.drift(PutService(replace(record, queues=QueueSet(9, bytes(16)))))
    found = await case.audited()
    assert (found.members_extra, found.members_missing, found.counters_wrong) == (9, 5, 1)
    store, sizes = case.running.router.store, list[int]()
    commit = store.commit

    async def counted(changes: Sequence[Change]) -> None:
        sizes.append(len(changes))
        await commit(changes)

    monkeypatch.setattr(store, "commit", counted)
    await repair(store, found)
    assert sizes == [2] * 7 + [1]
    monkeypatch.undo()
    assert (await case.audited()).clean
    await case.check_all_good()


async def test_the_cheap_check_sees_rows_without_counters_and_counters_without_rows(case: Case) -> None:
    bulk, store = bulk_of(case.running), case.running.router.store
    first = SetMember(MESSAGES, case.line.service_id, case.queues[0].recipient_id, False)
    await case.drift(first)
    assert not await looks_right(bulk, store)
    await case.drift(replace(first, member=True))
    assert await looks_right(bulk, store)
    record = await service_record(case.running, case.line.service_id)
    await case.drift(PutService(replace(record, queues=QueueSet(4, bytes(16)))))
    assert not await looks_right(bulk, store)


async def test_after_a_repair_everything_is_delivered_again(running: RunningRouter) -> None:
    """A lost "waiting" mark hides a message from the walk; the repair restores it."""
    credentials, sender = new_service(), await open_line(running)
    line = await open_service(running, credentials)
    queues = await service_queues(line, 3)
    await line.stream.close()
    for queue in queues:
        await queue.send(sender, b"hidden")
    store = running.router.store
    await store.commit([SetPending(MESSAGES, line.service_id, queue.recipient_id, False) for queue in queues])
    found = await audit(bulk_of(running))
    assert found.waiting_missing == 3
    await repair(store, found)
    line = await open_service(running, credentials)
    await line.subs()
    for queue in queues:
        assert await pushed(line, queue) == b"hidden"
