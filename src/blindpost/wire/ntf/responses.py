"""What a notification router answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blindpost.wire.keys import PublicKey, read_x25519, write_key
from blindpost.wire.ntf.commands import read_tag
from blindpost.wire.ntf.status import (
    SubStatus,
    TokenStatus,
    read_sub_status,
    read_token_status,
    write_sub_status,
    write_token_status,
)
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.error_codec import read_error, write_error
from blindpost.wire.smp.errors import UNKNOWN_COMMAND, RefusedError, SMPError
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class IDTKN(Value):
    """A token is registered; pushes to it are encrypted with a secret agreed through `dh_key`."""

    token_id: bytes
    dh_key: PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class IDSUB(Value):
    """A subscription exists."""

    subscription_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class OK(Value):
    """Done."""


@dataclass(frozen=True, slots=True, repr=False)
class ERR(Value):
    """Refused, in the words of SMP."""

    error: SMPError


@dataclass(frozen=True, slots=True, repr=False)
class TKN(Value):
    """The status of a token."""

    status: TokenStatus


@dataclass(frozen=True, slots=True, repr=False)
class SUB(Value):
    """The status of a subscription."""

    status: SubStatus


@dataclass(frozen=True, slots=True, repr=False)
class PONG(Value):
    """The connection is alive."""


Response = IDTKN | IDSUB | OK | ERR | TKN | SUB | PONG


def read_response(reader: Reader) -> Response:
    """A whole response, to the end of `reader`; an unknown tag raises `RefusedError`, which says so."""
    read = _READERS.get(read_tag(reader))
    if read is None:
        raise RefusedError(UNKNOWN_COMMAND)
    response = read(reader)
    reader.end()
    return response


def write_response(writer: Writer, response: Response, version: int) -> None:
    match response:
        case IDTKN(token_id, dh_key):
            writer.raw(b"IDTKN ").short(token_id)
            write_key(writer, dh_key)
        case IDSUB(subscription_id):
            writer.raw(b"IDSUB ").short(subscription_id)
        case OK():
            writer.raw(b"OK")
        case ERR(error):
            writer.raw(b"ERR ")
            write_error(writer, error)
        case TKN(status):
            writer.raw(b"TKN ")
            write_token_status(writer, status, version)
        case SUB(status):
            writer.raw(b"SUB ")
            write_sub_status(writer, status)
        case PONG():
            writer.raw(b"PONG")


def _read_idtkn(reader: Reader) -> IDTKN:
    reader.expect(b" ")
    return IDTKN(reader.short(), read_x25519(reader))


def _read_idsub(reader: Reader) -> IDSUB:
    reader.expect(b" ")
    return IDSUB(reader.short())


def _read_err(reader: Reader) -> ERR:
    reader.expect(b" ")
    return ERR(read_error(reader))


def _read_tkn(reader: Reader) -> TKN:
    reader.expect(b" ")
    return TKN(read_token_status(reader))


def _read_sub(reader: Reader) -> SUB:
    reader.expect(b" ")
    return SUB(read_sub_status(reader))


_READERS: dict[bytes, Callable[[Reader], Response]] = {
    b"IDTKN": _read_idtkn,
    b"IDSUB": _read_idsub,
    b"OK": lambda reader: OK(),
    b"ERR": _read_err,
    b"TKN": _read_tkn,
    b"SUB": _read_sub,
    b"PONG": lambda reader: PONG(),
}
