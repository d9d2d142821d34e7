"""A notification router as a party, and the books that its ledger is compared with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.loop import StoreFailedError
from blindpost.engine.undo import Undo
from blindpost.ntf.journaling import read_meters
from blindpost.ntf.model import LedgerState, NtfRules
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.server import NtfRouter
from blindpost.ntf.subscriber.options import WATCHFUL, SubscriberOptions
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.ntf.tables import ledger_total
from blindpost.ntf.tables_sqlite import SqliteTables
from blindpost.ntf.turn import Push
from blindpost.ntf.view import View, Wanted
from blindpost.store.contract import Durability
from blindpost.transport.ends import listen
from blindpost.transport.plans import ntf_router_plan
from blindpost.transport.session import Session
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.commands import PING
from blindpost.wire.ntf.status import SubState
from blindpost.wire.ntf.tokens import PushProvider
from blindpost.wire.ntf.transmissions import Request, parse_requests
from blindpost.wire.primitives import Reader
from simulation.journals import journaled, ledger_counts
from simulation.party import Party, Surroundings
from simulation.pushes import PushParty, SimulatedApns
from simulation.rows import wrong_in_ntf

NAME, PORT = "ntf", 443
STORE_KEY = bytes(range(32))
RULES = NtfRules(period_step_s=120.0)
LOOK_AGAIN_S = 5.0
ROWS = "SELECT subscription_id, number, nonce, waiting FROM notifications"
ENDS = tuple(state for state in LedgerState if state.is_terminal)


class WatchedTables(SqliteTables):
    """The store, looked at after each commit."""

    looked_at: Callable[[], None] = staticmethod(lambda: None)

    async def commit(self, view: View) -> None:
        await super().commit(view)
        self.looked_at()


class WatchedNtf(NtfRouter):
    """Counts what devices ask, and lets the push service's books open what is pushed."""

    party: NtfParty

    def block_received(self, session: Session, payload: bytes) -> None:
        client = self.by_session[session].client
        for item in parse_requests(Reader(payload), client.layout, client.version):
            if isinstance(item, Request) and not isinstance(item.command, PING):
                self.party.asked[type(item.command).__name__] += 1
        super().block_received(session, payload)

    def _push(self, push: Push) -> None:
        self.party.pushes.secrets.setdefault(push.device.token.decode(), set()).add(push.secret.raw)
        super()._push(push)


class Books:
    """Whether the ledger is true: what it says of a notification, beside what the push service accepted."""

    def __init__(self, pushes: PushParty) -> None:
        self._pushes = pushes
        self._ended: set[tuple[bytes, int]] = set()
        self._waiting: set[tuple[bytes, int]] = set()
        self._totals: Counter[LedgerState] = Counter()
        self._came: set[tuple[bytes, int]] = set()
        self._nonces: set[bytes] = set()
        """Of all that came: a router that forgot what it had told tells it again, under the same nonce."""
        self._tokens: set[bytes] = set()
        """All that there ever were."""

    def counted(self, store: SqliteTables) -> Counter[str]:
        """What was stored, and how it ended, when it was last looked at."""
        rows = store.store.reading.execute("SELECT token_id FROM tokens").fetchall()
        self._tokens |= {name for (name,) in rows}
        return ledger_counts(self._totals, len(self._tokens))

    @property
    def accepted_most(self) -> int:
        """So many can be marked as accepted: what the push service accepted, and what came again since."""
        return len(self._pushes.announced) + len(self._came) - len(self._nonces)

    def check(self, store: SqliteTables) -> str | None:
        """What is wrong with what is stored now; for after each commit, and before each life."""
        sql = store.store.reading
        rows = sql.execute(ROWS).fetchall()
        counts = dict.fromkeys(store.counts(), 0)
        counts.update(sql.execute("SELECT name, value FROM counters"))
        totals = Counter({state: ledger_total(counts, state) for state in LedgerState})
        waiting = {(name, number) for name, number, _, waits in rows if waits}
        if len(waiting) != totals[LedgerState.WAITING]:
            return f"{totals[LedgerState.WAITING]} notifications are said to wait, {len(waiting)} do"
        if counts["notifications"] != len(rows):
            return f"{counts['notifications']} notifications are counted, {len(rows)} are stored"
        if repeated := waiting & self._ended:
            return f"{len(repeated)} notifications wait that had ended"
        if any(totals[state] < self._totals[state] for state in ENDS):
            return "an end of a notification is not counted any more"
        self._came |= {(name, number) for name, number, _, _ in rows}
        self._nonces |= {nonce for _, _, nonce, _ in rows}
        if totals[LedgerState.ACCEPTED] > self.accepted_most:
            return "more notifications are marked as accepted than the push service accepted"
        moved = {end for end in ENDS if totals[end] != self._totals[end]}
        for name, number, nonce, waits in rows:
            ended = not waits and (name, number) in self._waiting
            if ended and moved == {LedgerState.ACCEPTED} and nonce not in self._pushes.announced:
                return "a notification is marked as accepted that the push service did not accept"
        self._ended |= {(name, number) for name, number, _, waits in rows if not waits}
        self._waiting, self._totals = waiting, totals
        return None


