"""What the notification router asks of its store, whichever it is, and what a commit writes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from blindpost.engine.loop import StoreFailedError
from blindpost.ntf.machines import SUB_TABLE, SubEvent
from blindpost.ntf.model import STORED_CARRIERS, Carrier, LedgerState, SmpRouter
from blindpost.ntf.ports import Notifier
from blindpost.ntf.records import NotificationRow, Records, RouterRow, SubscriptionRow, TokenRow
from blindpost.ntf.view import Needed, View, Wanted
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.status import SubState

log = logging.getLogger(__name__)

R = TypeVar("R")
V = TypeVar("V")


def ledger_counter(carrier: Carrier, state: LedgerState) -> str:
    return f"ledger_{carrier.value}_{state.value}"


COUNTERS = (
    "tokens",
    "subscriptions",
    "notifications",
    *(ledger_counter(carrier, state) for carrier in STORED_CARRIERS for state in LedgerState),
)
"""What a store counts: its rows, and the states of notifications."""


class WrongKeyError(StoreFailedError):
    """The given key is not the one that this store is sealed with."""

    def __init__(self) -> None:
        super().__init__(
            "this store is sealed with another key: give the key that it was made with, "
            "by the file that store.key_file names or by BLINDPOST_NTF_KEY"
        )


class NtfStore(Protocol):
    """Loads before a batch is decided, commits after; the rest is for walks between batches."""

    async def load(self, wanted: Wanted, view: View) -> None: ...

    async def load_needed(self, needed: Needed, view: View) -> None: ...

    async def commit(self, view: View) -> None: ...

    async def routers(self) -> list[SmpRouter]:
        """Message routers with a subscription in a status that is tried again."""
        ...

    async def router(self, server: Server) -> SmpRouter | None: ...

    async def page(
        self, server: Server, after: bytes, count: int, *, with_associated: bool
    ) -> list[Notifier]: ...

    async def periods_due(self, now: int, count: int) -> list[bytes]:
        """Active tokens whose periodic notification is due, the longest overdue first."""
        ...

    async def waiting(self, after: bytes, count: int) -> list[bytes]:
        """Tokens with a waiting notification, in the order of their ids."""
        ...

    async def aged(self, before: int, count: int) -> list[bytes]:
        """Tokens with a notification that has waited since before then."""
        ...

    async def unverified(self, before: int, count: int) -> list[bytes]:
        """Tokens without subscriptions whose code is older than that and did not come back."""
        ...

    async def codes_unsent(self, since: int, count: int) -> list[bytes]:
        """Tokens with a code from then on that no provider has accepted."""
        ...

    async def unused_routers(self, count: int) -> list[Server]:
        """Message routers at which nothing is subscribed."""
        ...

    async def all_routers(self) -> list[SmpRouter]: ...

    async def tokens_after(self, after: bytes, count: int) -> list[bytes]:
        """All tokens, in the order of their ids."""
        ...

    def counts(self) -> dict[str, int]:
        """Of `COUNTERS`."""
        ...

    @property
    def received(self) -> int:
        """How many notifications were ever accepted."""
        ...

    async def probe(self) -> None:
        """Write something that changes nothing; `StoreFailedError` if the store takes no writes."""

    def close(self) -> None: ...


def received_of(counts: Mapping[str, int]) -> int:
    """Every accepted notification is in exactly one state, of one provider."""
    return sum(sum(states.values()) for states in ledger_of(counts).values())


def ledger_of(counts: Mapping[str, int]) -> dict[Carrier, dict[LedgerState, int]]:
    """The ledger, by provider."""
    return {
        carrier: {state: counts[ledger_counter(carrier, state)] for state in LedgerState}
        for carrier in STORED_CARRIERS
    }


def ledger_total(counts: Mapping[str, int], state: LedgerState) -> int:
    return sum(counts[ledger_counter(carrier, state)] for carrier in STORED_CARRIERS)


@dataclass(slots=True)
class Writes:
    """The rows of one commit. Deletions come first, then routers, tokens, subscriptions, notifications."""

    tokens: list[TokenRow] = field(default_factory=list)
    tokens_gone: list[bytes] = field(default_factory=list)
    subscriptions: list[SubscriptionRow] = field(default_factory=list)
    statuses: list[tuple[bytes, str, bytes | None, bool]] = field(default_factory=list)
    """Subscription, state, error text, association."""
    subscriptions_gone: list[bytes] = field(default_factory=list)
    notifications: list[NotificationRow] = field(default_factory=list)
    notifications_gone: list[bytes] = field(default_factory=list)
    routers: list[RouterRow] = field(default_factory=list)
    routers_unused: list[bytes] = field(default_factory=list)
    """Deleted at the end of the commit, unless something is subscribed there by then."""
    sets: list[SetWrite] = field(default_factory=list)
    ledger: dict[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(
            (
                self.tokens,
                self.tokens_gone,
                self.subscriptions,
                self.statuses,
                self.subscriptions_gone,
                self.notifications,
                self.notifications_gone,
                self.routers,
                self.routers_unused,
                self.sets,
                any(self.ledger.values()),
            )
        )


@dataclass(frozen=True, slots=True)
class SetWrite:
    """One statement for all queues of a message router that are in one of some states."""

    server: bytes
    states: tuple[str, ...]
    next: str
    is_associated: bool | None
    only_associated: bool


def writes_of(view: View, records: Records) -> Writes:
    """What a batch changed, as rows: the last value of each key."""
    writes = Writes()
    for token_id in view.changed_tokens:
        token = view.tokens.get(token_id)
        if token is None:
            writes.tokens_gone.append(token_id)
        else:
            writes.tokens.append(records.token_row(token))
    for subscription_id in view.new_subscriptions:
        subscription = view.subscriptions.get(subscription_id)
        if subscription is not None:
            writes.subscriptions.append(records.subscription_row(subscription))
    for subscription_id in view.changed_subscriptions:
        if subscription_id in view.new_subscriptions:
            continue
        subscription = view.subscriptions.get(subscription_id)
        if subscription is None:
            writes.subscriptions_gone.append(subscription_id)
        else:
            status = subscription.status
            writes.statuses.append(
                (subscription_id, status.state.value, status.error, subscription.is_associated)
            )
    for subscription_id in view.changed_notifications:
        notification = view.notifications.get(subscription_id)
        if notification is None:
            writes.notifications_gone.append(subscription_id)
        else:
            writes.notifications.append(records.notification_row(notification))
    for server in view.changed_routers:
        router = view.routers.get(server)
        if router is not None:
            writes.routers.append(records.router_row(router))
    writes.routers_unused = [records.server_name(server) for server in view.unused_routers]
    for change in view.set_changes:
        writes.sets.append(
            _set_write(records.server_name(change.server), change.event, change.only_associated)
        )
    writes.ledger = {ledger_counter(*key): by for key, by in view.ledger.items()}
    return writes


def _set_write(server: bytes, event: SubEvent, only_associated: bool) -> SetWrite:
    states = tuple(state for state in SubState if (state, event) in SUB_TABLE)
    step = SUB_TABLE[states[0], event]
    names = tuple(state.value for state in states)
    return SetWrite(server, names, step.next.value, step.is_associated, only_associated)


def readable(rows: Sequence[R], decode: Callable[[R], V]) -> list[V]:
    """The values of rows; a damaged one is logged and left out, so that it does not affect the others."""
    found = []
    for row in rows:
        try:
            found.append(decode(row))
        except (WireError, ValueError):
            log.error("a row of the store cannot be read and is skipped")
    return found
