"""Compression of bodies, both ways, within bounds: what a frame claims is checked before it is expanded."""

from __future__ import annotations

import zstandard

from blindpost.wire.agent.compressed import (
    PLAIN_SIZE_MAX,
    Plain,
    ZstdFrame,
    frame_content_size,
    read_compressed,
    write_compressed,
)
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader, Writer, encode
from blindpost.wire.value import Buffer

EXPANDED_MAX = 65_536
"""All parts of a body together, in bytes."""
LEVEL = 3


def expand(frame: Buffer, most: int) -> bytes:
    """The content of one zstd frame that states its size; `WireError` for anything else."""
    size = frame_content_size(frame)
    if size > most:
        raise WireError(f"a compressed text of at most {most} bytes expected, not {size}")
    try:
        plain = zstandard.ZstdDecompressor().decompress(
            bytes(frame), max_output_size=size, allow_extra_data=False
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise WireError("a zstd frame expected") from error
    if len(plain) != size:
        raise WireError("a zstd frame with the content that it promises expected")
    return plain


def expanded_parts(data: Buffer) -> list[bytes]:
    """The parts of a compressed body, which follow its first byte."""
    reader, left, found = Reader(data), EXPANDED_MAX, []
    count = reader.u8()
    if count == 0:
        raise WireError("at least one compressed part expected")
    for _ in range(count):
        part = read_compressed(reader, left)
        plain = part.data if isinstance(part, Plain) else expand(part.frame, left)
        left -= len(plain)
        if left < 0:
            raise WireError(f"compressed parts of at most {EXPANDED_MAX} bytes expected")
        found.append(plain)
    reader.end()
    return found


def compressed_frame(plain: bytes) -> bytes:
    """A zstd frame that states the size of its content."""
    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(plain)


def compressed_body(plain: bytes) -> bytes:
    """A body of one part."""
    part = Plain(plain) if len(plain) <= PLAIN_SIZE_MAX else ZstdFrame(compressed_frame(plain), len(plain))
    return encode(part, _write_one)


def _write_one(writer: Writer, part: Plain | ZstdFrame) -> None:
    writer.raw(b"X").u8(1)
    write_compressed(writer, part)
