"""New subscriptions on their way to a session: some are remembered, the rest are found in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from blindpost.ntf.ports import Notifier


class Fresh:
    """What was added since the store was last paged through."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._notifiers: dict[bytes, Notifier] = {}
        self._woken = asyncio.Event()
        self.is_overflowed = False
        """There were more than are remembered: page through the store again."""

    def __len__(self) -> int:
        return len(self._notifiers)

    def __bool__(self) -> bool:
        return bool(self._notifiers) or self.is_overflowed

    @property
    def notifier_ids(self) -> tuple[bytes, ...]:
        return tuple(self._notifiers)

    def add(self, notifiers: Iterable[Notifier]) -> None:
        for notifier in notifiers:
            if len(self._notifiers) < self._most:
                self._notifiers[notifier.notifier_id] = notifier
            else:
                self.is_overflowed = True
        self._woken.set()

    def forget(self, notifier_id: bytes) -> None:
        self._notifiers.pop(notifier_id, None)

    def take(self, most: int) -> list[Notifier]:
        """Some of them, in the order of their random ids, not the order in which a device named them."""
        taken = sorted(self._notifiers.values(), key=lambda notifier: notifier.subscription_id)[:most]
        for notifier in taken:
            del self._notifiers[notifier.notifier_id]
        return taken

    def clear(self) -> None:
        """Forget them: the store, which has all of them, is about to be paged through."""
        self._notifiers.clear()
        self.is_overflowed = False

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until more become known or the timeout ends; returns whether more did."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True
