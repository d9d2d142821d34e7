"""What devices ask of a notification router. All versions write commands alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blindpost.wire.addresses import Server, read_server, write_server
from blindpost.wire.errors import WireError
from blindpost.wire.keys import PublicKey, read_auth_key, read_x25519, write_key
from blindpost.wire.ntf.tokens import DeviceToken, read_device_token, write_device_token
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.private_keys import EncodedPrivateKey, read_private_auth_key, write_private_key
from blindpost.wire.smp.errors import UNKNOWN_COMMAND, RefusedError
from blindpost.wire.value import Value

MIN_PERIOD_MINUTES = 20
"""The shortest interval of periodic notifications; 0 turns them off."""


@dataclass(frozen=True, slots=True, repr=False)
class TNEW(Value):
    """Register a device token; later commands are authorized by `verify_key`."""

    token: DeviceToken
    verify_key: PublicKey
    dh_key: PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class TVFY(Value):
    """Show that the device got the code that the router pushed to it."""

    code: bytes


@dataclass(frozen=True, slots=True, repr=False)
class TCHK(Value):
    """Ask for the status of a token."""


@dataclass(frozen=True, slots=True, repr=False)
class TRPL(Value):
    """Go on with another device token, keeping keys and subscriptions."""

    token: DeviceToken


@dataclass(frozen=True, slots=True, repr=False)
class TDEL(Value):
    """Delete a token with all its subscriptions."""


@dataclass(frozen=True, slots=True, repr=False)
class TCRN(Value):
    """Ask for background notifications every so many minutes, or for none with 0."""

    minutes: int


@dataclass(frozen=True, slots=True, repr=False)
class SNEW(Value):
    """Subscribe a token to the notifications of a queue.

    The private key goes with it, because the router itself signs the subscription at the message router.
    """

    token_id: bytes
    server: Server
    notifier_id: bytes
    notifier_key: EncodedPrivateKey


@dataclass(frozen=True, slots=True, repr=False)
class SCHK(Value):
    """Ask for the status of a subscription."""


@dataclass(frozen=True, slots=True, repr=False)
class SDEL(Value):
    """Delete a subscription."""


@dataclass(frozen=True, slots=True, repr=False)
class PING(Value):
    """Keep the connection alive."""


Command = TNEW | TVFY | TCHK | TRPL | TDEL | TCRN | SNEW | SCHK | SDEL | PING


def read_command(reader: Reader) -> Command:
    """A whole command, to the end of `reader`; an unknown tag raises `RefusedError`, which says so."""
    read = _READERS.get(read_tag(reader))
    if read is None:
        raise RefusedError(UNKNOWN_COMMAND)
    command = read(reader)
    reader.end()
    return command


def read_tag(reader: Reader) -> bytes:
    """The word before the first space; one longer than any tag is unknown like all others."""
    try:
        return reader.tag()
    except WireError as error:
        raise RefusedError(UNKNOWN_COMMAND) from error


def write_command(writer: Writer, command: Command) -> None:
    match command:
        case TNEW(token, verify_key, dh_key):
            writer.raw(b"TNEW T")
            write_device_token(writer, token)
            write_key(writer, verify_key)
            write_key(writer, dh_key)
        case TVFY(code):
            writer.raw(b"TVFY ").short(code)
        case TCHK():
            writer.raw(b"TCHK")
        case TRPL(token):
            writer.raw(b"TRPL ")
            write_device_token(writer, token)
        case TDEL():
            writer.raw(b"TDEL")
        case TCRN(minutes):
            writer.raw(b"TCRN ").u16(minutes)
        case SNEW(token_id, server, notifier_id, notifier_key):
            writer.raw(b"SNEW S").short(token_id)
            write_server(writer, server)
            writer.short(notifier_id)
            write_private_key(writer, notifier_key)
        case SCHK():
            writer.raw(b"SCHK")
        case SDEL():
            writer.raw(b"SDEL")
        case PING():
            writer.raw(b"PING")


def _read_tnew(reader: Reader) -> TNEW:
    reader.expect(b" T")
    return TNEW(read_device_token(reader), read_auth_key(reader), read_x25519(reader))


def _read_tvfy(reader: Reader) -> TVFY:
    reader.expect(b" ")
    return TVFY(reader.short())


def _read_trpl(reader: Reader) -> TRPL:
    reader.expect(b" ")
    return TRPL(read_device_token(reader))


def _read_tcrn(reader: Reader) -> TCRN:
    reader.expect(b" ")
    return TCRN(reader.u16())


def _read_snew(reader: Reader) -> SNEW:
    reader.expect(b" S")
    return SNEW(reader.short(), read_server(reader), reader.short(), read_private_auth_key(reader))


_READERS: dict[bytes, Callable[[Reader], Command]] = {
    b"TNEW": _read_tnew,
    b"TVFY": _read_tvfy,
    b"TCHK": lambda reader: TCHK(),
    b"TRPL": _read_trpl,
    b"TDEL": lambda reader: TDEL(),
    b"TCRN": _read_tcrn,
    b"SNEW": _read_snew,
    b"SCHK": lambda reader: SCHK(),
    b"SDEL": lambda reader: SDEL(),
    b"PING": lambda reader: PING(),
}
