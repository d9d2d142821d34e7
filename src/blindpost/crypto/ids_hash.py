"""What a service and its router compare instead of a list of queues: a count and an XOR of MD5 digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

IDS_HASH_SIZE = 16
NO_IDS = bytes(IDS_HASH_SIZE)


def id_hash(queue_id: bytes) -> bytes:
    """The share of one queue in the hash of its set."""
    return hashlib.md5(queue_id, usedforsecurity=False).digest()


def xor(first: bytes, second: bytes) -> bytes:
    """XOR of two hashes, cut to the shorter one: a peer's hash may have any length on the wire."""
    size = min(len(first), len(second))
    number = int.from_bytes(first[:size], "big") ^ int.from_bytes(second[:size], "big")
    return number.to_bytes(size, "big")


def ids_hash(queue_ids: Iterable[bytes]) -> bytes:
    """The hash of a set of queues; their order does not matter."""
    number = 0
    for queue_id in queue_ids:
        number ^= int.from_bytes(id_hash(queue_id), "big")
    return number.to_bytes(IDS_HASH_SIZE, "big")


@dataclass(frozen=True, slots=True, repr=False)
class QueueSet(Value):
    """How many queues a set has, and their hash."""

    count: int = 0
    ids_hash: bytes = NO_IDS

    @classmethod
    def of(cls, queue_ids: Iterable[bytes]) -> QueueSet:
        """The set of these queues, each named once."""
        listed = tuple(queue_ids)
        return cls(len(listed), ids_hash(listed))

    def __add__(self, other: QueueSet) -> QueueSet:
        return QueueSet(self.count + other.count, xor(self.ids_hash, other.ids_hash))

    def __sub__(self, other: QueueSet) -> QueueSet:
        """What is left; taking away as many queues as there are, or more, leaves the empty set.

        It does so even where the hashes disagree: that is how both sides forget a drift.
        """
        if self.count > other.count:
            return QueueSet(self.count - other.count, xor(self.ids_hash, other.ids_hash))
        return QueueSet()


def sender_id_of(corr_id: bytes) -> bytes:
    """The sender id of a queue whose creator must know it beforehand, derived from the correlation id."""
    return hashlib.sha3_384(corr_id).digest()[:24]
