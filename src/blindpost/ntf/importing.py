"""The database of an ntf-server, read row by row into a new store, and read back to prove that it arrived.

What it holds per row: tokens with their keys and codes, message routers with our service's certificate there,
subscriptions, and the last notification of each. A row that cannot be understood is left out with what
depends on it, and counted; the old rows are never changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.engine.undo import Undo
from blindpost.ntf.model import (
    CODE_SIZE,
    ID_SIZE,
    Carrier,
    LedgerState,
    Notification,
    Service,
    SmpRouter,
    Subscription,
    Token,
    day_of,
)
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.view import Needed, View, Wanted
from blindpost.serving.failures import OperatorError
from blindpost.store import postgres
from blindpost.wire.addresses import Host, Server, write_server
from blindpost.wire.errors import WireError
from blindpost.wire.keys import PublicKey
from blindpost.wire.ntf.status import SubStatus, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.primitives import Reader, encode
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.text import unb64

OLD_SCHEMA = "ntf_server"
CHUNK = 1_000
SECRET_SIZE, NONCE_SIZE, KEY_HASH_SIZE = 32, 24, 32
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_VERIFIED = frozenset({TokenState.ACTIVE, TokenState.INVALID, TokenState.EXPIRED})

_ROUTERS = (
    "SELECT smp_server_id, smp_host, smp_port, smp_keyhash, ntf_service_id, ntf_service_cert, "
    "ntf_service_priv_key FROM smp_servers ORDER BY smp_server_id"
)
_TOKENS = (
    "SELECT token_id, push_provider, push_provider_token, status, verify_key, dh_priv_key, dh_secret, "
    "reg_code, cron_interval, cron_sent_at, updated_at FROM tokens "
    "WHERE token_id > $1 ORDER BY token_id LIMIT $2"
)
_SUBSCRIPTIONS = (
    "SELECT subscription_id, token_id, smp_server_id, smp_notifier_id, smp_notifier_key, status, "
    "ntf_service_assoc FROM subscriptions WHERE subscription_id > $1 ORDER BY subscription_id LIMIT $2"
)
_NOTIFICATIONS = (
    "SELECT n.subscription_id, n.token_id, extract(epoch FROM n.sent_at)::bigint AS seconds, n.nmsg_nonce, "
    "n.nmsg_data, t.push_provider FROM last_notifications n JOIN tokens t USING (token_id) "
    "WHERE n.subscription_id > $1 ORDER BY n.subscription_id LIMIT $2"
)


class Tally:
    """How many values there are, and a hash over them that does not depend on their order."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = 0

    def add(self, *parts: object) -> None:
        hashed = hashlib.sha256()
        for part in parts:
            data = part if isinstance(part, bytes) else repr(part).encode()
            hashed.update(len(data).to_bytes(8, "big") + data)
        self.count += 1
        self._hash ^= int.from_bytes(hashed.digest(), "big")

    @property
    def hex(self) -> str:
        return self._hash.to_bytes(32, "big").hex()


@dataclass(slots=True)
class Sums:
    """What one side holds."""

    tokens: Tally = field(default_factory=Tally)
    subscriptions: Tally = field(default_factory=Tally)
    notifications: Tally = field(default_factory=Tally)
    services: Tally = field(default_factory=Tally)

    def token(self, token: Token) -> None:
        self.tokens.add(
            *(token.token_id, token.device.provider.text, token.device.token, token.status.text),
            *(token.verify_key.spki, token.dh_key.raw, token.secret.raw, token.code.raw),
            *(token.period_minutes, token.period_sent, token.updated_day),
        )

    def subscription(self, one: Subscription) -> None:
        self.subscriptions.add(
            *(
                one.subscription_id,
                one.token_id,
                encode(one.server, write_server),
                one.notifier_id,
                one.notifier_key.pkcs8,
            ),
            *(one.status.encoded, one.is_associated),
        )

    def notification(self, one: Notification) -> None:
        self.notifications.add(one.subscription_id, one.token_id, one.seconds, one.nonce, one.encrypted_meta)

    def router(self, router: SmpRouter) -> None:
        if router.service is not None:
            service = router.service
            self.services.add(
                encode(router.server, write_server), service.service_id or b"", *service.credentials.chain
            )

    def values(self) -> dict[str, int | str]:
        tallies = {
            "tokens": self.tokens,
            "subscriptions": self.subscriptions,
            "notifications": self.notifications,
            "services": self.services,
        }
        found: dict[str, int | str] = {}
        for name, tally in tallies.items():
            found[name], found[f"{name} hash"] = tally.count, tally.hex
        return found


