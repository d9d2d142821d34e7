"""The notification router's decisions on rows in memory: no store, no sockets, no time but the test's."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from blindpost.crypto.authorizers import AuthenticatorKeys
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.engine.undo import Table, Undo
from blindpost.ntf.meters import Meter, NtfMeters
from blindpost.ntf.model import (
    Carrier,
    LedgerState,
    Notification,
    NtfRules,
    PushKind,
    SmpRouter,
    Subscription,
    Token,
    day_of,
)
from blindpost.ntf.state import Client, NtfState
from blindpost.ntf.turn import Push, Turn
from blindpost.ntf.view import View
from blindpost.serving.limits import AddressKeys
from blindpost.wire.addresses import Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.status import InvalidReason, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.ntf.versions import MAX_VERSION
from blindpost.wire.ntf.webpush import Subscription as WebSubscription
from blindpost.wire.transmission import Layout
from tests.support.ntf.routers import SMP, START, device_token
from tests.support.router.routers import new_key

T = TypeVar("T")
SESSION_KEY, DH_KEY, KEY, QUEUE_KEY = (
    new_key(Algorithm.X25519),
    new_key(Algorithm.X25519),
    new_key(),
    new_key(),
)
CODE = b"c" * 32
Row = Token | Subscription | Notification | SmpRouter
NULL_DEVICE = DeviceToken(PushProvider.APNS_NULL, b"test_ntf_token")


def web_device(host: str = "push.example.org", path: bytes = b"/1", auth: bytes = bytes(16)) -> DeviceToken:
    return DeviceToken.web(WebSubscription(host, "", path, auth, b"\x04" + bytes(64)))


def a_client(host: str = "192.0.2.1") -> Client:
    layout = Layout(b"s" * 32, session_sent=False, service_field=False)
    return Client(1, MAX_VERSION, layout, AuthenticatorKeys(SESSION_KEY), AddressKeys().of(host))


def a_token(
    state: TokenState = TokenState.ACTIVE,
    device: DeviceToken | None = None,
    *,
    name: bytes = b"t",
    code_at: int | None = None,
    key: PrivateKey = KEY,
    reason: InvalidReason | None = None,
    **fields: Any,
) -> Token:
    """A token, last used on the first day of the tests."""
    return Token(
        name * 24,
        device or device_token("ab"),
        TokenStatus(state, reason),
        key.public,
        DH_KEY,
        Secret(DH_KEY.agree(DH_KEY.public)),
        Secret(CODE),
        code_at,
        **{"updated_day": day_of(START), **fields},
    )


def a_subscription(number: int = 1, token: bytes = b"t", server: Server = SMP, **fields: Any) -> Subscription:
    name = b"%24d" % number
    return Subscription(name, token * 24, server, b"n" + name, QUEUE_KEY.encoded, **fields)


def a_notification(
    number: int = 1, token: bytes = b"t", *, of: int | None = None, **fields: Any
) -> Notification:
    """The notification with this number; of the subscription with the same, unless told otherwise."""
    given = {"seconds": START, "carrier": Carrier.APPLE, "encrypted_meta": b"m", **fields}
    nonce = given.pop("nonce", b"%24d" % number)
    return Notification(b"%24d" % (of or number), token * 24, number, nonce=nonce, **given)


class InMemory:
    """Rows, and one turn after another. Whatever is decided is first rolled back, and must leave no trace."""

    def __init__(self, rules: NtfRules | None = None, own: Collection[bytes] = ()) -> None:
        self.rules, self.own = rules or NtfRules(), own
        self.undo, self.meters, self.now = Undo(), NtfMeters(), float(START)
        self.state = NtfState(self.undo)
        self.chance = 0.0
        self.tokens: dict[bytes, Token] = {}
        self.subscriptions: dict[bytes, Subscription] = {}
        self.notifications: dict[bytes, Notification] = {}
        self.routers: dict[Server, SmpRouter] = {}
        self.ledger: Counter[tuple[Carrier, LedgerState]] = Counter()
        self.turn = self._begun()
        """The one that was decided last."""
        self.counted: dict[Meter, int] = {}
        self.entered: dict[tuple[str, str, str], int] = {}
        self.moved: dict[tuple[str, str, str], int] = {}
        """What the last turn added to the meters."""
        self._drawn = itertools.count(1)

    def have(self, *rows: Row) -> InMemory:
        for row in rows:
            match row:
                case Token():
                    self.tokens[row.token_id] = row
                case Subscription():
                    self.subscriptions[row.subscription_id] = row
                case SmpRouter():
                    self.routers[row.server] = row
                case Notification():
                    self.notifications[row.subscription_id] = row
                    state = LedgerState.WAITING if row.is_waiting else LedgerState.ACCEPTED
                    self.ledger[row.carrier, state] += 1
        return self

    @property
    def token(self) -> Token:
        """The only one."""
        (token,) = self.tokens.values()
        return token

    def decide(self, decision: Callable[[Turn], T]) -> T:
        """Decide, roll back, see that nothing is left of it, and decide again for good."""
        turn = self._begun()
        before = self._traces(turn)
        decision(turn)
        self.undo.rollback()
        assert self._traces(turn) == before
        counted, entered, moved = (
            self.meters.counts,
            self.meters.funnel.copy(),
            self.meters.transitions.copy(),
        )
        self.turn = turn = self._begun()
        answer = decision(turn)
        self.undo.forget()
        self.counted = {meter: by for meter, n in counted.items() if (by := self.meters[meter] - n)}
        self.entered = dict(self.meters.funnel - entered)
        self.moved = dict(self.meters.transitions - moved)
        self._keep(turn.view)
        return answer

    def pushed(self, kind: PushKind = PushKind.MESSAGE) -> Push:
        """The only push of the last turn."""
        ((key, push),) = self.turn.pushes.items()
        assert key == (push.token_id, push.kind)
        assert push.kind is kind
        return push

    @property
    def states(self) -> dict[str, int]:
        """The ledger, without the carriers."""
        found: Counter[str] = Counter()
        for (_, state), count in self.ledger.items():
            found[state.value] += count
        return dict(+found)

    @property
    def told(self) -> list[tuple[bytes, str]]:
        """What was reported about notifications of own devices."""
        return [(one.name[:24].strip(), one.state) for one in self.turn.happened]

    def _begun(self) -> Turn:
        received = sum(self.ledger.values())
        turn = Turn(self.state, self.rules, self.meters, self._entropy, self.now, received, self.own)
        view = turn.view
        for token_id, token in self.tokens.items():
            for _ in range(2):  # as when a batch needs it twice
                view.fill_token(token)
            owned = [one.subscription_id for one in self.subscriptions.values() if one.token_id == token_id]
            view.fill_owned(token_id, owned)
            view.counted.fill(token_id, len(owned))
            notified = [one for one in self.notifications.values() if one.token_id == token_id]
            view.fill_notifications(token_id, notified)
        for subscription in self.subscriptions.values():
            view.fill_subscription(subscription)
        for server, router in self.routers.items():
            view.routers.fill(server, router)
        return turn

    def _entropy(self, size: int) -> bytes:
        if size == 4:
            return int(self.chance * 2**32).to_bytes(4, "big")
        return next(self._drawn).to_bytes(size, "big")

    def _keep(self, view: View) -> None:
        """What a commit makes durable: only what is named as changed."""
        _update(self.tokens, view.changed_tokens, view.tokens)
        _update(self.subscriptions, view.new_subscriptions, view.subscriptions)
        _update(self.subscriptions, view.changed_subscriptions, view.subscriptions)
        _update(self.notifications, view.changed_notifications, view.notifications)
        _update(self.routers, view.changed_routers, view.routers)
        self.ledger.update(dict(view.ledger.items()))
        assert min(self.ledger.values(), default=0) >= 0

    def _traces(self, turn: Turn) -> list[Any]:
        """Everything that a decision can change."""
        holders = (vars(turn), vars(turn.view), vars(self.state), vars(self.state.rates))
        parts = [part for holder in holders for part in holder.values()]
        parts.append(self.state.jobs._crowds)
        meters = self.meters
        return [
            [dict(part.items()) for part in parts if isinstance(part, Table)],
            [list(part) for part in parts if isinstance(part, list)],
            meters.counts,
            {key: count for key, count in meters.funnel.items() if count},
            {key: count for key, count in meters.transitions.items() if count},
            [histogram.count for histogram in meters.push_s.values()],
        ]


def _update(rows: dict[Any, Any], changed: Table[Any, bool], view: Table[Any, Any]) -> None:
    for key in changed:
        row = view.get(key)
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row
