"""Plaintexts inside the encrypted bodies of MSG, NMSG, RFWD and RRES."""

from __future__ import annotations

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_x25519, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.values import read_flags
from blindpost.wire.value import Buffer, Value

_QUOTA = b"QUOTA "


@dataclass(frozen=True, slots=True, repr=False)
class Message(Value):
    """A message as its sender sent it, received by the router at `seconds` of Unix time."""

    seconds: int
    notify: bool
    body: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class QuotaMarker(Value):
    """The queue was full at `seconds`; senders may resume once this is acknowledged."""

    seconds: int


ReceivedMessage = Message | QuotaMarker


def read_message(reader: Reader) -> ReceivedMessage:
    """What MSG decrypts to."""
    if reader.skip(_QUOTA):
        seconds = reader.i64()
        reader.end()
        return QuotaMarker(seconds)
    seconds = reader.i64()
    notify = read_flags(reader)
    return Message(seconds, notify, reader.rest())


def write_message(writer: Writer, message: ReceivedMessage) -> None:
    match message:
        case QuotaMarker(seconds):
            writer.raw(_QUOTA).i64(seconds)
        case Message(seconds, notify, body):
            for part in message_parts(seconds, notify, body):
                writer.raw(part)


def message_parts(seconds: int, notify: bool, body: Buffer) -> list[Buffer]:
    """An ordinary message as MSG encrypts it, without copying its body."""
    try:
        return [b"%b%b" % (seconds.to_bytes(8, "big", signed=True), b"T " if notify else b"F "), body]
    except OverflowError as error:
        raise WireError("a signed 64-bit number expected") from error


@dataclass(frozen=True, slots=True, repr=False)
class NMsgMeta(Value):
    """Which message a notification is about."""

    msg_id: bytes
    seconds: int


def read_nmsg_meta(reader: Reader) -> NMsgMeta:
    """What NMSG decrypts to; bytes behind it are for later versions."""
    return NMsgMeta(reader.short(), reader.i64())


def write_nmsg_meta(writer: Writer, meta: NMsgMeta) -> None:
    writer.short(meta.msg_id).i64(meta.seconds)


@dataclass(frozen=True, slots=True, repr=False)
class ForwardedTransmission(Value):
    """What RFWD decrypts to: a PFWD as the relay needs it, with its correlation id."""

    corr_id: bytes
    version: int
    command_key: PublicKey
    enc_transmission: Buffer


def read_forwarded_transmission(reader: Reader) -> ForwardedTransmission:
    return ForwardedTransmission(reader.short(), reader.u16(), read_x25519(reader), reader.rest())


def write_forwarded_transmission(writer: Writer, forwarded: ForwardedTransmission) -> None:
    write_key(writer.short(forwarded.corr_id).u16(forwarded.version), forwarded.command_key)
    writer.raw(forwarded.enc_transmission)


@dataclass(frozen=True, slots=True, repr=False)
class ForwardedResponse(Value):
    """What RRES decrypts to: what the proxy hands on as PRES."""

    corr_id: bytes
    enc_response: Buffer


def read_forwarded_response(reader: Reader) -> ForwardedResponse:
    return ForwardedResponse(reader.short(), reader.rest())


def write_forwarded_response(writer: Writer, response: ForwardedResponse) -> None:
    writer.short(response.corr_id).raw(response.enc_response)
