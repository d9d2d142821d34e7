"""Whether a message follows the one before: five outcomes, reported and never a reason to refuse."""

from __future__ import annotations

import hmac

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode

AWAITED_MAX = 1024
"""A larger gap is reported at once."""


@dataclass(frozen=True, slots=True)
class MsgOk:
    """The next number, and the hash of the message before."""


@dataclass(frozen=True, slots=True)
class MsgBadId:
    """A number from the past."""

    msg_id: int


@dataclass(frozen=True, slots=True)
class MsgDuplicate:
    """The same number as the message before."""


@dataclass(frozen=True, slots=True)
class MsgSkipped:
    """Messages are missing, from the first of these numbers to the last."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MsgBadHash:
    """The next number, but another message before it than the one that came."""


Integrity = MsgOk | MsgBadId | MsgDuplicate | MsgSkipped | MsgBadHash


def check_integrity(last_id: int, last_hash: bytes, msg_id: int, prev_hash: bytes) -> Integrity:
    """How message `msg_id`, which names `prev_hash`, follows the last one."""
    if msg_id == last_id + 1:
        return MsgOk() if hmac.compare_digest(last_hash, prev_hash) else MsgBadHash()
    if msg_id < last_id:
        return MsgBadId(msg_id)
    if msg_id == last_id:
        return MsgDuplicate()
    return MsgSkipped(last_id + 1, msg_id - 1)


@dataclass(frozen=True, slots=True)
class Awaited:
    """Numbers that were passed over while two queues are read, and the hash of the message before them. They
    may still come through the other one."""

    first: int
    last: int
    prev_hash: bytes


@dataclass(frozen=True, slots=True)
class Placed:
    """A message in its place: what to tell of it, whether it is the last one now, what is still awaited."""

    integrity: Integrity
    is_last: bool
    awaited: Awaited | None


def placed(
    last_id: int,
    last_hash: bytes,
    awaited: Awaited | None,
    msg_id: int,
    prev_hash: bytes,
    msg_hash: bytes,
    *,
    two_queues: bool,
    new_ratchet: bool = False,
) -> Placed:
    """As `check_integrity`, also while a rotation is under way and messages come through two queues: a gap is
    one when nothing can close it any more. Before the first message of a new ratchet nothing is awaited: the
    peer's key took a number and does not tell it, and what it sent before cannot be read any more."""
    if awaited is not None and awaited.first <= msg_id <= awaited.last:
        found = check_integrity(awaited.first - 1, awaited.prev_hash, msg_id, prev_hash)
        left = Awaited(msg_id + 1, awaited.last, msg_hash) if msg_id < awaited.last else None
        return Placed(found, False, left)
    found = check_integrity(last_id, last_hash, msg_id, prev_hash)
    if two_queues:
        may_await = awaited is None and not new_ratchet
        if may_await and isinstance(found, MsgSkipped) and found.last - found.first < AWAITED_MAX:
            return Placed(MsgOk(), True, Awaited(found.first, found.last, last_hash))
        return Placed(found, True, awaited)
    if awaited is not None and isinstance(found, MsgOk):
        found = MsgSkipped(awaited.first, awaited.last)
    return Placed(found, True, None)


def dump_integrity(integrity: Integrity) -> bytes:
    return encode(integrity, _write)


def load_integrity(stored: bytes) -> Integrity:
    return decode_whole(stored, _read)


def _write(writer: Writer, integrity: Integrity) -> None:
    match integrity:
        case MsgOk():
            writer.raw(b"O")
        case MsgBadId(msg_id):
            writer.raw(b"I").i64(msg_id)
        case MsgDuplicate():
            writer.raw(b"D")
        case MsgSkipped(first, last):
            writer.raw(b"S").i64(first).i64(last)
        case MsgBadHash():
            writer.raw(b"H")


def _read(reader: Reader) -> Integrity:
    tag = reader.take(1)
    match tag:
        case b"O":
            return MsgOk()
        case b"I":
            return MsgBadId(reader.i64())
        case b"D":
            return MsgDuplicate()
        case b"S":
            return MsgSkipped(reader.i64(), reader.i64())
        case b"H":
            return MsgBadHash()
    raise WireError("a stored integrity outcome expected")
