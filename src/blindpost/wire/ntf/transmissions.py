"""From a block's payload to requests or responses, and back; and what to answer when it does not parse.

The rules of who must sign and name what need no store and come before any lookup.
"""

from __future__ import annotations

from dataclasses import dataclass

from blindpost.wire.errors import WireError
from blindpost.wire.ntf.blocks import unpack_payload
from blindpost.wire.ntf.commands import PING, SNEW, TNEW, Command, read_command
from blindpost.wire.ntf.responses import ERR, IDSUB, IDTKN, PONG, Response, read_response
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.credentials import (
    ENTITY_FORBIDDEN,
    ENTITY_OPTIONAL,
    ENTITY_REQUIRED,
    NEEDS_AUTHORIZATION,
    NEEDS_BOTH,
    NEEDS_NOTHING,
    CredentialRule,
    EntityRule,
)
from blindpost.wire.smp.errors import CMD, Code, RefusedError
from blindpost.wire.smp.transmissions import BAD_BLOCK, Refused
from blindpost.wire.transmission import (
    AuthorizationLengthError,
    Layout,
    SessionMismatchError,
    check_authorization,
    read_transmission,
    start_response,
    start_signed,
)
from blindpost.wire.value import Buffer, Value

COMMAND_CREDENTIALS: dict[type[Command], CredentialRule] = {
    TNEW: NEEDS_AUTHORIZATION,
    SNEW: NEEDS_AUTHORIZATION,
    PING: NEEDS_NOTHING,
}
"""All other commands need both."""

RESPONSE_ENTITIES: dict[type[Response], EntityRule] = {
    IDTKN: ENTITY_FORBIDDEN,
    IDSUB: ENTITY_FORBIDDEN,
    PONG: ENTITY_FORBIDDEN,
    ERR: ENTITY_OPTIONAL,
}
"""All other responses name the token or the subscription that was asked about."""


@dataclass(frozen=True, slots=True, repr=False)
class Request(Value):
    """A command with all that is needed to verify and to answer it."""

    corr_id: bytes
    entity_id: bytes
    command: Command
    authorization: bytes
    signed: Buffer
    """What is authorized, after the session id."""

    def authorized(self, layout: Layout) -> bytes:
        """What the authorization covers."""
        return b"".join((layout.session_field, self.signed))


@dataclass(frozen=True, slots=True, repr=False)
class Received(Value):
    """A response. It always answers a request: routers do not speak first here."""

    corr_id: bytes
    entity_id: bytes
    response: Response


def parse_requests(payload: Reader, layout: Layout, version: int) -> list[Request | Refused]:
    """What a router reads from a payload, one result for each transmission."""
    try:
        transmissions = unpack_payload(payload, version)
    except WireError:
        return [BAD_BLOCK]
    return [parse_request(transmission, layout, version) for transmission in transmissions]


def parse_request(reader: Reader, layout: Layout, version: int) -> Request | Refused:
    """One transmission of a device."""
    try:
        transmission = read_transmission(reader, layout)
        check_authorization(transmission.authorization, transmission.corr_id)
    except SessionMismatchError as mismatch:
        return Refused(mismatch.corr_id, b"", Code.SESSION)
    except AuthorizationLengthError as bad:
        return Refused(bad.corr_id, b"", Code.BLOCK)
    except WireError:
        return BAD_BLOCK
    corr_id, entity_id = transmission.corr_id, transmission.entity_id
    try:
        command = read_command(reader, version)
    except RefusedError as refused:
        return Refused(corr_id, entity_id, refused.error)
    error = credentials_error(command, transmission.authorization != b"", entity_id != b"")
    if error is not None:
        return Refused(corr_id, entity_id, error)
    return Request(corr_id, entity_id, command, transmission.authorization, transmission.signed)


def parse_responses(payload: Reader, layout: Layout, version: int) -> list[Received | Refused]:
    """What a device reads from a payload; a `Refused` tells what is wrong with a response."""
    try:
        transmissions = unpack_payload(payload, version)
    except WireError:
        return [BAD_BLOCK]
    return [parse_response(transmission, layout, version) for transmission in transmissions]


def parse_response(reader: Reader, layout: Layout, version: int) -> Received | Refused:
    """One transmission of a router. An authorization has no meaning here and is ignored."""
    try:
        transmission = read_transmission(reader, layout)
    except SessionMismatchError as mismatch:
        return Refused(mismatch.corr_id, b"", Code.SESSION)
    except WireError:
        return BAD_BLOCK
    corr_id, entity_id = transmission.corr_id, transmission.entity_id
    try:
        response = read_response(reader, version)
    except RefusedError as refused:
        return Refused(corr_id, entity_id, refused.error)
    error = response_entity_error(response, entity_id != b"")
    if error is not None:
        return Refused(corr_id, entity_id, error)
    return Received(corr_id, entity_id, response)


def credentials_error(command: Command, authorization: bool, entity: bool) -> CMD | None:
    """The error of a command that comes with too much or too little."""
    return COMMAND_CREDENTIALS.get(type(command), NEEDS_BOTH).error(authorization, entity)


def response_entity_error(response: Response, entity: bool) -> CMD | None:
    """The error of a response whose entity id is missing or should be."""
    rule = RESPONSE_ENTITIES.get(type(response), ENTITY_REQUIRED)
    return rule.given if entity else rule.without


def signed_request(corr_id: bytes, entity_id: bytes, command: Command, version: int) -> Writer:
    """Ids and command, to be authorized and completed by `transmission_of`."""
    writer = start_signed(corr_id, entity_id)
    command.write(writer, version)
    return writer


def response_transmission(
    layout: Layout, version: int, corr_id: bytes, entity_id: bytes, response: Response
) -> Writer:
    """The whole transmission of a response."""
    writer = start_response(layout, corr_id, entity_id)
    response.write(writer, version)
    return writer
