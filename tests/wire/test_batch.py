"""Batches: the fewest payloads, in order, and what does not fit never blocks what does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.wire.batch import (
    BATCH_COUNT_MAX,
    NTF_BATCH_LIMIT,
    NTF_BLOCK_SIZE,
    SMP_BATCH_LIMIT,
    SMP_BLOCK_SIZE,
    batch_limit,
    batch_of_one,
    pack,
    padded,
    unpack,
)
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader, Writer
from tests.support.wire.blocks import payload_reader
from tests.support.wire.hostile import calls_made, changed_everywhere, memory_peak, truncated_everywhere


def item(content: bytes) -> Writer:
    """A transmission in several parts, as writers leave it."""
    half = len(content) // 2
    return Writer().raw(content[:half]).raw(memoryview(content)[half:])


def contents(payload: bytes) -> list[bytes]:
    return [bytes(reader.rest()) for reader in unpack(Reader(payload))]


def fewest(sizes: list[int], limit: int) -> int:
    """The smallest number of payloads, found by trying all splits."""
    best = [0]
    for end in range(1, len(sizes) + 1):
        choices = []
        used = 0
        for start in range(end - 1, max(-1, end - 1 - BATCH_COUNT_MAX), -1):
            used += 2 + sizes[start]
            if used > limit:
                break
            choices.append(best[start] + 1)
        best.append(min(choices))
    return best[-1]


def test_limits() -> None:
    assert (SMP_BATCH_LIMIT, NTF_BATCH_LIMIT) == (16365, 493)
    assert (batch_limit(SMP_BLOCK_SIZE), batch_limit(NTF_BLOCK_SIZE)) == (16365, 493)


@settings(max_examples=150)
@given(st.lists(st.integers(0, 70), max_size=40), st.integers(20, 120))
def test_fewest_payloads_in_order(sizes: list[int], limit: int) -> None:
    sent = [bytes((place,)) * size for place, size in enumerate(sizes)]
    packed = pack([item(content) for content in sent], limit)
    assert list(packed.oversize) == [place for place, size in enumerate(sizes) if 2 + size > limit]
    fitting = [content for content in sent if 2 + len(content) <= limit]
    batches = [contents(payload.done()) for payload in packed.payloads]
    assert [content for batch in batches for content in batch] == fitting
    for payload, batch in zip(packed.payloads, batches, strict=True):
        assert payload.size == len(payload.done()) <= 1 + limit
        assert len(batch) <= BATCH_COUNT_MAX
    assert len(batches) == (fewest([len(content) for content in fitting], limit) if fitting else 0)


def test_the_short_payload_comes_first() -> None:
    packed = pack([item(b"x" * 100)] * 10, 408)
    assert [len(contents(payload.done())) for payload in packed.payloads] == [2, 4, 4]


def test_at_most_255_in_a_block() -> None:
    packed = pack([item(b"")] * 600, SMP_BATCH_LIMIT)
    assert [payload.done()[0] for payload in packed.payloads] == [90, 255, 255]


def test_the_largest_transmission_fits_and_one_byte_more_does_not() -> None:
    small, largest, larger = item(b"small"), item(bytes(16363)), item(bytes(16364))
    packed = pack([small, larger, largest, larger, small], SMP_BATCH_LIMIT)
    assert packed.oversize == (1, 3)
    assert [[len(content) for content in contents(payload.done())] for payload in packed.payloads] == [
        [5],
        [16363],
        [5],
    ]


def test_nothing_to_pack() -> None:
    packed = pack([], SMP_BATCH_LIMIT)
    assert packed.payloads == ()
    assert packed.oversize == ()


def test_a_batch_of_one_may_be_larger_than_a_shared_one() -> None:
    payload = batch_of_one(item(bytes(16379)))
    block = padded(payload, SMP_BLOCK_SIZE)
    assert len(block) == SMP_BLOCK_SIZE
    assert contents(bytes(payload_reader(block).rest())) == [bytes(16379)]
    with pytest.raises(WireError):
        padded(batch_of_one(item(bytes(16380))), SMP_BLOCK_SIZE)
    with pytest.raises(WireError):
        batch_of_one(item(bytes(65536)))


def test_readers_are_views_of_the_block() -> None:
    payload = pack([item(b"first"), item(b"second")], 100).payloads[0]
    block = padded(payload, 64)
    views = [reader.rest() for reader in unpack(payload_reader(block))]
    assert views == [b"first", b"second"]
    assert all(view.obj is block for view in views)


@pytest.mark.parametrize(
    "payload", [b"", b"\0", b"\x01", b"\x01\0", b"\x01\0\x02x", b"\x02\0\x01x", b"\x01\0\x01xy", b"\0x"]
)
def test_bad_batches(payload: bytes) -> None:
    with pytest.raises(WireError):
        unpack(Reader(payload))


@pytest.mark.parametrize("block", [b"", b"\0", b"\0\x01", b"\xff\xff" + bytes(100)])
def test_bad_padding(block: bytes) -> None:
    with pytest.raises(WireError):
        payload_reader(block)


def test_padding_content_is_ignored() -> None:
    assert bytes(payload_reader(b"\0\x02hi!?").rest()) == b"hi"


def test_hostile_batches() -> None:
    (payload,) = pack([item(b"one"), item(b""), item(b"three")], 100).payloads
    assert truncated_everywhere(lambda data: unpack(Reader(data)), payload.done()) == 0
    changed_everywhere(lambda data: unpack(Reader(data)), payload.done(), "batch")


def test_cost_is_bounded() -> None:
    sizes = (1000, 4000, 16000)
    worst = [b"\xff" + bytes(size) for size in sizes]
    calls = [calls_made(lambda data: unpack(Reader(data)), data) for data in worst]
    assert all(later <= earlier + 20 for earlier, later in pairwise(calls))
    assert memory_peak(lambda data: unpack(Reader(data)), worst[-1]) < 60_000
