"""The form in which applications may compress what they hand to the agent.

    compressed = '0' short(raw)  /  '1' large(zstd frame)

Nothing is decompressed here. What a frame claims to hold is read from its header, so that a reader can
refuse it before it spends memory on it: a frame that does not say how large its content is is refused.
"""

from __future__ import annotations

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.value import Buffer, Value

PLAIN_SIZE_MAX = 180
"""Writers compress anything longer."""

_ZSTD_MAGIC = bytes.fromhex("28b52ffd")


@dataclass(frozen=True, slots=True, repr=False)
class Plain(Value):
    """Bytes too few to be worth compressing."""

    data: bytes


@dataclass(frozen=True, slots=True, repr=False)
class ZstdFrame(Value):
    """One zstd frame that says how large its content is."""

    frame: Buffer
    content_size: int


def read_compressed(reader: Reader, content_max: int) -> Plain | ZstdFrame:
    """Either form; a frame whose content is larger than `content_max`, or of unknown size, is refused."""
    mark = reader.take(1)
    if mark == b"0":
        return Plain(reader.short())
    if mark != b"1":
        raise WireError("0 or 1 expected before a text that may be compressed")
    frame = reader.large()
    size = frame_content_size(frame)
    if size > content_max:
        raise WireError(f"a compressed text of at most {content_max} bytes expected, not {size}")
    return ZstdFrame(frame, size)


def write_compressed(writer: Writer, text: Plain | ZstdFrame) -> None:
    match text:
        case Plain(data):
            writer.raw(b"0").short(data)
        case ZstdFrame(frame, _):
            writer.raw(b"1").large(frame)


def frame_content_size(frame: Buffer) -> int:
    """The content size in the header of a zstd frame (RFC 8878, 3.1.1.1)."""
    reader = Reader(frame)
    reader.expect(_ZSTD_MAGIC)
    descriptor = reader.u8()
    single_segment = bool(descriptor & 0x20)
    if not single_segment:
        reader.u8()
    reader.take((0, 1, 2, 4)[descriptor & 0x03])
    size_flag = descriptor >> 6
    if size_flag == 0 and not single_segment:
        raise WireError("a zstd frame that tells the size of its content expected")
    size = int.from_bytes(reader.take((1, 2, 4, 8)[size_flag]), "little")
    return size + 256 if size_flag == 1 else size
