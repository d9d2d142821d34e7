"""A store, written into the empty tables that an ntf-server made, and read back from there.

All in one transaction of that database: it holds everything it can express, or nothing. Devices
of Web Push are left out with what they own, since ntf-server cannot read a row of theirs.
"""

from __future__ import annotations

from typing import Any

from blindpost.engine.undo import Undo
from blindpost.ntf.model import Notification, SmpRouter, Subscription, Token
from blindpost.ntf.moving import old_rows
from blindpost.ntf.moving.certificate import Moved
from blindpost.ntf.moving.old_rows import NOTIFICATION_COLUMNS, SUBSCRIPTION_COLUMNS, TOKEN_COLUMNS
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.view import Needed, View, Wanted
from blindpost.serving.failures import OperatorError
from blindpost.store import postgres
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.tokens import PushProvider

TOKENS_AT_ONCE = 200
_LOCK = "LOCK TABLE tokens, smp_servers, subscriptions, last_notifications IN EXCLUSIVE MODE"
_FILLED = (
    "SELECT EXISTS (SELECT 1 FROM tokens) OR EXISTS (SELECT 1 FROM smp_servers) "
    "OR EXISTS (SELECT 1 FROM subscriptions) OR EXISTS (SELECT 1 FROM last_notifications)"
)
_ADD_ROUTER = (
    "INSERT INTO smp_servers (smp_host, smp_port, smp_keyhash, ntf_service_id, ntf_service_cert, "
    "ntf_service_cert_hash, ntf_service_priv_key) VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING smp_server_id"
)


class Exporter:
    """One export of a store that nobody changes meanwhile."""

    def __init__(self, store: NtfStore, old: postgres.Connection) -> None:
        self._store = store
        self._old = old
        self._server_ids: dict[Server, int] = {}
        self.done = Moved()

    async def run(self) -> Moved:
        await self._old.execute(_LOCK)
        if await self._old.fetchval(_FILLED):
            raise OperatorError(
                "ntf-server's tables are not empty. Name a new database in which ntf-server was started "
                "once and stopped."
            )
        for router in await self._store.all_routers():
            await self._add_router(router)
        after = b""
        while ids := await self._store.tokens_after(after, TOKENS_AT_ONCE):
            await self._add_tokens(ids)
            after = ids[-1]
        self._count_left()
        await self._read_back()
        return self.done

    async def _add_router(self, router: SmpRouter) -> None:
        if not router.server.port.isprintable():
            return  # it came from a device, was never reached, and is no text for a database
        row = old_rows.router_row(router)
        self._server_ids[router.server] = await self._old.fetchval(_ADD_ROUTER, *row)
        self.done.source.router(router)

    async def _add_tokens(self, ids: list[bytes]) -> None:
        view = View(Undo(), self._store.received)
        await self._store.load(Wanted(tokens=set(ids)), view)
        there = [token for token_id in ids if (token := view.tokens.get(token_id)) is not None]
        tokens = [token for token in there if token.device.provider is not PushProvider.WEB_PUSH]
        if len(there) > len(tokens):
            self.done.left["devices of Web Push"] += len(there) - len(tokens)
        await self._store.load_needed(Needed(owned={token.token_id for token in tokens}), view)
        owned = [one for token in tokens for one in self._owned(view, token)]
        kept = {one.subscription_id for one in owned}
        notified = [
            one for token in tokens for one in view.notified(token.token_id) if one.subscription_id in kept
        ]
        await self._write(tokens, owned, notified)

    def _owned(self, view: View, token: Token) -> list[Subscription]:
        owned = view.owned(token.token_id)
        return [old_rows.as_told(one) for one in owned if one.server in self._server_ids]

    async def _write(
        self, tokens: list[Token], owned: list[Subscription], notified: list[Notification]
    ) -> None:
        source = self.done.source
        for token in tokens:
            source.token(token)
        for one in owned:
            source.subscription(one)
        for notification in notified:
            source.notification(notification)
        await self._copy("tokens", TOKEN_COLUMNS, [old_rows.token_row(token) for token in tokens])
        rows = [old_rows.subscription_row(one, self._server_ids[one.server]) for one in owned]
        await self._copy("subscriptions", SUBSCRIPTION_COLUMNS, rows)
        rows = [old_rows.notification_row(one) for one in notified]
        await self._copy("last_notifications", NOTIFICATION_COLUMNS, rows)

    async def _copy(self, table: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        if rows:
            # With its plain name: the connection's search path has the schema.
            await self._old.copy_records_to_table(table, records=rows, columns=columns)

    def _count_left(self) -> None:
        """The store's own counts show what was not written, such as a damaged row."""
        counts, source = self._store.counts(), self.done.source.values()
        for name in ("tokens", "subscriptions", "notifications"):
            missing = counts[name] - int(source[name])
            if missing:
                self.done.left[name] = missing

    async def _read_back(self) -> None:
        routers: dict[int, SmpRouter] = {}
        result = self.done.result
        for row in await self._old.fetch(old_rows.ROUTERS):
            routers[row["smp_server_id"]] = router = old_rows.router_of(row)
            result.router(router)
        async for rows in old_rows.chunks(self._old, old_rows.TOKENS):
            for row in rows:
                result.token(old_rows.token_of(row, 0))
        async for rows in old_rows.chunks(self._old, old_rows.SUBSCRIPTIONS):
            for row in rows:
                result.subscription(old_rows.subscription_of(row, routers[row["smp_server_id"]]))
        async for rows in old_rows.chunks(self._old, old_rows.NOTIFICATIONS):
            for row in rows:
                result.notification(old_rows.notification_of(row))
