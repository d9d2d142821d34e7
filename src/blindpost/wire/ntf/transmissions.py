"""The notification protocol's requests and responses, as blocks carry them, and what each must name."""

from __future__ import annotations

from blindpost.wire.ntf.blocks import unpack_payload
from blindpost.wire.ntf.commands import PING, SNEW, TNEW, Command, read_command
from blindpost.wire.ntf.responses import ERR, IDSUB, IDTKN, PONG, Response, read_response
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
from blindpost.wire.smp.errors import CMD
from blindpost.wire.transmissions import AnyReceived, AnyRequest, request_parsers, response_parsers

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


class Request(AnyRequest[Command]):
    """A command of a device. Services do not exist here, nor do their signatures."""

    __slots__ = ()


class Received(AnyReceived[Response]):
    """A response. It always answers a request: routers do not speak first here."""

    __slots__ = ()


def credentials_error(command: Command, authorization: bool, entity: bool) -> CMD | None:
    """The error of a command with too many or too few credentials."""
    return COMMAND_CREDENTIALS.get(type(command), NEEDS_BOTH).error(authorization, entity)


def response_entity_error(response: Response, entity: bool) -> CMD | None:
    """The error of a response whose entity id is missing or should be."""
    rule = RESPONSE_ENTITIES.get(type(response), ENTITY_REQUIRED)
    return rule.given if entity else rule.without


parse_requests, parse_request = request_parsers(unpack_payload, read_command, credentials_error, Request)
parse_responses, parse_response = response_parsers(
    unpack_payload, read_response, response_entity_error, Received
)
