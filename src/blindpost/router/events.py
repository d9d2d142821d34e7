"""What can happen to a router: all that its engine decides about."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from blindpost.engine.events import AnyCommands, Gone
from blindpost.router.asking import Asked
from blindpost.router.operator import OperatorCommand
from blindpost.router.state import RouterClient
from blindpost.router.turn import RelayEffect
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import Response
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.transmissions import Refused


class Commands(AnyCommands[RouterClient, Request | Refused, Asked | Refused]):
    """The commands of one block."""

    __slots__ = ("keys",)

    def __init__(
        self, client: RouterClient, items: Sequence[Request | Refused], keys: Sequence[bytes] = ()
    ) -> None:
        self.client = client
        self.items = items
        self.asked = ()
        self.keys = keys
        """For each item the key that a front verified it with, or nothing; none at all if nobody says."""


@dataclass(frozen=True, slots=True)
class Serve:
    """A connection has room for what waits for it, and for the queues that failed before."""

    client: RouterClient
    again: tuple[bytes, ...] = ()
    tries: int = 0
    """How often these have failed again."""


@dataclass(frozen=True, slots=True)
class Present:
    """A connection presents a service certificate in its handshake; `done` hears the service id or None."""

    role: ServiceRole
    fingerprint: bytes
    chain: tuple[bytes, ...]
    done: Callable[[bytes | None], None]
    account: Hashable = None
    """Whom a new service is counted under."""


@dataclass(frozen=True, slots=True)
class Expire:
    """A scan found this many messages from before `before` at the heads of these queues."""

    found: Sequence[tuple[bytes, int]]
    before: int


@dataclass(frozen=True, slots=True)
class ExpireNotifications:
    """A scan found notifications waiting for these notifiers."""

    notifier_ids: Sequence[bytes]
    before: int


@dataclass(frozen=True, slots=True)
class ExpireServices:
    """A scan found these services without queues and older than this day."""

    service_ids: Sequence[bytes]
    before_day: int
    connected: Callable[[], AbstractSet[bytes]]
    """The services that are connected now: looked up once, since there may be many of both."""


@dataclass(frozen=True, slots=True)
class RelayAnswer:
    """What a relay said, or why it could not be asked."""

    effect: RelayEffect
    response: Response


Event = (
    Commands
    | Gone[RouterClient]
    | Serve
    | Present
    | RelayAnswer
    | Expire
    | ExpireNotifications
    | ExpireServices
    | OperatorCommand
)
