"""What the subscriber concludes from what message routers say, without doing any of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from blindpost.client.calls import Failure
from blindpost.client.errors import (
    GarbledResponseError,
    NoRouterKeyError,
    NotSentError,
    RefusedError,
    ResponseTimeoutError,
    UnexpectedResponseError,
    error_text,
)
from blindpost.crypto.ids_hash import QueueSet, xor
from blindpost.ntf.machines import SubEvent
from blindpost.ntf.model import SmpRouter
from blindpost.transport.errors import TransportError
from blindpost.wire.smp.errors import STORE, Code, SMPError
from blindpost.wire.smp.responses import OK, SOK, SOKS, Response
from blindpost.wire.smp.versions import SERVICE_HASH_VERSION


class Opening(Enum):
    """How a session begins."""

    QUEUES = auto()
    """NSUB for the queues that are not associated: all, or those of a service that is new there."""
    SERVICE_FIRST = auto()
    """NSUBS, then NSUB for what it does not cover."""
    SERVICE_NAMED = auto()
    """As QUEUES, once the id of our service is stored: under a new id nothing is associated yet."""
    SERVICE_LOST = auto()
    """There were associations but the session is not a service's: forget all of them first."""


def opening_of(router: SmpRouter, session_service_id: bytes | None) -> Opening:
    """How to begin, given what is stored about a message router and the session's service there."""
    stored = None if router.service is None else router.service.service_id
    if session_service_id is None:
        has_been = stored is not None or router.members.count > 0
        return Opening.SERVICE_LOST if has_been else Opening.QUEUES
    if stored != session_service_id:
        return Opening.SERVICE_NAMED
    return Opening.SERVICE_FIRST if router.members.count else Opening.QUEUES


def drifted(own: QueueSet, answer: SOKS, surplus: QueueSet, version: int) -> bool:
    """Whether the message router's set of our queues differs from ours.

    `surplus` are queues that it is known to have beyond ours: deleted here, with no way to tell it.
    """
    if answer.count != own.count + surplus.count:
        return True
    return version >= SERVICE_HASH_VERSION and answer.ids_hash != xor(own.ids_hash, surplus.ids_hash)


def surplus_of(own: QueueSet, answer: SOKS) -> QueueSet:
    """What a message router has beyond ours, once all of ours were subscribed again."""
    more = answer.count - own.count
    return QueueSet(more, xor(own.ids_hash, answer.ids_hash)) if more > 0 else QueueSet()


class ServiceAnswer(Enum):
    """What the answer to NSUBS means."""

    SUBSCRIBED = auto()
    UNAVAILABLE = auto()
    """The message router does not know our service."""
    AGAIN = auto()


def service_answer(result: Response | Failure) -> ServiceAnswer:
    if isinstance(result, SOKS):
        return ServiceAnswer.SUBSCRIBED
    refused = isinstance(result, RefusedError) and result.error in (Code.SERVICE, Code.AUTH)
    return ServiceAnswer.UNAVAILABLE if refused else ServiceAnswer.AGAIN


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """The outcome of one NSUB."""

    event: SubEvent
    error: bytes = b""


CONFIRMED = QueueAnswer(SubEvent.CONFIRMED)
ASSOCIATED = QueueAnswer(SubEvent.ASSOCIATED)
TRIED = QueueAnswer(SubEvent.TRIED)
DISCONNECTED = QueueAnswer(SubEvent.DISCONNECTED)
INCOMPATIBLE_HOST = QueueAnswer(SubEvent.REFUSED, b"IncompatibleHost")

_NAMED_REFUSALS: dict[SMPError, QueueAnswer] = {
    Code.AUTH: QueueAnswer(SubEvent.REFUSED_AUTH),
    Code.SERVICE: QueueAnswer(SubEvent.REFUSED_SERVICE),
}


def queue_answer(result: Response | Failure, session_service_id: bytes | None) -> QueueAnswer | None:
    """None if the answer says nothing about the queue, so it must be asked again."""
    match result:
        case SOK(service_id=service_id) if service_id is not None and service_id == session_service_id:
            return ASSOCIATED
        case OK() | SOK():
            return CONFIRMED
        case TransportError() | ResponseTimeoutError():
            return None
        case RefusedError(error=error):
            return _refusal(error)
        case GarbledResponseError(error=error):
            return _failed("ResponseError", error_text(error))
        case UnexpectedResponseError(response=response):
            return _failed("UnexpectedResponse", type(response).__name__)
        case NoRouterKeyError():
            return _failed("CryptoError", str(result))
        case NotSentError():
            return _failed("TransportError", str(result))
    return _failed("UnexpectedResponse", type(result).__name__)


def _refusal(error: SMPError) -> QueueAnswer | None:
    """A storage failure or bug of the router says nothing about the queue."""
    if error is Code.INTERNAL or isinstance(error, STORE):
        return None
    return _NAMED_REFUSALS.get(error) or _failed("SMP error", error_text(error))


def _failed(kind: str, text: str) -> QueueAnswer:
    return QueueAnswer(SubEvent.REFUSED, f"{kind} {text}".encode("ascii", "replace"))
