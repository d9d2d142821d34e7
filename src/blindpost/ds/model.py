"""Queues, entries and limits of the delivery service.

A queue is named by recipient key and channel id, two fields that never run into each other. Key packages
are queues too, of another kind. Payloads are numbered in their queue; a random tag tells a payload from
one that had the same number before the queue was empty, so that an acknowledgement can never remove
another payload than the one it was given for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from blindpost.wire.value import Value

KEY_SIZE = 32
PAYLOAD_BYTES_MAX = 5_242_880
KEY_PACKAGE_BYTES_MAX = 1_048_576
CHANNEL_ID_BYTES_MAX = 255
WIRE_VERSION = 1
DS_PORT = 7000
TAG_SIZE = 8
NUMBER_MAX = 2**63 - 1
"""The largest number that every store can look for; no queue comes so far."""
MESSAGE_BYTES_MAX = 8 << 20
"""The largest RPC message accepted: a payload over its own limit still gets an answer that says so."""
LARGE_BYTES = 1 << 20
"""A payload above this is large: it is written and read beside the turns, which only note that it exists."""

_DELIVERIES, _KEY_PACKAGES = b"D", b"K"


def delivery_queue(recipient_key: bytes, channel_id: bytes) -> bytes:
    """The name of a queue in the store; no name is the beginning of another one."""
    return b"".join((_DELIVERIES, recipient_key, bytes((len(channel_id),)), channel_id))


def package_queue(identity_key: bytes) -> bytes:
    return b"".join((_KEY_PACKAGES, identity_key, b"\0"))


def named(queue: bytes) -> tuple[bytes, bytes] | None:
    """Recipient key and channel id of a delivery queue; None for key packages."""
    if not queue.startswith(_DELIVERIES):
        return None
    return queue[1 : 1 + KEY_SIZE], queue[2 + KEY_SIZE :]


def is_of(queue: bytes, recipient_keys: Collection[bytes]) -> bool:
    """Whether it is a delivery queue of one of these recipients."""
    if not recipient_keys:
        return False
    found = named(queue)
    return found is not None and found[0] in recipient_keys


@dataclass(frozen=True, slots=True, repr=False)
class Ends(Value):
    """The next number of a queue, how many payloads it holds and how many bytes."""

    tail: int = 0
    count: int = 0
    size: int = 0


EMPTY = Ends()


@dataclass(frozen=True, slots=True, repr=False)
class Entry(Value):
    """A stored payload. `payload` is None where it was not loaded, and where it is large."""

    number: int
    tag: bytes
    size: int
    payload: bytes | None = None

    @property
    def is_large(self) -> bool:
        return self.size > LARGE_BYTES

    @property
    def id(self) -> bytes:
        """The id that an acknowledgement names."""
        return delivery_id(self.number, self.tag)


def delivery_id(number: int, tag: bytes) -> bytes:
    """The id by which an acknowledgement names a payload."""
    return number.to_bytes(8, "big") + tag


def number_and_tag(given: bytes) -> tuple[int, bytes] | None:
    """Number and tag in a delivery id; None if it is not one."""
    number = int.from_bytes(given[:8], "big")
    if len(given) != 8 + TAG_SIZE or number > NUMBER_MAX:
        return None
    return number, given[8:]


@dataclass(frozen=True, slots=True)
class DsRules:
    """Every bound, with its default."""

    queue_payloads: int = 100_000
    queue_bytes: int = 1 << 30
    total_payloads: int = 100_000_000
    total_bytes: int = 64 << 30
    key_packages: int = 200
    """For each identity."""
    sender_payloads: int = 1_000_000
    sender_bytes: int = 16 << 30
    taken_packages: int = 1_000
    taken_packages_of_one: int = 20
    """What one identity may send, and take of the key packages of others and of one other, in an hour."""
    response_bytes: int = 8 << 20
    response_payloads: int = 4096
    wait_s_max: float = 120.0
    waits_per_connection: int = 64
    waits_per_queue: int = 1_024
    """Each of them looks when something arrives."""
    waits: int = 100_000
    hold_s: float = 30.0
    """How long a fetched but unfinished payload is kept from other connections."""
    lease_s: float = 60.0
    lease_s_max: float = 600.0
    turn_bytes: int = 4 << 20
    """How many bytes of payloads one turn of the engine reads, large ones not counted."""
