"""What surrounds a command or a response: authorization, correlation id, entity id.

    transmission = short(authorization) [opt(short(service signature))] body
    body         = [short(session id)] short(corrId) short(entityId) command

Which of the bracketed fields exist depends on the protocol and the agreed version: that is `Layout`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import SHORT_MAX, Reader, Writer
from blindpost.wire.value import Buffer, Value

ED25519_SIGNATURE_SIZE = 64
AUTHENTICATOR_SIZE = 80
ED448_SIGNATURE_SIZE = 114

_ABSENT, _PRESENT = b"01"

AUTHORIZATION_SIZES = frozenset({0, ED25519_SIGNATURE_SIZE, AUTHENTICATOR_SIZE, ED448_SIGNATURE_SIZE})
"""The length of an authorization determines its kind; other lengths are invalid."""


class AuthorizationLengthError(WireError):
    """The authorization has a length that no kind has; the correlation id was readable."""

    def __init__(self, corr_id: bytes) -> None:
        super().__init__("an authorization of a known length expected")
        self.corr_id = corr_id


class SessionMismatchError(WireError):
    """The session id that was sent is not that of this connection; the correlation id was readable."""

    def __init__(self, corr_id: bytes) -> None:
        super().__init__("the session id of this connection expected")
        self.corr_id = corr_id


@dataclass(frozen=True, slots=True, repr=False)
class Layout(Value):
    """How transmissions look on one connection."""

    session_id: bytes
    session_sent: bool
    """Every transmission carries the session id, instead of implying it."""
    service_field: bool
    """An authorized transmission has a place for a service signature."""
    session_field: bytes = field(init=False, compare=False)
    """The session id as it begins the authorized bytes, sent or implied."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "session_field", _short(self.session_id))


def read_fields(reader: Reader, layout: Layout) -> tuple[bytes, bytes | None, bytes, bytes, Buffer]:
    """Take one transmission apart; `reader` is left at the start of its command.

    Authorization, service signature, correlation id, entity id, and from the correlation id on as received:
    what is authorized, after the session id. They are sliced by their lengths, and one check after the last
    tells whether all of them were there. The length of the authorization is checked by
    `check_authorization`, which only a router calls.
    """
    data: Any = reader.data
    start, limit = reader.position + 1, reader.limit
    service_signature = None
    mismatch = False
    try:
        stop = start + data[start - 1]
        authorization = data[start:stop]
        if layout.service_field and stop >= start + 1:
            service_signature, stop = _service_signature(data, stop)
        if layout.session_sent:
            start = stop + 1
            stop = start + data[stop]
            mismatch = data[start:stop] != layout.session_id
        signed = stop
        start = stop + 1
        stop = start + data[stop]
        corr_id = data[start:stop]
        start = stop + 1
        stop = start + data[stop]
        entity_id = data[start:stop]
    except IndexError as error:
        raise WireError("a transmission is shorter than its fields") from error
    if stop > limit:
        raise WireError("a transmission is shorter than its fields")
    if type(data) is not bytes:
        authorization, corr_id, entity_id = bytes(authorization), bytes(corr_id), bytes(entity_id)
    if mismatch:
        raise SessionMismatchError(corr_id)
    reader.position = stop
    return authorization, service_signature, corr_id, entity_id, reader.onward(signed)


def _service_signature(data: Buffer, pos: int) -> tuple[bytes | None, int]:
    """The optional second signature at `pos`, and where it ends."""
    mark = data[pos]
    if mark == _ABSENT:
        return None, pos + 1
    if mark != _PRESENT or data[pos + 1] != ED25519_SIGNATURE_SIZE:
        raise WireError("an Ed25519 signature or none expected")
    stop = pos + 2 + ED25519_SIGNATURE_SIZE
    return bytes(data[pos + 2 : stop]), stop


def check_authorization(authorization: bytes, corr_id: bytes) -> None:
    """Refuse an authorization whose length matches no kind."""
    if len(authorization) not in AUTHORIZATION_SIZES:
        raise AuthorizationLengthError(corr_id)


def authorized_bytes(layout: Layout, signed: Writer) -> bytes:
    """What an authorization covers: session id, correlation id, entity id and command."""
    return b"".join((layout.session_field, *signed.parts))


def start_signed(corr_id: bytes, entity_id: bytes) -> Writer:
    """A writer that holds the ids; the command is to be written next."""
    return Writer().raw(_short(corr_id) + _short(entity_id))


def transmission_of(
    layout: Layout, signed: Writer, authorization: bytes = b"", service_signature: bytes | None = None
) -> Writer:
    """The whole transmission around ids and command that `start_signed` began."""
    writer = Writer().short(authorization)
    if authorization and layout.service_field:
        writer.opt(service_signature, Writer.short)
    elif service_signature is not None:
        raise WireError("a service signature has a place only beside an authorization, from version 16")
    if layout.session_sent:
        writer.short(layout.session_id)
    return writer.extend(signed)


def start_response(layout: Layout, corr_id: bytes, entity_id: bytes) -> Writer:
    """A transmission without authorization, complete up to the response that is to be written next."""
    start = response_start(layout, corr_id, entity_id)
    return Writer([start], len(start))


def response_start(layout: Layout, corr_id: bytes, entity_id: bytes) -> bytes:
    """What comes before a response."""
    session = layout.session_field if layout.session_sent else b""
    try:
        return b"\0%b%c%b%c%b" % (session, len(corr_id), corr_id, len(entity_id), entity_id)
    except OverflowError as error:
        raise WireError(f"at most {SHORT_MAX} bytes fit here") from error


def _short(data: bytes) -> bytes:
    count = len(data)
    if count > SHORT_MAX:
        raise WireError(f"at most {SHORT_MAX} bytes fit here, not {count}")
    return b"%c%b" % (count, data)
