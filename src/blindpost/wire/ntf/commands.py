"""What devices ask of a notification router. All versions write commands alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from blindpost.wire.addresses import Server, read_server, write_server
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_auth_key, read_x25519, write_key
from blindpost.wire.ntf.tokens import DeviceToken, read_device_token, write_device_token
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.private_keys import EncodedPrivateKey, read_private_auth_key, write_private_key
from blindpost.wire.smp.tagged import Bare, read_tagged
from blindpost.wire.value import Value

PERIOD_MINUTES_MIN = 20
"""The shortest interval of periodic notifications; 0 turns them off."""


@dataclass(frozen=True, slots=True, repr=False)
class TNEW(Value):
    """Register a device token; later commands are authorized by `verify_key`."""

    TAG: ClassVar[bytes] = b"TNEW"
    token: DeviceToken
    verify_key: PublicKey
    dh_key: PublicKey

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"TNEW T")
        write_device_token(writer, self.token)
        write_key(writer, self.verify_key)
        write_key(writer, self.dh_key)


@dataclass(frozen=True, slots=True, repr=False)
class TVFY(Value):
    """Show that the device got the code that the router pushed to it."""

    TAG: ClassVar[bytes] = b"TVFY"
    code: bytes

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"TVFY ").short(self.code)


class TCHK(Bare):
    """Ask for the status of a token."""

    __slots__ = ()
    TAG = b"TCHK"


@dataclass(frozen=True, slots=True, repr=False)
class TRPL(Value):
    """Switch to another device token, keeping keys and subscriptions."""

    TAG: ClassVar[bytes] = b"TRPL"
    token: DeviceToken

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"TRPL ")
        write_device_token(writer, self.token)


class TDEL(Bare):
    """Delete a token with all its subscriptions."""

    __slots__ = ()
    TAG = b"TDEL"


@dataclass(frozen=True, slots=True, repr=False)
class TCRN(Value):
    """Ask for background notifications every `minutes` minutes, or none with 0."""

    TAG: ClassVar[bytes] = b"TCRN"
    minutes: int

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"TCRN ").u16(self.minutes)


@dataclass(frozen=True, slots=True, repr=False)
class SNEW(Value):
    """Subscribe a token to the notifications of a queue.

    It includes the private key, because the router itself signs the subscription at the message router.
    """

    TAG: ClassVar[bytes] = b"SNEW"
    token_id: bytes
    server: Server
    notifier_id: bytes
    notifier_key: EncodedPrivateKey

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"SNEW S").short(self.token_id)
        write_server(writer, self.server)
        writer.short(self.notifier_id)
        write_private_key(writer, self.notifier_key)


class SCHK(Bare):
    """Ask for the status of a subscription."""

    __slots__ = ()
    TAG = b"SCHK"


class SDEL(Bare):
    """Delete a subscription."""

    __slots__ = ()
    TAG = b"SDEL"


class PING(Bare):
    """Ask whether the router is still there."""

    __slots__ = ()
    TAG = b"PING"


Command: TypeAlias = TNEW | TVFY | TCHK | TRPL | TDEL | TCRN | SNEW | SCHK | SDEL | PING


def read_command(reader: Reader, version: int) -> Command:
    """A whole command, or `RefusedError` with the answer."""
    return read_tagged(reader, version, _READERS)


def _read_tnew(reader: Reader, version: int) -> TNEW:
    reader.expect(b" T")
    return TNEW(read_device_token(reader), read_auth_key(reader), read_x25519(reader))


def _read_tvfy(reader: Reader, version: int) -> TVFY:
    reader.expect(b" ")
    return TVFY(reader.short())


def _read_trpl(reader: Reader, version: int) -> TRPL:
    reader.expect(b" ")
    return TRPL(read_device_token(reader))


def _read_tcrn(reader: Reader, version: int) -> TCRN:
    reader.expect(b" ")
    return TCRN(reader.u16())


def _read_snew(reader: Reader, version: int) -> SNEW:
    reader.expect(b" S")
    return SNEW(reader.short(), read_server(reader), reader.short(), read_private_auth_key(reader))


_READERS: dict[bytes, Callable[[Reader, int], Command]] = {
    TNEW.TAG: _read_tnew,
    TVFY.TAG: _read_tvfy,
    TCHK.TAG: lambda reader, version: TCHK(),
    TRPL.TAG: _read_trpl,
    TDEL.TAG: lambda reader, version: TDEL(),
    TCRN.TAG: _read_tcrn,
    SNEW.TAG: _read_snew,
    SCHK.TAG: lambda reader, version: SCHK(),
    SDEL.TAG: lambda reader, version: SDEL(),
    PING.TAG: lambda reader, version: PING(),
}
