"""Every error that a router sends, and the transport errors that travel inside them.

An error without parameters is a `Code`; the others are values. How they travel: `error_codec`.
"""

from __future__ import annotations

from enum import Enum

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value


class Code(Enum):
    """An error that needs no parameters."""

    BLOCK = b"BLOCK"
    SESSION = b"SESSION"
    AUTH = b"AUTH"
    SERVICE = b"SERVICE"
    CRYPTO = b"CRYPTO"
    QUOTA = b"QUOTA"
    EXPIRED = b"EXPIRED"
    NO_MSG = b"NO_MSG"
    LARGE_MSG = b"LARGE_MSG"
    INTERNAL = b"INTERNAL"
    DUPLICATE = b"DUPLICATE_"


class CommandError(Enum):
    """What is wrong with a command before anyone looks at queues."""

    UNKNOWN = b"UNKNOWN"
    SYNTAX = b"SYNTAX"
    PROHIBITED = b"PROHIBITED"
    NO_AUTH = b"NO_AUTH"
    HAS_AUTH = b"HAS_AUTH"
    NO_ENTITY = b"NO_ENTITY"


class TransportCode(Enum):
    """Why a connection could not be made or used."""

    BLOCK = b"BLOCK"
    VERSION = b"VERSION"
    LARGE_MSG = b"LARGE_MSG"
    SESSION = b"SESSION"
    NO_AUTH = b"NO_AUTH"
    HANDSHAKE_PARSE = b"HANDSHAKE PARSE"
    HANDSHAKE_IDENTITY = b"HANDSHAKE IDENTITY"
    HANDSHAKE_BAD_AUTH = b"HANDSHAKE BAD_AUTH"
    HANDSHAKE_BAD_SERVICE = b"HANDSHAKE BAD_SERVICE"


class BrokerCode(Enum):
    """A failure of a router behind a proxy that needs no parameters."""

    TIMEOUT = b"TIMEOUT"
    HOST = b"HOST"
    NO_SERVICE = b"NO_SERVICE"


class NetworkFailure(Enum):
    """Details that are read but never written: older peers know only the bare word."""

    CONNECT = b"CONNECT"
    TLS = b"TLS"
    UNKNOWN_CA = b"UNKNOWNCA"
    FAILED = b"FAILED"
    TIMEOUT = b"TIMEOUT"
    SUBSCRIBE = b"SUBSCRIBE"


class ProxyCode(Enum):
    """What a proxy says about itself."""

    BASIC_AUTH = b"BASIC_AUTH"
    NO_SESSION = b"NO_SESSION"


class BlockingReason(Enum):
    """Why an operator blocked a queue."""

    SPAM = b"spam"
    CONTENT = b"content"


@dataclass(frozen=True, slots=True, repr=False)
class CMD(Value):
    """The command was refused as such."""

    error: CommandError


@dataclass(frozen=True, slots=True, repr=False)
class Notice(Value):
    """What a client should tell its user about a blocked queue, for `ttl` seconds or permanently."""

    ttl: int | None


@dataclass(frozen=True, slots=True, repr=False)
class BLOCKED(Value):
    """The operator blocked the queue."""

    reason: BlockingReason
    notice: Notice | None = None


@dataclass(frozen=True, slots=True, repr=False)
class STORE(Value):
    """The storage failed."""

    text: str


@dataclass(frozen=True, slots=True, repr=False)
class RESPONSE(Value):
    """The router behind the proxy sent something that does not parse."""

    text: str


@dataclass(frozen=True, slots=True, repr=False)
class UNEXPECTED(Value):
    """The router behind the proxy sent a response that does not fit the command."""

    text: str


@dataclass(frozen=True, slots=True, repr=False)
class TRANSPORT(Value):
    """The connection behind the proxy failed in its handshake or its blocks."""

    error: TransportCode


@dataclass(frozen=True, slots=True, repr=False)
class NETWORK(Value):
    """The router behind the proxy could not be reached."""

    failure: NetworkFailure = NetworkFailure.FAILED
    text: str = ""


BrokerError = BrokerCode | RESPONSE | UNEXPECTED | TRANSPORT | NETWORK


@dataclass(frozen=True, slots=True, repr=False)
class PROTOCOL(Value):
    """The relay answered the proxy with an error."""

    error: SMPError


@dataclass(frozen=True, slots=True, repr=False)
class BROKER(Value):
    """The proxy could not talk to the relay."""

    error: BrokerError


@dataclass(frozen=True, slots=True, repr=False)
class PROXY(Value):
    """The error arose at a proxy or behind it."""

    error: ProxyCode | PROTOCOL | BROKER


class NameCode(Enum):
    """A name could not be resolved."""

    NO_RESOLVER = b"NO_RESOLVER"
    NOT_FOUND = b"NOT_FOUND"


@dataclass(frozen=True, slots=True, repr=False)
class RESOLVER(Value):
    """The resolver itself failed."""

    text: str


@dataclass(frozen=True, slots=True, repr=False)
class NAME(Value):
    """An error of name resolution."""

    error: NameCode | RESOLVER


SMPError = Code | CMD | PROXY | BLOCKED | STORE | NAME


class RefusedError(WireError):
    """Bytes that the protocol answers with a specific error."""

    def __init__(self, error: SMPError) -> None:
        super().__init__(f"refused as {error!r}")
        self.error = error


UNKNOWN_COMMAND = CMD(CommandError.UNKNOWN)
SYNTAX = CMD(CommandError.SYNTAX)
PROHIBITED = CMD(CommandError.PROHIBITED)
NO_AUTH = CMD(CommandError.NO_AUTH)
HAS_AUTH = CMD(CommandError.HAS_AUTH)
NO_ENTITY = CMD(CommandError.NO_ENTITY)
