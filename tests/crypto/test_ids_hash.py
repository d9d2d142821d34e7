"""The hash of a set of queues, and the arithmetic of counts and hashes."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.ids_hash import NO_IDS, QueueSet, id_hash, ids_hash, xor

IDS = st.lists(st.binary(min_size=1, max_size=30), unique=True, max_size=30)


def recomputed(queue_ids: set[bytes]) -> bytes:
    """The definition, byte by byte."""
    total = [0] * 16
    for queue_id in queue_ids:
        digest = hashlib.md5(queue_id, usedforsecurity=False).digest()
        total = [one ^ other for one, other in zip(total, digest, strict=True)]
    return bytes(total)


@pytest.mark.claim("SVC-29")
def test_the_hash_of_known_sets() -> None:
    assert ids_hash([]) == bytes(16)
    assert ids_hash([b""]).hex() == "d41d8cd98f00b204e9800998ecf8427e"
    assert ids_hash([b"a"]).hex() == "0cc175b9c0f1b6a831c399e269772661"
    two = [bytes(range(24)), bytes(range(24, 48))]
    assert ids_hash(two).hex() == "3c63ed673327d6ebd6297beffa737b60"
    thousand = [number.to_bytes(4, "big") + bytes(20) for number in range(1000)]
    assert ids_hash(thousand).hex() == "bba74c83f186028f37b66337fb84401e"


@pytest.mark.claim("SVC-29")
@given(queue_ids=IDS, seed=st.integers())
@settings(deadline=None)
def test_the_order_does_not_matter(queue_ids: list[bytes], seed: int) -> None:
    shuffled = random.Random(seed).sample(queue_ids, len(queue_ids))
    assert ids_hash(shuffled) == ids_hash(queue_ids) == recomputed(set(queue_ids))
    assert len(ids_hash(queue_ids)) == 16


@pytest.mark.claim("SVC-29")
@given(steps=st.lists(st.integers(0, 12), max_size=60))
@settings(deadline=None)
def test_adding_and_removing_restores_the_former_value(steps: list[int]) -> None:
    """Each step adds a queue that is not in the set, or removes one that is."""
    members: set[bytes] = set()
    total = NO_IDS
    for step in steps:
        queue_id = bytes([step]) * 24
        members ^= {queue_id}
        before = total
        total = xor(total, id_hash(queue_id))
        assert total == recomputed(members)
        assert xor(total, id_hash(queue_id)) == before


@given(first=IDS, second=IDS)
@settings(deadline=None)
def test_sets_add_and_subtract(first: list[bytes], second: list[bytes]) -> None:
    others = [queue_id for queue_id in second if queue_id not in first]
    both = QueueSet.of(first) + QueueSet.of(others)
    assert both == QueueSet.of(first + others)
    assert both - QueueSet.of(others) == QueueSet.of(first)


def test_subtracting_everything_or_more_resets_the_hash() -> None:
    three = QueueSet(3, b"\x11" * 16)
    assert three - QueueSet(3, b"\x22" * 16) == QueueSet(0, bytes(16))
    assert three - QueueSet(4, b"\x11" * 16) == QueueSet(0, bytes(16))
    assert three - QueueSet(2, b"\x22" * 16) == QueueSet(1, b"\x33" * 16)


def test_a_hash_of_another_length_is_cut_to_the_shorter() -> None:
    assert xor(b"\x0f" * 16, b"\xff") == b"\xf0"
    assert xor(b"", b"\xff" * 16) == b""
    assert xor(b"\x00\x01", b"\x00\x03\x07") == b"\x00\x02"


def test_sets_print_without_their_hash() -> None:
    assert repr(QueueSet.of([b"a"])) == "QueueSet(count=1, ids_hash=<16 bytes>)"
