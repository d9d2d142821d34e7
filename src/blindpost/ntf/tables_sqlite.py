"""The notification router's tables in SQLite: one file beside the configuration."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from blindpost.crypto.ids_hash import QueueSet, xor
from blindpost.engine.loop import StoreFailedError
from blindpost.ntf.model import SmpRouter, Token
from blindpost.ntf.ports import Notifier
from blindpost.ntf.records import NotificationRow, Records, RouterRow, SubscriptionRow, TokenRow
from blindpost.ntf.schema_sqlite import MIGRATIONS
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.tables import (
    COUNTERS,
    SetWrite,
    Writes,
    WrongKeyError,
    readable,
    received_of,
    writes_of,
)
from blindpost.ntf.view import RIVALS_MAX, Needed, Registration, View, Wanted
from blindpost.store.contract import Durability
from blindpost.store.sqlite import NTF, SqliteStore
from blindpost.wire.addresses import Server

_TOKENS = (
    "SELECT token_id, device, verify_key, status, sealed, code_at, code_attempts, period_minutes, "
    "period_due, period_sent, updated_day, plain_device FROM tokens WHERE "
)
_SUBSCRIPTION = (
    "SELECT subscription_id, token_id, server, notifier, id_hash, sealed, state, error, "
    "associated FROM subscriptions WHERE "
)
_COUNT = "SELECT count(*) FROM subscriptions WHERE token_id = ?"
_NOTIFICATION = (
    "SELECT subscription_id, token_id, number, seconds, nonce, encrypted_meta, waiting, provider "
    "FROM notifications WHERE token_id = ?"
)
_ROUTER = (
    "SELECT server, sealed, service_id, sealed_service, notifier_count, notifier_ids_hash FROM smp_servers"
)

_PUT_TOKENS = (
    "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (token_id) DO UPDATE SET "
    "device = excluded.device, status = excluded.status, sealed = excluded.sealed, "
    "code_at = excluded.code_at, code_attempts = excluded.code_attempts, "
    "period_minutes = excluded.period_minutes, period_due = excluded.period_due, "
    "period_sent = excluded.period_sent, updated_day = excluded.updated_day, "
    "plain_device = excluded.plain_device"
)
_PUT_NOTIFICATION = (
    "INSERT INTO notifications VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (subscription_id) DO UPDATE SET "
    "number = excluded.number, seconds = excluded.seconds, nonce = excluded.nonce, "
    "encrypted_meta = excluded.encrypted_meta, waiting = excluded.waiting, "
    "provider = excluded.provider"
)
_PUT_ROUTER = (
    "INSERT INTO smp_servers (server, sealed, service_id, sealed_service) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (server) DO UPDATE SET service_id = excluded.service_id, "
    "sealed_service = excluded.sealed_service"
)


class SqliteTables:
    """The embedded store."""

    def __init__(self, store: SqliteStore, records: Records) -> None:
        """Use `open`."""
        self.store = store
        self._records = records
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._counts.update(store.reading.execute("SELECT name, value FROM counters"))

    @classmethod
    def open(cls, path: Path, sealer: Sealer, durability: Durability = Durability.FULL) -> Self:
        store = SqliteStore.open(path, MIGRATIONS, NTF, durability)
        try:
            store.reading.create_function("xor_hash", 2, xor, deterministic=True)
            with store.transaction() as sql:
                sql.execute("INSERT OR IGNORE INTO meta VALUES ('key', ?)", (sealer.mark,))
                (mark,) = sql.execute("SELECT value FROM meta WHERE name = 'key'").fetchone()
            if mark != sealer.mark:
                raise WrongKeyError
            return cls(store, Records(sealer))
        except BaseException:
            store.close()
            raise

    # --- for a batch

    async def load(self, wanted: Wanted, view: View) -> None:
        records = self._records
        with self._reading() as sql:
            for token_id in wanted.tokens:
                self._fill_tokens(sql, view, "token_id = ?", token_id)
            self._fill_registrations(sql, view, wanted.registrations)
            for subscription_id in wanted.subscriptions:
                self._fill_subscriptions(sql, view, "subscription_id = ?", subscription_id)
            for server, notifier_id in wanted.queues:
                name = records.notifier_name(server, notifier_id)
                self._fill_subscriptions(sql, view, "notifier = ?", name)
            for server in wanted.routers:
                found = self._routers(sql, " WHERE server = ?", (records.server_name(server),))
                for router in found:
                    view.routers.fill(router.server, router)

    async def load_needed(self, needed: Needed, view: View) -> None:
        with self._reading() as sql:
            self._fill_registrations(sql, view, needed.registrations)
            owners = set(needed.owned)
            for device in needed.rivals:
                names = self._records.rival_names(device)
                found = self._fill_tokens(sql, view, "plain_device IN (?, ?) LIMIT ?", *names, RIVALS_MAX)
                owners.update(token.token_id for token in found)
            for token_id in owners:
                rows = sql.execute(_SUBSCRIPTION + "token_id = ?", (token_id,)).fetchall()
                owned = readable([SubscriptionRow(*row) for row in rows], self._records.subscription)
                for subscription in owned:
                    view.fill_subscription(subscription)
                view.fill_owned(token_id, (subscription.subscription_id for subscription in owned))
            for token_id in needed.counted:
                (count,) = sql.execute(_COUNT, (token_id,)).fetchone()
                view.counted.fill(token_id, count)
            for token_id in owners | needed.notifications:
                rows = sql.execute(_NOTIFICATION, (token_id,)).fetchall()
                found_here = [self._records.notification(NotificationRow(*row)) for row in rows]
                view.fill_notifications(token_id, found_here)
                for notification in found_here:
                    if notification.subscription_id not in view.subscriptions:
                        self._fill_subscriptions(
                            sql, view, "subscription_id = ?", notification.subscription_id
                        )

    async def commit(self, view: View) -> None:
        writes = writes_of(view, self._records)
        if writes.is_empty:
            return
        try:
            with self.store.transaction() as sql:
                changed = _write(sql, writes)
        except sqlite3.Error as error:
            raise StoreFailedError(f"the store refused a commit: {type(error).__name__}") from error
        for name, by in changed.items():
            self._counts[name] += by

    # --- between batches

    async def routers(self) -> list[SmpRouter]:
        used = (
            " WHERE EXISTS (SELECT 1 FROM subscriptions "
            "WHERE subscriptions.server = smp_servers.server AND tried = 1)"
        )
        with self._reading() as sql:
            return self._routers(sql, used, ())

    async def router(self, server: Server) -> SmpRouter | None:
        with self._reading() as sql:
            found = self._routers(sql, " WHERE server = ?", (self._records.server_name(server),))
        return found[0] if found else None

    async def page(
        self, server: Server, after: bytes, count: int, *, with_associated: bool
    ) -> list[Notifier]:
        statement = (
            "SELECT subscription_id, sealed FROM subscriptions WHERE server = ? AND associated IN (0, ?) "
            "AND tried = 1 AND subscription_id > ? ORDER BY subscription_id LIMIT ?"
        )
        name = self._records.server_name(server)
        with self._reading() as sql:
            rows = sql.execute(statement, (name, int(with_associated), after, count)).fetchall()
        return readable(rows, lambda row: self._records.notifier(row[0], row[1]))

    async def periods_due(self, now: int, count: int) -> list[bytes]:
        return self._ids(
            "SELECT token_id FROM tokens WHERE status = 'ACTIVE' AND period_due <= ? "
            "ORDER BY period_due LIMIT ?",
            now,
            count,
        )

    async def waiting(self, after: bytes, count: int) -> list[bytes]:
        return self._ids(
            "SELECT DISTINCT token_id FROM notifications WHERE waiting AND token_id > ? "
            "ORDER BY token_id LIMIT ?",
            after,
            count,
        )

    async def aged(self, before: int, count: int) -> list[bytes]:
        return self._ids(
            "SELECT DISTINCT token_id FROM notifications WHERE waiting AND seconds < ? LIMIT ?", before, count
        )

    async def unverified(self, before: int, count: int) -> list[bytes]:
        return self._ids(
            "SELECT token_id FROM tokens WHERE code_at < ? AND NOT EXISTS "
            "(SELECT 1 FROM subscriptions WHERE subscriptions.token_id = tokens.token_id) LIMIT ?",
            before,
            count,
        )

    async def codes_unsent(self, since: int, count: int) -> list[bytes]:
        return self._ids(
            "SELECT token_id FROM tokens WHERE code_at >= ? AND status = 'REGISTERED' LIMIT ?", since, count
        )

    async def unused_routers(self, count: int) -> list[Server]:
        with self._reading() as sql:
            unused = "SELECT 1 FROM subscriptions WHERE subscriptions.server = smp_servers.server"
            found = self._routers(sql, f" WHERE NOT EXISTS ({unused}) LIMIT ?", (count,))
        return [router.server for router in found]

    async def all_routers(self) -> list[SmpRouter]:
        with self._reading() as sql:
            return self._routers(sql, "", ())

    async def tokens_after(self, after: bytes, count: int) -> list[bytes]:
        return self._ids(
            "SELECT token_id FROM tokens WHERE token_id > ? ORDER BY token_id LIMIT ?", after, count
        )

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    @property
    def received(self) -> int:
        return received_of(self._counts)

    async def probe(self) -> None:
        self.store.probe()

    def close(self) -> None:
        self.store.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self.store.reading
        except sqlite3.Error as error:
            raise StoreFailedError(f"the store cannot be read: {type(error).__name__}") from error

    def _ids(self, statement: str, *arguments: object) -> list[bytes]:
        with self._reading() as sql:
            return [found for (found,) in sql.execute(statement, arguments)]

    def _fill_registrations(
        self, sql: sqlite3.Connection, view: View, registrations: Iterable[Registration]
    ) -> None:
        for device, key in registrations:
            name = self._records.device_name(device)
            self._fill_tokens(sql, view, "device = ? AND verify_key = ?", name, key.spki)

    def _fill_tokens(
        self, sql: sqlite3.Connection, view: View, where: str, *arguments: object
    ) -> list[Token]:
        rows = [TokenRow(*row) for row in sql.execute(_TOKENS + where, arguments)]
        found = readable(rows, self._records.token)
        for token in found:
            view.fill_token(token)
        return found

    def _fill_subscriptions(self, sql: sqlite3.Connection, view: View, where: str, name: bytes) -> None:
        """Subscriptions and their tokens."""
        rows = [SubscriptionRow(*row) for row in sql.execute(_SUBSCRIPTION + where, (name,))]
        for subscription in readable(rows, self._records.subscription):
            view.fill_subscription(subscription)
            if subscription.token_id not in view.tokens:
                self._fill_tokens(sql, view, "token_id = ?", subscription.token_id)

    def _routers(self, sql: sqlite3.Connection, where: str, arguments: Sequence[Any]) -> list[SmpRouter]:
        rows = sql.execute(_ROUTER + where, arguments).fetchall()
        return readable(rows, lambda row: self._records.router(RouterRow(*row[:4]), QueueSet(*row[4:])))


_DELETE_UNUSED = (
    "DELETE FROM smp_servers WHERE server = ? AND "
    "NOT EXISTS (SELECT 1 FROM subscriptions WHERE subscriptions.server = smp_servers.server)"
)
_DELETES = {
    "notifications": "DELETE FROM notifications WHERE subscription_id = ?",
    "subscriptions": "DELETE FROM subscriptions WHERE subscription_id = ?",
    "tokens": "DELETE FROM tokens WHERE token_id = ?",
}


def _write(sql: sqlite3.Connection, writes: Writes) -> dict[str, int]:
    """All rows of a commit; by how much the counters change."""
    changed = dict(writes.ledger)
    gone = (writes.notifications_gone, writes.subscriptions_gone, writes.tokens_gone)
    for (table, statement), keys in zip(_DELETES.items(), gone, strict=True):
        cursor = sql.executemany(statement, [(key,) for key in keys])
        changed[table] = -max(cursor.rowcount, 0)
    sql.executemany(_PUT_ROUTER, writes.routers)
    for change in writes.sets:
        _write_set(sql, change)
    exists = "SELECT 1 FROM tokens WHERE token_id = ?"
    changed["tokens"] += _put(sql, exists, _PUT_TOKENS, writes.tokens)
    sql.executemany("INSERT INTO subscriptions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", writes.subscriptions)
    changed["subscriptions"] += len(writes.subscriptions)
    sql.executemany(
        "UPDATE subscriptions SET state = ?, error = ?, associated = ? WHERE subscription_id = ?",
        ((state, error, associated, key) for key, state, error, associated in writes.statuses),
    )
    exists = "SELECT 1 FROM notifications WHERE subscription_id = ?"
    changed["notifications"] += _put(sql, exists, _PUT_NOTIFICATION, writes.notifications)
    sql.executemany(_DELETE_UNUSED, [(server,) for server in writes.routers_unused])
    sql.executemany(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        [(name, by) for name, by in changed.items() if by],
    )
    return changed


def _put(sql: sqlite3.Connection, exists: str, statement: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """Insert or update; how many rows are new."""
    fresh = 0
    for row in rows:
        fresh += sql.execute(exists, (row[0],)).fetchone() is None
        sql.execute(statement, row)
    return fresh


def _write_set(sql: sqlite3.Connection, change: SetWrite) -> None:
    sql.execute(
        "UPDATE subscriptions SET state = :next, error = NULL, "
        "associated = coalesce(:is_associated, associated) "
        "WHERE server = :server AND (associated OR NOT :only_associated) "
        "AND state IN (SELECT value FROM json_each(:states)) "
        "AND (state <> :next OR associated <> coalesce(:is_associated, associated))",
        {
            "next": change.next,
            "is_associated": change.is_associated,
            "server": change.server,
            "only_associated": change.only_associated,
            "states": json.dumps(change.states),
        },
    )
