"""SMP's requests and responses, as blocks carry them, and the request inside a forwarded transmission."""

from __future__ import annotations

from blindpost.wire.batch import unpack
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import Command, read_command
from blindpost.wire.smp.credentials import RULES, credentials_error, response_entity_error
from blindpost.wire.smp.errors import PROHIBITED, Code, RefusedError
from blindpost.wire.smp.responses import Response, read_response
from blindpost.wire.smp.versions import forwarded_layout
from blindpost.wire.transmissions import AnyReceived, AnyRequest, Refused, request_parsers, response_parsers


class Request(AnyRequest[Command]):
    """A command of SMP."""

    __slots__ = ()


class Received(AnyReceived[Response]):
    """A response or an event of SMP."""

    __slots__ = ()


def _unpack(payload: Reader, version: int) -> list[Reader]:
    """Blocks carry batches at every version."""
    return unpack(payload)


parse_requests, parse_request = request_parsers(_unpack, read_command, credentials_error, Request)
parse_responses, parse_response = response_parsers(_unpack, read_response, response_entity_error, Received)


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
