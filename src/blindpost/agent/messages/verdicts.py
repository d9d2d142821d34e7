"""What happens to a message that a router did not take: a pure decision by kind, error and age."""

from __future__ import annotations

from enum import Enum

from blindpost.agent.config import Retention
from blindpost.agent.errors import (
    AgentError,
    ConnectionCode,
    ConnError,
    ProtocolCode,
    ProtocolError,
    refused_with,
)
from blindpost.agent.failures import Kind
from blindpost.agent.model import MessageKind
from blindpost.wire.frozen import dataclass
from blindpost.wire.smp.errors import Code


class Again(Enum):
    """Whether a message is tried again, and how soon."""

    NO = "no"
    FAST = "fast"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and the error as the application knows it."""

    again: Again
    error: AgentError
    told: bool = False
    """Whether the application hears of the delay."""
    expired_s: int | None = None
    """Given up because of its age: all that have waited for so long go too."""


_ABOUT_QUEUES = frozenset({MessageKind.QADD, MessageKind.QKEY, MessageKind.QUSE, MessageKind.QTEST})
_CONFIRMATIONS = frozenset({MessageKind.CONN_INFO, MessageKind.CONN_INFO_REPLY})


def verdict(
    kind: MessageKind, error: AgentError, age_s: int, retention: Retention, *, receives: bool
) -> Verdict:
    """`receives`: whether the connection has a queue to receive from."""
    if refused_with(error, Code.QUOTA):
        if kind in _CONFIRMATIONS:
            return Verdict(Again.NO, ConnError(ConnectionCode.NOT_AVAILABLE))
        if age_s > retention.quota_s:
            return Verdict(Again.NO, error, expired_s=retention.quota_s)
        error.kind = Kind.TEMPORARY
        return Verdict(Again.SLOW, error, told=True)
    if refused_with(error, Code.AUTH):
        return Verdict(Again.NO, _refusal(kind, error, receives=receives))
    if error.retried:
        if age_s > retention.undelivered_s:
            return Verdict(Again.NO, error, expired_s=retention.undelivered_s)
        return Verdict(Again.FAST, error, told=error.kind is Kind.HOST)
    return Verdict(Again.NO, error)


def _refusal(kind: MessageKind, error: AgentError, *, receives: bool) -> AgentError:
    """What AUTH means: the queue is gone, or is not ours to send to."""
    if kind is MessageKind.HELLO and not receives:
        return ConnError(ConnectionCode.NOT_ACCEPTED)
    if kind in _CONFIRMATIONS or kind in (MessageKind.HELLO, MessageKind.RATCHET_INFO):
        return ConnError(ConnectionCode.NOT_AVAILABLE)
    if kind in _ABOUT_QUEUES:
        return ProtocolError(ProtocolCode.A_QUEUE, f"{kind.name}: AUTH")
    return error
