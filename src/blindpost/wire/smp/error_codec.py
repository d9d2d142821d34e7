"""Errors as they travel: words separated by single spaces, texts at the end or behind a length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from blindpost.wire.errors import WireError
from blindpost.wire.json_text import JsonObject, json_bytes
from blindpost.wire.primitives import SHORT_MAX, Reader, Writer
from blindpost.wire.smp.errors import (
    BLOCKED,
    BROKER,
    CMD,
    NAME,
    NETWORK,
    PROTOCOL,
    PROXY,
    RESOLVER,
    RESPONSE,
    STORE,
    TRANSPORT,
    UNEXPECTED,
    BlockingReason,
    BrokerCode,
    BrokerError,
    Code,
    CommandError,
    NameCode,
    NetworkFailure,
    Notice,
    ProxyCode,
    SMPError,
    TransportCode,
)
from blindpost.wire.smp.versions import BLOCKED_VERSION, CLIENT_NOTICES_VERSION

PROXY_DEPTH_MAX = 4
"""How many errors may be wrapped around each other; honest routers wrap one, perhaps two."""

_FAILURES_WITH_TEXT = frozenset({NetworkFailure.CONNECT, NetworkFailure.TLS, NetworkFailure.SUBSCRIBE})
_NOTICE = b",notice="

_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")


def error_at(error: SMPError, version: int) -> SMPError:
    """The error as a peer of this version can read it: it may not know BLOCKED, or its notices.

    An error inside PROXY is not rewritten: nobody in between knows the reader's version.
    """
    if isinstance(error, BLOCKED):
        if version < BLOCKED_VERSION:
            return Code.AUTH
        if version < CLIENT_NOTICES_VERSION:
            return replace(error, notice=None)
    return error


def read_error(reader: Reader, depth: int = PROXY_DEPTH_MAX) -> SMPError:
    """An error; at most `depth` errors of relays may be wrapped around it."""
    word = reader.tag()
    match word:
        case b"CMD":
            return CMD(_command_error(reader))
        case b"PROXY":
            reader.expect(b" ")
            return PROXY(_read_proxy(reader, depth))
        case b"BLOCKED":
            reader.expect(b" ")
            return _read_blocked(reader)
        case b"STORE":
            return STORE(_text_rest(reader))
        case b"NAME":
            return NAME(_read_name(reader))
        case _:
            return _member(Code, word)


def write_error(writer: Writer, error: SMPError) -> None:
    match error:
        case Code():
            writer.raw(error.value)
        case CMD(command_error):
            writer.raw(b"CMD ").raw(command_error.value)
        case PROXY(proxy_error):
            writer.raw(b"PROXY ")
            _write_proxy(writer, proxy_error)
        case BLOCKED(reason, notice):
            writer.raw(b"BLOCKED reason=").raw(reason.value)
            if notice is not None:
                fields = {} if notice.ttl is None else {"ttl": notice.ttl}
                writer.raw(_NOTICE).raw(json_bytes(fields))
        case STORE(text):
            writer.raw(b"STORE ").raw(_utf8(text))
        case NAME(RESOLVER(text)):
            writer.raw(b"NAME RESOLVER ").raw(_utf8(text))
        case NAME(NameCode() as code):
            writer.raw(b"NAME ").raw(code.value)


def read_transport_error(reader: Reader) -> TransportCode:
    word = reader.tag()
    if word == b"HANDSHAKE":
        reader.expect(b" ")
        word = b"HANDSHAKE " + reader.tag()
    return _member(TransportCode, word)


def write_transport_error(writer: Writer, error: TransportCode) -> None:
    writer.raw(error.value)


def _command_error(reader: Reader) -> CommandError:
    reader.expect(b" ")
    word = reader.tag()
    return CommandError.NO_ENTITY if word == b"NO_QUEUE" else _member(CommandError, word)


def _read_proxy(reader: Reader, depth: int) -> ProxyCode | PROTOCOL | BROKER:
    word = reader.tag()
    if word == b"PROTOCOL":
        if depth == 0:
            raise WireError("fewer errors inside each other expected")
        return PROTOCOL(_after_space(reader, lambda inner: read_error(inner, depth - 1)))
    if word == b"BROKER":
        return BROKER(_after_space(reader, _read_broker))
    return _member(ProxyCode, word)


def _write_proxy(writer: Writer, error: ProxyCode | PROTOCOL | BROKER) -> None:
    match error:
        case PROTOCOL(inner):
            writer.raw(b"PROTOCOL ")
            write_error(writer, inner)
        case BROKER(broker_error):
            writer.raw(b"BROKER ")
            _write_broker(writer, broker_error)
        case ProxyCode():
            writer.raw(error.value)


def _read_broker(reader: Reader) -> BrokerError:
    word = reader.tag()
    match word:
        case b"RESPONSE":
            return RESPONSE(_after_space(reader, Reader.latin1))
        case b"UNEXPECTED":
            return UNEXPECTED(_after_space(reader, Reader.latin1))
        case b"TRANSPORT":
            return TRANSPORT(_after_space(reader, read_transport_error))
        case b"NETWORK":
            return _after_space(reader, _read_network) if reader.remaining else NETWORK()
        case _:
            return _member(BrokerCode, word)


def _write_broker(writer: Writer, error: BrokerError) -> None:
    match error:
        case RESPONSE(text):
            writer.raw(b"RESPONSE ").short(_short_latin1(text))
        case UNEXPECTED(text):
            writer.raw(b"UNEXPECTED ").short(_short_latin1(text))
        case TRANSPORT(transport_error):
            writer.raw(b"TRANSPORT ")
            write_transport_error(writer, transport_error)
        case NETWORK():
            writer.raw(b"NETWORK")
        case BrokerCode():
            writer.raw(error.value)


def _read_network(reader: Reader) -> NETWORK:
    failure = _member(NetworkFailure, reader.tag())
    if failure in _FAILURES_WITH_TEXT:
        return NETWORK(failure, _after_space(reader, Reader.latin1))
    return NETWORK(failure)


def _read_blocked(reader: Reader) -> BLOCKED:
    reader.expect(b"reason=")
    for reason in BlockingReason:
        if reader.skip(reason.value):
            break
    else:
        raise WireError("a known reason for blocking expected")
    if not reader.skip(_NOTICE):
        return BLOCKED(reason)
    notice = JsonObject.from_bytes(reader.rest())
    return BLOCKED(reason, Notice(notice.optional_integer("ttl")))


def _read_name(reader: Reader) -> NameCode | RESOLVER:
    reader.expect(b" ")
    word = reader.tag()
    return RESOLVER(_text_rest(reader)) if word == b"RESOLVER" else _member(NameCode, word)


def _member(codes: type[_E], word: bytes) -> _E:
    try:
        return codes(word)
    except ValueError as error:
        raise WireError(f"a {codes.__name__} expected") from error


def _after_space(reader: Reader, item: Callable[[Reader], _T]) -> _T:
    reader.expect(b" ")
    return item(reader)


def _text_rest(reader: Reader) -> str:
    """Text up to the end. It is for people, so bytes that are not UTF-8 do not spoil the error."""
    reader.expect(b" ")
    return str(reader.rest(), "utf-8", "replace")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _short_latin1(text: str) -> bytes:
    """Texts are diagnostics: what does not fit is cut, what Latin-1 lacks becomes a question mark."""
    return text.encode("latin-1", "replace")[:SHORT_MAX]
