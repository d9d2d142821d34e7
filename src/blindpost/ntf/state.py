"""What is in memory: connections, pushes under way, how many codes were pushed lately.

Nothing here is needed to find a notification again: after a restart all of it is empty, and what waits to
be pushed is found in the store.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from blindpost.crypto.authorizers import AuthenticatorKeys
from blindpost.engine.undo import Table, Undo
from blindpost.ntf.model import PushKind
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.transmission import Layout
from blindpost.wire.value import Value


class Client:
    """One connection, as the decisions know it."""

    __slots__ = ("client_id", "layout", "secrets", "version")

    def __init__(self, client_id: int, version: int, layout: Layout, secrets: AuthenticatorKeys) -> None:
        self.client_id = client_id
        self.version = version
        self.layout = layout
        self.secrets = secrets


@dataclass(frozen=True, slots=True, repr=False)
class Job(Value):
    """A push to one token: in the provider's hands, or waiting until it is tried again."""

    number: int
    """Answers and alarms that are for an earlier job say so by it."""
    in_flight: bool = True
    attempts: int = 1
    again: bool = False
    """Something newer came while it was in flight."""


@dataclass(frozen=True, slots=True, repr=False)
class Window(Value):
    """How often something happened since `start`."""

    start: float
    count: int


class State:
    """All of it; every change can be taken back."""

    def __init__(self, undo: Undo) -> None:
        self.undo = undo
        self.jobs: Table[tuple[bytes, PushKind], Job] = Table(undo)
        self.codes: Table[DeviceToken | int, Window] = Table(undo)
        """Codes pushed to a device, and for a connection, which is named by its number."""
        self._numbers = itertools.count(1)

    def new_job(self, attempts: int = 1) -> Job:
        return Job(next(self._numbers), attempts=attempts)

    def may_push_code(self, whom: DeviceToken | int, limit: int, window_s: float, now: float) -> bool:
        window = self.codes.get(whom)
        return window is None or now - window.start >= window_s or window.count < limit

    def count_code(self, whom: DeviceToken | int, window_s: float, now: float) -> None:
        window = self.codes.get(whom)
        if window is None or now - window.start >= window_s:
            self.codes.put(whom, Window(now, 1))
        else:
            self.codes.put(whom, Window(window.start, window.count + 1))

    def forget_codes(self, window_s: float, now: float) -> None:
        """Drop what does not limit anybody any more."""
        old = [whom for whom, window in self.codes.items() if now - window.start >= window_s]
        for whom in old:
            self.codes.pop(whom)
