"""What devices do with their tokens: TNEW TVFY TCHK TRPL TDEL TCRN, and expiry."""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace

from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.ntf import ledger, pushes
from blindpost.ntf.machines import TOKEN_TABLE, LedgerEvent, TokenEffect, TokenEvent
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import CODE_SIZE, ID_SIZE, REGISTERED, PushKind, Token, day_of
from blindpost.ntf.rates import RateKey
from blindpost.ntf.state import Client
from blindpost.ntf.turn import Forget, Turn
from blindpost.wire.addresses import Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import PERIOD_MINUTES_MIN, TCRN, TNEW, TRPL, TVFY
from blindpost.wire.ntf.responses import ERR, IDTKN, OK, TKN, Response
from blindpost.wire.ntf.status import InvalidReason, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.smp.errors import CMD, Code, CommandError

AUTH = ERR(Code.AUTH)
QUOTA = ERR(Code.QUOTA)
_UNVERIFIED = frozenset({TokenState.REGISTERED, TokenState.CONFIRMED})
PROHIBITED = ERR(CMD(CommandError.PROHIBITED))


def advance(turn: Turn, token: Token, event: TokenEvent, reason: InvalidReason | None = None) -> Token:
    """The token after this event, with all effects that the table lists."""
    step = TOKEN_TABLE.get((token.status.state, event))
    if step is None:
        return token
    changed = token
    if step.next is not token.status.state or reason is not None:
        changed = replace(changed, status=TokenStatus(step.next, reason))
        turn.move(token.status.state.value, step.next.value, "" if reason is None else reason.value)
    if TokenEffect.NEW_CODE in step.effects:
        changed = _with_new_code(turn, changed)
    if changed != token:
        turn.view.put_token(changed)
    for effect in step.effects:
        _perform(turn, changed, effect)
    if changed.status.state is not TokenState.ACTIVE:
        pushes.review(turn, changed)
    return changed


def _perform(turn: Turn, token: Token, effect: TokenEffect) -> None:
    match effect:
        case TokenEffect.PUSH_CODE:
            _push_code(turn, token)
        case TokenEffect.NEW_CODE:
            pass
        case TokenEffect.DELETE_OTHERS:
            for other in turn.view.of_device(token.device):
                if other.token_id != token.token_id:
                    delete(turn, other)
        case TokenEffect.PUSH_WAITING:
            if any(notification.is_waiting for notification in turn.view.notified(token.token_id)):
                pushes.hurry(turn, token, PushKind.MESSAGE)
        case TokenEffect.REJECT_WAITING:
            for notification in turn.view.notified(token.token_id):
                reason = token.status.reason
                told = "" if reason is None else reason.value
                ledger.settle(turn, notification, LedgerEvent.TOKEN_REFUSED, told)


def register(turn: Turn, client: Client, command: TNEW) -> Response:
    """TNEW. A registration is known by device and key: a repeated one is answered as the first was."""
    device = command.token
    if _is_refused(turn, device):
        return PROHIBITED
    existing = turn.view.registration(device, command.verify_key)
    if existing is not None and existing.secret != Secret(existing.dh_key.agree(command.dh_key)):
        return AUTH
    if not _may_push_code(turn, client, device):
        if existing is not None and _awaits_code(turn, existing):
            return IDTKN(existing.token_id, existing.dh_key.public)
        return limited(turn)
    if existing is not None:
        known = _touched(turn, _renewed(turn, existing))
        advance(turn, known, TokenEvent.REPEATED)
        return IDTKN(known.token_id, known.dh_key.public)
    dh_key = PrivateKey.generate(Algorithm.X25519, turn.entropy)
    token = Token(
        turn.entropy(ID_SIZE),
        device,
        REGISTERED,
        command.verify_key,
        dh_key,
        Secret(dh_key.agree(command.dh_key)),
        Secret(turn.entropy(CODE_SIZE)),
        code_at=turn.seconds,
        updated_day=day_of(turn.now),
        key_name=_key_name(turn, device),
    )
    turn.view.put_token(token)
    turn.move("", token.status.state.value)
    if not pushes.is_null(token):
        turn.count(Meter.TOKENS_CREATED)
    _push_code(turn, token)
    return IDTKN(token.token_id, dh_key.public)


def verify(turn: Turn, token: Token, command: TVFY) -> Response:
    """TVFY. May be repeated with the same code, since the first answer may have been lost."""
    token = _touched(turn, token)
    if not token.status.verification_allowed or _is_spent(turn, token):
        return AUTH
    if not hmac.compare_digest(token.code.raw, command.code):
        turn.count(Meter.CODES_WRONG)
        if token.code_at is not None:
            tried = replace(token, code_attempts=token.code_attempts + 1)
            turn.view.put_token(tried)
            if _is_spent(turn, tried):
                turn.count(Meter.CODES_LOCKED)
        return AUTH
    if token.status.state is not TokenState.ACTIVE and not pushes.is_null(token):
        turn.count(Meter.TOKENS_VERIFIED)
    if token.code_at is not None or token.code_attempts:
        token = replace(token, code_at=None, code_attempts=0)
        turn.view.put_token(token)
    advance(turn, token, TokenEvent.VERIFIED)
    return OK()


def check(turn: Turn, token: Token) -> Response:
    """TCHK."""
    return TKN(_touched(turn, token).status)


