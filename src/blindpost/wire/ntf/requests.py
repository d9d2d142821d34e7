"""A received block as requests or replies, and the errors for what cannot be one.

Pure rules of who must sign and name what: they need no store and come before any lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from blindpost.wire.errors import WireError
from blindpost.wire.ntf.blocks import unpack_payload
from blindpost.wire.ntf.commands import PING, SNEW, TNEW, Command, read_command, write_command
from blindpost.wire.ntf.responses import ERR, IDSUB, IDTKN, PONG, Response, read_response, write_response
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.errors import HAS_AUTH, NO_AUTH, NO_ENTITY, SYNTAX, Code, RefusedError, SMPError
from blindpost.wire.transmission import (
    AuthorizationLengthError,
    Layout,
    SessionMismatchError,
    Transmission,
    authorized_bytes,
    check_authorization,
    read_transmission,
    start_response,
    start_signed,
)
from blindpost.wire.value import Value

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Request(Value):
    """A command with credentials that fit it; nothing is verified yet."""

    corr_id: bytes
    entity_id: bytes
    command: Command
    authorization: bytes
    authorized: bytes
    """What `authorization` must cover, the session id included."""


@dataclass(frozen=True, slots=True, repr=False)
class Reply(Value):
    """A response with an entity that fits it."""

    corr_id: bytes
    entity_id: bytes
    response: Response


@dataclass(frozen=True, slots=True, repr=False)
class Refusal(Value):
    """A transmission that is no request or reply: what a router answers, or why a client drops it."""

    corr_id: bytes
    entity_id: bytes
    error: SMPError


BLOCK_REFUSAL = Refusal(b"", b"", Code.BLOCK)


def read_requests(payload: Reader, version: int, layout: Layout) -> list[Request | Refusal]:
    """What a client sent in one block, in its order."""

    def request(transmission: Transmission) -> Request:
        check_authorization(transmission)
        command = read_command(transmission.command)
        check_credentials(command, bool(transmission.authorization), transmission.entity_id)
        return Request(
            transmission.corr_id,
            transmission.entity_id,
            command,
            transmission.authorization,
            authorized_bytes(layout, transmission),
        )

    return _read_each(payload, version, layout, request)


def read_replies(payload: Reader, version: int, layout: Layout) -> list[Reply | Refusal]:
    """What a router sent in one block, in its order."""

    def reply(transmission: Transmission) -> Reply:
        response = read_response(transmission.command)
        check_entity(response, transmission.entity_id)
        return Reply(transmission.corr_id, transmission.entity_id, response)

    return _read_each(payload, version, layout, reply)


def _read_each(
    payload: Reader, version: int, layout: Layout, item: Callable[[Transmission], T]
) -> list[T | Refusal]:
    try:
        readers = unpack_payload(payload, version)
    except WireError:
        return [BLOCK_REFUSAL]
    return [_read_one(reader, layout, item) for reader in readers]


def _read_one(reader: Reader, layout: Layout, item: Callable[[Transmission], T]) -> T | Refusal:
    try:
        transmission = read_transmission(reader, layout)
    except SessionMismatchError as error:
        return Refusal(error.corr_id, b"", Code.SESSION)
    except WireError:
        return BLOCK_REFUSAL
    try:
        return item(transmission)
    except AuthorizationLengthError as error:
        return Refusal(error.corr_id, b"", Code.BLOCK)
    except RefusedError as error:
        return Refusal(transmission.corr_id, transmission.entity_id, error.error)
    except WireError:
        return Refusal(transmission.corr_id, transmission.entity_id, SYNTAX)


def check_credentials(command: Command, authorized: bool, entity_id: bytes) -> None:
    """Whether a command comes with the authorization and the entity that it needs, and no others."""
    match command:
        case TNEW() | SNEW():
            if not authorized:
                raise RefusedError(NO_AUTH)
            if entity_id:
                raise RefusedError(HAS_AUTH)
        case PING():
            if authorized or entity_id:
                raise RefusedError(HAS_AUTH)
        case _:
            if not authorized or not entity_id:
                raise RefusedError(NO_AUTH)


def check_entity(response: Response, entity_id: bytes) -> None:
    """Whether a response names the entity it is about: new ids come without, errors either way."""
    match response:
        case ERR():
            pass
        case IDTKN() | IDSUB() | PONG():
            if entity_id:
                raise RefusedError(HAS_AUTH)
        case _:
            if not entity_id:
                raise RefusedError(NO_ENTITY)


def start_command(corr_id: bytes, entity_id: bytes, command: Command) -> Writer:
    """Ids and command, ready to be authorized: see `transmission.authorized_bytes` and `transmission_of`."""
    signed = start_signed(corr_id, entity_id)
    write_command(signed, command)
    return signed


def reply_transmission(layout: Layout, version: int, reply: Reply | Refusal) -> Writer:
    """The whole transmission of a response, or of the error that a refusal is answered with."""
    writer = start_response(layout, reply.corr_id, reply.entity_id)
    response = reply.response if isinstance(reply, Reply) else ERR(reply.error)
    write_response(writer, response, version)
    return writer
