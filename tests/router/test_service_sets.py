"""A queue's record, the set of its service, its count and its hash change together or not at all."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.undo import Undo
from blindpost.router.audit import Sums, audit, memberships
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.changes import Change, Needed, Wanted
from blindpost.router.model import Domain, QueueRecord, ServiceRecord
from blindpost.router.records import ends_from_row, queue_from_row, service_from_row
from blindpost.router.tables import ENDS, MEMBERS, PENDING, QUEUES, SERVICES, LmdbTables
from blindpost.router.view import View
from blindpost.store import lmdb
from blindpost.testing.clock import run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import ACK, DEL, NDEL, SUB
from blindpost.wire.smp.responses import MSG
from tests.support.router.lines import Line, Queue, create, open_line
from tests.support.router.routers import RunningRouter, running_router
from tests.support.router.services import (
    NOTIFIER,
    add_notifier,
    new_service,
    nsub,
    open_service,
    service_queues,
    sub,
)

ALL = 1 << 20


def check_consistent(tables: LmdbTables) -> tuple[dict[bytes, ServiceRecord], dict[bytes, QueueRecord]]:
    """Recompute everything from the records, in one look at the store."""
    with tables.store.read() as read:
        services = {key: service_from_row(row) for key, row in read.page(SERVICES, b"", ALL).rows}
        records = {key: queue_from_row(row) for key, row in read.page(QUEUES, b"", ALL).rows}
        members = {key for key, _ in read.page(MEMBERS, b"", ALL).rows}
        pending = {key for key, _ in read.page(PENDING, b"", ALL).rows if key[:1] == Domain.MESSAGES.value}
        ends = {key: ends_from_row(row) for key, row in read.page(ENDS, b"", ALL).rows}
    sums, expected, waiting = Sums(), set(), set()
    for record in records.values():
        for (domain, service_id), entity_id in memberships(record):
            sums.add((domain, service_id), entity_id)
            key = b"".join((domain.value, bytes([len(service_id)]), service_id, entity_id))
            expected.add(key)
            has_messages = record.recipient_id in ends and ends[record.recipient_id].size
            if domain is Domain.MESSAGES and has_messages:
                waiting.add(key)
    assert members == expected
    assert pending == waiting
    for service_id, service in services.items():
        for domain in Domain:
            assert service.members(domain) == sums[domain, service_id]
    return services, records


async def a_move(folder: Path) -> tuple[bytes, bytes, list[Change]]:
    """Two services, one with a queue in which a message waits; the changes that move it to the other."""
    async with running_router(folder, network=MemoryNetwork()) as running:
        lines = [await open_service(running, new_service()) for _ in range(2)]
        (queue, _) = await service_queues(lines[0], 2)
        sender = await open_line(running)
        await queue.send(sender, b"waits")
        for line in (*lines, sender):
            await line.stream.close()
        view, store = View(Undo()), running.router.store
        wanted = Wanted(recipients={queue.recipient_id}, services={line.service_id for line in lines})
        await store.load(wanted, view)
        await store.load_needed(Needed(ends={queue.recipient_id}), view)
        record = view.records.get(queue.recipient_id)
        assert record is not None
        view.put_queue(record._replace(service_id=lines[1].service_id))
        return queue.recipient_id, lines[1].service_id, list(view.changes)


def dying(after: int, die: Callable[[], None]) -> Callable[[pytest.MonkeyPatch], None]:
    """Let the process end before the write number `after` of a transaction."""
    writes = 0

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("put", "delete"):
            original = getattr(lmdb.Write, name)

            def counted(self: lmdb.Write, *arguments: Any, original: Any = original) -> None:
                nonlocal writes
                if writes == after:
                    die()
                writes += 1
                original(self, *arguments)

            monkeypatch.setattr(lmdb.Write, name, counted)

    return patch


@pytest.mark.claim("SVC-27")
def test_a_process_that_dies_between_two_writes_leaves_all_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child commits the move of a queue and dies before its first, second, ... write, or not at all."""
    folder = tmp_path_factory.mktemp("router")
    recipient_id, service_id, changes = asyncio.run(a_move(folder))
    moved = False
    for after in range(20):
        child = os.fork()
        if child == 0:
            dying(after, lambda: os._exit(9))(monkeypatch)
            tables = LmdbTables(folder)
            asyncio.run(tables.commit(changes))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        tables = LmdbTables(folder)
        _, records = check_consistent(tables)
        tables.close()
        moved = os.waitstatus_to_exitcode(status) == 0
        assert moved == (records[recipient_id].service_id == service_id), f"after {after} writes"
        if moved:
            break
    assert moved
    assert after >= 6, "a record, two services, two members and what waits are more writes than that"


