"""Bodies of agent messages: one event, several, compressed or of a kind that is not read here.

body       = message / batch / compressed
message    = '{' ...                    one JSON object
batch      = '[' ...                    a JSON array of them
compressed = 'X' count 1*part           each part expands to a message or a batch
"""

from __future__ import annotations

from collections.abc import Sequence

from blindpost.chat.codec.compression import (
    EXPANDED_MAX,
    compressed_body,
    compressed_frame,
    expand,
    expanded_parts,
)
from blindpost.chat.codec.envelopes import read_message, write_message
from blindpost.chat.codec.events import Message
from blindpost.chat.codec.fields import Fields, Json, json_bytes, json_value
from blindpost.chat.codec.profiles import LinkProfile, read_link_profile, write_link_profile
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Buffer, Value

JSON_MAX = 15_602
JSON_MAX_PQ = 13_380
"""On a post-quantum connection anything longer must be compressed to fit."""
INFO_MAX = 14_694
INFO_MAX_PQ = 10_968
LINK_DATA_PLAIN_MAX = 10_240
COMPRESSION_VERSION = 8
BATCH_VERSION = 9
ITEMS_MAX = 256
"""So many messages of one body are read: a compressed one has room for a thousand, each to be answered."""

OBJECT, ARRAY, COMPRESSED = b"{", b"[", b"X"
KNOWN_STRANGERS = {b"=": "a binary batch", b"/": "a signed message", b">": "a forwarded one", b"F": "a file"}


@dataclass(frozen=True, slots=True, repr=False)
class Unread(Value):
    """A part of a body that is not ours to read: it is only acknowledged."""

    why: str


Item = Message | Unread


class TooLongError(WireError):
    """What is to be sent does not fit into one message, even compressed."""


def read_body(data: Buffer) -> tuple[Item, ...]:
    """What an agent's message says, or `WireError`."""
    mark = bytes(data[:1])
    if mark == COMPRESSED:
        items: list[Item] = []
        for part in expanded_parts(data[1:]):
            items += _read_plain(part)
        return _bounded(items)
    return _bounded(_read_plain(data))


def _bounded(items: Sequence[Item]) -> tuple[Item, ...]:
    if len(items) <= ITEMS_MAX:
        return tuple(items)
    return (*items[:ITEMS_MAX], Unread("more messages than are read from one body"))


def _read_plain(data: Buffer) -> tuple[Item, ...]:
    mark = bytes(data[:1])
    if mark == OBJECT:
        return (read_message(json_value(data)),)
    if mark == ARRAY:
        listed = json_value(data)
        assert isinstance(listed, list)
        return tuple(_read_one(one) for one in listed)
    if mark == COMPRESSED:
        raise WireError("a compressed text inside another is not read")
    if not mark:
        raise WireError("a body that is not empty expected")
    return (Unread(KNOWN_STRANGERS.get(mark, "a body of an unknown kind")),)


def _read_one(value: Json) -> Item:
    """One of several: an error in it must not lose the others."""
    try:
        return read_message(value)
    except WireError as error:
        return Unread(str(error))


def write_body(messages: Sequence[Message], *, pq: bool, version: int = COMPRESSION_VERSION) -> bytes:
    """The body of these messages for a contact of this version; `TooLongError` if they do not fit."""
    if not messages:
        raise WireError("at least one message expected")
    if len(messages) == 1:
        plain = json_bytes(write_message(messages[0]))
    elif version >= BATCH_VERSION:
        plain = json_bytes([write_message(message) for message in messages])
    else:
        raise WireError(f"one message at a time expected before version {BATCH_VERSION}")
    return _fitted(plain, JSON_MAX, JSON_MAX_PQ if pq else JSON_MAX, version)


def write_info(message: Message, *, pq: bool, version: int = COMPRESSION_VERSION) -> bytes:
    """What goes along with a handshake."""
    plain = json_bytes(write_message(message))
    return _fitted(plain, INFO_MAX, INFO_MAX_PQ if pq else INFO_MAX, version)


def _fitted(plain: bytes, plain_max: int, sent_max: int, version: int) -> bytes:
    if len(plain) <= sent_max:
        return plain
    if len(plain) > plain_max or version < COMPRESSION_VERSION:
        raise TooLongError(f"a message of at most {plain_max} bytes expected, not {len(plain)}")
    packed = compressed_body(plain)
    if len(packed) > sent_max:
        raise TooLongError(f"a message that can be compressed to {sent_max} bytes expected")
    return packed


def read_link_data(data: Buffer) -> LinkProfile:
    """What a short link shows, or `WireError`."""
    plain = expand(data[1:], EXPANDED_MAX) if bytes(data[:1]) == COMPRESSED else data
    return read_link_profile(Fields(json_value(plain)))


def write_link_data(link: LinkProfile) -> bytes:
    plain = json_bytes(write_link_profile(link))
    return plain if len(plain) <= LINK_DATA_PLAIN_MAX else COMPRESSED + compressed_frame(plain)
