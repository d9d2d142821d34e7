"""Padding to a fixed size: a two-byte length, the content, then `#` bytes that nobody checks."""

from __future__ import annotations

from blindpost.wire.errors import WireError
from blindpost.wire.value import Buffer

PAD_CONTENT_MAX = 65533


def pad(content: Buffer, size: int) -> bytes:
    """`content` padded to exactly `size` bytes."""
    count = len(content)
    if count > PAD_CONTENT_MAX or count + 2 > size:
        raise WireError(f"{count} bytes do not fit into {size} padded bytes")
    return b"".join((count.to_bytes(2, "big"), content, b"#" * (size - 2 - count)))


def pad_parts(parts: list[Buffer], count: int, size: int) -> bytes:
    """Like `pad`, for content split into `parts` of `count` bytes in total: one copy in all."""
    if count > PAD_CONTENT_MAX or count + 2 > size:
        raise WireError(f"{count} bytes do not fit into {size} padded bytes")
    return b"".join((count.to_bytes(2, "big"), *parts, b"#" * (size - 2 - count)))


def unpadded_size(padded: memoryview) -> int:
    """How many bytes of content follow the length field."""
    if len(padded) < 2:
        raise WireError("padded content expected, shorter than its length field")
    count = padded[0] << 8 | padded[1]
    if 2 + count > len(padded):
        raise WireError(f"{count} padded bytes announced, {len(padded) - 2} there")
    return count


def unpad(padded: Buffer) -> memoryview:
    """The content, as a view into `padded`."""
    view = memoryview(padded)
    return view[2 : 2 + unpadded_size(view)]
