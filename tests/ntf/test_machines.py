"""The status machines, pair by pair, against the tables of the protocol document."""

from __future__ import annotations

import itertools

import pytest

from blindpost.ntf.machines import (
    LEDGER_TABLE,
    RETRIED,
    SUB_TABLE,
    TOKEN_TABLE,
    LedgerEvent,
    SubEvent,
    SubStep,
    TokenEffect,
    TokenEvent,
    TokenStep,
)
from blindpost.ntf.model import LedgerState
from blindpost.wire.ntf.status import SubState, SubStatus, TokenState

T, S = TokenState, SubState
PUSH, NEW_CODE = TokenEffect.PUSH_CODE, TokenEffect.NEW_CODE


def token_step(state: TokenState, event: TokenEvent) -> TokenStep | None:
    """Written down a second time, in the words of the protocol."""
    match event:
        case TokenEvent.REPEATED:
            is_lost = state in (T.NEW, T.INVALID, T.EXPIRED)
            return TokenStep(T.REGISTERED if is_lost else state, (PUSH,))
        case TokenEvent.CODE_ACCEPTED:
            return TokenStep(T.CONFIRMED) if state in (T.REGISTERED, T.INVALID, T.EXPIRED) else None
        case TokenEvent.VERIFIED:
            if state in (T.NEW, T.INVALID, T.EXPIRED):
                return None
            return TokenStep(T.ACTIVE, (TokenEffect.DELETE_OTHERS, TokenEffect.PUSH_WAITING))
        case TokenEvent.REPLACED:
            return TokenStep(T.REGISTERED, (NEW_CODE, PUSH))
        case TokenEvent.REFUSED:
            return TokenStep(T.INVALID, (TokenEffect.REJECT_WAITING,))


@pytest.mark.parametrize(("state", "event"), list(itertools.product(TokenState, TokenEvent)))
def test_tokens(state: TokenState, event: TokenEvent) -> None:
    assert TOKEN_TABLE.get((state, event)) == token_step(state, event)


SUB_NEXT = {
    SubEvent.TRIED: SubStep(S.PENDING, None),
    SubEvent.CONFIRMED: SubStep(S.ACTIVE, False),
    SubEvent.ASSOCIATED: SubStep(S.ACTIVE, True),
    SubEvent.DISCONNECTED: SubStep(S.INACTIVE, None),
    SubEvent.ENDED: SubStep(S.END, False),
    SubEvent.QUEUE_DELETED: SubStep(S.DELETED, False),
    SubEvent.REFUSED_AUTH: SubStep(S.AUTH, False),
    SubEvent.REFUSED_SERVICE: SubStep(S.SERVICE, False),
    SubEvent.REFUSED: SubStep(S.ERR, False),
    SubEvent.SERVICE_LOST: SubStep(S.INACTIVE, False),
}
"""The state an event leads to, from every state where it has an effect."""
FROM_REFUSALS = {SubEvent.SERVICE_LOST: {S.AUTH, S.SERVICE, S.ERR}, SubEvent.QUEUE_DELETED: set(SubState)}
"""Events that also apply to subscriptions no longer retried."""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(SubState, SubEvent)))
def test_subscriptions(state: SubState, event: SubEvent) -> None:
    concerns = state in RETRIED or state in FROM_REFUSALS.get(event, ())
    assert SUB_TABLE.get((state, event)) == (SUB_NEXT[event] if concerns else None)


@pytest.mark.parametrize("state", SubState)
def test_exactly_the_retried_states_count_for_a_service(state: SubState) -> None:
    status = SubStatus(state, b"text" if state is S.ERR else None)
    assert (state in RETRIED) is status.counted


@pytest.mark.parametrize(("state", "event"), list(itertools.product(LedgerState, LedgerEvent)))
def test_a_notification_ends_once(state: LedgerState, event: LedgerEvent) -> None:
    ends = {
        LedgerEvent.PUSH_ACCEPTED: LedgerState.ACCEPTED,
        LedgerEvent.PUSH_REFUSED: LedgerState.REJECTED,
        LedgerEvent.TOKEN_REFUSED: LedgerState.REJECTED,
        LedgerEvent.NEWER: LedgerState.SUPERSEDED,
        LedgerEvent.AGED: LedgerState.EXPIRED,
        LedgerEvent.DELETED: LedgerState.DROPPED,
        LedgerEvent.CROWDED_OUT: LedgerState.DROPPED,
    }
    found = LEDGER_TABLE.get((state, event))
    assert found == (ends[event] if state is LedgerState.WAITING else None)
    assert found is None or found.is_terminal


def test_all_states_but_waiting_are_terminal() -> None:
    assert [state for state in LedgerState if not state.is_terminal] == [LedgerState.WAITING]
