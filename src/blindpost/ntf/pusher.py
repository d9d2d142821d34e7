"""From the pushes that decisions ask for to providers, and their outcomes back as events.

Each provider has its own queue and a bounded number of pushes in flight, so that a slow one delays nobody
else. Content is encrypted here, just before it leaves, with a fresh nonce each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping

from blindpost.crypto.boxes import NONCE_SIZE, BoxKey
from blindpost.crypto.entropy import Entropy
from blindpost.ntf.model import PushKind
from blindpost.ntf.ports import Failed, ManyServices, Provider, PushOutcome, RetryLater
from blindpost.ntf.turn import Push
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, VerificationPush
from blindpost.wire.ntf.pushes import Push as WirePush
from blindpost.wire.ntf.tokens import PushProvider

log = logging.getLogger(__name__)

IN_HAND_MAX = 64
"""How many pushes one provider handles at a time."""
IN_HAND_OF_ONE = 8
"""The same for each push service of a provider that has many."""

ANSWER_S = 1.0
"""How long a router that ends waits for answers to the pushes that providers have: without its answer a push
is made again."""
UNSURE = RetryLater("another router may own the database by now")

Done = Callable[[Push, PushOutcome], None]


class Pusher:
    """All providers of a router."""

    def __init__(
        self,
        providers: Mapping[PushProvider, Provider],
        padded_size: int,
        entropy: Entropy,
        done: Done,
    ) -> None:
        self._providers = dict(providers)
        self._lines: dict[tuple[PushProvider, Hashable], _Line] = {}
        self._seal: Callable[[Push], WirePush] = lambda push: sealed(push, padded_size, entropy)
        self._done = done
        self._is_stopped = False
        self.may_push: Callable[[], bool] = lambda: True
        """Whether this router still owns what it pushes: another one pushes all of it again."""

    @property
    def waiting(self) -> int:
        """How many pushes are queued or with a provider."""
        return sum(line.size for line in self._lines.values())

    def perform(self, push: Push) -> None:
        if self._is_stopped:
            return
        kind = push.device.provider
        provider = self._providers.get(kind)
        if provider is None:
            # What is not set up may be set up later: the token is not to blame.
            self._done(push, RetryLater("this push provider is not set up"))
            return
        service, most = None, IN_HAND_MAX
        if isinstance(provider, ManyServices):
            service, most = provider.lane(push.device), IN_HAND_OF_ONE
        lane = (kind, service)
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = _Line(provider, self._pushing, self._done, most)
            line.emptied = lambda: self._emptied(lane)
        line.put(push)

    def _emptied(self, lane: tuple[PushProvider, Hashable]) -> None:
        """Drop an empty line: strangers choose push services, so lines must not accumulate."""
        line = self._lines.get(lane)
        if line is not None and not line.size:
            del self._lines[lane]

    async def _pushing(self, provider: Provider, push: Push) -> PushOutcome:
        """One attempt; its outcome is logged."""
        if not self.may_push():
            return UNSURE
        try:
            content = self._seal(push)
            if isinstance(provider, ManyServices):
                outcome = await provider.push_as(push.device, content, push.key_name)
            else:
                outcome = await provider.push(push.device, content)
        except Exception:
            log.exception("a push provider failed")
            outcome = Failed("the provider's client failed")
        if isinstance(outcome, Failed | RetryLater):
            log.info("%s did not accept a push: %s", push.device.provider.text, outcome.why)
        return outcome

    def stop(self) -> None:
        """Begin no more pushes; those that are left out are found again in the store."""
        self._is_stopped = True
        for line in self._lines.values():
            line.stop()

    async def finish(self, seconds: float = ANSWER_S) -> None:
        """Wait for the answers of providers, but not for long, and abandon the other pushes."""
        self.stop()
        workers = [worker for line in self._lines.values() for worker in line.workers]
        if workers:
            await asyncio.wait(workers, timeout=seconds)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def close(self) -> None:
        """Hang up on all providers."""
        await asyncio.gather(*(provider.close() for provider in self._providers.values()))


class _Line:
    def __init__(
        self,
        provider: Provider,
        pushing: Callable[[Provider, Push], Awaitable[PushOutcome]],
        done: Done,
        in_hand: int,
    ) -> None:
        self._provider = provider
        self._pushing = pushing
        self._in_hand = in_hand
        self.emptied: Callable[[], None] = lambda: None
        self._done = done
        self._waiting: deque[Push] = deque()
        self.workers: set[asyncio.Task[None]] = set()

    @property
    def size(self) -> int:
        return len(self._waiting) + len(self.workers)

    def put(self, push: Push) -> None:
        self._waiting.append(push)
        if len(self.workers) < self._in_hand:
            worker = asyncio.create_task(self._work())
            self.workers.add(worker)
            worker.add_done_callback(self._ended)

    def _ended(self, worker: asyncio.Task[None]) -> None:
        self.workers.discard(worker)
        if not self.size:
            self.emptied()

    async def _work(self) -> None:
        while self._waiting:
            push = self._waiting.popleft()
            self._done(push, await self._pushing(self._provider, push))

    def stop(self) -> None:
        self._waiting.clear()


def sealed(push: Push, padded_size: int, entropy: Entropy) -> WirePush:
    """A push as the provider may see it."""
    if push.kind is PushKind.CHECK:
        return CheckPush()
    nonce = entropy(NONCE_SIZE)
    box = bytes(BoxKey(push.secret.raw).seal_padded(nonce, push.content, padded_size))
    if push.kind is PushKind.VERIFICATION:
        return VerificationPush(nonce, box)
    return MessagePush(nonce, box)
