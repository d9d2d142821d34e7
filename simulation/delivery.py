"""A delivery service as a party; callers reach it over bare connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

from blindpost.ds.auth import Tokens, token_digest
from blindpost.ds.connection import DsConnection
from blindpost.ds.journaling import read_meters
from blindpost.ds.model import KEY_SIZE
from blindpost.ds.plan import Called, Event
from blindpost.ds.server import OVERDUE_LOOK_S, DeliveryService
from blindpost.ds.streams import WRITE_HIGH, TlsStream
from blindpost.ds.tables import LmdbTables
from blindpost.ds.view import Change
from blindpost.engine.loop import OutcomeUnknownError, StoreFailedError
from blindpost.serving.limits import Limits, LimitSizes
from blindpost.store.contract import Durability
from simulation.faults import PLANNED, Point
from simulation.journals import journaled, payload_counts
from simulation.party import Party, Surroundings
from tests.support.simulation.faults import DOUBT_S

NAME, PORT = "ds", 7000


def key_of(caller: str) -> bytes:
    """The identity of a caller."""
    return caller.encode().ljust(KEY_SIZE, b".")


def token_of(caller: str) -> bytes:
    return b"token of " + caller.encode()


class BareStream(TlsStream):
    """One connection without TLS: its certificate is not as long in every run."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = self._transport = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=WRITE_HIGH)
        self._connection = self._service.opened(self)


class DyingTables(LmdbTables):
    """The store with its faults, and the points where its process dies."""

    party: DeliveryParty
    commit_s = load_s = 0.0
    failures = load_failures = 0

    def begin(self, party: DeliveryParty) -> None:
        self.party = party
        self.doubts: list[bool] = []

    async def stage(self, queue: bytes, tag: bytes, payload: bytes) -> None:
        self._fail()
        await super().stage(queue, tag, payload)

    async def commit(self, changes: Sequence[Change]) -> None:
        book = self.party.book
        await self._reached(Point.BEFORE_COMMIT)
        await asyncio.sleep(self.commit_s)
        self._fail()
        doubt = self.doubts.pop() if self.doubts else None
        if book is not None:
            book.committing(payload_counts(changes))
        if doubt is not False:
            await super().commit(changes)
        if doubt is not None:
            self.party.counts["doubtful commit"] += 1
            loop = asyncio.get_running_loop()
            outcome: asyncio.Future[bool] = loop.create_future()
            if book is not None:
                outcome.add_done_callback(book.known)
            loop.call_later(DOUBT_S, outcome.set_result, doubt)
            raise OutcomeUnknownError(f"a {PLANNED} doubt", outcome)
        if book is not None:
            book.committed()
        await self._reached(Point.AFTER_COMMIT)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            self.party.counts["refused commit"] += 1
            raise StoreFailedError(f"a {PLANNED} failure to commit")

    async def _reached(self, point: Point) -> None:
        if self.party.dies_here(point):
            await asyncio.Event().wait()


class CountingService(DeliveryService):
    """Counts what it is asked, by kind."""

    asked: Counter[str]

    def _put(self, connection: DsConnection, event: Event, size: int) -> None:
        if isinstance(event, Called):
            self.asked[type(event.request).__name__] += 1
        super()._put(connection, event, size)


class DeliveryParty(Party):
    """A delivery service over LMDB."""

    kind = "delivery service"

    def __init__(self, run: Surroundings, callers: Iterable[str]) -> None:
        super().__init__(run, NAME)
        self.asked: Counter[str] = Counter()
        self.server: CountingService
        self.store: DyingTables
        self._authority = Tokens({token_digest(token_of(caller)): key_of(caller) for caller in callers})

    async def live(self) -> None:
        self.store = store = DyingTables(self.run.folder / NAME, Durability.OS)
        store.begin(self)
        limits = Limits(LimitSizes(), self.run.loop.time)
        self.server = service = CountingService(
            store, authority=self._authority, entropy=self.entropy(), limits=limits
        )
        service.asked = self.asked
        async with journaled(self.book, lambda minute_s, with_sketches: read_meters(service)):
            self._listener = await self.run.network.listen(lambda: BareStream(service), NAME, PORT)
            overdue = asyncio.create_task(self._close_overdue())
            await service.run()
            overdue.cancel()
            service.close_if(lambda connection: True)
            await service.emptied()

    async def _close_overdue(self) -> None:
        while True:
            await asyncio.sleep(OVERDUE_LOOK_S)
            self.server.close_overdue()

    async def end(self) -> None:
        await self._listener.close()
        self.server.stop()

    def files_closed(self) -> None:
        self.store.close()

    def mended(self) -> None:
        store = self.store
        store.commit_s, store.failures = 0.0, 0
        store.doubts.clear()

    def unsettled(self) -> str | None:
        """What it still keeps, since everything is taken in the end."""
        payloads, size = self.store.totals()
        if payloads:
            return f"it keeps {payloads} payloads"
        if size or any(self.store.counts()[table] for table in ("entries", "payloads", "queues", "large")):
            return "it keeps rows of payloads that were taken"
        if held := len(self.server.plan.state.held):
            return f"{held} payloads are in the hands of callers"
        return None
