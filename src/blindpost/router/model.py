"""What the router keeps about queues and messages, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.secret import Secret
from blindpost.wire.keys import PublicKey
from blindpost.wire.smp.errors import BLOCKED
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.value import Buffer, Value, shown

ID_SIZE = 24
NO_QUEUES = QueueSet()
DAY_S = 86_400
OWNERS_MAX = 16
"""How many keys RKEY may set: each command may be signed by any of them."""


class Status(Enum):
    """Whether a queue accepts messages. A blocked queue has a `BLOCKED` instead."""

    ACTIVE = "active"
    OFF = "off"


@dataclass(frozen=True, slots=True, repr=False)
class Notifier(Value):
    """Who may be notified about a queue, and with which secret the metadata is encrypted."""

    notifier_id: bytes
    key: PublicKey
    secret: Secret
    router_dh_key: PublicKey | None
    """As in the record of its queue."""
    service_id: bytes | None = None


class QueueRecord(NamedTuple):
    """Everything about a queue except its messages and its link data."""

    recipient_id: bytes
    sender_id: bytes
    recipient_keys: tuple[PublicKey, ...]
    recipient_dh_key: bytes | None
    secret: Secret
    """Encrypts messages to the recipient."""
    router_dh_key: bytes | None
    """X25519 keys, raw because they are rarely needed. Both are kept so that a repeated NEW gets the same
    answer as the first; queues that came from a router which did not keep them have none."""
    mode: QueueMode | None
    sender_key: PublicKey | None = None
    link_id: bytes | None = None
    notifier: Notifier | None = None
    status: Status | BLOCKED = Status.ACTIVE
    updated_day: int = 0
    service_id: bytes | None = None

    def __repr__(self) -> str:
        return shown(self)


class Ends(NamedTuple):
    """Which messages a queue holds: numbers `head` to `tail - 1`. Numbers are never used twice."""

    head: int = 0
    tail: int = 0
    can_write: bool = True

    @property
    def size(self) -> int:
        return self.tail - self.head

    def __repr__(self) -> str:
        return shown(self)


EMPTY = Ends()


class StoredMessage(NamedTuple):
    """A message in its queue, or the marker that says the queue was full (`body` is None)."""

    msg_id: bytes
    seconds: int
    notify: bool
    body: Buffer | None

    @property
    def is_marker(self) -> bool:
        return self.body is None

    def __repr__(self) -> str:
        return shown(self)


@dataclass(frozen=True, slots=True, repr=False)
class Notification(Value):
    """That a message came, encrypted for the recipient and waiting for the notifier."""

    notifier_id: bytes
    number: int
    """Of the message in its queue."""
    seconds: int
    nonce: bytes
    enc_meta: bytes


class Domain(Enum):
    """Messages are subscribed by recipient ids, notifications by notifier ids."""

    __hash__ = object.__hash__  # members are single objects, and the enum's own hash is a call of Python

    MESSAGES = b"M"
    NOTIFICATIONS = b"N"


@dataclass(frozen=True, slots=True, repr=False)
class ServiceRecord(Value):
    """A service, known by its certificate, and the queues that belong to it, as count and hash."""

    service_id: bytes
    role: ServiceRole
    fingerprint: bytes
    chain: tuple[bytes, ...]
    created_day: int
    queues: QueueSet = NO_QUEUES
    notifiers: QueueSet = NO_QUEUES

    def members(self, domain: Domain) -> QueueSet:
        return self.queues if domain is Domain.MESSAGES else self.notifiers

    @property
    def is_empty(self) -> bool:
        """Whether no queue belongs to it."""
        return not self.queues.count and not self.notifiers.count


class Party(Enum):
    """By whose id a command names its queue."""

    RECIPIENT = "recipient"
    SENDER = "sender"
    NOTIFIER = "notifier"
    LINK = "link"


def day_of(seconds: float) -> int:
    """The start of the UTC day, in Unix seconds."""
    return int(seconds) // DAY_S * DAY_S