def replace_device(turn: Turn, client: Client, token: Token, command: TRPL) -> Response:
    """TRPL: move the token to another device, once that device has shown its code."""
    token, device = _touched(turn, token), command.token
    if _is_refused(turn, device):
        return PROHIBITED
    other = turn.view.registration(device, token.verify_key)
    if other is not None and other.token_id != token.token_id:
        return AUTH
    if not _may_push_code(turn, client, device):
        return OK() if device == token.device and _awaits_code(turn, token) else limited(turn)
    if device != token.device:
        token = replace(token, device=device, key_name=_key_name(turn, device))
    advance(turn, token, TokenEvent.REPLACED)
    if not pushes.is_null(token):
        turn.count(Meter.TOKENS_REPLACED)
    return OK()


def remove(turn: Turn, token: Token) -> Response:
    """TDEL."""
    delete(turn, token)
    return OK()


def set_period(turn: Turn, token: Token, command: TCRN) -> Response:
    """TCRN. The first one comes at a random time in the first interval, the others one interval apart."""
    token, minutes = _touched(turn, token), command.minutes
    if 0 < minutes < PERIOD_MINUTES_MIN:
        return QUOTA
    if minutes == token.period_minutes:
        return OK()
    due = None
    if minutes:
        period_s = minutes * 60
        due = turn.seconds + 1 + int(turn.fraction() * period_s)
        if token.period_sent is not None:
            due = max(due, token.period_sent + period_s)
    turn.view.put_token(replace(token, period_minutes=minutes, period_due=due))
    return OK()


def delete(turn: Turn, token: Token) -> None:
    """The token with everything that it owns."""
    view = turn.view
    for notification in view.notified(token.token_id):
        ledger.remove(turn, notification, LedgerEvent.DELETED)
    by_server: dict[Server, list[bytes]] = defaultdict(list)
    for subscription in view.owned(token.token_id):
        by_server[subscription.server].append(subscription.notifier_id)
        view.delete_subscription(subscription)
    view.delete_token(token)
    turn.move(token.status.state.value, "")
    for kind in PushKind:
        pushes.cancel(turn, token, kind)
    for server, notifier_ids in by_server.items():
        turn.ask(Forget(server, tuple(notifier_ids)))
    if not pushes.is_null(token):
        turn.count(Meter.TOKENS_DELETED)


def remove_unverified(turn: Turn, token: Token) -> None:
    """Delete a token that was not verified in time; one that owns something was verified once."""
    before = turn.seconds - turn.rules.unverified_ttl_s
    if token.code_at is not None and token.code_at < before and not turn.view.owned(token.token_id):
        delete(turn, token)
        turn.count(Meter.TOKENS_EXPIRED)


def _is_refused(turn: Turn, device: DeviceToken) -> bool:
    """Whether there is no provider for such devices."""
    if device.provider is PushProvider.WEB_PUSH:
        return not turn.rules.web_push
    return device.provider is PushProvider.APNS_TEST and not turn.rules.test_provider


def _key_name(turn: Turn, device: DeviceToken) -> bytes:
    return turn.rules.web_key if device.provider is PushProvider.WEB_PUSH else b""


def _may_push_code(turn: Turn, client: Client, device: DeviceToken) -> bool:
    """Nobody can make us push to a device, or to many devices, without limit.

    The networks around an address may have two and four times as much. All tests of a router use the same
    null device, which gets no pushes.
    """
    rules = turn.rules
    asked: list[tuple[RateKey, int]] = [
        (("codes of address", origin), rules.address_code_pushes * 2**width)
        for width, origin in enumerate(client.origins)
    ]
    if device.provider is not PushProvider.APNS_NULL:
        asked.append((("codes of device", _reached(device)), rules.device_code_pushes))
    if device.provider is PushProvider.WEB_PUSH:
        asked.append((("codes of service", device.subscription.place[0]), rules.service_code_pushes))
    return turn.state.rates.take(asked, rules.code_push_window_s, turn.now)


def _reached(device: DeviceToken) -> Hashable:
    """What a push wakes, however it is spelled and whatever keys a stranger names with an endpoint."""
    if device.provider is PushProvider.WEB_PUSH:
        return device.subscription.place, device.subscription.path
    return device.plain


def limited(turn: Turn) -> Response:
    """The answer to a client that exceeds the limits."""
    turn.count(Meter.REFUSED_LIMIT)
    return QUOTA


def _awaits_code(turn: Turn, token: Token) -> bool:
    """Whether a code was pushed that is still good. Who did not hear the answer asks again and again: it is
    told what is, without another push."""
    return token.status.state in _UNVERIFIED and token.code_at is not None and not _is_spent(turn, token)


def _is_spent(turn: Turn, token: Token) -> bool:
    """Whether there were too many guesses, or the code is too old."""
    if token.code_at is None:
        return False
    return (
        token.code_attempts >= turn.rules.code_attempts
        or token.code_at + turn.rules.code_ttl_s <= turn.seconds
    )


def _renewed(turn: Turn, token: Token) -> Token:
    """A token that registers again: with the code it had, unless that one is spent."""
    if _is_spent(turn, token):
        return _with_new_code(turn, token)
    if token.status.state is TokenState.ACTIVE or token.code_at is not None:
        return token
    return replace(token, code_at=turn.seconds)


def _with_new_code(turn: Turn, token: Token) -> Token:
    return replace(token, code=Secret(turn.entropy(CODE_SIZE)), code_at=turn.seconds, code_attempts=0)


def _touched(turn: Turn, token: Token) -> Token:
    """The day on which a token was last used is all that is kept about its use."""
    today = day_of(turn.now)
    if token.updated_day != today:
        token = replace(token, updated_day=today)
    if token is not turn.view.tokens.get(token.token_id):
        turn.view.put_token(token)
    return token


def _push_code(turn: Turn, token: Token) -> None:
    if not pushes.is_null(token):
        turn.count(Meter.CODES_QUEUED)
    pushes.request(turn, token, PushKind.VERIFICATION)
