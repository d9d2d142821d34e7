"""Compressed texts: both forms, and frames that are refused before anyone decompresses them."""

from __future__ import annotations

from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.agent.compressed import (
    PLAIN_SIZE_MAX,
    Plain,
    ZstdFrame,
    frame_content_size,
    read_compressed,
    write_compressed,
)
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import decode_whole, encode
from tests.support.wire.hostile import changed_everywhere, truncated_everywhere
from tests.support.wire.vectors import named, vectors

MAGIC = bytes.fromhex("28b52ffd")
HELLO = MAGIC + bytes([0x20, 5, 0x29, 0, 0]) + b"hello"
"""A frame by hand: single segment, content size 5, one last raw block."""


def read(data: bytes) -> Plain | ZstdFrame:
    return decode_whole(data, lambda reader: read_compressed(reader, 1000))


@pytest.mark.parametrize("vector", vectors("agent_messages.json", "Compressed"), ids=named)
def test_frames_of_the_reference_are_read_and_kept_unchanged(vector: dict[str, Any]) -> None:
    data, text = bytes.fromhex(vector["bytes"]), bytes.fromhex(vector["input"])
    found = read(data)
    if len(text) <= PLAIN_SIZE_MAX:
        assert found == Plain(text)
    else:
        assert isinstance(found, ZstdFrame)
        assert found.content_size == len(text)
        assert zstandard.ZstdDecompressor().decompress(found.frame) == text
    assert encode(found, write_compressed) == data


def test_a_frame_is_kept_unchanged() -> None:
    data = b"1" + len(HELLO).to_bytes(2, "big") + HELLO
    assert read(data) == ZstdFrame(HELLO, 5)
    assert encode(read(data), write_compressed) == data


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ("20fa", 250),
        ("60e803", 1000 + 256),
        ("a0e8030000", 1000),
        ("e0e803000000000000", 1000),
        ("4050e803", 1000 + 256),
        ("4150aae803", 1000 + 256),
        ("4250aabbe803", 1000 + 256),
        ("4350aabbccdde803", 1000 + 256),
    ],
)
def test_the_content_size_is_read_in_every_width_after_any_dictionary_id(header: str, size: int) -> None:
    assert frame_content_size(MAGIC + bytes.fromhex(header)) == size


def test_content_of_unknown_size_is_refused() -> None:
    with pytest.raises(WireError, match="tells the size"):
        frame_content_size(MAGIC + bytes([0x00, 0x50]))


def test_content_that_is_too_large_is_refused() -> None:
    frame = MAGIC + bytes.fromhex("a0e9030000")
    data = b"1" + len(frame).to_bytes(2, "big") + frame
    with pytest.raises(WireError, match="at most 1000 bytes expected, not 1001"):
        read(data)
    assert decode_whole(data, lambda reader: read_compressed(reader, 1001)) == ZstdFrame(frame, 1001)


@pytest.mark.parametrize("data", [b"", b"2", b"1\0\4abcd", b"0\5hell", b"0\5hello!"])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        read(data)


@given(st.binary(max_size=255))
def test_plain_texts_round_trip(data: bytes) -> None:
    assert read(encode(Plain(data), write_compressed)) == Plain(data)


def test_hostile_bytes_are_a_value_or_the_one_error() -> None:
    data = b"1" + len(HELLO).to_bytes(2, "big") + HELLO
    assert truncated_everywhere(read, data) == 0
    changed_everywhere(read, data, "compressed")
