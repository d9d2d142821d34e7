"""The desk as a link sees it: what it reads and submits is about one message router, and a failing store
is asked again until it answers. Meanwhile nothing more is read from the message router."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TypeVar

from blindpost.engine.loop import StoreFailedError
from blindpost.ntf.model import SmpRouter
from blindpost.ntf.ports import SET_MAX, Desk, Notifier, SubscriberEvent, SubscriptionsChanged
from blindpost.ntf.subscriber.backoff import Backoff
from blindpost.ntf.subscriber.decisions import QueueAnswer
from blindpost.wire.addresses import Server

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reporter:
    """Reads and reports for one message router."""

    def __init__(self, server: Server, desk: Desk, backoff: Backoff, chance: Random) -> None:
        self.server = server
        self._desk = desk
        self._backoff = backoff
        self._chance = chance

    async def stored(self) -> SmpRouter:
        found = await self._insist(lambda: self._desk.router(self.server))
        return SmpRouter(self.server) if found is None else found

    async def is_anything_stored(self) -> bool:
        """Whether there is a subscription to be made or kept."""
        return bool(await self._page(b"", 1, True))

    async def pages(self, count: int, *, with_associated: bool) -> AsyncIterator[Sequence[Notifier]]:
        """All subscriptions to be made, in pages of this size."""
        after = b""
        while page := await self._page(after, count, with_associated):
            yield page
            after = page[-1].subscription_id

    async def submit(self, *events: SubscriberEvent) -> None:
        """Submit these; they are durable when it returns."""
        if events:
            await self._insist(lambda: self._desk.submit(events))

    async def changed(self, notifier_ids: Iterable[bytes], answer: QueueAnswer) -> None:
        """The same happened to all of these queues."""
        await self.answered({answer: tuple(notifier_ids)})

    async def answered(self, answers: Mapping[QueueAnswer, Sequence[bytes]]) -> None:
        """What happened to which queues."""
        await self.submit(
            *(
                SubscriptionsChanged(
                    self.server, tuple(notifier_ids[start : start + SET_MAX]), answer.event, answer.error
                )
                for answer, notifier_ids in answers.items()
                for start in range(0, len(notifier_ids), SET_MAX)
            )
        )

    async def _page(self, after: bytes, count: int, with_associated: bool) -> Sequence[Notifier]:
        return await self._insist(
            lambda: self._desk.page(self.server, after, count, with_associated=with_associated)
        )

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await insist(ask, self._backoff, self._chance)


async def insist(ask: Callable[[], Awaitable[T]], backoff: Backoff, chance: Random) -> T:
    """Ask the store until it answers."""
    failures = 0
    while True:
        try:
            return await ask()
        except StoreFailedError:
            failures += 1
            if failures == 1:
                log.warning("the store is failing; the subscriber waits for it")
            await asyncio.sleep(backoff.pause_s(failures, chance))
