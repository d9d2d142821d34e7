"""The part of the store that a batch touches, with the batch's own changes on top."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from blindpost.engine.undo import Table, Undo
from blindpost.ntf.machines import SUB_TABLE, SubEvent
from blindpost.ntf.model import Carrier, LedgerState, Notification, SmpRouter, Subscription, Token
from blindpost.wire.addresses import Server
from blindpost.wire.keys import PublicKey
from blindpost.wire.ntf.status import SubStatus
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.value import Value

Queue = tuple[Server, bytes]
"""A message router and the id of a notifier there."""


Registration = tuple[DeviceToken, PublicKey]
"""What identifies a token: a device and the key that authorizes its commands."""

RIVALS_MAX = 1000
"""How many tokens of a device are deleted at once; limits keep every device but the null one below this."""


@dataclass(slots=True)
class Wanted:
    """What must be loaded before the requests of a batch can be verified."""

    tokens: set[bytes] = field(default_factory=set)
    registrations: set[Registration] = field(default_factory=set)
    subscriptions: set[bytes] = field(default_factory=set)
    queues: set[Queue] = field(default_factory=set)
    """The subscriptions to these; with each comes its token."""
    routers: set[Server] = field(default_factory=set)


@dataclass(slots=True)
class Needed:
    """What else verified requests and events may reach."""

    registrations: set[Registration] = field(default_factory=set)
    rivals: set[DeviceToken] = field(default_factory=set)
    """The tokens of these devices, at most `RIVALS_MAX` of each, with everything they own."""
    owned: set[bytes] = field(default_factory=set)
    """Everything that these tokens own."""
    notifications: set[bytes] = field(default_factory=set)
    """The notifications of these tokens, with their subscriptions."""
    counted: set[bytes] = field(default_factory=set)
    """How many subscriptions these tokens have."""


@dataclass(frozen=True, slots=True, repr=False)
class SetChange(Value):
    """The same event for all queues of a message router: only the associated ones, or all of them."""

    server: Server
    event: SubEvent
    only_associated: bool


class View:
    """What was loaded, and what one commit makes durable."""

    def __init__(self, undo: Undo, received: int) -> None:
        self._undo = undo
        self._received = received
        self.tokens: Table[bytes, Token] = Table(undo)
        self.subscriptions: Table[bytes, Subscription] = Table(undo)
        self.notifications: Table[bytes, Notification] = Table(undo)
        """By subscription."""
        self.routers: Table[Server, SmpRouter] = Table(undo)
        self._by_device: Table[DeviceToken, tuple[bytes, ...]] = Table(undo)
        """By its plain spelling."""
        self._by_queue: Table[Queue, bytes] = Table(undo)
        self._owned: Table[bytes, tuple[bytes, ...]] = Table(undo)
        self._notified: Table[bytes, tuple[bytes, ...]] = Table(undo)
        self.counted: Table[bytes, int] = Table(undo)
        """How many subscriptions a token has, where that was asked for."""
        self.new_subscriptions: Table[bytes, bool] = Table(undo)
        self.changed_tokens: Table[bytes, bool] = Table(undo)
        self.changed_subscriptions: Table[bytes, bool] = Table(undo)
        self.changed_notifications: Table[bytes, bool] = Table(undo)
        self.changed_routers: Table[Server, bool] = Table(undo)
        self.unused_routers: list[Server] = []
        """Deleted by the commit if nothing is subscribed at them after it."""
        self.set_changes: list[SetChange] = []
        self.ledger: Table[tuple[Carrier, LedgerState], int] = Table(undo)
        """By how much the counts of states change."""

    # --- what was loaded

    def fill_token(self, token: Token) -> None:
        self.tokens.fill(token.token_id, token)
        device = token.device.plain
        known = self._by_device.get(device) or ()
        if token.token_id not in known:
            self._by_device.fill(device, (*known, token.token_id))

    def fill_subscription(self, subscription: Subscription) -> None:
        self.subscriptions.fill(subscription.subscription_id, subscription)
        self._by_queue.fill((subscription.server, subscription.notifier_id), subscription.subscription_id)

    def fill_owned(self, token_id: bytes, subscription_ids: Iterable[bytes]) -> None:
        self._owned.fill(token_id, tuple(subscription_ids))

    def fill_notifications(self, token_id: bytes, notifications: Iterable[Notification]) -> None:
        listed = tuple(notifications)
        for notification in listed:
            self.notifications.fill(notification.subscription_id, notification)
        self._notified.fill(token_id, tuple(notification.subscription_id for notification in listed))

    # --- what is there now

    def of_device(self, device: DeviceToken) -> tuple[Token, ...]:
        """However each of them spells it."""
        plain = device.plain
        found = (self.tokens.get(token_id) for token_id in self._by_device.get(plain) or ())
        return tuple(token for token in found if token is not None and token.device.plain == plain)

    def registration(self, device: DeviceToken, verify_key: PublicKey) -> Token | None:
        """With exactly this spelling of the device, as the protocol has it."""
        found = (
            token
            for token in self.of_device(device)
            if token.device == device and token.verify_key == verify_key
        )
        return next(found, None)

    def of_queue(self, server: Server, notifier_id: bytes) -> Subscription | None:
        subscription_id = self._by_queue.get((server, notifier_id))
        return None if subscription_id is None else self.subscriptions.get(subscription_id)

    def owned(self, token_id: bytes) -> tuple[Subscription, ...]:
        found = (
            self.subscriptions.get(subscription_id) for subscription_id in self._owned.get(token_id) or ()
        )
        return tuple(subscription for subscription in found if subscription is not None)

    def notified(self, token_id: bytes) -> tuple[Notification, ...]:
        """The newest notifications of a token's queues, oldest first."""
        found = (
            self.notifications.get(subscription_id) for subscription_id in self._notified.get(token_id) or ()
        )
        there = (notification for notification in found if notification is not None)
        return tuple(sorted(there, key=lambda notification: notification.number))

    # --- changes

    def put_token(self, token: Token) -> None:
        self.tokens.put(token.token_id, token)
        device = token.device.plain
        known = self._by_device.get(device) or ()
        if token.token_id not in known:
            self._by_device.put(device, (*known, token.token_id))
        self.changed_tokens.put(token.token_id, True)

    def delete_token(self, token: Token) -> None:
        """The token alone; what it owns is deleted by the caller, who counts it."""
        self.tokens.pop(token.token_id)
        self.changed_tokens.put(token.token_id, True)

    def add_subscription(self, subscription: Subscription) -> None:
        subscription_id, token_id = subscription.subscription_id, subscription.token_id
        self.subscriptions.put(subscription_id, subscription)
        self._by_queue.put((subscription.server, subscription.notifier_id), subscription_id)
        self._owned.put(token_id, (*(self._owned.get(token_id) or ()), subscription_id))
        self.new_subscriptions.put(subscription_id, True)
        self._recount(token_id, 1)

    def put_subscription(self, subscription: Subscription) -> None:
        """A subscription whose status changed; nothing else in it ever does."""
        self.subscriptions.put(subscription.subscription_id, subscription)
        self.changed_subscriptions.put(subscription.subscription_id, True)

    def delete_subscription(self, subscription: Subscription) -> None:
        self.subscriptions.pop(subscription.subscription_id)
        self.changed_subscriptions.put(subscription.subscription_id, True)
        self._recount(subscription.token_id, -1)

    def _recount(self, token_id: bytes, by: int) -> None:
        count = self.counted.get(token_id)
        if count is not None:
            self.counted.put(token_id, count + by)

    def put_notification(self, notification: Notification) -> None:
        subscription_id, token_id = notification.subscription_id, notification.token_id
        self.notifications.put(subscription_id, notification)
        known = self._notified.get(token_id) or ()
        if subscription_id not in known:
            self._notified.put(token_id, (*known, subscription_id))
        self.changed_notifications.put(subscription_id, True)

    def delete_notification(self, notification: Notification) -> None:
        self.notifications.pop(notification.subscription_id)
        self.changed_notifications.put(notification.subscription_id, True)

    def put_router(self, router: SmpRouter) -> None:
        self.routers.put(router.server, router)
        self.changed_routers.put(router.server, True)

    def forget_router(self, server: Server) -> None:
        self.unused_routers.append(server)
        self._undo.add((self.unused_routers.pop,))

    def change_all(self, change: SetChange) -> None:
        """One statement of the store changes the rows that are not loaded; this changes those that are."""
        self.set_changes.append(change)
        self._undo.add((self.set_changes.pop,))
        for subscription_id in tuple(self.subscriptions):
            found = self.subscriptions.get(subscription_id)
            if found is None or found.server != change.server:
                continue
            if found.is_associated or not change.only_associated:
                self.apply(found, change.event)

    def apply(self, subscription: Subscription, event: SubEvent, error: bytes = b"") -> None:
        """What the table says about this event."""
        step = SUB_TABLE.get((subscription.status.state, event))
        if step is None:
            return
        failed = event is SubEvent.REFUSED
        status = SubStatus.failed(error) if failed else SubStatus(step.next)
        is_associated = subscription.is_associated if step.is_associated is None else step.is_associated
        if status != subscription.status or is_associated != subscription.is_associated:
            self.put_subscription(replace(subscription, status=status, is_associated=is_associated))

    # --- the ledger

    def next_number(self) -> int:
        """The number of a notification accepted now: they are counted without gaps, forever.

        The sum of all count changes is how many arrived: one that ends only moves.
        """
        return self._received + sum(by for _, by in self.ledger.items()) + 1

    def enter(self, carrier: Carrier, state: LedgerState) -> None:
        """A notification enters a state; one that enters a terminal state leaves WAITING."""
        self._change(carrier, state, 1)
        if state.is_terminal:
            self._change(carrier, LedgerState.WAITING, -1)

    def _change(self, carrier: Carrier, state: LedgerState, by: int) -> None:
        self.ledger.put((carrier, state), (self.ledger.get((carrier, state)) or 0) + by)