@dataclass(slots=True)
class Imported:
    """What was there, what is stored now, and what could not be understood."""

    source: Sums = field(default_factory=Sums)
    result: Sums = field(default_factory=Sums)
    left: Counter[str] = field(default_factory=Counter)

    @property
    def differing(self) -> list[str]:
        before, after = self.source.values(), self.result.values()
        return [name for name in before if before[name] != after[name]]


@contextlib.asynccontextmanager
async def old_database(dsn: str, schema: str = OLD_SCHEMA) -> AsyncIterator[postgres.Connection]:
    """One consistent, read-only view of the old server's tables."""
    if _SCHEMA_NAME.fullmatch(schema) is None:
        raise OperatorError("--schema: the name of a schema expected, such as ntf_server.")
    try:
        connection = await asyncpg.connect(
            dsn, timeout=postgres.CONNECT_S, server_settings={"search_path": f'"{schema}"'}
        )
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        raise OperatorError(f"the old database cannot be opened: {type(error).__name__}.") from None
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield connection
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise OperatorError(
            f"the schema {schema} of the old database is not that of an ntf-server of version 7. "
            "Start the old server once in its newest version: it brings its tables up to date."
        ) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise OperatorError(f"the old database cannot be read: {type(error).__name__}.") from error
    finally:
        connection.terminate()


async def import_rows(old: postgres.Connection, store: NtfStore, now: int) -> Imported:
    """Everything into an empty store, in commits of a chunk each; what is read back is compared."""
    done = Imported()
    routers = await _import_routers(old, store, done)
    tokens_left = await _import_tokens(old, store, done, now)
    async for rows in _chunks(old, _SUBSCRIPTIONS, "subscription_id"):
        view = View(Undo(), store.received)
        for row in rows:
            router = routers.get(row["smp_server_id"])
            found = None
            if router is not None and row["token_id"] not in tokens_left:
                found = _understood(_subscription, row, router)
            if found is None:
                done.left["subscriptions"] += 1
                continue
            view.add_subscription(found)
            done.source.subscription(found)
        await store.commit(view)
        fresh = View(Undo(), store.received)
        await store.load(Wanted(subscriptions={row["subscription_id"] for row in rows}), fresh)
        for one in _there(fresh.subscriptions.get(row["subscription_id"]) for row in rows):
            done.result.subscription(one)
    await _import_notifications(old, store, done)
    return done


async def _import_routers(old: Any, store: NtfStore, done: Imported) -> dict[int, SmpRouter]:
    found: dict[int, SmpRouter] = {}
    view = View(Undo(), store.received)
    for row in await old.fetch(_ROUTERS):
        router = _understood(_router, row)
        if router is None:
            done.left["message routers"] += 1
            continue
        found[row["smp_server_id"]] = router
        view.put_router(router)
        done.source.router(router)
    await store.commit(view)
    fresh = View(Undo(), store.received)
    await store.load(Wanted(routers={router.server for router in found.values()}), fresh)
    for router in _there(fresh.routers.get(router.server) for router in found.values()):
        done.result.router(router)
    return found


async def _import_tokens(old: Any, store: NtfStore, done: Imported, now: int) -> set[bytes]:
    left: set[bytes] = set()
    async for rows in _chunks(old, _TOKENS, "token_id"):
        view = View(Undo(), store.received)
        for row in rows:
            token = _understood(_token, row, now)
            if token is None:
                left.add(row["token_id"])
                done.left["tokens"] += 1
                continue
            view.put_token(token)
            done.source.token(token)
        await store.commit(view)
        fresh = View(Undo(), store.received)
        await store.load(Wanted(tokens={row["token_id"] for row in rows}), fresh)
        for token in _there(fresh.tokens.get(row["token_id"]) for row in rows):
            done.result.token(token)
    return left


