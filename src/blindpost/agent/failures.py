"""What a failure of the network means: try again, the host is wrong, or never again.

Every error that `client` and `transport` can raise falls under exactly one kind, even if it happened
behind a proxy.
"""

from __future__ import annotations

from enum import Enum

from blindpost.client.calls import Failure
from blindpost.client.errors import (
    NoHostError,
    NoServiceError,
    ProxyFailedError,
    RefusedError,
    ResponseTimeoutError,
)
from blindpost.transport import errors as transport
from blindpost.wire.smp.errors import (
    BROKER,
    NETWORK,
    PROTOCOL,
    PROXY,
    STORE,
    TRANSPORT,
    BrokerCode,
    BrokerError,
    Code,
    ProxyCode,
    SMPError,
    TransportCode,
)


class Kind(Enum):
    """What to do about a failure."""

    TEMPORARY = "temporary"
    """The same may succeed later."""
    HOST = "host"
    """The router cannot be used as it is: no host in common, or no version. That may change."""
    PERMANENT = "permanent"


def kind_of(failure: Failure) -> Kind:
    """The kind of a failed call or connection."""
    match failure:
        case ResponseTimeoutError():
            return Kind.TEMPORARY
        case RefusedError() | ProxyFailedError():
            return kind_of_answer(failure.error)
        case NoHostError() | transport.HandshakeVersionError():
            return Kind.HOST
        case transport.HandshakeBadServiceError():
            return Kind.TEMPORARY
        case transport.HandshakeError() | transport.LargeMessageError():
            return Kind.PERMANENT
        case transport.TransportError():
            return Kind.TEMPORARY
    return Kind.PERMANENT


def kind_of_answer(error: SMPError) -> Kind:
    """The kind of an error that a router answered."""
    match error:
        case STORE() | PROXY(ProxyCode.NO_SESSION):
            return Kind.TEMPORARY
        case PROXY(BROKER(inner)):
            return _kind_behind_proxy(inner)
        case PROXY(PROTOCOL(inner_error)):
            return kind_of_answer(inner_error)
    return Kind.PERMANENT


def _kind_behind_proxy(error: BrokerError) -> Kind:
    match error:
        case NETWORK() | BrokerCode.TIMEOUT | TRANSPORT(TransportCode.HANDSHAKE_BAD_SERVICE):
            return Kind.TEMPORARY
        case BrokerCode.HOST | TRANSPORT(TransportCode.VERSION):
            return Kind.HOST
    return Kind.PERMANENT


def is_service_error(failure: Failure) -> bool:
    """Whether the service as such is refused, so that its queues must be subscribed one by one."""
    match failure:
        case NoServiceError():
            return True
        case RefusedError() | ProxyFailedError():
            return failure.error in (Code.SERVICE, PROXY(BROKER(BrokerCode.NO_SERVICE)))
    return False


def is_auth_error(failure: Failure) -> bool:
    """Whether the router does not know the queue, or not with this key."""
    return isinstance(failure, RefusedError) and failure.error is Code.AUTH
