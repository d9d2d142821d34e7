"""Both stores hold the same after the same changes; PostgreSQL needs few statements."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.engine.loop import StoreFailedError
from blindpost.engine.undo import Undo
from blindpost.router import tables_postgres
from blindpost.router.bulk import BulkStore, chunks
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.bulk_postgres import PostgresBulk
from blindpost.router.changes import (
    AddMessage,
    Change,
    DeleteQueue,
    Needed,
    PutEnds,
    PutMark,
    PutQueue,
    SetPending,
    Wanted,
)
from blindpost.router.model import (
    EMPTY,
    Domain,
    Ends,
    Notification,
    Notifier,
    QueueRecord,
    ServiceRecord,
    Status,
    StoredMessage,
)
from blindpost.router.tables import LmdbTables, RouterStore
from blindpost.router.tables_postgres import PostgresTables
from blindpost.router.view import View
from blindpost.store.contract import Durability
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, SUB
from blindpost.wire.smp.errors import BLOCKED, BlockingReason
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import OK, SOK
from blindpost.wire.smp.values import LinkData, QueueMode
from tests.support.router.lines import create, open_line, pushed
from tests.support.router.routers import running_router
from tests.support.store.postgres import PostgresServer

KEY = PrivateKey.generate(Algorithm.ED25519, random.Random(1).randbytes).public
DH_KEY = PrivateKey.generate(Algorithm.X25519, random.Random(2).randbytes).public


def name(text: str, number: int) -> bytes:
    return f"{text} {number}".encode().ljust(24, b".")


RECIPIENTS = [name("recipient", number) for number in range(4)]
SENDERS = [name("sender", number % 3) for number in range(4)]
"""The last queue wants the sender id of the first."""
NOTIFIERS = [name("notifier", number) for number in range(2)]
LINKS = [b"", name("link", 1)]
SERVICES = [name("service", number) for number in range(2)]
PRINTS = [name("fingerprint", number) for number in range(2)]
STATUSES: list[Status | BLOCKED] = [Status.ACTIVE, Status.OFF, BLOCKED(BlockingReason.SPAM)]
DATA = [LinkData(b"fixed", b"user"), LinkData(b"fixed too", b"")]
OLD, NEW = 100, 200


@dataclass(frozen=True)
class Op:
    what: str
    queue: int
    choice: int


WHAT = ["put", "delete", "send", "send", "ack", "notify", "silence", "mark"]
WHAT += ["notifier", "service", "status", "link", "unlink"]
OPS = st.builds(
    Op,
    st.sampled_from(WHAT),
    st.integers(0, 3),
    st.integers(0, 2),
)
BATCHES = st.lists(st.lists(OPS, min_size=1, max_size=12), min_size=1, max_size=6)


class Writer:
    """Turns operations into changes that the router could make to what is stored."""

    def __init__(self, view: View, numbers: Callable[[], int]) -> None:
        self.view = view
        self._number = numbers

    def apply(self, op: Op) -> None:
        record = self.view.records.get(RECIPIENTS[op.queue])
        if op.what == "mark":
            self.view.changes.append(PutMark(b"far", bytes([op.queue, op.choice])))
        elif record is None:
            self._create(op)
        else:
            getattr(self, f"_{op.what}", self._status)(op, record)

    def _create(self, op: Op) -> None:
        if op.what == "put" and SENDERS[op.queue] not in self.view.senders:
            service_id = (None, *SERVICES)[op.choice]
            ids = (RECIPIENTS[op.queue], SENDERS[op.queue])
            record = QueueRecord(*ids, (KEY,), DH_KEY.raw, Secret(bytes(32)), DH_KEY.raw, QueueMode.CONTACT)
            self.view.put_queue(record._replace(service_id=service_id))

    def _delete(self, op: Op, record: QueueRecord) -> None:
        self.view.delete_queue(record)

    def _notifier(self, op: Op, record: QueueRecord) -> None:
        notifier = None
        if op.choice < 2:
            held = self.view.notifiers.get(NOTIFIERS[op.choice])
            if held not in (None, record.recipient_id):
                return
            service_id = SERVICES[op.queue % 2] if op.queue else None
            notifier = Notifier(NOTIFIERS[op.choice], KEY, Secret(bytes(32)), DH_KEY, service_id)
        if record.notifier is not None and notifier != record.notifier:
            self.view.delete_notifications(record.notifier)
        self.view.put_queue(record._replace(notifier=notifier))

    def _service(self, op: Op, record: QueueRecord) -> None:
        self.view.put_queue(record._replace(service_id=(None, *SERVICES)[op.choice]))

    def _status(self, op: Op, record: QueueRecord) -> None:
        self.view.put_queue(record._replace(status=STATUSES[op.choice]))

    def _send(self, op: Op, record: QueueRecord) -> None:
        ends = self.view.ends(record.recipient_id)
        body = None if op.choice == 2 else b"x" * (self._number() * 977 % 16_000)
        message = StoredMessage(name("msg", self._number()), (OLD, NEW)[op.choice % 2], op.choice == 1, body)
        self.view.add_message(record.recipient_id, ends.tail, message)
        self.view.put_ends(record.recipient_id, Ends(ends.head, ends.tail + 1, op.choice != 2))

    def _ack(self, op: Op, record: QueueRecord) -> None:
        ends = self.view.ends(record.recipient_id)
        if ends.size:
            self.view.delete_message(record.recipient_id, ends.head)
            self.view.put_ends(record.recipient_id, ends._replace(head=ends.head + 1))

    def _notify(self, op: Op, record: QueueRecord) -> None:
        if record.notifier is not None:
            number = op.choice * 128 + op.queue
            notification = Notification(record.notifier.notifier_id, number, NEW, bytes(24), b"meta")
            self.view.add_notification(record.notifier, notification)

    def _silence(self, op: Op, record: QueueRecord) -> None:
        if record.notifier is not None:
            self.view.delete_notifications(record.notifier)

    def _link(self, op: Op, record: QueueRecord) -> None:
        link_id = LINKS[op.choice % 2]
        if self.view.links.get(link_id) in (None, record.recipient_id) and record.link_id in (None, link_id):
            self.view.put_link(link_id, record.recipient_id, DATA[op.choice % 2])
            self.view.put_queue(record._replace(link_id=link_id))

    def _unlink(self, op: Op, record: QueueRecord) -> None:
        if record.link_id is not None:
            self.view.delete_link(record.link_id)
            self.view.put_queue(record._replace(link_id=None))


def everything() -> Wanted:
    senders, unknown = set(SENDERS), {b"", b"nobody"}
    return Wanted(
        set(RECIPIENTS),
        senders | unknown,
        {*NOTIFIERS},
        {*LINKS, b"other"},
        {*SERVICES},
        {*PRINTS, b"nobody"},
    )


async def loaded(store: RouterStore, wanted: Wanted, needed: Needed) -> View:
    view = View(Undo())
    await store.load(wanted, view)
    await store.load_needed(needed, view)
    return view


def shown(view: View) -> dict[str, dict[Any, Any]]:
    tables = ("records", "senders", "notifiers", "links", "link_data", "services", "fingerprints")
    held = {
        table: dict(getattr(view, table).items()) for table in (*tables, "_ends", "_messages", "_pending")
    }
    messages = held["_messages"].items()
    held["_messages"] = {
        key: (m.msg_id, m.seconds, m.notify, None if m.body is None else bytes(m.body)) for key, m in messages
    }
    # No ends are the same as empty ones.
    held["_ends"] = {recipient_id: ends for recipient_id, ends in held["_ends"].items() if ends != Ends()}
    return held


def needs(messages: int, expire_before: int) -> Needed:
    needed = Needed(set(RECIPIENTS), expire_before=expire_before)
    needed.messages = {recipient_id: messages + number for number, recipient_id in enumerate(RECIPIENTS[:3])}
    needed.link_data, needed.notifications = {*LINKS, b"other"}, {*NOTIFIERS, b"nobody"}
    if expire_before:
        needed.expire = set(RECIPIENTS[1:])
    return needed


WANTED = [
    Wanted(recipients=set(RECIPIENTS)),
    Wanted(senders=set(SENDERS[:2])),
    Wanted(notifiers=set(NOTIFIERS)),
    Wanted(links=set(LINKS)),
    Wanted(services=set(SERVICES)),
    Wanted(fingerprints=set(PRINTS)),
    Wanted(),
]


async def seen(store: RouterStore, bulk: BulkStore) -> list[Any]:
    """All that a router can see of its store."""
    found: list[Any] = [store.counts(), await bulk.mark(b"far"), await bulk.mark(b"near")]
    for wanted in (everything(), *WANTED):
        named = shown(await loaded(store, wanted, Needed()))
        del named["_ends"]  # one store reads them with the records, the other when they are needed
        found.append(named)
    for messages, expire_before in ((0, 0), (1, 0), (9, 0), (0, 150), (1, 150), (0, 999)):
        for wanted in (Wanted(), everything()):
            found.append(shown(await loaded(store, wanted, needs(messages, expire_before))))
    for domain in Domain:
        for service_id in SERVICES:
            start: bytes | None = b""
            while start is not None:
                page = await store.waiting(domain, service_id, start, 1)
                found.append(page)
                start = page[1]
    start = b""
    while start is not None:
        notified = await store.notified(start, 1)
        found.append(notified)
        start = notified[1]
    for before in (150, 999):
        start = b""
        while start is not None:
            expired = await store.expired(before, start, 2)
            found.append(expired)
            start = expired[1]
    found.append([item async for chunk in chunks(bulk.services, 2) for item in chunk.items])
    found.append([item async for chunk in chunks(bulk.queues, 2) for item in chunk.items])
    found.append([item async for chunk in chunks(bulk.notifications, 2) for item in chunk.items])
    found.append([item async for chunk in chunks(bulk.members, 2) for item in chunk.items])
    found.append([item async for chunk in chunks(bulk.pending, 2) for item in chunk.items])
    held = [item async for chunk in chunks(bulk.messages, 2) for item in chunk.items]
    found.append([(item.recipient_id, item.number, item.message.msg_id, item.message.body) for item in held])
    return found


@asynccontextmanager
async def both(dsn: str) -> AsyncIterator[tuple[LmdbTables, PostgresTables]]:
    with tempfile.TemporaryDirectory() as folder:
        lmdb, postgres = (
            LmdbTables(Path(folder), Durability.OS),
            await PostgresTables.open(dsn, Durability.OS),
        )
        try:
            yield lmdb, postgres
        finally:
            lmdb.close()
            postgres.close()


async def services_of(*stores: RouterStore) -> None:
    view = View(Undo())
    for service_id, fingerprint in zip(SERVICES, PRINTS, strict=True):
        view.put_service(ServiceRecord(service_id, ServiceRole.MESSAGING, fingerprint, (b"chain",), 0))
    for store in stores:
        await store.commit(view.changes)


async def replayed(dsn: str, batches: Sequence[Sequence[Op]]) -> None:
    numbers = iter(range(1 << 20)).__next__
    async with both(dsn) as (lmdb, postgres):
        await services_of(lmdb, postgres)
        for batch in batches:
            view = await loaded(lmdb, everything(), needs(99, 0))
            assert shown(await loaded(postgres, everything(), needs(99, 0))) == shown(view)
            writer = Writer(view, numbers)
            for op in batch:
                writer.apply(op)
            await lmdb.commit(view.changes)
            await postgres.commit(view.changes)
            assert postgres.counts() == lmdb.counts()
        expected = await seen(lmdb, LmdbBulk(lmdb))
        assert await seen(postgres, PostgresBulk(postgres.store)) == expected
        postgres.close()
        again = await PostgresTables.open(dsn, Durability.OS)
        assert again.counts() == lmdb.counts()
        again.close()


@given(BATCHES)
@settings(max_examples=40)
def test_both_stores_hold_the_same(postgres: PostgresServer, batches: list[list[Op]]) -> None:
    dsn = postgres.new_database()
    try:
        asyncio.run(replayed(dsn, batches))
    finally:
        postgres.drop(dsn)


def a_queue(number: int, **fields: Any) -> QueueRecord:
    ids = (name("recipient", number), name("sender", number))
    return QueueRecord(*ids, (KEY,), DH_KEY.raw, Secret(bytes(32)), DH_KEY.raw, QueueMode.MESSAGING, **fields)


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[PostgresTables]:
    store = await PostgresTables.open(dsn, Durability.OS)
    try:
        yield store
    finally:
        store.close()


async def test_a_batch_of_135_queues_is_one_statement_each_way(database: str) -> None:
    """Their records and ends are read in one statement; messages, if needed, in one more."""
    queues = [a_queue(number, service_id=SERVICES[0]) for number in range(135)]
    ids = [queue.recipient_id for queue in queues]
    body = StoredMessage(bytes(24), NEW, False, b"x" * 16_000)
    async with opened(database) as store:
        await services_of(store)
        before = store.store.statements
        await store.commit([PutQueue(queue, None) for queue in queues])
        view, needed = View(Undo()), Needed()
        for recipient_id in ids:
            needed.head(recipient_id)
        await store.load(Wanted(recipients=set(ids)), view)
        await store.load_needed(needed, view)
        assert store.store.statements - before == 2
        assert all(view.ends(recipient_id) == Ends() for recipient_id in ids)
        before += 1
        sent: list[Change] = []
        for recipient_id in ids:
            sent += [AddMessage(recipient_id, 0, body), PutEnds(recipient_id, Ends(0, 1))]
            sent.append(SetPending(Domain.MESSAGES, SERVICES[0], recipient_id, True))
        await store.commit(sent)
        assert store.store.statements - before == 2
        view = View(Undo())
        await store.load(Wanted(recipients=set(ids), services={SERVICES[0]}), view)
        assert store.store.statements - before == 3
        await store.load_needed(needed, view)
        assert store.store.statements - before == 4
        assert dict(view.records.items()) == {queue.recipient_id: queue for queue in queues}
        assert all(view.message(recipient_id, 0) == body for recipient_id in ids)
        assert list(view.services) == [SERVICES[0]]
        await store.commit([])
        await store.load(Wanted(), view)
        await store.load_needed(Needed(), view)
        assert store.store.statements - before == 4


async def test_135_subs_of_a_block_are_one_read_statement(database: str, tmp_path: Path) -> None:
    """Nothing is written if the queues were in use today. A waiting message takes one more read."""
    network = MemoryNetwork()
    async with running_router(tmp_path, network=network, dsn=database) as running:
        line = await open_line(running)
        queues = [await create(line) for _ in range(135)]
        store = running.router.store
        assert isinstance(store, PostgresTables)
        for expected in (1, 2):
            reader = await open_line(running)
            before = store.store.statements
            said = [queue.said(SUB()) for queue in queues]
            assert await reader.ask_many(said) == [SOK(None)] * 135
            assert store.store.statements - before == expected
            await reader.stream.close()
            await queues[0].send(line, b"waits")
        await line.stream.close()


async def test_a_message_is_two_reads_and_two_commits(database: str, tmp_path: Path) -> None:
    """SEND and ACK. The last message of a queue leaves without being read; the next of several is read."""
    async with running_router(tmp_path, network=MemoryNetwork(), dsn=database) as running:
        line, sender = await open_line(running), await open_line(running)
        queue = await create(line, subscribe=True)
        store = running.router.store
        assert isinstance(store, PostgresTables)
        for body in (b"one", b"two"):
            before = store.store.statements
            await queue.send(sender, body)
            assert store.store.statements - before == 2
        assert await pushed(line, queue) == b"one"
        before = store.store.statements
        assert queue.body(await queue.ask(line, ACK(queue.last_id))) == b"two"
        assert store.store.statements - before == 3
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
        assert store.store.statements - before == 5
        for one in (line, sender):
            await one.stream.close()


async def test_a_freed_id_can_be_taken_in_the_same_batch(database: str) -> None:
    """A client may reuse a sender id; nobody else's commands may fail because of that."""
    notifier = Notifier(NOTIFIERS[0], KEY, Secret(bytes(32)), DH_KEY)
    first = a_queue(0, notifier=notifier)
    second = a_queue(1)._replace(sender_id=first.sender_id, notifier=notifier)
    async with opened(database) as store:
        await store.commit([PutQueue(first, None)])
        await store.commit([DeleteQueue(first, EMPTY), PutQueue(second, None)])
        assert (store.counts()["queues"], store.counts()["notifiers"]) == (1, 1)
        bare = second._replace(notifier=None)
        third = a_queue(2, notifier=notifier)
        await store.commit([PutQueue(bare, second), PutQueue(third, None)])
        view = await loaded(store, Wanted(senders={first.sender_id}, notifiers={NOTIFIERS[0]}), Needed())
        assert dict(view.senders.items()) == {first.sender_id: second.recipient_id}
        assert dict(view.notifiers.items()) == {NOTIFIERS[0]: third.recipient_id}
        assert store.counts()["notifiers"] == 1