@pytest.mark.claim("SVC-27")
async def test_a_reader_never_sees_a_set_that_contradicts_its_records(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A thread recomputes everything repeatedly while queues change hands."""
    stop, looks, failures = threading.Event(), 0, list[BaseException]()
    async with running_router(tmp_path_factory.mktemp("router"), network=MemoryNetwork()) as running:
        tables = running.router.store
        assert isinstance(tables, LmdbTables)

        def look() -> None:
            nonlocal looks
            try:
                while not stop.is_set():
                    check_consistent(tables)
                    looks += 1
            except BaseException as error:
                failures.append(error)

        reader = threading.Thread(target=look)
        reader.start()
        lines = [await open_service(running, new_service()) for _ in range(2)]
        plain = await open_line(running)
        queues = await service_queues(lines[0], 8)
        for turn in range(12):
            taker: Line = (lines[1], plain, lines[0])[turn % 3]
            await taker.ask_many([queue.said(SUB()) for queue in queues])
            await queues[turn % 8].send(plain, b"more")
        stop.set()
        await asyncio.to_thread(reader.join)
        for line in (*lines, plain):
            await line.stream.close()
    assert failures == []
    assert looks > 1


COMMANDS = ("NEW", "SUB", "DEL", "NSUB", "NKEY", "NDEL", "SEND", "ACK", "leave")
STEPS = st.lists(
    st.tuples(st.sampled_from(COMMANDS), st.integers(0, 2), st.integers(0, 4)), min_size=5, max_size=25
)


class Play:
    """Some services and a plain connection act on a few queues; who has which is remembered."""

    def __init__(self, running: RunningRouter) -> None:
        self.running = running
        self.identities = [new_service() for _ in range(4)]
        self.receivers: list[Line] = []
        self.notifiers: list[Line] = []
        self.queues: list[Queue] = []
        self.owners: dict[bytes, int] = {}
        self.noticed: dict[bytes, int] = {}

    async def open(self) -> None:
        self.plain = await open_line(self.running)
        self.receivers = [await self._service(number) for number in (0, 1)] + [self.plain]
        self.notifiers = [await self._service(number) for number in (2, 3)] + [self.plain]

    async def _service(self, number: int) -> Line:
        identity = self.identities[number]
        if number < 2:
            return await open_service(self.running, identity)
        return await open_service(self.running, identity, NOTIFIER)

    async def close(self) -> None:
        for line in {id(line): line for line in (*self.receivers, *self.notifiers)}.values():
            await line.stream.close()

    async def step(self, command: str, who: int, which: int) -> None:
        if command == "NEW" or not self.queues:
            queue = await create(self.receivers[who], subscribe=True, notifier=True)
            self.queues.append(queue)
            self.owners[queue.recipient_id] = who
            return
        queue = self.queues[which % len(self.queues)]
        if command == "DEL":
            self.queues.remove(queue)
            self.owners.pop(queue.recipient_id)
            self.noticed.pop(queue.notifier_id, None)
            await queue.ask(self.plain, DEL())
        elif command == "leave":
            await self._leave(who)
        else:
            await self._on_queue(command, who, queue)

    async def _leave(self, who: int) -> None:
        """A service leaves and comes back; the router cannot know that it will."""
        if who < 2:
            for lines, number in ((self.receivers, who), (self.notifiers, who + 2)):
                await lines[who].stream.close()
                lines[who] = await self._service(number)

    async def _on_queue(self, command: str, who: int, queue: Queue) -> None:
        match command:
            case "SUB":
                await sub(self.receivers[who], queue)
                self.owners[queue.recipient_id] = who
            case "NSUB" if queue.ids.ntf_creds is not None:
                await nsub(self.notifiers[who], queue)
                self.noticed[queue.notifier_id] = who
            case "NKEY" | "NDEL":
                if queue.ids.ntf_creds is not None:
                    self.noticed.pop(queue.notifier_id, None)
                await self._new_notifier(queue)
            case "SEND":
                await queue.send(self.plain, b"hello", notify=True)
            case "ACK":
                line = self.receivers[self.owners[queue.recipient_id]]
                reply = await queue.ask(line, ACK(b""))
                if isinstance(reply, MSG):
                    await queue.ask(line, ACK(reply.msg_id))

    async def _new_notifier(self, queue: Queue) -> None:
        await queue.ask(self.plain, NDEL())
        await add_notifier(self.plain, queue)

    async def check(self, tables: LmdbTables) -> None:
        assert (await audit(LmdbBulk(tables), 3)).clean
        services, records = check_consistent(tables)
        by_fingerprint = {service.fingerprint: service for service in services.values()}
        for number, identity in enumerate(self.identities):
            service = by_fingerprint[identity.fingerprint]
            mine, domain = (
                (self.owners, Domain.MESSAGES) if number < 2 else (self.noticed, Domain.NOTIFICATIONS)
            )
            expected = QueueSet.of(one for one, owner in mine.items() if owner == number % 2)
            assert service.members(domain) == expected
        assert records.keys() == self.owners.keys()


@pytest.mark.claim("SVC-29")
@settings(max_examples=25)
@given(STEPS)
def test_counts_and_hashes_are_those_of_the_records_after_any_sequence(
    steps: Sequence[tuple[str, int, int]],
) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with running_router(Path(folder), network=MemoryNetwork()) as running:
                play = Play(running)
                await play.open()
                for step in steps:
                    await play.step(*step)
                tables = running.router.store
                assert isinstance(tables, LmdbTables)
                await play.check(tables)
                assert running.router.engine.meters.events_failed == 0
                await play.close()

    run_virtual(main())


def test_the_oracle_computes_the_same_sets_as_clients() -> None:
    """The oracle of these tests agrees with the sets that clients compute."""
    sums = Sums()
    ids = [os.urandom(24) for _ in range(5)]
    for one in ids:
        sums.add((Domain.MESSAGES, b"s"), one)
    assert sums[Domain.MESSAGES, b"s"] == QueueSet.of(ids)
    assert sums[Domain.NOTIFICATIONS, b"s"] == QueueSet()