class NtfParty(Party):
    """A notification router over SQLite."""

    kind = "notification router"

    def __init__(self, run: Surroundings, leaf: Credentials, pushes: PushParty) -> None:
        super().__init__(run, NAME)
        self.pushes = pushes
        self.asked: Counter[str] = Counter()
        """What devices asked, by kind."""
        self.router: WatchedNtf
        self.subscriber: SmpSubscriber
        self._leaf = leaf
        self._books = Books(pushes)
        self._counted_before: Counter[str] = Counter()
        self._store: WatchedTables | None = None

    async def live(self) -> None:
        entropy, network = self.entropy(), self.run.network
        sealer = Sealer(STORE_KEY, entropy)
        self._store = store = WatchedTables.open(self.run.folder / f"{NAME}.db", sealer, Durability.OS)
        self._look()
        store.looked_at = self._look
        real = store.store.commit

        def commit() -> None:
            self.committing(store.store.rollback, real)

        store.store.commit = commit  # type: ignore[method-assign]
        providers = {PushProvider.APNS_PROD: SimulatedApns(self)}
        self.router = router = WatchedNtf(store, providers, RULES, entropy=entropy, now=self.now)
        router.party = self
        smp = replace(WATCHFUL, network=network, now=self.now, entropy=entropy)
        self.subscriber = SmpSubscriber(router, SubscriberOptions(smp=smp), self.chance())
        router.subscriber = self.subscriber
        plan = ntf_router_plan(self._leaf, now=self.now, entropy=entropy)
        self._counted_before = self._books.counted(store)
        async with journaled(self.book, lambda minute_s, with_sketches: read_meters(router, self.subscriber)):
            self._listening, _ = await listen(plan, router, NAME, PORT, network)
            beside = [asyncio.create_task(work) for work in (self.subscriber.run(), self._keep_looking())]
            await router.run()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await self._listening.stop()

    def _look(self) -> None:
        assert self._store is not None
        if (wrong := self._books.check(self._store)) is not None:
            self.run.violated(f"{NAME}: {wrong}")
        if self.book is not None:
            self.book.holds(self._books.counted(self._store) - self._counted_before)

    async def _keep_looking(self) -> None:
        """The scan of the store, begun again where it fails, as the frame of servers does."""
        while True:
            try:
                await self.router.look_regularly()
            except StoreFailedError:
                await asyncio.sleep(LOOK_AGAIN_S)

    async def end(self) -> None:
        await self._listening.stop_listening()
        self.router.stop()

    def files_closed(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            sql = store.store.reading
            if sql.in_transaction:
                sql.execute("ROLLBACK")
            sql.close()

    def mended(self) -> None:
        self.empty_disk()

    # What it looks like from outside

    @property
    def accepted_most(self) -> int:
        return self._books.accepted_most

    @property
    def store(self) -> WatchedTables:
        assert self._store is not None
        return self._store

    def unsettled(self) -> str | None:
        if waiting := ledger_total(self.store.counts(), LedgerState.WAITING):
            return f"{waiting} notifications wait"
        if self.router.pusher.waiting or len(self.router.plan.state.jobs):
            return "pushes are under way"
        for state in self.subscriber.states:
            if not state.is_connected or state.waiting:
                return f"it is not subscribed at {state.server.hosts[0].text}"
        (pending,) = self.store.store.reading.execute(
            "SELECT count(*) FROM subscriptions WHERE state IN ('NEW', 'PENDING', 'INACTIVE')"
        ).fetchone()
        return f"{pending} queues are not subscribed" if pending else None

    async def wrong(self) -> str | None:
        return wrong_in_ntf(self.store.store.reading)

    async def states(self, queues: Sequence[tuple[Server, bytes]]) -> list[SubState | None]:
        """What is stored about these queues."""
        view = View(Undo(), 0)
        await self.store.load(Wanted(queues=set(queues)), view)
        found = [view.of_queue(*queue) for queue in queues]
        return [None if each is None else each.status.state for each in found]

    async def services(self) -> list[tuple[str, bytes, QueueSet]]:
        """Where it is a service, under which id and with which queues."""
        return [
            (router.server.hosts[0].text, router.service.service_id, router.members)
            for router in await self.store.all_routers()
            if router.service is not None and router.service.service_id is not None
        ]
