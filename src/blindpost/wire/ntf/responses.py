"""What a notification router answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_x25519, write_key
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
from blindpost.wire.smp.errors import SMPError
from blindpost.wire.smp.tagged import Bare, read_tagged
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class IDTKN(Value):
    """A token is registered; pushes to it are encrypted with a secret agreed through `dh_key`."""

    TAG: ClassVar[bytes] = b"IDTKN"
    token_id: bytes
    dh_key: PublicKey

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"IDTKN ").short(self.token_id)
        write_key(writer, self.dh_key)


@dataclass(frozen=True, slots=True, repr=False)
class IDSUB(Value):
    """A subscription exists."""

    TAG: ClassVar[bytes] = b"IDSUB"
    subscription_id: bytes

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"IDSUB ").short(self.subscription_id)


class OK(Bare):
    """Done."""

    __slots__ = ()
    TAG = b"OK"


@dataclass(frozen=True, slots=True, repr=False)
class ERR(Value):
    """Refused, in the words of SMP."""

    TAG: ClassVar[bytes] = b"ERR"
    error: SMPError

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"ERR ")
        write_error(writer, self.error)


@dataclass(frozen=True, slots=True, repr=False)
class TKN(Value):
    """The status of a token; versions below 3 are not told why it is invalid."""

    TAG: ClassVar[bytes] = b"TKN"
    status: TokenStatus

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"TKN ")
        write_token_status(writer, self.status, version)


@dataclass(frozen=True, slots=True, repr=False)
class SUB(Value):
    """The status of a subscription."""

    TAG: ClassVar[bytes] = b"SUB"
    status: SubStatus

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"SUB ")
        write_sub_status(writer, self.status)


class PONG(Bare):
    """The router is there."""

    __slots__ = ()
    TAG = b"PONG"


Response: TypeAlias = IDTKN | IDSUB | OK | ERR | TKN | SUB | PONG


def read_response(reader: Reader, version: int) -> Response:
    """A whole response, or `RefusedError` with what is wrong with it."""
    return read_tagged(reader, version, _READERS)


def _read_idtkn(reader: Reader, version: int) -> IDTKN:
    reader.expect(b" ")
    return IDTKN(reader.short(), read_x25519(reader))


def _read_idsub(reader: Reader, version: int) -> IDSUB:
    reader.expect(b" ")
    return IDSUB(reader.short())


def _read_err(reader: Reader, version: int) -> ERR:
    reader.expect(b" ")
    return ERR(read_error(reader))


def _read_tkn(reader: Reader, version: int) -> TKN:
    """A reason is read at every version: a peer that sent one meant it."""
    reader.expect(b" ")
    return TKN(read_token_status(reader))


def _read_sub(reader: Reader, version: int) -> SUB:
    reader.expect(b" ")
    return SUB(read_sub_status(reader))


_READERS: dict[bytes, Callable[[Reader, int], Response]] = {
    IDTKN.TAG: _read_idtkn,
    IDSUB.TAG: _read_idsub,
    OK.TAG: lambda reader, version: OK(),
    ERR.TAG: _read_err,
    TKN.TAG: _read_tkn,
    SUB.TAG: _read_sub,
    PONG.TAG: lambda reader, version: PONG(),
}
