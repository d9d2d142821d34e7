"""What devices subscribe to: SNEW SCHK SDEL, and what the subscriber reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blindpost.ntf import ledger, pushes
from blindpost.ntf.machines import LedgerEvent, SubEvent
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import (
    ID_SIZE,
    Carrier,
    Notification,
    PushKind,
    Service,
    SmpRouter,
    Subscription,
    Token,
)
from blindpost.ntf.ports import (
    AssociatedChanged,
    NmsgReceived,
    Notifier,
    ServiceKnown,
    ServiceMade,
    ServiceUnavailable,
    SubscriptionsChanged,
)
from blindpost.ntf.rates import RateKey
from blindpost.ntf.tokens import AUTH, limited
from blindpost.ntf.turn import Forget, Subscribe, Turn
from blindpost.ntf.view import SetChange
from blindpost.wire.addresses import RouterAddress, Scheme, Server
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.commands import SNEW
from blindpost.wire.ntf.pushes import NONCE_SIZE
from blindpost.wire.ntf.responses import ERR, IDSUB, OK, SUB, Response
from blindpost.wire.ntf.status import TokenState
from blindpost.wire.smp.errors import SYNTAX

META_MAX = 1024
"""The metadata of a notification has 144 bytes; anything much larger is invalid."""


def subscribe(turn: Turn, token: Token, command: SNEW) -> Response:
    """SNEW. A repeated one is answered as the first was; another key for the same queue is refused."""
    if not command.notifier_id or not _is_address(command.server):
        return ERR(SYNTAX)
    existing = turn.view.of_queue(command.server, command.notifier_id)
    if existing is not None:
        if existing.token_id != token.token_id or existing.notifier_key != command.notifier_key:
            return AUTH
        return IDSUB(existing.subscription_id)
    if (turn.view.counted.get(token.token_id) or 0) >= turn.rules.token_subscriptions:
        return limited(turn)
    is_new_router = turn.view.routers.get(command.server) is None
    if not _may_go_out(turn, token, is_new_router):
        return limited(turn)
    subscription = Subscription(
        turn.entropy(ID_SIZE), token.token_id, command.server, command.notifier_id, command.notifier_key
    )
    if is_new_router:
        turn.view.put_router(SmpRouter(command.server))
    turn.view.add_subscription(subscription)
    turn.count(Meter.SUBSCRIPTIONS_CREATED)
    notifier = Notifier(subscription.subscription_id, command.notifier_id, command.notifier_key)
    turn.ask(Subscribe(command.server, notifier))
    return IDSUB(subscription.subscription_id)


def _may_go_out(turn: Turn, token: Token, is_new_router: bool) -> bool:
    """Whether a token may name one more queue, and one more router; if so, it is counted."""
    rules, rates, now = turn.rules, turn.state.rates, turn.now
    asked: list[tuple[RateKey, int]] = [(("queues", token.token_id), rules.token_queues)]
    if is_new_router:
        asked.append((("routers", token.token_id), rules.token_routers))
    return rates.take(asked, rules.token_window_s, now)


def forget_unused(turn: Turn, servers: Sequence[Server]) -> None:
    """Delete message routers at which nothing was subscribed when the scan found them."""
    for server in servers:
        turn.view.forget_router(server)


def check(subscription: Subscription) -> Response:
    """SCHK."""
    return SUB(subscription.status)


def unsubscribe(turn: Turn, subscription: Subscription) -> Response:
    """SDEL."""
    notification = turn.view.notifications.get(subscription.subscription_id)
    if notification is not None:
        ledger.remove(turn, notification, LedgerEvent.DELETED)
    turn.view.delete_subscription(subscription)
    turn.ask(Forget(subscription.server, (subscription.notifier_id,)))
    turn.count(Meter.SUBSCRIPTIONS_DELETED)
    token = turn.view.tokens.get(subscription.token_id)
    if notification is not None and token is not None:
        pushes.review(turn, token)
    return OK()


def notified(turn: Turn, event: NmsgReceived) -> None:
    """NMSG: store it, and push it once that is durable. A repeated one counts once."""
    subscription = turn.view.of_queue(event.server, event.notifier_id)
    token = None if subscription is None else turn.view.tokens.get(subscription.token_id)
    turn.enter("received", _carrier(token))
    if subscription is None or token is None:
        _not_accepted(turn, token, "no_token")
    elif token.status.state is not TokenState.ACTIVE:
        _not_accepted(turn, token, "token_inactive")
    elif len(event.nonce) != NONCE_SIZE or not 0 < len(event.encrypted_meta) <= META_MAX:
        _not_accepted(turn, token, "dropped")
    else:
        _accept(turn, token, subscription, event)


def _not_accepted(turn: Turn, token: Token | None, state: str) -> None:
    turn.count(Meter.RECEIVED_AUTH)
    _ended_at_once(turn, token, state)


def _ended_at_once(turn: Turn, token: Token | None, state: str) -> None:
    carrier = _carrier(token)
    turn.enter(state, carrier)
    if token is not None and turn.is_own(token):
        unstored = Notification(turn.entropy(ID_SIZE), token.token_id, 0, turn.seconds, b"", b"", carrier)
        turn.tell(unstored, "received", state)


def _carrier(token: Token | None) -> Carrier:
    return Carrier.NONE if token is None else Carrier.of(token.device)


def _accept(turn: Turn, token: Token, subscription: Subscription, event: NmsgReceived) -> None:
    before = turn.view.notifications.get(subscription.subscription_id)
    if before is not None and before.nonce == event.nonce:
        _ended_at_once(turn, token, "replaced")
        return
    turn.count(Meter.RECEIVED)
    turn.note(subscription.subscription_id)
    ledger.accept(turn, subscription, _carrier(token), event.nonce, event.encrypted_meta)
    pushes.request(turn, token, PushKind.MESSAGE)


def changed(turn: Turn, event: SubscriptionsChanged) -> None:
    """The same happened to some queues of a message router."""
    for notifier_id in event.notifier_ids:
        subscription = turn.view.of_queue(event.server, notifier_id)
        if subscription is not None:
            turn.view.apply(subscription, event.event, event.error)


def changed_together(turn: Turn, event: AssociatedChanged) -> None:
    """The same happened to all queues of our service at a message router."""
    turn.view.change_all(SetChange(event.server, event.event, only_associated=True))


def service_made(turn: Turn, event: ServiceMade) -> None:
    router = turn.view.routers.get(event.server)
    if router is not None:
        turn.view.put_router(replace(router, service=Service(event.credentials)))


def service_known(turn: Turn, event: ServiceKnown) -> None:
    """The id of our service. A new id has none of the former one's queues."""
    router = turn.view.routers.get(event.server)
    if router is None or router.service is None or router.service.service_id == event.service_id:
        return
    if router.service.service_id is not None:
        turn.view.change_all(SetChange(event.server, SubEvent.SERVICE_LOST, only_associated=False))
    turn.view.put_router(replace(router, service=replace(router.service, service_id=event.service_id)))


def service_unavailable(turn: Turn, event: ServiceUnavailable) -> None:
    """Start over at this message router: no certificate, no id, nothing associated, everything INACTIVE."""
    router = turn.view.routers.get(event.server)
    if router is not None:
        turn.view.change_all(SetChange(event.server, SubEvent.SERVICE_LOST, only_associated=False))
        turn.view.put_router(replace(router, service=None))


def _is_address(server: Server) -> bool:
    """Whether the server can be named in a push."""
    try:
        return bool(RouterAddress(Scheme.SMP, server).text)
    except WireError:
        return False
