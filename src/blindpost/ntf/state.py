"""What is in memory: connections, pushes under way, how many codes were pushed lately.

Nothing here is needed to find a notification again: after a restart all of it is empty, and what waits to
be pushed is found in the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass

from blindpost.crypto.authorizers import AuthenticatorKeys
from blindpost.engine.undo import Table, Undo
from blindpost.ntf.model import PushKind
from blindpost.ntf.rates import Rates
from blindpost.serving.limits import AddressKey
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.transmission import Layout
from blindpost.wire.value import Value


class Client:
    """One connection, as the decisions know it."""

    __slots__ = ("client_id", "layout", "origins", "secrets", "version")

    def __init__(
        self,
        client_id: int,
        version: int,
        layout: Layout,
        secrets: AuthenticatorKeys,
        address: AddressKey | None = None,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self.layout = layout
        self.secrets = secrets
        self.origins: tuple[Hashable, ...] = (client_id,) if address is None else address
        """What its requests are counted under, the narrowest first: its address and the networks around
        it, or the connection alone if it has no address."""


@dataclass(frozen=True, slots=True, repr=False)
class Job(Value):
    """A push to one token: with the provider, or waiting for its retry."""

    number: int
    """Identifies answers and alarms that belong to an earlier job."""
    in_flight: bool = True
    attempts: int = 1
    again: bool = False
    """Something newer arrived while it was in flight."""
    service: str = ""
    """The host of a Web Push service, which a stranger chose."""


class Jobs(Table[tuple[bytes, PushKind], Job]):
    """All jobs, by token and kind; how many each Web Push service has, and all of them together."""

    __slots__ = ("_crowds",)

    def __init__(self, undo: Undo) -> None:
        super().__init__(undo)
        self._crowds: Table[str, int] = Table(undo)

    def put(self, key: tuple[bytes, PushKind], value: Job) -> Job | None:
        before = super().put(key, value)
        self._count(value, 1)
        if before is not None:
            self._count(before, -1)
        return before

    def pop(self, key: tuple[bytes, PushKind]) -> Job | None:
        before = super().pop(key)
        if before is not None:
            self._count(before, -1)
        return before

    def has_room(self, service: str, most: int) -> bool:
        """Whether one more fits into `most`: half is for Web Push, an eighth of that for each service."""
        if len(self) >= most:
            return False
        half = max(most // 2, 1)
        is_crowded = self._crowd(_ALL_WEB) >= half or self._crowd(service) >= max(half // 8, 1)
        return not service or not is_crowded

    def _crowd(self, service: str) -> int:
        return self._crowds.get(service) or 0

    def _count(self, job: Job, by: int) -> None:
        for service in (job.service, _ALL_WEB) if job.service else ():
            left = self._crowd(service) + by
            if left:
                self._crowds.put(service, left)
            else:
                self._crowds.pop(service)


_ALL_WEB = "*"


class NtfState:
    """All of it; every change can be rolled back."""

    def __init__(self, undo: Undo) -> None:
        self.undo = undo
        self.jobs = Jobs(undo)
        self.rates = Rates(undo)
        """Codes by device and by address, and outgoing work caused by tokens."""
        self._numbers = itertools.count(1)

    def new_job(self, device: DeviceToken, attempts: int = 1) -> Job:
        is_web = device.provider is PushProvider.WEB_PUSH
        service = device.subscription.place[0] if is_web else ""
        return Job(next(self._numbers), attempts=attempts, service=service)
