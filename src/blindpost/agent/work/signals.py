"""Signals: the sender does not know its listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")


class Signal(Generic[K]):
    """Calls every listener."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[K], None]] = []

    def listen(self, listener: Callable[[K], None]) -> None:
        self._listeners.append(listener)

    def tell(self, what: K) -> None:
        for listener in self._listeners:
            listener(what)
