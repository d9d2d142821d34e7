"""What the notification router keeps: tokens, message routers, subscriptions, notifications; its rules."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.wire.addresses import Server
from blindpost.wire.keys import PublicKey
from blindpost.wire.ntf.pushes import APPLE_PADDED_SIZE, PUSH_ITEMS_MAX
from blindpost.wire.ntf.status import SubState, SubStatus, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.value import Value

ID_SIZE = 24
CODE_SIZE = 32
DAY_S = 86_400
NO_QUEUES = QueueSet()

REGISTERED = TokenStatus(TokenState.REGISTERED)
NEW = SubStatus(SubState.NEW)


@dataclass(frozen=True, slots=True, repr=False)
class Token(Value):
    """A device that registered, by the key with which it authorizes its commands."""

    token_id: bytes
    device: DeviceToken
    status: TokenStatus
    verify_key: PublicKey
    dh_key: PrivateKey
    """The router's private half; the public key is in IDTKN."""
    secret: Secret
    """Encrypts pushes to the device."""
    code: Secret
    code_at: int | None
    """When the code was made; None once it has come back."""
    code_attempts: int = 0
    """How many wrong codes were offered."""
    period_minutes: int = 0
    """Of background notifications; 0 for none."""
    period_due: int | None = None
    """When the next of them is due."""
    period_sent: int | None = None
    updated_day: int = 0
    key_name: bytes = b""
    """The name of our key that a Web Push device is subscribed to; empty if older than any rotation."""

    @property
    def was_verified(self) -> bool:
        """Whether its device showed the code that was pushed to it."""
        return self.code_at is None


@dataclass(frozen=True, slots=True, repr=False)
class Service(Value):
    """The certificate by which one message router knows us; it assigns the id when it first sees it."""

    credentials: Credentials
    service_id: bytes | None = None


@dataclass(frozen=True, slots=True, repr=False)
class SmpRouter(Value):
    """A message router, and the queues associated with our service there, as count and hash."""

    server: Server
    service: Service | None = None
    members: QueueSet = NO_QUEUES


@dataclass(frozen=True, slots=True, repr=False)
class Subscription(Value):
    """A token's subscription to the notifications of one queue."""

    subscription_id: bytes
    token_id: bytes
    server: Server
    notifier_id: bytes
    notifier_key: EncodedPrivateKey
    status: SubStatus = NEW
    is_associated: bool = False
    """Whether NSUBS subscribes it together with the others of our service."""


class Carrier(Enum):
    """The kind of push provider of a notification, as ledger, journal and metrics distinguish them."""

    APPLE = "apns"
    WEB = "webpush"
    TEST = "test"
    """The null provider: a device tests the router, and nothing is pushed."""
    NONE = "none"
    """It was for no device of ours."""

    @classmethod
    def of(cls, device: DeviceToken) -> Carrier:
        return _CARRIERS.get(device.provider, cls.APPLE)


STORED_CARRIERS = (Carrier.APPLE, Carrier.WEB, Carrier.TEST)
"""Those in the ledger: without a device nothing is stored."""
_CARRIERS = {PushProvider.WEB_PUSH: Carrier.WEB, PushProvider.APNS_NULL: Carrier.TEST}


@dataclass(frozen=True, slots=True, repr=False)
class Notification(Value):
    """The newest notification of a subscription. `number` distinguishes it from its predecessors.

    It is kept after its push: later pushes carry it too.
    """

    subscription_id: bytes
    token_id: bytes
    number: int
    seconds: int
    nonce: bytes
    encrypted_meta: bytes
    carrier: Carrier
    """That of its device on arrival; it ends under the same."""
    is_waiting: bool = True
    """No terminal state yet."""

    @property
    def name(self) -> bytes:
        """Identifies it among all notifications."""
        return self.subscription_id + self.number.to_bytes(8, "big")


class LedgerState(Enum):
    """Where a notification is. Exactly one terminal state is its end."""

    WAITING = "waiting"
    """Stored; a push is due, under way or to be repeated."""
    ACCEPTED = "accepted"
    """The provider accepted a push that carried it."""
    SUPERSEDED = "superseded"
    """A newer one of the same queue replaced it before the provider had accepted it."""
    REJECTED = "rejected"
    """The provider refused the push, or the token."""
    EXPIRED = "expired"
    """It waited longer than the rules allow."""
    DROPPED = "dropped"
    """By policy: token or subscription deleted, or more queues than a push may name."""

    @property
    def is_terminal(self) -> bool:
        return self is not LedgerState.WAITING


class PushKind(Enum):
    """What a push is for."""

    VERIFICATION = "verification"
    MESSAGE = "message"
    CHECK = "check"


@dataclass(frozen=True, slots=True)
class NtfRules:
    """Every bound, with its default."""

    test_provider: bool = False
    """Whether tokens of the test provider (`AT`) are accepted."""
    web_push: bool = False
    """Whether Web Push devices are accepted."""
    web_key: bytes = b""
    """The name of the key that new ones are subscribed to."""
    padded_size: int = APPLE_PADDED_SIZE
    """The size that the content of a push is padded to before encryption."""
    push_items: int = PUSH_ITEMS_MAX
    code_attempts: int = 5
    code_ttl_s: int = DAY_S
    unverified_ttl_s: int = 2 * DAY_S
    """A token that was never verified is deleted after this time."""
    device_code_pushes: int = 10
    address_code_pushes: int = 200
    service_code_pushes: int = 5000
    code_push_window_s: int = 3600
    """How many codes are pushed to one device, for one address, and to one Web Push service, in this time."""
    token_routers: int = 100
    token_queues: int = 10_000
    token_window_s: int = 3600
    """How many new message routers, and how many queues, one token may name in this time: each makes us
    connect out."""
    token_subscriptions: int = 20_000
    """How many queues one token may have, however slowly it named them."""
    notification_ttl_s: int = 2 * DAY_S
    retry_first_s: float = 2.0
    retry_max_s: float = 600.0
    """Pauses before a push is repeated: they grow from the first to the last."""
    push_attempts: int = 6
    """Of codes and checks; a notification is tried again until it is too old."""
    push_queue: int = 32_768
    """How many pushes may be under way or wait in memory; the rest wait in the store."""
    period_step_s: float = 30.0
    """How often to check which periodic notifications are due, and what else has expired."""


def day_of(seconds: float) -> int:
    """The start of the UTC day, in Unix seconds: no stored time about a token is finer."""
    return int(seconds) // DAY_S * DAY_S
