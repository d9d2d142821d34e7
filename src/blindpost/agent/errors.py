"""What can go wrong for an application, in the protocol's families; each error has its protocol word."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from blindpost.agent.failures import Kind, kind_of
from blindpost.client.calls import Failure
from blindpost.client.errors import (
    ClientError,
    CorrelationIdError,
    GarbledResponseError,
    NoHostError,
    NoServiceError,
    ProxyFailedError,
    RefusedError,
    ResponseTimeoutError,
    TooLargeError,
    UnexpectedResponseError,
    error_text,
)
from blindpost.transport.errors import (
    HandshakeError,
    HandshakeIdentityError,
    StageTimeoutError,
    UnknownCaError,
)
from blindpost.wire.addresses import Server
from blindpost.wire.smp.errors import Code, SMPError


class AgentError(Exception):
    """Anything that the agent reports, raised from a call or carried by an event."""

    family: ClassVar[str]
    remedy: ClassVar[str] = "Report it with what led to it."
    """What the reader of the error can do about it."""
    kind: Kind = Kind.PERMANENT

    @property
    def word(self) -> str:
        """The error as the protocol names it."""
        return self.family

    @property
    def temporary(self) -> bool:
        return self.kind is Kind.TEMPORARY

    @property
    def retried(self) -> bool:
        """Whether the same may succeed later, so that workers try again."""
        return self.kind is not Kind.PERMANENT

    @property
    def usual(self) -> str:
        """What is said where nothing more is known."""
        return ""

    def __str__(self) -> str:
        said = super().__str__() or self.usual
        return f"{self.word}: {said}" if said else self.word


class CommandCode(Enum):
    PROHIBITED = "PROHIBITED"
    SYNTAX = "SYNTAX"
    NO_CONN = "NO_CONN"
    SIZE = "SIZE"
    LARGE = "LARGE"


_OF_COMMANDS = {
    CommandCode.PROHIBITED: "this is not possible now",
    CommandCode.SYNTAX: "an argument is not valid",
    CommandCode.NO_CONN: "no connection has this id",
    CommandCode.SIZE: "a size is not valid",
    CommandCode.LARGE: "this is too large to be sent",
}


class CommandError(AgentError):
    """The call is invalid, or not possible now."""

    family = "CMD"
    remedy = "Look at the message: the call, its arguments or its moment are wrong."

    def __init__(self, code: CommandCode, message: str = "") -> None:
        super().__init__(message)
        self.code = code

    @property
    def word(self) -> str:
        return f"CMD {self.code.value}"

    @property
    def usual(self) -> str:
        return _OF_COMMANDS[self.code]


class OutOfStepError(CommandError):
    """Nothing can be sent on this connection until its two ratchets agree again."""

    remedy = "Wait for RatchetSync with the state ok, then ask again."

    def __init__(self) -> None:
        super().__init__(CommandCode.PROHIBITED, "nothing can be sent until the ratchets are synchronised")


def prohibited(message: str) -> CommandError:
    return CommandError(CommandCode.PROHIBITED, message)


class ConnectionCode(Enum):
    NOT_FOUND = "NOT_FOUND"
    DUPLICATE = "DUPLICATE"
    SIMPLEX = "SIMPLEX"
    NOT_ACCEPTED = "NOT_ACCEPTED"
    NOT_AVAILABLE = "NOT_AVAILABLE"


_OF_CONNECTIONS = {
    ConnectionCode.NOT_FOUND: "there is no such connection, or no longer",
    ConnectionCode.DUPLICATE: "there is such a connection already",
    ConnectionCode.SIMPLEX: "the connection is not established in both directions yet",
    ConnectionCode.NOT_ACCEPTED: (
        "the peer's queue takes nothing from us: the connection was not accepted there, or was deleted"
    ),
    ConnectionCode.NOT_AVAILABLE: (
        "the peer's queue takes nothing from us: it is gone or full, or somebody else used the link before; "
        "ask for a new link"
    ),
}


class ConnError(AgentError):
    """The connection as such cannot be used."""

    family = "CONN"
    remedy = "Look at the message: the connection is gone, unfinished, or was refused."

    def __init__(self, code: ConnectionCode, message: str = "") -> None:
        super().__init__(message)
        self.code = code

    @property
    def word(self) -> str:
        return f"CONN {self.code.value}"

    @property
    def usual(self) -> str:
        return _OF_CONNECTIONS[self.code]


class ProtocolCode(Enum):
    A_MESSAGE = "A_MESSAGE"
    A_PROHIBITED = "A_PROHIBITED"
    A_VERSION = "A_VERSION"
    A_LINK = "A_LINK"
    A_CRYPTO = "A_CRYPTO"
    A_DUPLICATE = "A_DUPLICATE"
    A_QUEUE = "A_QUEUE"


_OF_PROTOCOL = {
    ProtocolCode.A_MESSAGE: "the peer sent a message that cannot be read",
    ProtocolCode.A_PROHIBITED: "the peer sent something that is not allowed in this state of the connection",
    ProtocolCode.A_VERSION: "the peer's program and this one have no version of the protocol in common",
    ProtocolCode.A_LINK: "the link contains something that is not valid",
    ProtocolCode.A_CRYPTO: "a message of the peer could not be decrypted",
    ProtocolCode.A_DUPLICATE: "a message came a second time, and was dropped",
    ProtocolCode.A_QUEUE: "the peer sent something about queues that does not fit the connection",
}


class ProtocolError(AgentError):
    """What a peer sent, or what a link contains, is invalid. `detail` names the cryptographic failure."""

    family = "AGENT"
    remedy = "Ask the peer for a new link or message; `synchronize` if it is about decryption."

    def __init__(self, code: ProtocolCode, message: str = "", *, detail: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail

    @property
    def word(self) -> str:
        return " ".join(part for part in ("AGENT", self.code.value, self.detail) if part)

    @property
    def usual(self) -> str:
        return _OF_PROTOCOL[self.code]


class NetworkError(AgentError):
    """A call to a router failed; `failure` says how, and `kind` whether to try again."""

    def __init__(self, server: Server, failure: Failure) -> None:
        super().__init__(str(failure))
        self.server = server
        self.failure = failure
        self.kind = kind_of(failure)

    @property
    def is_impostor(self) -> bool:
        """Whether something other than the router that the fingerprint names answers at the address."""
        return isinstance(self.failure, UnknownCaError | HandshakeIdentityError)


class SmpError(NetworkError):
    """The router of a queue refused."""

    family = "SMP"
    remedy = "The queue is gone or blocked: make a new connection, unless the error is retried."

    def __init__(self, server: Server, failure: RefusedError) -> None:
        super().__init__(server, failure)
        self.error: SMPError = failure.error

    @property
    def word(self) -> str:
        return f"SMP {error_text(self.error)}"


class NoNewQueuesError(SmpError):
    """The router makes no queue for us; it says AUTH as for a wrong signature."""

    remedy = (
        "The router makes no new queues, or only for those who know its password: use its address as its "
        "operator gives it out, with the password."
    )


class ProxyError(NetworkError):
    """A proxy could not pass a command on."""

    family = "PROXY"
    remedy = "Look at the settings of proxies; where it is retried, wait."

    def __init__(self, server: Server, failure: ProxyFailedError) -> None:
        super().__init__(server, failure)
        self.error: SMPError = failure.error

    @property
    def word(self) -> str:
        return f"PROXY {error_text(self.error)}"


class BrokerCode(Enum):
    RESPONSE = "RESPONSE"
    UNEXPECTED = "UNEXPECTED"
    NETWORK = "NETWORK"
    HOST = "HOST"
    NO_SERVICE = "NO_SERVICE"
    TRANSPORT = "TRANSPORT"
    TIMEOUT = "TIMEOUT"


class BrokerError(NetworkError):
    """The router cannot be reached, or does not answer as it should."""

    family = "BROKER"
    remedy = "Look at the network and the router's address; where it is retried, wait."

    def __init__(self, server: Server, failure: Failure) -> None:
        super().__init__(server, failure)
        self.code = _broker_code(failure)

    @property
    def word(self) -> str:
        return f"BROKER {self.code.value}"


def _broker_code(failure: Failure) -> BrokerCode:
    match failure:
        case ResponseTimeoutError() | StageTimeoutError():
            return BrokerCode.TIMEOUT
        case UnexpectedResponseError():
            return BrokerCode.UNEXPECTED
        case GarbledResponseError():
            return BrokerCode.RESPONSE
        case NoHostError():
            return BrokerCode.HOST
        case NoServiceError():
            return BrokerCode.NO_SERVICE
        case HandshakeError():
            return BrokerCode.TRANSPORT
    return BrokerCode.NETWORK


def network_error(server: Server, failure: Failure) -> AgentError:
    """The failure of a call as applications know it."""
    match failure:
        case RefusedError():
            return SmpError(server, failure)
        case ProxyFailedError():
            return ProxyError(server, failure)
        case TooLargeError():
            return CommandError(CommandCode.LARGE)
        case CorrelationIdError():  # it was sent on this connection before, and the answer is still to come
            return BrokerError(server, ResponseTimeoutError())
        case ClientError() if not isinstance(
            failure, ResponseTimeoutError | UnexpectedResponseError | GarbledResponseError | NoServiceError
        ):
            return InternalError(str(failure))
    return BrokerError(server, failure)


def refused_with(error: AgentError, code: Code) -> bool:
    """Whether the queue's own router answered this."""
    return isinstance(error, SmpError) and error.error is code


class InternalError(AgentError):
    """Something that should not happen: an inconsistent state, a missing row."""

    family = "INTERNAL"


class CriticalError(AgentError):
    """The agent itself has a problem, such as a full disk; some work stops until it is solved."""

    family = "CRITICAL"
    remedy = "Look at the disk and the store."

    def __init__(self, message: str, *, temporary: bool = False) -> None:
        super().__init__(message)
        self.kind = Kind.TEMPORARY if temporary else Kind.PERMANENT


class InactiveError(AgentError):
    """The agent is suspended or closed."""

    family = "INACTIVE"
    remedy = "Open the agent, or resume it."
    kind = Kind.TEMPORARY
