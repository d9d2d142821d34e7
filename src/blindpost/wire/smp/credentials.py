"""What the protocol says about each command and response besides its bytes: one row each.

Routers and clients both follow it. What a router does with a command is in `blindpost.router.commands`.
"""

from __future__ import annotations

from blindpost.wire.frozen import dataclass
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    LDEL,
    LGET,
    LKEY,
    LSET,
    NDEL,
    NEW,
    NKEY,
    NSUB,
    NSUBS,
    OFF,
    PFWD,
    PING,
    PRXY,
    QUE,
    RFWD,
    RKEY,
    RSLV,
    SEND,
    SKEY,
    SUB,
    SUBS,
    Command,
)
from blindpost.wire.smp.errors import CMD, HAS_AUTH, NO_AUTH, NO_ENTITY
from blindpost.wire.smp.responses import ALLS, ERR, IDS, PKEY, PONG, RNAME, RRES, Response
from blindpost.wire.smp.versions import (
    NAMES_VERSION,
    PROXY_VERSION,
    SENDER_SECURE_VERSION,
    SERVICE_CERTS_VERSION,
    SHORT_LINKS_VERSION,
)


@dataclass(frozen=True, slots=True)
class CredentialRule:
    """The error, if any, of a command with these credentials."""

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


@dataclass(frozen=True, slots=True)
class CommandRule:
    """What both sides know about a command."""

    credentials: CredentialRule = NEEDS_BOTH
    since: int = 0
    """The first version that has it. Routers read it at any version, so clients must not send it below."""
    service_signed: bool = False
    """On a connection of a service it carries the service's signature too."""
    forwarded: bool = False
    """A relay does it for clients behind a proxy."""


ORDINARY = CommandRule()
PROXYING = CommandRule(NEEDS_NOTHING, PROXY_VERSION)
LINKING = CommandRule(since=SHORT_LINKS_VERSION)

RULES: dict[type[Command], CommandRule] = {
    NEW: CommandRule(NEEDS_AUTHORIZATION, service_signed=True),
    SUB: CommandRule(service_signed=True),
    SUBS: CommandRule(since=SERVICE_CERTS_VERSION),
    KEY: ORDINARY,
    RKEY: LINKING,
    LSET: LINKING,
    LDEL: LINKING,
    NKEY: ORDINARY,
    NDEL: ORDINARY,
    GET: ORDINARY,
    ACK: ORDINARY,
    OFF: ORDINARY,
    DEL: ORDINARY,
    QUE: ORDINARY,
    SKEY: CommandRule(since=SENDER_SECURE_VERSION, forwarded=True),
    SEND: CommandRule(MAY_BE_AUTHORIZED, forwarded=True),
    LKEY: CommandRule(since=SHORT_LINKS_VERSION, forwarded=True),
    LGET: CommandRule(NEEDS_ENTITY, since=SHORT_LINKS_VERSION, forwarded=True),
    NSUB: CommandRule(service_signed=True),
    NSUBS: CommandRule(since=SERVICE_CERTS_VERSION),
    PING: CommandRule(NEEDS_NOTHING),
    PRXY: PROXYING,
    PFWD: CommandRule(NEEDS_ENTITY, PROXY_VERSION),
    RFWD: PROXYING,
    RSLV: CommandRule(NEEDS_NOTHING, NAMES_VERSION, forwarded=True),
}


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
    """The error of a command with too many or too few credentials."""
    return RULES[type(command)].credentials.error(authorization, entity)


def response_entity_error(response: Response, entity: bool) -> CMD | None:
    """The error of a response whose entity id is missing or should be."""
    rule = RESPONSE_ENTITIES.get(type(response), ENTITY_REQUIRED)
    return rule.given if entity else rule.without