async def test_two_queues_with_one_sender_id_are_refused_whole(database: str) -> None:
    async with opened(database) as store:
        await store.commit([PutQueue(a_queue(0), None)])
        twin = a_queue(1)._replace(sender_id=a_queue(0).sender_id)
        with pytest.raises(StoreFailedError):
            await store.commit([PutQueue(a_queue(2), None), PutQueue(twin, None)])
        assert store.counts()["queues"] == 1
        view = await loaded(store, Wanted(recipients={a_queue(2).recipient_id}), Needed())
        assert dict(view.records.items()) == {}


async def test_a_damaged_row_is_reported_apart_from_good_ones(database: str) -> None:
    async with opened(database) as store:
        await store.commit([PutQueue(a_queue(0), None), PutQueue(a_queue(1), None)])
        other = await asyncpg.connect(database)
        await other.execute(
            "UPDATE blindpost_router.queues SET record = '' WHERE recipient_id = $1", a_queue(0).recipient_id
        )
        await other.close()
        ids = {a_queue(number).recipient_id for number in range(2)}
        view = await loaded(store, Wanted(recipients=ids), Needed())
        assert list(view.records) == [a_queue(1).recipient_id]
        assert view.damaged == {a_queue(0).recipient_id}


async def test_the_cache_of_decoded_records_is_bounded(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_postgres, "CACHE_MAX", 2)
    async with opened(database) as store:
        queues = [a_queue(number) for number in range(4)]
        await store.commit([PutQueue(queue, None) for queue in queues])
        for queue in queues:
            view = await loaded(store, Wanted(recipients={queue.recipient_id}), Needed())
            assert view.records.get(queue.recipient_id) == queue
        assert len(store._decoded) == 2
        changed = queues[3]._replace(status=Status.OFF)
        await store.commit([PutQueue(changed, queues[3])])
        view = await loaded(store, Wanted(recipients={changed.recipient_id}), Needed())
        assert view.records.get(changed.recipient_id) == changed
        again = await loaded(store, Wanted(recipients={changed.recipient_id}), Needed())
        assert again.records.get(changed.recipient_id) is view.records.get(changed.recipient_id)
