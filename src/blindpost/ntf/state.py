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
from blindpost.wire.transmission import Layout
from blindpost.wire.value import Value


class Client:
    """One connection, as the decisions know it."""

    __slots__ = ("client_id", "layout", "origin", "secrets", "version")

    def __init__(
        self,
        client_id: int,
        version: int,
        layout: Layout,
        secrets: AuthenticatorKeys,
        origin: Hashable = None,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self.layout = layout
        self.secrets = secrets
        self.origin = client_id if origin is None else origin
        """What the connection's requests are counted under: its address, if it has one."""


@dataclass(frozen=True, slots=True, repr=False)
class Job(Value):
    """A push to one token: in the provider's hands, or waiting until it is tried again."""

    number: int
    """Identifies answers and alarms that belong to an earlier job."""
    in_flight: bool = True
    attempts: int = 1
    again: bool = False
    """Something newer came while it was in flight."""


class NtfState:
    """All of it; every change can be taken back."""

    def __init__(self, undo: Undo) -> None:
        self.undo = undo
        self.jobs: Table[tuple[bytes, PushKind], Job] = Table(undo)
        self.rates = Rates(undo)
        """Codes by device and by address, and what tokens had us do elsewhere."""
        self._numbers = itertools.count(1)

    def new_job(self, attempts: int = 1) -> Job:
        return Job(next(self._numbers), attempts=attempts)
