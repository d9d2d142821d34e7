"""Which pushes are made: one at a time for each token and kind, always with the newest content."""

from __future__ import annotations

from dataclasses import replace

from blindpost.ntf.ledger import remove
from blindpost.ntf.machines import LedgerEvent
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import Notification, PushKind, Token
from blindpost.ntf.turn import Push, PushLater, Turn
from blindpost.wire.ntf.pushes import PushItem, encode_items
from blindpost.wire.ntf.status import TokenState
from blindpost.wire.ntf.tokens import PushProvider

LENGTH_SIZE = 2
"""Before the content in its padding."""


def is_null(token: Token) -> bool:
    """Whether the token is a test of the router: such tokens get no pushes and are not counted."""
    return token.device.provider is PushProvider.APNS_NULL


def request(turn: Turn, token: Token, kind: PushKind) -> None:
    """There is something to push: at once, or after the push in progress."""
    jobs, key = turn.state.jobs, (token.token_id, kind)
    job = jobs.get(key)
    if job is not None and key in turn.pushes:
        start(turn, token, kind, job.attempts)
    elif job is not None and job.in_flight:
        jobs.put(key, replace(job, again=True))
    elif job is None or kind is PushKind.VERIFICATION:
        fresh = turn.state.new_job(token.device)
        if kind is PushKind.MESSAGE and not jobs.has_room(fresh.service, turn.rules.push_queue):
            turn.count(Meter.DEFERRED)
        else:
            start(turn, token, kind)


def hurry(turn: Turn, token: Token, kind: PushKind) -> None:
    """As `request`, and a push waiting for a retry is tried at once."""
    job = turn.state.jobs.get((token.token_id, kind))
    if job is not None and not job.in_flight:
        start(turn, token, kind)
    else:
        request(turn, token, kind)


def ensure(turn: Turn, token: Token, kind: PushKind) -> None:
    """As `request`, if nothing newer arrived: a push in progress or planned is enough."""
    if (token.token_id, kind) not in turn.state.jobs:
        request(turn, token, kind)


def start(turn: Turn, token: Token, kind: PushKind, attempts: int = 1) -> None:
    """Ask for the push, if there is still something to push."""
    jobs, key = turn.state.jobs, (token.token_id, kind)
    job = turn.state.new_job(token.device, attempts)
    push = _push(turn, token, kind, job.number)
    if push is None:
        cancel(turn, token, kind)
    else:
        jobs.put(key, job)
        turn.pushes.put(key, push)


def review(turn: Turn, token: Token) -> None:
    """Plan this batch's pushes anew: something that they carry has ended, or the token changed."""
    for kind in (PushKind.MESSAGE, PushKind.CHECK):
        job = turn.state.jobs.get((token.token_id, kind))
        if job is not None and (token.token_id, kind) in turn.pushes:
            start(turn, token, kind, job.attempts)


def cancel(turn: Turn, token: Token, kind: PushKind) -> None:
    """There is nothing to push any more. The outcome of a push already sent is ignored."""
    turn.state.jobs.pop((token.token_id, kind))
    turn.pushes.pop((token.token_id, kind))


def again(turn: Turn, token_id: bytes, kind: PushKind, number: int) -> None:
    """The pause before repeating a push has ended."""
    job = turn.state.jobs.get((token_id, kind))
    if job is None or job.number != number or job.in_flight:
        return
    token = turn.view.tokens.get(token_id)
    if token is None:
        turn.state.jobs.pop((token_id, kind))
    else:
        start(turn, token, kind, job.attempts)


def pause(turn: Turn, token: Token, kind: PushKind, attempts: int, after_s: float | None) -> None:
    """Try again later, doubling the pause each time, not before the provider allows it, and jittered so that
    tokens do not retry together."""
    rules, fraction = turn.rules, turn.fraction()
    longest = min(rules.retry_max_s, rules.retry_first_s * 2.0 ** min(attempts - 1, 32))
    delay_s = max(longest * (0.5 + fraction / 2), (after_s or 0.0) * (1 + fraction / 4))
    job = replace(turn.state.new_job(token.device, attempts + 1), in_flight=False)
    turn.state.jobs.put((token.token_id, kind), job)
    turn.ask(PushLater(token.token_id, kind, job.number, delay_s))
    turn.count(Meter.RETRIES)
    if kind is PushKind.MESSAGE:
        waiting = [one for one in turn.view.notified(token.token_id) if one.is_waiting]
        for notification in waiting:
            turn.enter("retried", notification.carrier)
            turn.tell(notification, "retried")


def _push(turn: Turn, token: Token, kind: PushKind, job: int) -> Push | None:
    if token.device.provider is PushProvider.APNS_TEST and not turn.rules.test_provider:
        return None
    is_active = token.status.state is TokenState.ACTIVE
    match kind:
        case PushKind.VERIFICATION:
            if not token.status.verification_allowed:
                return None
            return _plain_push(token, kind, job, token.code.raw)
        case PushKind.CHECK:
            if not is_active or not is_due(token, turn.seconds):
                return None
            return _plain_push(token, kind, job, b"")
        case PushKind.MESSAGE:
            return _message_push(turn, token, job) if is_active else None


def _plain_push(token: Token, kind: PushKind, job: int, content: bytes) -> Push:
    """One that carries no notifications."""
    return Push(token.token_id, kind, job, token.device, token.secret, content, key_name=token.key_name)


def is_due(token: Token, now: int) -> bool:
    """Whether the token's next periodic notification is due."""
    return token.period_minutes != 0 and token.period_due is not None and token.period_due <= now


def _message_push(turn: Turn, token: Token, job: int) -> Push | None:
    """The newest notifications of the token's queues, as many as fit; those that do not are dropped."""
    notified = turn.view.notified(token.token_id)
    if not any(notification.is_waiting for notification in notified):
        return None
    items = [_item(turn, notification) for notification in notified]
    for first in range(len(notified)):
        content = encode_items(items[first:])
        if len(content) + LENGTH_SIZE <= turn.rules.padded_size:
            carried = tuple((each.subscription_id, each.number) for each in notified[first:])
            waiting = tuple(each.carrier for each in notified[first:] if each.is_waiting)
            since = float(notified[-1].seconds)
            return Push(
                token.token_id,
                PushKind.MESSAGE,
                job,
                token.device,
                token.secret,
                content,
                carried,
                waiting,
                since,
                token.key_name,
            )
        remove(turn, notified[first], LedgerEvent.CROWDED_OUT)
    return None


def _item(turn: Turn, notification: Notification) -> PushItem:
    subscription = turn.view.subscriptions.get(notification.subscription_id)
    assert subscription is not None, "a notification comes with its subscription"
    return PushItem(
        subscription.server,
        subscription.notifier_id,
        notification.seconds,
        notification.nonce,
        notification.encrypted_meta,
    )
