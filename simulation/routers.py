"""A message router as a party; it is a proxy for those that ask."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar, cast

from blindpost.client.options import SmpOptions
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.loop import OutcomeUnknownError, StoreFailedError
from blindpost.engine.undo import Undo
from blindpost.journal.keeping import Read
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.changes import AddMessage, Change, Wanted
from blindpost.router.config import RouterRules
from blindpost.router.model import Domain, QueueRecord
from blindpost.router.records import ends_from_row, queue_from_row
from blindpost.router.running.activity import Activity
from blindpost.router.running.guard import GuardedRouter
from blindpost.router.running.journaling import RouterReadings
from blindpost.router.server import Router, RouterConnection
from blindpost.router.tables import ENDS, QUEUES, LmdbTables
from blindpost.router.view import View
from blindpost.serving.blocks import LimitedServer
from blindpost.serving.limits import LimitMeters
from blindpost.store.contract import Durability
from blindpost.transport.ends import Server, listen
from blindpost.transport.plan import SessionLimits
from blindpost.transport.plans import smp_router_plan
from blindpost.transport.session import Session
from blindpost.wire.smp.commands import PING, SEND
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.versions import MAX_VERSION, MIN_VERSION
from blindpost.wire.transmissions import Refused
from blindpost.wire.versions import VersionRange
from simulation.faults import Point
from simulation.journals import QueueCounts, journaled
from simulation.party import Party, Surroundings
from simulation.rows import QUEUES_MAX, wrong_in_router
from tests.support.agent.router_damage import associate_in
from tests.support.simulation.faults import FaultyStore

PORT = 5223
EXPIRES_EVERY_S = 3600.0


class DyingStore(FaultyStore):
    """The store with its faults, and the points where its process dies."""

    def __init__(self, tables: LmdbTables, party: RouterParty) -> None:
        super().__init__(tables)
        self._party = party

    async def commit(self, changes: Sequence[Change]) -> None:
        book = self._party.book
        await self._reached(Point.BEFORE_COMMIT)
        if book is not None:
            book.committing(self._party.queue_counts.of(changes))
        try:
            await super().commit(changes)
        except OutcomeUnknownError as doubt:
            self._party.counts["doubtful commit"] += 1
            if book is not None:
                doubt.outcome.add_done_callback(book.known)
            raise
        except StoreFailedError:
            self._party.counts["refused commit"] += 1
            if book is not None:
                book.refused()
            raise
        self._party.counts["queue that is full"] += sum(
            isinstance(change, AddMessage) and change.message.is_marker for change in changes
        )
        if book is not None:
            book.committed()
        await self._reached(Point.AFTER_COMMIT)

    async def _reached(self, point: Point) -> None:
        if self._party.dies_here(point):
            await asyncio.Event().wait()


class CountingRouter(Router):
    """Counts what it is asked, by kind."""

    asked: Counter[str]
    counts: Counter[str]
    guard: LimitMeters
    sent: dict[bytes, bytes]
    """The last message to each queue that was sent without a proxy."""

    def admitted(self, session: Session, items: Sequence[Request | Refused]) -> Sequence[Request | Refused]:
        for item in items:
            if isinstance(item, Request) and not isinstance(item.command, PING):
                self.asked[type(item.command).__name__] += 1
                if isinstance(item.command, SEND):
                    self.sent[item.entity_id] = bytes(item.command.body)
        return super().admitted(session, items)

    def lags(self, connection: RouterConnection) -> None:
        self.counts["connection that a router waits for"] += 1
        super().lags(connection)


class RouterParty(Party):
    """A router over LMDB."""

    kind = "router"
    make_router: ClassVar[type[CountingRouter]] = CountingRouter

    def __init__(
        self, run: Surroundings, name: str, leaves: Sequence[Credentials], rules: RouterRules
    ) -> None:
        super().__init__(run, name)
        self.router: CountingRouter
        self.store: DyingStore
        self._is_open = False
        self.asked: Counter[str] = Counter()
        self.sent: dict[bytes, bytes] = {}
        self.limits = SessionLimits()
        self.version = MAX_VERSION
        """The newest that it speaks."""
        self.drifts = 0
        """How many queues lose their service before the next life begins."""
        self.restores = False
        """Whether the next life begins with the backup."""
        self._backed_up: dict[bytes, QueueRecord] = {}
        self.leaf = 0
        """Which of its certificates it shows."""
        self.queue_counts = QueueCounts()
        self._leaves = leaves
        self._rules = rules

    async def live(self) -> None:
        entropy, network = self.entropy(), self.run.network
        self.store = store = self._opened()
        self._is_open = True
        if self.restores:
            self.restores, store = False, self._restored()
        drifts, self.drifts = self.drifts, 0
        if drifts:
            await self._drift(drifts)
        relays = SmpOptions(network=network, now=self.now, entropy=entropy)
        self.router = router = self.make_router(
            store, self._rules, entropy=entropy, now=self.now, relay_options=relays
        )
        router.asked, router.sent, router.counts = self.asked, self.sent, self.counts
        credentials = self._leaves[self.leaf % len(self._leaves)]
        async with journaled(self.book, self._meters()):
            self._listening = await self.listen(credentials, entropy)
            expiring = asyncio.create_task(self._expire())
            await router.run()
            expiring.cancel()
            await self._listening.stop()
            await self.close()

    @property
    def versions(self) -> VersionRange:
        return VersionRange(MIN_VERSION, self.version)

    async def listen(self, credentials: Credentials, entropy: Entropy) -> Server:
        plan = smp_router_plan(
            credentials, versions=self.versions, limits=self.limits, now=self.now, entropy=entropy
        )
        server, _ = await listen(plan, self.router, self.name, PORT, self.run.network)
        return server

    async def close(self) -> None:
        """All connections are closed."""

    def _meters(self) -> Read | None:
        """What it tells its journal, if it has one, by the code of routers that operators run."""
        if self.book is None:
            return None
        router, bulk = self.router, LmdbBulk(self.store.tables)
        activity = Activity(self.run.folder / f"{self.name}.activity", self.entropy())
        router.guard, router.plan.on_use = router.limits.meters, activity.note
        guarded, server = cast(GuardedRouter, router), cast(LimitedServer, self)
        readings = RouterReadings(guarded, server, bulk, activity)
        router.plan.on_compare = readings.compared
        return readings.read

    @property
    def sessions(self) -> Collection[Session]:
        """What a journal looks at of a listening server, also before there is one."""
        return self.router.by_session

    def _opened(self) -> DyingStore:
        return DyingStore(LmdbTables(self.run.folder / self.name, Durability.OS), self)

    @property
    def _backup(self) -> Path:
        return self.run.folder / f"{self.name}.backup"

    def back_up(self) -> None:
        """Keep a copy of what is committed now."""
        shutil.rmtree(self._backup, ignore_errors=True)
        self.store.tables.store.backup(self._backup)
        self._backed_up = self.queues()

    def _restored(self) -> DyingStore:
        """The backup in place of what is there, if it has the same queues: their keys would be lost."""
        if self.queues() == self._backed_up:
            self.store.close()
            shutil.copy(self._backup / "data.mdb", self.run.folder / self.name / "data.mdb")
            self.counts["router that forgot messages"] += 1
            self.run.forgotten(self.name)
            self.store = self._opened()
        return self.store

    async def _drift(self, count: int) -> None:
        """Some queues belong to no service any more, as after a restored backup."""
        owned = [rcv_id for rcv_id, record in self.queues().items() if record.service_id is not None]
        chosen = self.chance().sample(owned, min(count, len(owned)))
        self.counts["queue that lost its service"] += len(chosen)
        await associate_in(self.store, chosen, None)

    async def members(self, service_id: bytes, domain: Domain = Domain.MESSAGES) -> QueueSet:
        """What the router counts for a service; nothing for one that it forgot."""
        view = View(Undo())
        await self.store.load(Wanted(services={service_id}), view)
        service = view.services.get(service_id)
        return QueueSet() if service is None else service.members(domain)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRES_EVERY_S)
            await self.router.expire_messages()
            await self.router.expire_notifications()

    async def end(self) -> None:
        await self._listening.stop_listening()
        self.router.stop()

    def files_closed(self) -> None:
        self.store.close()
        self._is_open = False

    @property
    def ready(self) -> bool:
        return self.alive and self._is_open

    def queues(self) -> dict[bytes, QueueRecord]:
        """All that are stored."""
        with self.store.tables.store.read() as read:
            page = read.page(QUEUES, b"", QUEUES_MAX)
            return {bytes(key): queue_from_row(row) for key, row in page.rows}

    def kept(self, absent: Collection[tuple[str, bytes]]) -> int:
        """How many messages wait in queues of those who take part."""
        with self.store.tables.store.read() as read:
            page = read.page(ENDS, b"", QUEUES_MAX)
            ends = {bytes(key): ends_from_row(row) for key, row in page.rows}
        return sum(end.size for key, end in ends.items() if (self.name, key) not in absent)

    async def wrong(self) -> str | None:
        return await wrong_in_router(self.store.tables, self.router)

    def mended(self) -> None:
        store = self.store
        store.commit_s = store.load_s = 0.0
        store.failures = store.load_failures = 0
        store.doubts.clear()
