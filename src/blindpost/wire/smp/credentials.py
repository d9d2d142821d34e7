"""Which commands need an authorization and an entity id, and which must not have them: tables."""

from __future__ import annotations

from dataclasses import dataclass

from blindpost.wire.smp.commands import (
    LGET,
    LKEY,
    NEW,
    NSUB,
    PFWD,
    PING,
    PRXY,
    RFWD,
    RSLV,
    SEND,
    SKEY,
    SUB,
    Command,
)
from blindpost.wire.smp.errors import CMD, HAS_AUTH, NO_AUTH, NO_ENTITY
from blindpost.wire.smp.responses import ALLS, ERR, IDS, PKEY, PONG, RNAME, RRES, Response


@dataclass(frozen=True, slots=True)
class CredentialRule:
    """The error, if any, of a command that comes with this much."""

    nothing: CMD | None
    only_entity: CMD | None
    only_authorization: CMD | None
    both: CMD | None

    def error(self, authorization: bool, entity: bool) -> CMD | None:
        if authorization:
            return self.both if entity else self.only_authorization
        return self.only_entity if entity else self.nothing


NEEDS_BOTH = CredentialRule(NO_AUTH, NO_AUTH, NO_AUTH, None)
NEEDS_AUTHORIZATION = CredentialRule(NO_AUTH, NO_AUTH, None, HAS_AUTH)
NEEDS_ENTITY = CredentialRule(NO_ENTITY, None, NO_ENTITY, HAS_AUTH)
MAY_BE_AUTHORIZED = CredentialRule(NO_ENTITY, None, NO_ENTITY, None)
NEEDS_NOTHING = CredentialRule(None, HAS_AUTH, HAS_AUTH, HAS_AUTH)

COMMAND_CREDENTIALS: dict[type[Command], CredentialRule] = {
    NEW: NEEDS_AUTHORIZATION,
    SEND: MAY_BE_AUTHORIZED,
    LGET: NEEDS_ENTITY,
    PFWD: NEEDS_ENTITY,
    PING: NEEDS_NOTHING,
    PRXY: NEEDS_NOTHING,
    RFWD: NEEDS_NOTHING,
    RSLV: NEEDS_NOTHING,
}
"""All other commands need both."""

SERVICE_SIGNED_COMMANDS: frozenset[type[Command]] = frozenset({NEW, SUB, NSUB})
"""On a connection of a service these carry its signature too."""

FORWARDED_COMMANDS: frozenset[type[Command]] = frozenset({SEND, SKEY, LKEY, LGET, RSLV})
"""What a relay does for clients behind a proxy."""


@dataclass(frozen=True, slots=True)
class EntityRule:
    """The error, if any, of a response without and with an entity id."""

    without: CMD | None
    given: CMD | None


ENTITY_REQUIRED = EntityRule(NO_ENTITY, None)
ENTITY_FORBIDDEN = EntityRule(None, HAS_AUTH)
ENTITY_OPTIONAL = EntityRule(None, None)

RESPONSE_ENTITIES: dict[type[Response], EntityRule] = {
    IDS: ENTITY_OPTIONAL,
    ERR: ENTITY_OPTIONAL,
    PONG: ENTITY_FORBIDDEN,
    PKEY: ENTITY_FORBIDDEN,
    RRES: ENTITY_FORBIDDEN,
    ALLS: ENTITY_FORBIDDEN,
    RNAME: ENTITY_FORBIDDEN,
}
"""All other responses need an entity id, or clients drop them."""


def credentials_error(command: Command, authorization: bool, entity: bool) -> CMD | None:
    """The error of a command that comes with too much or too little."""
    return COMMAND_CREDENTIALS.get(type(command), NEEDS_BOTH).error(authorization, entity)


def response_entity_error(response: Response, entity: bool) -> CMD | None:
    """The error of a response whose entity id is missing or should be."""
    rule = RESPONSE_ENTITIES.get(type(response), ENTITY_REQUIRED)
    return rule.given if entity else rule.without
