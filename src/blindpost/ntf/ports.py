"""What the two halves of the room ask of each other.

Inside: commands, decisions, the store, the engine. Outside: push providers and the subscriber, which is the
client of message routers. The outside keeps nothing: whatever it learns is an event, and durable when
`Desk.submit` returns. It may ask for the same thing twice; a decision says when nothing changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from blindpost.crypto.credentials import Credentials
from blindpost.ntf.machines import SubEvent
from blindpost.ntf.model import SmpRouter
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.pushes import Push
from blindpost.wire.ntf.status import InvalidReason
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.value import Value

# --- push providers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider accepted the push."""

    key: bytes = field(default=b"", compare=False)
    """The name of the key that it was signed with, where a provider has several."""


@dataclass(frozen=True, slots=True)
class TokenInvalid:
    """The provider reports no such device: the token gets no more pushes."""

    reason: InvalidReason


@dataclass(frozen=True, slots=True)
class Failed:
    """This push will never be accepted; the token stays as it is. `why` goes to the log: no secrets."""

    why: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """An outage or throttling. The caller tries again, later each time, with the newest content."""

    why: str
    after_s: float | None = None
    """The pause the provider asked for."""


PushOutcome = Accepted | TokenInvalid | Failed | RetryLater


class Provider(Protocol):
    """One push service. `push` is one attempt; it raises nothing but cancellation."""

    async def push(self, token: DeviceToken, push: Push) -> PushOutcome: ...

    async def close(self) -> None: ...


@runtime_checkable
class ManyServices(Protocol):
    """A provider for many push services, none of which may hold up another."""

    def lane(self, token: DeviceToken) -> Hashable:
        """The push service of a device."""
        ...

    async def push_as(self, token: DeviceToken, push: Push, key_name: bytes) -> PushOutcome:
        """One attempt, signed with the key that the device is subscribed to, if that is known."""
        ...


# --- the subscriber: input ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Notifier(Value):
    """A queue to subscribe, by the id and the key of its notifier."""

    subscription_id: bytes
    """For the order of pages only."""
    notifier_id: bytes
    key: EncodedPrivateKey


class Subscriber(Protocol):
    """The client of message routers. Neither call waits or fails."""

    def subscribe(self, server: Server, notifiers: Sequence[Notifier]) -> None:
        """Subscribe these too: they are new, and stored."""
        ...

    def forget(self, server: Server, notifier_ids: Sequence[bytes]) -> None:
        """These were deleted: stop subscribing them. Nothing is sent to the message router."""
        ...

    def has(self, server: Server) -> bool:
        """Whether it is still busy with this message router."""
        ...


# --- the subscriber: output -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class NmsgReceived(Value):
    """NMSG: a message arrived in the queue."""

    server: Server
    notifier_id: bytes
    nonce: bytes
    encrypted_meta: bytes


@dataclass(frozen=True, slots=True, repr=False)
class SubscriptionsChanged(Value):
    """The same happened to all of these; at most `SET_MAX` of them."""

    server: Server
    notifier_ids: tuple[bytes, ...]
    event: SubEvent
    error: bytes = b""
    """The text, if the event is REFUSED."""


@dataclass(frozen=True, slots=True, repr=False)
class AssociatedChanged(Value):
    """The same happened to all queues of our service there: ASSOCIATED (SOKS), DISCONNECTED or TRIED."""

    server: Server
    event: SubEvent


@dataclass(frozen=True, slots=True, repr=False)
class ServiceMade(Value):
    """A new certificate for a message router, to be stored before it is first presented."""

    server: Server
    credentials: Credentials


@dataclass(frozen=True, slots=True, repr=False)
class ServiceKnown(Value):
    """A message router knows our certificate by this id. If the id changed, all associations end."""

    server: Server
    service_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class ServiceUnavailable(Value):
    """In one transaction: certificate and id forgotten, every subscription INACTIVE and not associated."""

    server: Server


SubscriberEvent = (
    NmsgReceived | SubscriptionsChanged | AssociatedChanged | ServiceMade | ServiceKnown | ServiceUnavailable
)

SET_MAX = 1360
"""How many subscriptions one event may name."""


class Desk(Protocol):
    """What the subscriber reads from the store, and where it submits its events."""

    async def routers(self) -> Sequence[SmpRouter]:
        """Those with a subscription that is to be subscribed at start."""
        ...

    async def router(self, server: Server) -> SmpRouter | None:
        """One of them as it is now."""
        ...

    async def page(
        self, server: Server, after: bytes, count: int, *, with_associated: bool
    ) -> Sequence[Notifier]:
        """The next subscriptions in a status that is tried again, in the order of their random ids."""
        ...

    async def submit(self, events: Sequence[SubscriberEvent]) -> None:
        """Decide these; durable when it returns, `StoreFailedError` if they could not be stored.

        Awaiting it is the back-pressure. NMSG of one batch should come in one call.
        """
        ...
