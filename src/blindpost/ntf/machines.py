"""The status machines of tokens, subscriptions and notifications, as data: state, event, next, effects.

A pair that is not in a table leaves the state as it is and has no effect.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from blindpost.ntf.model import LedgerState
from blindpost.wire.ntf.status import SubState, TokenState


class TokenEvent(Enum):
    """What happens to a registered token."""

    REPEATED = auto()
    """TNEW again, with the same keys."""
    CODE_ACCEPTED = auto()
    """The provider accepted the push with the code."""
    VERIFIED = auto()
    """TVFY with the right code."""
    REPLACED = auto()
    """TRPL."""
    REFUSED = auto()
    """The provider reports that there is no such device."""


class TokenEffect(Enum):
    """What follows from a change of a token's status."""

    PUSH_CODE = auto()
    NEW_CODE = auto()
    DELETE_OTHERS = auto()
    """The other tokens of the same device, with their subscriptions."""
    PUSH_WAITING = auto()
    """Notifications that waited until the device was verified."""
    REJECT_WAITING = auto()


class TokenStep(NamedTuple):
    next: TokenState
    effects: tuple[TokenEffect, ...] = ()


_T, _E = TokenState, TokenEvent
_VERIFIED = TokenStep(_T.ACTIVE, (TokenEffect.DELETE_OTHERS, TokenEffect.PUSH_WAITING))
_REPLACED = TokenStep(_T.REGISTERED, (TokenEffect.NEW_CODE, TokenEffect.PUSH_CODE))
_REFUSED = TokenStep(_T.INVALID, (TokenEffect.REJECT_WAITING,))

TOKEN_TABLE: dict[tuple[TokenState, TokenEvent], TokenStep] = {
    **{(state, _E.REPEATED): TokenStep(state, (TokenEffect.PUSH_CODE,)) for state in TokenState},
    **{
        (state, _E.REPEATED): TokenStep(_T.REGISTERED, (TokenEffect.PUSH_CODE,))
        for state in (_T.NEW, _T.INVALID, _T.EXPIRED)
    },
    **{
        (state, _E.CODE_ACCEPTED): TokenStep(_T.CONFIRMED)
        for state in (_T.REGISTERED, _T.INVALID, _T.EXPIRED)
    },
    **{(state, _E.VERIFIED): _VERIFIED for state in (_T.REGISTERED, _T.CONFIRMED, _T.ACTIVE)},
    **{(state, _E.REPLACED): _REPLACED for state in TokenState},
    **{(state, _E.REFUSED): _REFUSED for state in TokenState},
}


class SubEvent(Enum):
    """What the subscriber learns about the subscription of one queue."""

    TRIED = auto()
    """It is being subscribed, or will be as soon as the message router can be reached."""
    CONFIRMED = auto()
    """NSUB was answered without a service id."""
    ASSOCIATED = auto()
    """NSUB was answered with the service id of our session."""
    DISCONNECTED = auto()
    ENDED = auto()
    """END: another client subscribed."""
    QUEUE_DELETED = auto()
    """DELD."""
    REFUSED_AUTH = auto()
    REFUSED_SERVICE = auto()
    REFUSED = auto()
    """Any other permanent error; its text is the status."""
    SERVICE_LOST = auto()
    """Our service is no longer known there: everything must be subscribed again."""


class SubStep(NamedTuple):
    next: SubState
    is_associated: bool | None
    """None if unchanged."""


_S, _V = SubState, SubEvent
RETRIED = (_S.NEW, _S.PENDING, _S.ACTIVE, _S.INACTIVE)
"""What is subscribed again at start and after a disconnect."""
_REFUSALS = (_S.AUTH, _S.SERVICE, _S.ERR)

SUB_TABLE: dict[tuple[SubState, SubEvent], SubStep] = {
    **{(state, _V.TRIED): SubStep(_S.PENDING, None) for state in RETRIED},
    **{(state, _V.CONFIRMED): SubStep(_S.ACTIVE, False) for state in RETRIED},
    **{(state, _V.ASSOCIATED): SubStep(_S.ACTIVE, True) for state in RETRIED},
    **{(state, _V.DISCONNECTED): SubStep(_S.INACTIVE, None) for state in RETRIED},
    **{(state, _V.ENDED): SubStep(_S.END, False) for state in RETRIED},
    **{(state, _V.QUEUE_DELETED): SubStep(_S.DELETED, False) for state in SubState},
    **{(state, _V.REFUSED_AUTH): SubStep(_S.AUTH, False) for state in RETRIED},
    **{(state, _V.REFUSED_SERVICE): SubStep(_S.SERVICE, False) for state in RETRIED},
    **{(state, _V.REFUSED): SubStep(_S.ERR, False) for state in RETRIED},
    **{(state, _V.SERVICE_LOST): SubStep(_S.INACTIVE, False) for state in (*RETRIED, *_REFUSALS)},
}


class LedgerEvent(Enum):
    """What happens to a notification that waits."""

    PUSH_ACCEPTED = auto()
    PUSH_REFUSED = auto()
    """Permanently; an outage is not an event of the ledger."""
    TOKEN_REFUSED = auto()
    """The provider reports that there is no such device."""
    NEWER = auto()
    """A newer one of the same queue arrived."""
    AGED = auto()
    DELETED = auto()
    """Its token or subscription was deleted."""
    CROWDED_OUT = auto()
    """Newer ones exist for as many queues as a push may name."""


LEDGER_TABLE: dict[tuple[LedgerState, LedgerEvent], LedgerState] = {
    (LedgerState.WAITING, LedgerEvent.PUSH_ACCEPTED): LedgerState.ACCEPTED,
    (LedgerState.WAITING, LedgerEvent.PUSH_REFUSED): LedgerState.REJECTED,
    (LedgerState.WAITING, LedgerEvent.TOKEN_REFUSED): LedgerState.REJECTED,
    (LedgerState.WAITING, LedgerEvent.NEWER): LedgerState.SUPERSEDED,
    (LedgerState.WAITING, LedgerEvent.AGED): LedgerState.EXPIRED,
    (LedgerState.WAITING, LedgerEvent.DELETED): LedgerState.DROPPED,
    (LedgerState.WAITING, LedgerEvent.CROWDED_OUT): LedgerState.DROPPED,
}
