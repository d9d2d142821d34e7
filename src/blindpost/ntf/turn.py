"""What the decisions of one batch share: state, rules, what was loaded, what they answer and ask for.

Answers and effects leave after the commit, so that nothing is acknowledged or pushed before it is durable.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from blindpost.crypto.entropy import Entropy
from blindpost.crypto.secret import Secret
from blindpost.engine import turn as engine
from blindpost.engine.undo import Table
from blindpost.ntf.meters import Meter, NtfMeters
from blindpost.ntf.model import Carrier, Notification, NtfRules, PushKind, Token
from blindpost.ntf.ports import Notifier
from blindpost.ntf.state import Client, NtfState
from blindpost.ntf.view import View
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.responses import Response
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.value import Value, shape


@dataclass(frozen=True, slots=True, repr=False)
class Push(Value):
    """Have the provider push this, encrypted; `PushDone` tells the outcome."""

    token_id: bytes
    kind: PushKind
    job: int
    device: DeviceToken
    secret: Secret
    content: bytes
    """What is encrypted; empty for a check."""
    carried: tuple[tuple[bytes, int], ...] = ()
    """Notifications, by subscription and number."""
    waiting: tuple[Carrier, ...] = ()
    """The carriers of those that no provider has accepted yet."""
    since: float = 0.0
    """When the newest of them arrived."""
    key_name: bytes = b""
    """The name of the key that a Web Push device is subscribed to."""


@dataclass(frozen=True, slots=True, repr=False)
class PushLater(Value):
    """Schedule `PushAgain` after a pause."""

    token_id: bytes
    kind: PushKind
    job: int
    delay_s: float


@dataclass(frozen=True, slots=True, repr=False)
class Subscribe(Value):
    """Have the subscriber subscribe a new queue."""

    server: Server
    notifier: Notifier


@dataclass(frozen=True, slots=True, repr=False)
class Forget(Value):
    """Have the subscriber forget queues."""

    server: Server
    notifier_ids: tuple[bytes, ...]


Effect = PushLater | Subscribe | Forget


class Happened(NamedTuple):
    """Something happened to a notification of the operator's own device."""

    token_id: bytes
    name: bytes
    """Tells it from all others."""
    since: int
    """When it was received."""
    state: str

    @classmethod
    def to(cls, notification: Notification, state: str) -> Happened:
        return cls(notification.token_id, notification.name, notification.seconds, state)

    def __repr__(self) -> str:
        return shape(type(self), zip(self._fields, self, strict=True))


class Outgoing(NamedTuple):
    """A response for one connection."""

    client_id: int
    corr_id: bytes
    entity_id: bytes
    response: Response

    def __repr__(self) -> str:
        return shape(type(self), zip(self._fields, self, strict=True))


class Turn(engine.Turn[Meter]):
    """One batch, as the decisions see it."""

    def __init__(
        self,
        state: NtfState,
        rules: NtfRules,
        meters: NtfMeters,
        entropy: Entropy,
        now: float,
        received: int,
        own_devices: Collection[bytes] = (),
    ) -> None:
        super().__init__(state.undo, meters)
        self.state = state
        self.rules = rules
        self.meters = meters
        self.entropy = entropy
        self.now = now
        self.view = View(state.undo, received)
        self.outbox: list[Outgoing] = []
        self.effects: list[Effect] = []
        self.notified: list[bytes] = []
        """Subscriptions for which notifications were accepted."""
        self.own_devices = own_devices
        """Devices of canaries and load tests: every event of their notifications is reported."""
        self.happened: list[Happened] = []
        self.pushes: Table[tuple[bytes, PushKind], Push] = Table(state.undo)
        """At most one for each token and kind: it includes what comes later in the batch."""

    @property
    def seconds(self) -> int:
        return int(self.now)

    def answer(self, client: Client, corr_id: bytes, entity_id: bytes, response: Response) -> None:
        self.append(self.outbox, Outgoing(client.client_id, corr_id, entity_id, response))

    def ask(self, effect: Effect) -> None:
        self.append(self.effects, effect)

    def note(self, subscription_id: bytes) -> None:
        self.append(self.notified, subscription_id)

    def enter(self, state: str, carrier: Carrier, reason: str = "") -> None:
        """A notification reached a state of the journal's funnel."""
        funnel, key = self.meters.funnel, (state, reason, carrier.value)
        funnel[key] += 1
        self._add_undo((funnel.subtract, {key: 1}))

    def is_own(self, token: Token | None) -> bool:
        """Whether a token is one of the operator's own devices."""
        return token is not None and token.device.plain.token in self.own_devices

    def tell(self, notification: Notification, *states: str) -> None:
        """A notification reached states of the funnel: noted if its device is the operator's own."""
        if self.is_own(self.view.tokens.get(notification.token_id)):
            for state in states:
                self.append(self.happened, Happened.to(notification, state))

    def move(self, before: str, after: str, reason: str = "") -> None:
        """A token changed its state; `before` or `after` is empty if there is none."""
        transitions = self.meters.transitions
        transitions[before, after, reason] += 1
        self._add_undo((transitions.subtract, {(before, after, reason): 1}))

    def pushed(self, carrier: Carrier, after_s: float) -> None:
        """Record how long after its notification a push was accepted."""
        self.observe(self.meters.push_s[carrier], after_s)

    def fraction(self) -> float:
        """A random number from 0 up to but not including 1."""
        return int.from_bytes(self.entropy(4), "big") / 2**32
