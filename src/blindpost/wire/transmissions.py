"""From a block's payload to requests or responses, and back; and what to answer when it does not parse.

Nothing here closes a connection: a bad transmission is answered, its neighbours are executed. The rules of
who must sign and name what need no store and come before any lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.errors import CMD, Code, RefusedError, SMPError
from blindpost.wire.transmission import (
    AuthorizationLengthError,
    Layout,
    SessionMismatchError,
    check_authorization,
    read_fields,
    start_response,
    start_signed,
)
from blindpost.wire.value import Buffer, Value, shown

C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")


class Written(Protocol):
    """A command or a response."""

    def write(self, writer: Writer, version: int) -> None: ...


class AnyRequest(NamedTuple, Generic[C]):
    """A command with all that is needed to verify and to answer it.

    A named tuple, since one is made for each command and a frozen dataclass takes three times as long.
    """

    corr_id: bytes
    entity_id: bytes
    command: C
    authorization: bytes
    service_signature: bytes | None
    signed: Buffer
    """What is authorized, after the session id."""

    def authorized(self, layout: Layout) -> bytes:
        """What the authorization covers."""
        return b"".join((layout.session_field, self.signed))

    def __repr__(self) -> str:
        return shown(self)


@dataclass(frozen=True, slots=True, repr=False)
class AnyReceived(Value, Generic[R]):
    """A response, or an event if its correlation id is empty."""

    corr_id: bytes
    entity_id: bytes
    response: R


@dataclass(frozen=True, slots=True, repr=False)
class Refused(Value):
    """A transmission that is answered with this error, and with as much of its ids as was readable."""

    corr_id: bytes
    entity_id: bytes
    error: SMPError


BAD_BLOCK = Refused(b"", b"", Code.BLOCK)
"""For a block that cannot be decrypted, unpadded or taken apart."""


Unpack = Callable[[Reader, int], list[Reader]]
Parse = Callable[[Reader, Layout, int], T]


def request_parsers(
    unpack: Unpack,
    read_command: Callable[[Reader, int], C],
    credentials_error: Callable[[C, bool, bool], CMD | None],
    request: Callable[[bytes, bytes, C, bytes, bytes | None, Buffer], T],
) -> tuple[Parse[list[T | Refused]], Parse[T | Refused]]:
    """How a router of one protocol reads a payload, and one transmission.

    `credentials_error` is the error of a command with too much or too little authorization and entity id.
    Functions, not methods: what they need is at hand in a closure, and they read every command.
    """

    def parse_requests(payload: Reader, layout: Layout, version: int) -> list[T | Refused]:
        """What a router reads from a payload, one result for each transmission."""
        try:
            transmissions = unpack(payload, version)
        except WireError:
            return [BAD_BLOCK]
        return [parse_request(transmission, layout, version) for transmission in transmissions]

    def parse_request(reader: Reader, layout: Layout, version: int) -> T | Refused:
        """One transmission of a client."""
        try:
            authorization, service_signature, corr_id, entity_id, signed = read_fields(reader, layout)
            check_authorization(authorization, corr_id)
        except SessionMismatchError as mismatch:
            return Refused(mismatch.corr_id, b"", Code.SESSION)
        except AuthorizationLengthError as bad:
            return Refused(bad.corr_id, b"", Code.BLOCK)
        except WireError:
            return BAD_BLOCK
        try:
            command = read_command(reader, version)
        except RefusedError as refused:
            return Refused(corr_id, entity_id, refused.error)
        error = credentials_error(command, authorization != b"", entity_id != b"")
        if error is not None:
            return Refused(corr_id, entity_id, error)
        return request(corr_id, entity_id, command, authorization, service_signature, signed)

    return parse_requests, parse_request


def response_parsers(
    unpack: Unpack,
    read_response: Callable[[Reader, int], R],
    entity_error: Callable[[R, bool], CMD | None],
    received: Callable[[bytes, bytes, R], T],
) -> tuple[Parse[list[T | Refused]], Parse[T | Refused]]:
    """How a client of one protocol reads a payload, and one transmission.

    `entity_error` is the error of a response whose entity id is missing or should be.
    """

    def parse_responses(payload: Reader, layout: Layout, version: int) -> list[T | Refused]:
        """What a client reads from a payload; a `Refused` tells what is wrong with a response."""
        try:
            transmissions = unpack(payload, version)
        except WireError:
            return [BAD_BLOCK]
        return [parse_response(transmission, layout, version) for transmission in transmissions]

    def parse_response(reader: Reader, layout: Layout, version: int) -> T | Refused:
        """One transmission of a router. An authorization has no meaning here and is ignored."""
        try:
            _, _, corr_id, entity_id, _ = read_fields(reader, layout)
        except SessionMismatchError as mismatch:
            return Refused(mismatch.corr_id, b"", Code.SESSION)
        except WireError:
            return BAD_BLOCK
        try:
            response = read_response(reader, version)
        except RefusedError as refused:
            return Refused(corr_id, entity_id, refused.error)
        error = entity_error(response, entity_id != b"")
        if error is not None:
            return Refused(corr_id, entity_id, error)
        return received(corr_id, entity_id, response)

    return parse_responses, parse_response


def signed_request(corr_id: bytes, entity_id: bytes, command: Written, version: int) -> Writer:
    """Ids and command, to be authorized and completed by `transmission_of`."""
    writer = start_signed(corr_id, entity_id)
    command.write(writer, version)
    return writer


def response_transmission(
    layout: Layout, version: int, corr_id: bytes, entity_id: bytes, response: Written
) -> Writer:
    """The whole transmission of a response; of an event if `corr_id` is empty."""
    writer = start_response(layout, corr_id, entity_id)
    response.write(writer, version)
    return writer
