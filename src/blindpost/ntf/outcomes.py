"""What happens to a push once its provider has answered."""

from __future__ import annotations

from dataclasses import replace

from blindpost.ntf import ledger, pushes, tokens
from blindpost.ntf.machines import LedgerEvent, TokenEvent
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import Carrier, PushKind, Token
from blindpost.ntf.ports import Accepted, Failed, PushOutcome, RetryLater, TokenInvalid
from blindpost.ntf.turn import Push, Turn

_DELIVERED = {
    PushKind.VERIFICATION: Meter.CODES_DELIVERED,
    PushKind.MESSAGE: Meter.DELIVERED,
    PushKind.CHECK: Meter.PERIODIC_DELIVERED,
}
_FAILED = {
    PushKind.VERIFICATION: Meter.CODES_FAILED,
    PushKind.MESSAGE: Meter.FAILED,
    PushKind.CHECK: Meter.PERIODIC_FAILED,
}


def done(turn: Turn, push: Push, outcome: PushOutcome) -> None:
    """A provider answered. Ignored if the token is gone or the push is no longer its current one."""
    key = (push.token_id, push.kind)
    job = turn.state.jobs.get(key)
    token = turn.view.tokens.get(push.token_id)
    if job is None or job.number != push.job or token is None:
        return
    turn.state.jobs.pop(key)
    match outcome:
        case RetryLater(_, after_s) if _is_worth_repeating(turn, push, job.attempts):
            pushes.pause(turn, token, push.kind, job.attempts, after_s)
            return
        case Accepted(key_name):
            token = _accepted(turn, _of_key(turn, token, push, key_name), push)
        case TokenInvalid(reason) if token.device == push.device:
            _count(turn, token, _FAILED[push.kind])
            if push.kind is PushKind.VERIFICATION:
                _count(turn, token, Meter.CODES_INVALID_TOKENS)
            _count(turn, token, Meter.TOKENS_INVALID)
            token = tokens.advance(turn, token, TokenEvent.REFUSED, reason)
        case TokenInvalid():
            pass  # the device that the token had before
        case Failed() | RetryLater():
            token = _failed(turn, token, push)
    if job.again:
        pushes.request(turn, token, push.kind)


def _of_key(turn: Turn, token: Token, push: Push, key_name: bytes) -> Token:
    """Remember the key with which the push service accepts pushes to this device."""
    if not key_name or key_name == token.key_name or token.device != push.device:
        return token
    token = replace(token, key_name=key_name)
    turn.view.put_token(token)
    return token


def _is_worth_repeating(turn: Turn, push: Push, attempts: int) -> bool:
    return push.kind is PushKind.MESSAGE or attempts < turn.rules.push_attempts


def _count(turn: Turn, token: Token, meter: Meter) -> None:
    if not pushes.is_null(token):
        turn.count(meter)


def _accepted(turn: Turn, token: Token, push: Push) -> Token:
    _count(turn, token, _DELIVERED[push.kind])
    match push.kind:
        case PushKind.VERIFICATION:
            if token.device == push.device and token.code.raw == push.content:
                token = tokens.advance(turn, token, TokenEvent.CODE_ACCEPTED)
        case PushKind.MESSAGE:
            _settle(turn, push, LedgerEvent.PUSH_ACCEPTED)
            turn.pushed(Carrier.of(push.device), max(turn.now - push.since, 0.0))
        case PushKind.CHECK:
            token = replace(_next_period(turn, token), period_sent=turn.seconds)
            turn.view.put_token(token)
    return token


def _failed(turn: Turn, token: Token, push: Push) -> Token:
    _count(turn, token, _FAILED[push.kind])
    if push.kind is PushKind.MESSAGE:
        _settle(turn, push, LedgerEvent.PUSH_REFUSED)
    elif push.kind is PushKind.CHECK:
        token = _next_period(turn, token)
        turn.view.put_token(token)
    return token


def _settle(turn: Turn, push: Push, event: LedgerEvent) -> None:
    """End the notifications that the push carried and that were not replaced."""
    for subscription_id, number in push.carried:
        notification = turn.view.notifications.get(subscription_id)
        if notification is not None and notification.number == number:
            ledger.settle(turn, notification, event)


def _next_period(turn: Turn, token: Token) -> Token:
    """The next future time of the token's schedule."""
    if not token.period_minutes or token.period_due is None:
        return token
    period_s = token.period_minutes * 60
    passed = max(turn.seconds - token.period_due, 0) // period_s + 1
    return replace(token, period_due=token.period_due + passed * period_s)
