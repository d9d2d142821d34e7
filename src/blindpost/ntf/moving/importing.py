"""The database of an ntf-server, read row by row into a new store, and read back to prove it arrived.

What it holds per row: tokens with their keys and codes, message routers with our service's certificate there,
subscriptions, and the last notification of each. A row that cannot be understood is left out with what
depends on it, and counted; the old rows are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from blindpost.engine.undo import Undo
from blindpost.ntf.model import LedgerState, Notification, SmpRouter
from blindpost.ntf.moving import old_rows
from blindpost.ntf.moving.certificate import Moved, Sums
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.view import Needed, View, Wanted
from blindpost.store import postgres
from blindpost.wire.errors import WireError

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Kind(Generic[V]):
    """How one kind of rows is read, stored and read back."""

    name: str
    key: str
    """The column that later rows refer to."""
    read: Callable[[Any, View], V]
    put: Callable[[View, V], None]
    again: Callable[[Sequence[V]], Wanted | Needed]
    found: Callable[[View, V], V | None]
    tell: Callable[[Sums, V], None]


class Importer:
    """One import into an empty store."""

    def __init__(self, old: postgres.Connection, store: NtfStore, now: int) -> None:
        self._old = old
        self._store = store
        self._now = now
        self._routers: dict[int, SmpRouter] = {}
        self._left: set[bytes] = set()
        """Skipped tokens and subscriptions, whose dependents are skipped too."""
        self.done = Moved()

    async def run(self) -> Moved:
        """Import everything, one commit per chunk; what is read back is compared."""
        routers = Kind(
            "message routers",
            "smp_server_id",
            lambda row, _: self._routers.setdefault(row["smp_server_id"], old_rows.router_of(row)),
            lambda view, router: view.put_router(router),
            lambda taken: Wanted(routers={router.server for router in taken}),
            lambda view, router: view.routers.get(router.server),
            Sums.router,
        )
        tokens = Kind(
            "tokens",
            "token_id",
            lambda row, _: old_rows.token_of(row, self._now),
            lambda view, token: view.put_token(token),
            lambda taken: Wanted(tokens={token.token_id for token in taken}),
            lambda view, token: view.tokens.get(token.token_id),
            Sums.token,
        )
        subscriptions = Kind(
            "subscriptions",
            "subscription_id",
            lambda row, _: old_rows.subscription_of(self._depending(row, "token_id"), self._router_of(row)),
            lambda view, one: view.add_subscription(one),
            lambda taken: Wanted(subscriptions={one.subscription_id for one in taken}),
            lambda view, one: view.subscriptions.get(one.subscription_id),
            Sums.subscription,
        )
        notifications = Kind(
            "notifications",
            "subscription_id",
            lambda row, view: old_rows.notification_of(
                self._depending(row, "subscription_id"), view.next_number()
            ),
            _put_notification,
            lambda taken: Needed(notifications={one.token_id for one in taken}),
            lambda view, one: view.notifications.get(one.subscription_id),
            Sums.notification,
        )
        await self._take(routers, await self._old.fetch(old_rows.ROUTERS))
        await self._take_all(tokens, old_rows.TOKENS)
        await self._take_all(subscriptions, old_rows.SUBSCRIPTIONS)
        await self._take_all(notifications, old_rows.NOTIFICATIONS)
        return self.done

    async def _take_all(self, kind: Kind[Any], statement: str) -> None:
        async for rows in old_rows.chunks(self._old, statement):
            await self._take(kind, rows)

    async def _take(self, kind: Kind[V], rows: Iterable[Any]) -> None:
        view = View(Undo(), self._store.received)
        taken: list[V] = []
        for row in rows:
            try:
                value = kind.read(row, view)
            except (WireError, ValueError):
                self._left.add(row[kind.key])
                self.done.left[kind.name] += 1
                continue
            kind.put(view, value)
            kind.tell(self.done.source, value)
            taken.append(value)
        await self._store.commit(view)
        fresh, again = View(Undo(), self._store.received), kind.again(taken)
        if isinstance(again, Wanted):
            await self._store.load(again, fresh)
        else:
            await self._store.load_needed(again, fresh)
        for value in taken:
            there = kind.found(fresh, value)
            if there is not None:
                kind.tell(self.done.result, there)

    def _depending(self, row: Any, on: str) -> Any:
        if row[on] in self._left:
            raise WireError("what it belongs to was left out")
        return row

    def _router_of(self, row: Any) -> SmpRouter:
        router = self._routers.get(row["smp_server_id"])
        if router is None:
            raise WireError("its message router was left out")
        return router


def _put_notification(view: View, one: Notification) -> None:
    """It was pushed before: the ledger counts it as accepted, and later pushes carry it."""
    view.put_notification(one)
    view.enter(one.carrier, LedgerState.WAITING)
    view.enter(one.carrier, LedgerState.ACCEPTED)