async def _import_notifications(old: Any, store: NtfStore, done: Imported) -> None:
    """They were pushed before: the ledger has them as accepted, and later pushes carry them."""
    async for rows in _chunks(old, _NOTIFICATIONS, "subscription_id"):
        view = View(Undo(), store.received)
        ids = {row["subscription_id"] for row in rows}
        await store.load(Wanted(subscriptions=ids), view)
        for row in rows:
            is_there = view.subscriptions.get(row["subscription_id"]) is not None
            found = _understood(_notification, row, view.next_number()) if is_there else None
            if found is None:
                done.left["notifications"] += 1
                continue
            view.put_notification(found)
            view.enter(found.carrier, LedgerState.WAITING)
            view.enter(found.carrier, LedgerState.ACCEPTED)
            done.source.notification(found)
        await store.commit(view)
        fresh = View(Undo(), store.received)
        await store.load_needed(Needed(notifications={row["token_id"] for row in rows}), fresh)
        for one in _there(fresh.notifications.get(row["subscription_id"]) for row in rows):
            done.result.notification(one)


async def _chunks(old: Any, statement: str, key: str) -> AsyncIterator[list[Any]]:
    after = b""
    while rows := await old.fetch(statement, after, CHUNK):
        yield rows
        after = rows[-1][key]


def _understood(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except (WireError, ValueError):
        return None


def _there(found: Iterable[Any]) -> list[Any]:
    return [one for one in found if one is not None]


def _sized(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise WireError("a value of another size expected")
    return data


def _router(row: Any) -> SmpRouter:
    """Hosts are joined by commas; the fingerprint is its text, as newer versions write it, or its bytes."""
    key_hash = row["smp_keyhash"]
    if len(key_hash) != KEY_HASH_SIZE:
        key_hash = _sized(unb64(key_hash.decode("ascii")), KEY_HASH_SIZE)
    hosts = tuple(Host(host) for host in row["smp_host"].split(","))
    service = None
    if row["ntf_service_cert"] is not None and row["ntf_service_priv_key"] is not None:
        chain = Reader(row["ntf_service_cert"]).list1(lambda item: bytes(item.large()))
        credentials = Credentials(chain, PrivateKey.from_pkcs8(row["ntf_service_priv_key"]))
        service = Service(credentials, row["ntf_service_id"])
    return SmpRouter(Server(hosts, row["smp_port"], key_hash), service)


def _token(row: Any, now: int) -> Token:
    status = TokenStatus.from_text(row["status"])
    period, sent = row["cron_interval"], row["cron_sent_at"]
    updated = row["updated_at"]
    return Token(
        _sized(row["token_id"], ID_SIZE),
        DeviceToken(PushProvider.from_text(row["push_provider"]), row["push_provider_token"]),
        status,
        PublicKey.from_spki(row["verify_key"]),
        PrivateKey.from_pkcs8(row["dh_priv_key"]),
        Secret(_sized(row["dh_secret"], SECRET_SIZE)),
        Secret(_sized(row["reg_code"], CODE_SIZE)),
        None if status.state in _VERIFIED else now,
        period_minutes=period,
        period_due=(now if sent is None else sent) + 60 * period if period else None,
        period_sent=sent,
        updated_day=day_of(now if updated is None else updated),
    )


def _subscription(row: Any, router: SmpRouter) -> Subscription:
    return Subscription(
        _sized(row["subscription_id"], ID_SIZE),
        row["token_id"],
        router.server,
        row["smp_notifier_id"],
        EncodedPrivateKey.from_pkcs8(row["smp_notifier_key"]),
        SubStatus.from_encoded(row["status"].encode("latin-1")),
        row["ntf_service_assoc"] and router.service is not None,
    )


def _notification(row: Any, number: int) -> Notification:
    device = DeviceToken(PushProvider.from_text(row["push_provider"]), b"")
    return Notification(
        row["subscription_id"],
        row["token_id"],
        number,
        row["seconds"],
        _sized(row["nmsg_nonce"], NONCE_SIZE),
        row["nmsg_data"],
        Carrier.of(device),
        is_waiting=False,
    )
