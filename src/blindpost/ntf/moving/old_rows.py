"""The rows of an ntf-server's database, as values and back.

Hosts are joined by commas. A fingerprint is its text in base64url, a key is in PKCS #8 or SPKI, a secret
and a nonce are their bytes, a chain is a list of certificates with lengths of two bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.ntf.model import (
    CODE_SIZE,
    ID_SIZE,
    Carrier,
    Notification,
    Service,
    SmpRouter,
    Subscription,
    Token,
    day_of,
)
from blindpost.store import postgres
from blindpost.wire.addresses import Host, Server
from blindpost.wire.errors import WireError
from blindpost.wire.keys import PublicKey
from blindpost.wire.ntf.status import SubStatus, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.text import b64, unb64

CHUNK = 1_000
SECRET_SIZE, NONCE_SIZE, KEY_HASH_SIZE = 32, 24, 32
_VERIFIED = frozenset({TokenState.ACTIVE, TokenState.INVALID, TokenState.EXPIRED})

TOKEN_COLUMNS = (
    *("token_id", "push_provider", "push_provider_token", "status", "verify_key", "dh_priv_key", "dh_secret"),
    *("reg_code", "cron_interval", "cron_sent_at", "updated_at"),
)
SUBSCRIPTION_COLUMNS = (
    *("subscription_id", "token_id", "smp_server_id", "smp_notifier_id", "smp_notifier_key", "status"),
    "ntf_service_assoc",
)
NOTIFICATION_COLUMNS = ("token_id", "subscription_id", "sent_at", "nmsg_nonce", "nmsg_data")

ROUTERS = (
    "SELECT smp_server_id, smp_host, smp_port, smp_keyhash, ntf_service_id, ntf_service_cert, "
    "ntf_service_priv_key FROM smp_servers ORDER BY smp_server_id"
)
TOKENS = (
    "SELECT token_id, push_provider, push_provider_token, status, verify_key, dh_priv_key, dh_secret, "
    "reg_code, cron_interval, cron_sent_at, updated_at FROM tokens "
    "WHERE token_id > $1 ORDER BY token_id LIMIT $2"
)
SUBSCRIPTIONS = (
    "SELECT subscription_id, token_id, smp_server_id, smp_notifier_id, smp_notifier_key, status, "
    "ntf_service_assoc FROM subscriptions WHERE subscription_id > $1 ORDER BY subscription_id LIMIT $2"
)
NOTIFICATIONS = (
    "SELECT n.subscription_id, n.token_id, extract(epoch FROM n.sent_at)::bigint AS seconds, n.nmsg_nonce, "
    "n.nmsg_data, t.push_provider FROM last_notifications n JOIN tokens t USING (token_id) "
    "WHERE n.subscription_id > $1 ORDER BY n.subscription_id LIMIT $2"
)


async def chunks(old: postgres.Connection, statement: str) -> AsyncIterator[list[Any]]:
    """Rows in the order of the id that is their first column."""
    after = b""
    while rows := await old.fetch(statement, after, CHUNK):
        yield rows
        after = rows[-1][0]


# --- from rows


def router_of(row: Any) -> SmpRouter:
    """The fingerprint is its text, as newer versions write it, or its bytes."""
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


def token_of(row: Any, now: int) -> Token:
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


def subscription_of(row: Any, router: SmpRouter) -> Subscription:
    return Subscription(
        _sized(row["subscription_id"], ID_SIZE),
        row["token_id"],
        router.server,
        row["smp_notifier_id"],
        EncodedPrivateKey.from_pkcs8(row["smp_notifier_key"]),
        SubStatus.from_encoded(row["status"].encode("latin-1")),
        row["ntf_service_assoc"] and router.service is not None,
    )


def notification_of(row: Any, number: int = 0) -> Notification:
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


def _sized(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise WireError("a value of another size expected")
    return data


# --- to rows, in the order of the columns above


def router_row(router: SmpRouter) -> tuple[Any, ...]:
    server, service = router.server, router.service
    address = (",".join(host.text for host in server.hosts), server.port, b64(server.key_hash).encode())
    if service is None:
        return (*address, None, None, None, None)
    credentials = service.credentials
    chain = Writer()
    chain.list1(credentials.chain, lambda out, certificate: out.large(certificate))
    fingerprint = b64(credentials.fingerprint).encode()
    return (*address, service.service_id, chain.done(), fingerprint, credentials.key.pkcs8)


def token_row(token: Token) -> tuple[Any, ...]:
    return (
        *(token.token_id, token.device.provider.text, token.device.token, token.status.text),
        *(token.verify_key.spki, token.dh_key.pkcs8, token.secret.raw, token.code.raw),
        *(token.period_minutes, token.period_sent, token.updated_day),
    )


def as_told(one: Subscription) -> Subscription:
    """As a text column can hold it: the error of a message router may be any bytes."""
    if one.status.error is None:
        return one
    readable = bytes(byte if 32 <= byte < 127 else ord("?") for byte in one.status.error)
    return replace(one, status=SubStatus.failed(readable))


def subscription_row(one: Subscription, server_id: int) -> tuple[Any, ...]:
    status = one.status.encoded.decode("ascii")
    key = one.notifier_key.pkcs8
    return (
        *(one.subscription_id, one.token_id, server_id, one.notifier_id, key, status),
        one.is_associated,
    )


def notification_row(one: Notification) -> tuple[Any, ...]:
    sent = datetime.fromtimestamp(one.seconds, UTC)
    return one.token_id, one.subscription_id, sent, one.nonce, one.encrypted_meta
