"""From a block's payload to requests or responses, and back; and what to answer when it does not parse.

Nothing here closes a connection: a bad transmission is answered, its neighbours are executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from blindpost.wire.batch import unpack
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.commands import Command, read_command
from blindpost.wire.smp.credentials import RULES, credentials_error, response_entity_error
from blindpost.wire.smp.errors import PROHIBITED, Code, RefusedError, SMPError
from blindpost.wire.smp.responses import Response, read_response
from blindpost.wire.smp.versions import forwarded_layout
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


class Request(NamedTuple):
    """A command with all that is needed to verify and to answer it; a named tuple as `Transmission` is."""

    corr_id: bytes
    entity_id: bytes
    command: Command
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
class Refused(Value):
    """A transmission that is answered with this error, and with as much of its ids as was readable."""

    corr_id: bytes
    entity_id: bytes
    error: SMPError


@dataclass(frozen=True, slots=True, repr=False)
class Received(Value):
    """A response, or an event if its correlation id is empty."""

    corr_id: bytes
    entity_id: bytes
    response: Response


BAD_BLOCK = Refused(b"", b"", Code.BLOCK)
"""For a block that cannot be decrypted, unpadded or taken apart."""


def parse_requests(payload: Reader, layout: Layout, version: int) -> list[Request | Refused]:
    """What a router reads from a payload, one result for each transmission."""
    try:
        transmissions = unpack(payload)
    except WireError:
        return [BAD_BLOCK]
    return [parse_request(transmission, layout, version) for transmission in transmissions]


def parse_request(reader: Reader, layout: Layout, version: int) -> Request | Refused:
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
    return Request(corr_id, entity_id, command, authorization, service_signature, signed)


def parse_forwarded_request(payload: Reader, version: int, session_id: bytes) -> Request | Refused:
    """What a relay reads from a decrypted PFWD; the layout is that of the forwarded version.

    Anything but one transmission raises `RefusedError` BLOCK, for the proxy; a `Refused` is for the client.
    """
    requests = parse_requests(payload, forwarded_layout(version, session_id), version)
    if len(requests) != 1:
        raise RefusedError(Code.BLOCK)
    request = requests[0]
    if isinstance(request, Request) and not RULES[type(request.command)].forwarded:
        return Refused(request.corr_id, request.entity_id, PROHIBITED)
    return request


def parse_responses(payload: Reader, layout: Layout, version: int) -> list[Received | Refused]:
    """What a client reads from a payload; a `Refused` tells what is wrong with a response."""
    try:
        transmissions = unpack(payload)
    except WireError:
        return [BAD_BLOCK]
    return [parse_response(transmission, layout, version) for transmission in transmissions]


def parse_response(reader: Reader, layout: Layout, version: int) -> Received | Refused:
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
    error = response_entity_error(response, entity_id != b"")
    if error is not None:
        return Refused(corr_id, entity_id, error)
    return Received(corr_id, entity_id, response)


def signed_request(corr_id: bytes, entity_id: bytes, command: Command, version: int) -> Writer:
    """Ids and command, to be authorized and completed by `transmission_of`."""
    writer = start_signed(corr_id, entity_id)
    command.write(writer, version)
    return writer


def response_transmission(
    layout: Layout, version: int, corr_id: bytes, entity_id: bytes, response: Response
) -> Writer:
    """The whole transmission of a response; of an event if `corr_id` is empty."""
    writer = start_response(layout, corr_id, entity_id)
    response.write(writer, version)
    return writer
