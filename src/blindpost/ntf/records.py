"""From values to rows and back: which columns are plain, which are sealed.

Plain is what the store must compare or count: random ids, statuses, public keys, times, and the digest of a
notifier id, from which triggers keep the hash of a service's queues.
"""

from __future__ import annotations

from typing import NamedTuple

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.ids_hash import QueueSet, id_hash
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.ntf.model import Carrier, Notification, Service, SmpRouter, Subscription, Token
from blindpost.ntf.ports import Notifier
from blindpost.ntf.sealing import Sealer
from blindpost.wire.addresses import Server, read_server, write_server
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.ntf.status import SubState, SubStatus, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, read_device_token, write_device_token
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.private_keys import EncodedPrivateKey


class TokenRow(NamedTuple):
    """A row of `tokens`."""

    token_id: bytes
    device: bytes
    """The blind name of provider and device."""
    verify_key: bytes
    status: str
    sealed: bytes
    code_at: int | None
    code_attempts: int
    period_minutes: int
    period_due: int | None
    period_sent: int | None
    updated_day: int
    plain_device: bytes
    """The blind name of the device in its plain spelling: all its tokens have the same."""


class SubscriptionRow(NamedTuple):
    """A row of `subscriptions`."""

    subscription_id: bytes
    token_id: bytes
    server: bytes
    notifier: bytes
    """The blind name of router and notifier id."""
    id_hash: bytes
    sealed: bytes
    state: str
    error: bytes | None
    associated: bool


class NotificationRow(NamedTuple):
    """A row of `notifications`; the metadata is encrypted for the device."""

    subscription_id: bytes
    token_id: bytes
    number: int
    seconds: int
    nonce: bytes
    encrypted_meta: bytes
    waiting: bool
    provider: str
    """The name of its carrier."""


class RouterRow(NamedTuple):
    """A row of `smp_servers`, apart from what triggers maintain."""

    server: bytes
    """The blind name."""
    sealed: bytes
    service_id: bytes | None
    sealed_service: bytes | None


class Records:
    """Rows for one store."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def device_name(self, device: DeviceToken) -> bytes:
        return self._sealer.blind(b"device", encode(device, write_device_token))

    def rival_names(self, device: DeviceToken) -> list[bytes]:
        """What to look for in `plain_device`; rows from before there was one have the device as given."""
        return [self.device_name(device.plain), self.device_name(device)]

    def server_name(self, server: Server) -> bytes:
        return self._sealer.blind(b"server", encode(server, write_server))

    def notifier_name(self, server: Server, notifier_id: bytes) -> bytes:
        return self._sealer.blind(b"notifier", encode(server, write_server) + notifier_id)

    def token_row(self, token: Token) -> TokenRow:
        writer = Writer()
        write_device_token(writer, token.device)
        writer.short(token.dh_key.raw).short(token.secret.raw).short(token.code.raw)
        writer.short(token.key_name)
        return TokenRow(
            token.token_id,
            self.device_name(token.device),
            token.verify_key.spki,
            token.status.text,
            self._sealer.seal(token.token_id, writer.done()),
            token.code_at,
            token.code_attempts,
            token.period_minutes,
            token.period_due,
            token.period_sent,
            token.updated_day,
            self.device_name(token.device.plain),
        )

    def token(self, row: TokenRow) -> Token:
        reader = Reader(self._sealer.unseal(row.token_id, row.sealed))
        device = read_device_token(reader)
        dh_key = PrivateKey(Algorithm.X25519, reader.short())
        secret, code = Secret(reader.short()), Secret(reader.short())
        key_name = reader.short() if reader.remaining else b""  # rows from before keys were rotated
        return Token(
            row.token_id,
            device,
            TokenStatus.from_text(row.status),
            PublicKey.from_spki(row.verify_key),
            dh_key,
            secret,
            code,
            row.code_at,
            row.code_attempts,
            row.period_minutes,
            row.period_due,
            row.period_sent,
            row.updated_day,
            key_name,
        )

    def subscription_row(self, subscription: Subscription) -> SubscriptionRow:
        writer = Writer()
        write_server(writer, subscription.server)
        writer.short(subscription.notifier_id).short(subscription.notifier_key.pkcs8)
        return SubscriptionRow(
            subscription.subscription_id,
            subscription.token_id,
            self.server_name(subscription.server),
            self.notifier_name(subscription.server, subscription.notifier_id),
            id_hash(subscription.notifier_id),
            self._sealer.seal(subscription.subscription_id, writer.done()),
            subscription.status.state.value,
            subscription.status.error,
            subscription.is_associated,
        )

    def subscription(self, row: SubscriptionRow) -> Subscription:
        server, notifier = self._notifier(row.subscription_id, row.sealed)
        return Subscription(
            row.subscription_id,
            row.token_id,
            server,
            notifier.notifier_id,
            notifier.key,
            SubStatus(SubState(row.state), row.error),
            bool(row.associated),
        )

    def notifier(self, subscription_id: bytes, sealed: bytes) -> Notifier:
        """What the subscriber needs of a row."""
        return self._notifier(subscription_id, sealed)[1]

    def _notifier(self, subscription_id: bytes, sealed: bytes) -> tuple[Server, Notifier]:
        reader = Reader(self._sealer.unseal(subscription_id, sealed))
        server = read_server(reader)
        notifier_id = reader.short()
        return server, Notifier(subscription_id, notifier_id, EncodedPrivateKey.from_pkcs8(reader.short()))

    def notification_row(self, notification: Notification) -> NotificationRow:
        return NotificationRow(
            notification.subscription_id,
            notification.token_id,
            notification.number,
            notification.seconds,
            notification.nonce,
            notification.encrypted_meta,
            notification.is_waiting,
            notification.carrier.value,
        )

    def notification(self, row: NotificationRow) -> Notification:
        return Notification(*row[:6], Carrier(row.provider), is_waiting=bool(row.waiting))

    def router_row(self, router: SmpRouter) -> RouterRow:
        name = self.server_name(router.server)
        service = router.service
        sealed_service = None
        if service is not None:
            sealed_service = self._sealer.seal(name, encode(service.credentials, _write_credentials))
        return RouterRow(
            name,
            self._sealer.seal(name, encode(router.server, write_server)),
            None if service is None else service.service_id,
            sealed_service,
        )

    def router(self, row: RouterRow, members: QueueSet) -> SmpRouter:
        server = decode_whole(self._sealer.unseal(row.server, row.sealed), read_server)
        service = None
        if row.sealed_service is not None:
            content = self._sealer.unseal(row.server, row.sealed_service)
            service = Service(decode_whole(content, _read_credentials), row.service_id)
        return SmpRouter(server, service, members)


def _write_credentials(writer: Writer, credentials: Credentials) -> None:
    writer.list1(credentials.chain, lambda out, certificate: out.large(certificate))
    writer.short(credentials.key.pkcs8)


def _read_credentials(reader: Reader) -> Credentials:
    chain = reader.list1(lambda item: bytes(item.large()))
    return Credentials(chain, PrivateKey.from_pkcs8(reader.short()))
