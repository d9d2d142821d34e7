"""How a command can fail, by name. What ends the connection itself is named in `transport.errors`."""

from __future__ import annotations

from typing import ClassVar

from blindpost.transport.errors import ClosedError, ConnectError
from blindpost.wire.primitives import encode
from blindpost.wire.smp.error_codec import write_error
from blindpost.wire.smp.errors import CMD, SMPError
from blindpost.wire.value import Value

_TEXT_MAX = 120


def error_text(error: SMPError) -> str:
    """An error in the protocol's own words, fit to be printed."""
    return encode(error, write_error).decode("ascii", "backslashreplace")[:_TEXT_MAX]


class ClientError(Exception):
    """A command failed; the connection and other commands are not affected."""

    default: ClassVar[str] = "the command failed"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.default)


class RefusedError(ClientError):
    """The router answered ERR. Behind a proxy: the relay did."""

    def __init__(self, error: SMPError) -> None:
        super().__init__(f"the router answered: {error_text(error)}")
        self.error = error


class ProxyFailedError(ClientError):
    """A proxy could not pass a command on; `error` is what it says, about itself or about the relay."""

    def __init__(self, error: SMPError) -> None:
        super().__init__(f"the proxy answered: {error_text(error)}")
        self.error = error


class ResponseTimeoutError(ClientError):
    """It is unknown whether the command was executed. A reply may still come, as a late response."""

    default = "the router did not answer in time"


class UnexpectedResponseError(ClientError):
    """A response came that does not belong to the command: of another entity, or of a wrong kind."""

    def __init__(self, response: Value) -> None:
        super().__init__(f"an unexpected response: {type(response).__name__}")
        self.response = response


class GarbledResponseError(ClientError):
    """A response to the command came and could not be read; `error` names what is wrong with it."""

    def __init__(self, error: SMPError) -> None:
        super().__init__(f"the response could not be read: {error_text(error)}")
        self.error = error


class NotSentError(ClientError):
    """The command was not sent at all."""


class CredentialsError(NotSentError):
    """The command lacks an entity id or a key, or has one that it must not have."""

    def __init__(self, error: CMD) -> None:
        super().__init__(f"the command cannot be sent like this: {error_text(error)}")
        self.error = error


class TooLargeError(NotSentError):
    default = "the command does not fit into a block"


class EncodingError(NotSentError):
    default = "the command cannot be written"


class NoRouterKeyError(NotSentError):
    default = "an X25519 key cannot authorize here: the router sent no session key"


class NoServiceError(NotSentError):
    default = "this connection is not that of a service"


class NotAvailableError(NotSentError):
    default = "the agreed version does not have this command"


class CorrelationIdError(NotSentError):
    default = "another command with this correlation id waits for its response"


class NoHostError(ConnectError):
    default = "none of the hosts can be reached in the chosen way"


class RouterSilentError(ClosedError):
    default = "the router was silent for too long"


class TalkativeRouterError(ClosedError):
    default = "the router said too much that nobody asked for"
