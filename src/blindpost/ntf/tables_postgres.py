"""The notification router's tables in PostgreSQL: set-oriented reads, one commit for a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg

from blindpost.crypto.ids_hash import QueueSet
from blindpost.ntf.model import Notification, SmpRouter, Token
from blindpost.ntf.ports import Notifier
from blindpost.ntf.records import NotificationRow, Records, RouterRow, SubscriptionRow, TokenRow
from blindpost.ntf.schema_postgres import MIGRATIONS
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.tables import COUNTERS, Writes, WrongKeyError, readable, received_of, writes_of
from blindpost.ntf.view import RIVALS_MAX, Needed, Registration, View, Wanted
from blindpost.store.contract import Durability
from blindpost.store.postgres import PostgresStore, Schema, Step, Work
from blindpost.wire.addresses import Server

SCHEMA = Schema("blindpost_ntf", MIGRATIONS, COUNTERS)

_COLUMNS = (
    "SELECT found.token_id, found.device, verify_key, status, sealed, code_at, code_attempts, "
    "period_minutes, period_due, period_sent, updated_day, plain_device FROM "
)
_TOKENS = _COLUMNS + "unnest($1::bytea[]) AS wanted(name) JOIN tokens found ON "
_REGISTRATIONS = (
    _COLUMNS + "unnest($1::bytea[], $2::bytea[]) AS wanted(device, key) "
    "JOIN tokens found ON found.device = wanted.device AND found.verify_key = wanted.key"
)
_RIVALS = _COLUMNS + "tokens found WHERE found.plain_device = ANY ($1::bytea[]) LIMIT $2"
_SUBSCRIPTIONS = (
    "SELECT found.subscription_id, token_id, server, notifier, id_hash, sealed, state, error, associated "
    "FROM unnest($1::bytea[]) AS wanted(name) JOIN subscriptions found ON "
)
_COUNTS = (
    "SELECT wanted.name, count(found.token_id) FROM unnest($1::bytea[]) AS wanted(name) "
    "LEFT JOIN subscriptions found ON found.token_id = wanted.name GROUP BY wanted.name"
)
_NOTIFICATIONS = (
    "SELECT subscription_id, token_id, number, seconds, nonce, encrypted_meta, waiting, provider "
    "FROM unnest($1::bytea[]) AS wanted(name) JOIN notifications found ON found.token_id = wanted.name"
)
_ROUTERS = (
    "SELECT server, sealed, service_id, sealed_service, notifier_count, notifier_ids_hash FROM smp_servers "
)

_DELETE_NOTIFICATIONS = Step(
    "notifications",
    "DELETE FROM notifications kept USING unnest({0}::bytea[]) AS gone(name) "
    "WHERE kept.subscription_id = gone.name RETURNING true AS fresh",
    is_delete=True,
)
_DELETE_SUBSCRIPTIONS = Step(
    "subscriptions",
    "DELETE FROM subscriptions kept USING unnest({0}::bytea[]) AS gone(name) "
    "WHERE kept.subscription_id = gone.name RETURNING true AS fresh",
    is_delete=True,
)
_DELETE_TOKENS = Step(
    "tokens",
    "DELETE FROM tokens kept USING unnest({0}::bytea[]) AS gone(name) "
    "WHERE kept.token_id = gone.name RETURNING true AS fresh",
    is_delete=True,
)
_PUT_ROUTERS = Step(
    None,
    "INSERT INTO smp_servers (server, sealed, service_id, sealed_service) "
    "SELECT * FROM unnest({0}::bytea[], {1}::bytea[], {2}::bytea[], {3}::bytea[]) "
    "ON CONFLICT (server) DO UPDATE SET service_id = excluded.service_id, "
    "sealed_service = excluded.sealed_service RETURNING true AS fresh",
)
_PUT_TOKENS = Step(
    "tokens",
    "INSERT INTO tokens SELECT * FROM unnest({0}::bytea[], {1}::bytea[], {2}::bytea[], {3}::text[], "
    "{4}::bytea[], {5}::bigint[], {6}::integer[], {7}::integer[], {8}::bigint[], {9}::bigint[], "
    "{10}::bigint[], {11}::bytea[]) ON CONFLICT (token_id) DO UPDATE SET device = excluded.device, "
    "status = excluded.status, sealed = excluded.sealed, code_at = excluded.code_at, "
    "code_attempts = excluded.code_attempts, period_minutes = excluded.period_minutes, "
    "period_due = excluded.period_due, period_sent = excluded.period_sent, "
    "updated_day = excluded.updated_day, plain_device = excluded.plain_device RETURNING xmax = 0 AS fresh",
)
_ADD_SUBSCRIPTIONS = Step(
    "subscriptions",
    "INSERT INTO subscriptions (subscription_id, token_id, server, notifier, id_hash, sealed, state, error, "
    "associated) SELECT * FROM unnest({0}::bytea[], {1}::bytea[], {2}::bytea[], {3}::bytea[], {4}::bytea[], "
    "{5}::bytea[], {6}::text[], {7}::bytea[], {8}::boolean[]) RETURNING true AS fresh",
)
_SET_STATUSES = Step(
    None,
    "UPDATE subscriptions kept SET state = new.state, error = new.error, associated = new.associated "
    "FROM unnest({0}::bytea[], {1}::text[], {2}::bytea[], {3}::boolean[]) "
    "AS new(name, state, error, associated) WHERE kept.subscription_id = new.name RETURNING true AS fresh",
)
_SET_TOGETHER = Step(
    None,
    "UPDATE subscriptions SET state = {0}::text, error = NULL, "
    "associated = coalesce({1}::boolean, associated) WHERE server = {2}::bytea "
    "AND (associated OR NOT {3}::boolean) AND state = ANY ({4}::text[]) "
    "AND (state <> {0}::text OR associated <> coalesce({1}::boolean, associated)) RETURNING true AS fresh",
)
_PUT_NOTIFICATIONS = Step(
    "notifications",
    "INSERT INTO notifications SELECT * FROM unnest({0}::bytea[], {1}::bytea[], {2}::bigint[], "
    "{3}::bigint[], {4}::bytea[], {5}::bytea[], {6}::boolean[], {7}::text[]) "
    "ON CONFLICT (subscription_id) DO UPDATE SET number = excluded.number, "
    "seconds = excluded.seconds, nonce = excluded.nonce, "
    "encrypted_meta = excluded.encrypted_meta, waiting = excluded.waiting, "
    "provider = excluded.provider RETURNING xmax = 0 AS fresh",
)

_IS_UNUSED = "NOT EXISTS (SELECT 1 FROM subscriptions WHERE subscriptions.server = smp_servers.server)"
_DELETE_UNUSED = Step(
    None,
    f"DELETE FROM smp_servers WHERE server = ANY ({{0}}::bytea[]) AND {_IS_UNUSED} RETURNING true AS fresh",
)


class PostgresTables:
    """The shared store of a notification router; it owns its database."""

    def __init__(self, store: PostgresStore, records: Records) -> None:
        """Use `open`."""
        self.store = store
        self._records = records

    @classmethod
    async def open(
        cls, dsn: str, sealer: Sealer, durability: Durability = Durability.FULL, *, in_turn: bool = False
    ) -> PostgresTables:
        store = await PostgresStore.open(dsn, SCHEMA, durability, in_turn=in_turn)
        try:
            rows = await store.fetch(
                "WITH put AS (INSERT INTO meta VALUES ('key', $1) ON CONFLICT DO NOTHING RETURNING value) "
                "SELECT value FROM put UNION ALL SELECT value FROM meta WHERE name = 'key'",
                sealer.mark,
            )
            if rows[0]["value"] != sealer.mark:
                raise WrongKeyError
            return cls(store, Records(sealer))
        except BaseException:
            store.close()
            raise

    # --- for a batch

    async def load(self, wanted: Wanted, view: View) -> None:
        records = self._records
        names = [records.notifier_name(server, notifier_id) for server, notifier_id in wanted.queues]
        await self._fill_tokens(view, "found.token_id = wanted.name", wanted.tokens)
        await self._fill_registrations(view, wanted.registrations)
        await self._fill_subscriptions(view, "found.subscription_id = wanted.name", wanted.subscriptions)
        await self._fill_subscriptions(view, "found.notifier = wanted.name", names)
        if wanted.routers:
            servers = [records.server_name(server) for server in wanted.routers]
            for router in await self._routers("WHERE server = ANY ($1::bytea[])", servers):
                view.routers.fill(router.server, router)

    async def load_needed(self, needed: Needed, view: View) -> None:
        await self._fill_registrations(view, needed.registrations)
        owners = set(needed.owned)
        for device in needed.rivals:
            rows = await self.store.fetch(_RIVALS, self._records.rival_names(device), RIVALS_MAX)
            owners.update(token.token_id for token in self._filled(view, rows))
        if owners:
            owned: dict[bytes, list[bytes]] = {token_id: [] for token_id in owners}
            rows = await self.store.fetch(_SUBSCRIPTIONS + "found.token_id = wanted.name", list(owners))
            for subscription in readable(rows, self._subscription):
                view.fill_subscription(subscription)
                owned[subscription.token_id].append(subscription.subscription_id)
            for token_id, subscription_ids in owned.items():
                view.fill_owned(token_id, subscription_ids)
        if needed.counted:
            for token_id, count in await self.store.fetch(_COUNTS, list(needed.counted)):
                view.counted.fill(token_id, count)
        notified: dict[bytes, list[Notification]] = {
            token_id: [] for token_id in owners | needed.notifications
        }
        if notified:
            for row in await self.store.fetch(_NOTIFICATIONS, list(notified)):
                notified[row["token_id"]].append(self._records.notification(NotificationRow(*row)))
            for token_id, notifications in notified.items():
                view.fill_notifications(token_id, notifications)
            missing = {
                notification.subscription_id
                for notifications in notified.values()
                for notification in notifications
                if notification.subscription_id not in view.subscriptions
            }
            await self._fill_subscriptions(view, "found.subscription_id = wanted.name", missing)

    async def commit(self, view: View) -> None:
        """As `NtfStore`; `OutcomeUnknownError` while it is not known whether the changes are there."""
        writes = writes_of(view, self._records)
        if not writes.is_empty:
            ledger = {name: by for name, by in writes.ledger.items() if by}
            await self.store.commit(_phases(writes), ledger)

    # --- between batches

    async def routers(self) -> list[SmpRouter]:
        return await self._routers(
            "WHERE EXISTS (SELECT 1 FROM subscriptions "
            "WHERE subscriptions.server = smp_servers.server AND tried)"
        )

    async def router(self, server: Server) -> SmpRouter | None:
        found = await self._routers("WHERE server = $1", self._records.server_name(server))
        return found[0] if found else None

    async def page(
        self, server: Server, after: bytes, count: int, *, with_associated: bool
    ) -> list[Notifier]:
        rows = await self.store.fetch(
            "SELECT subscription_id, sealed FROM subscriptions WHERE server = $1 AND tried "
            "AND (NOT associated OR $2) AND subscription_id > $3 ORDER BY subscription_id LIMIT $4",
            self._records.server_name(server),
            with_associated,
            after,
            count,
        )
        return readable(rows, lambda row: self._records.notifier(row[0], row[1]))

    async def periods_due(self, now: int, count: int) -> list[bytes]:
        return await self._ids(
            "SELECT token_id FROM tokens WHERE status = 'ACTIVE' AND period_due <= $1 "
            "ORDER BY period_due LIMIT $2",
            now,
            count,
        )

    async def waiting(self, after: bytes, count: int) -> list[bytes]:
        return await self._ids(
            "SELECT DISTINCT token_id FROM notifications WHERE waiting AND token_id > $1 "
            "ORDER BY token_id LIMIT $2",
            after,
            count,
        )

    async def aged(self, before: int, count: int) -> list[bytes]:
        return await self._ids(
            "SELECT DISTINCT token_id FROM notifications WHERE waiting AND seconds < $1 LIMIT $2",
            before,
            count,
        )

    async def unverified(self, before: int, count: int) -> list[bytes]:
        return await self._ids(
            "SELECT token_id FROM tokens WHERE code_at < $1 AND NOT EXISTS "
            "(SELECT 1 FROM subscriptions WHERE subscriptions.token_id = tokens.token_id) LIMIT $2",
            before,
            count,
        )

    async def codes_unsent(self, since: int, count: int) -> list[bytes]:
        return await self._ids(
            "SELECT token_id FROM tokens WHERE code_at >= $1 AND status = 'REGISTERED' LIMIT $2", since, count
        )

    async def unused_routers(self, count: int) -> list[Server]:
        found = await self._routers(f"WHERE {_IS_UNUSED} LIMIT $1", count)
        return [router.server for router in found]

    async def all_routers(self) -> list[SmpRouter]:
        return await self._routers("")

    async def tokens_after(self, after: bytes, count: int) -> list[bytes]:
        return await self._ids(
            "SELECT token_id FROM tokens WHERE token_id > $1 ORDER BY token_id LIMIT $2", after, count
        )

    def counts(self) -> dict[str, int]:
        return {name: self.store.counts[name] for name in COUNTERS}

    @property
    def received(self) -> int:
        return received_of(self.store.counts)

    async def probe(self) -> None:
        await self.store.probe()

    def close(self) -> None:
        self.store.close()

    async def _ids(self, statement: str, *arguments: object) -> list[bytes]:
        return [row[0] for row in await self.store.fetch(statement, *arguments)]

    def _subscription(self, row: asyncpg.Record) -> Any:
        return self._records.subscription(SubscriptionRow(*row))

    async def _fill_tokens(self, view: View, match: str, names: Iterable[bytes]) -> list[Token]:
        listed = list(names)
        if not listed:
            return []
        return self._filled(view, await self.store.fetch(_TOKENS + match, listed))

    async def _fill_registrations(self, view: View, registrations: Iterable[Registration]) -> None:
        names = [(self._records.device_name(device), key.spki) for device, key in registrations]
        if names:
            devices, keys = map(list, zip(*names, strict=True))
            self._filled(view, await self.store.fetch(_REGISTRATIONS, devices, keys))

    def _filled(self, view: View, rows: Sequence[asyncpg.Record]) -> list[Token]:
        found = readable(rows, lambda row: self._records.token(TokenRow(*row)))
        for token in found:
            view.fill_token(token)
        return found

    async def _fill_subscriptions(self, view: View, match: str, names: Iterable[bytes]) -> None:
        """Subscriptions and their tokens."""
        listed = list(names)
        if not listed:
            return
        owners = set()
        for subscription in readable(
            await self.store.fetch(_SUBSCRIPTIONS + match, listed), self._subscription
        ):
            view.fill_subscription(subscription)
            if subscription.token_id not in view.tokens:
                owners.add(subscription.token_id)
        await self._fill_tokens(view, "found.token_id = wanted.name", owners)

    async def _routers(self, where: str, *arguments: object) -> list[SmpRouter]:
        rows = await self.store.fetch(_ROUTERS + where, *arguments)
        return readable(rows, lambda row: self._records.router(RouterRow(*row[:4]), QueueSet(row[4], row[5])))


def _phases(writes: Writes) -> list[Work]:
    """One statement after the other in one transaction: triggers write to rows that other steps write to."""

    def work(step: Step, rows: Sequence[Sequence[Any]]) -> Work:
        return [(step, [list(column) for column in zip(*rows, strict=True)])]

    listed: list[tuple[Step, Sequence[Sequence[Any]]]] = [
        (_DELETE_NOTIFICATIONS, [(name,) for name in writes.notifications_gone]),
        (_DELETE_SUBSCRIPTIONS, [(name,) for name in writes.subscriptions_gone]),
        (_DELETE_TOKENS, [(name,) for name in writes.tokens_gone]),
        (_PUT_ROUTERS, writes.routers),
        (_PUT_TOKENS, writes.tokens),
        (_ADD_SUBSCRIPTIONS, writes.subscriptions),
    ]
    phases = [work(step, rows) for step, rows in listed if rows]
    for each in writes.sets:
        together = [each.next, each.is_associated, each.server, each.only_associated, list(each.states)]
        phases.append([(_SET_TOGETHER, together)])
    last: list[tuple[Step, Sequence[Sequence[Any]]]] = [
        (_SET_STATUSES, writes.statuses),
        (_PUT_NOTIFICATIONS, writes.notifications),
        (_DELETE_UNUSED, [(server,) for server in writes.routers_unused]),
    ]
    phases += [work(step, rows) for step, rows in last if rows]
    return phases or [[]]
