"""Commands whose responses are awaited: by correlation id, and by the block they were sent in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic

from blindpost.client.calls import C, Call, Failure, R
from blindpost.client.errors import ResponseTimeoutError
from blindpost.wire.primitives import Writer


class Awaited(Generic[C, R]):
    """A call and the place where its caller waits for the result."""

    __slots__ = ("block", "call", "corr_id", "entity_id", "response", "result", "timeout_s", "transmission")

    def __init__(
        self, call: Call[C], entity_id: bytes, timeout_s: float, result: asyncio.Future[R | Failure]
    ) -> None:
        self.call = call
        self.entity_id = entity_id
        self.timeout_s = timeout_s
        self.result = result
        self.response: R | None = None
        """What came, until its caller goes on with it."""
        self.corr_id = b""
        self.transmission: Writer | None = None
        self.block: _Block[C, R] | None = None

    def settle(self, result: R | Failure) -> bool:
        """Hand the result to the caller; False when nobody waits for it any more."""
        if self.result.done():
            return False
        self.result.set_result(result)
        return True


class _Block(Generic[C, R]):
    """One block that was sent: those of its commands that are not answered yet, and their timers."""

    __slots__ = ("timers", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[bytes, Awaited[C, R]] = {}
        self.timers: list[asyncio.TimerHandle] = []

    def stop(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


class InFlight(Generic[C, R]):
    """All that was sent. A timer starts when its block has left for the network, not before."""

    def __init__(self, late_max: int, timed_out: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._late_max = late_max
        self._timed_out = timed_out
        self._awaited: dict[bytes, Awaited[C, R]] = {}
        self._late: dict[bytes, Awaited[C, R]] = {}
        self._blocks: set[_Block[C, R]] = set()
        self._unwritten: list[_Block[C, R]] = []

    def __contains__(self, corr_id: bytes) -> bool:
        return corr_id in self._awaited or corr_id in self._late

    @property
    def blocks(self) -> int:
        """How many blocks wait for responses."""
        return len(self._blocks)

    def sent(self, batch: Iterable[Awaited[C, R]]) -> None:
        """These left together in one block, as far as the session."""
        block: _Block[C, R] = _Block()
        for awaited in batch:
            awaited.block = block
            awaited.transmission = None
            self._awaited[awaited.corr_id] = block.waiting[awaited.corr_id] = awaited
        self._blocks.add(block)
        self._unwritten.append(block)

    def written(self) -> None:
        """Every block so far was taken by the network: time runs from now on."""
        for block in self._unwritten:
            for timeout_s in {awaited.timeout_s for awaited in block.waiting.values()}:
                block.timers.append(self._loop.call_later(timeout_s, self._expire, block, timeout_s))
        self._unwritten.clear()

    def answered(self, corr_id: bytes) -> Awaited[C, R] | None:
        """The command that a response belongs to, which is then no longer awaited."""
        awaited = self._awaited.pop(corr_id, None)
        if awaited is not None:
            assert awaited.block is not None
            self._leave(awaited.block, awaited)
        return awaited

    def late(self, corr_id: bytes) -> Awaited[C, R] | None:
        """As `answered`, of commands that timed out."""
        return self._late.pop(corr_id, None)

    def end(self, reason: Callable[[], Failure]) -> None:
        """The connection has ended."""
        for block in self._blocks:
            block.stop()
        for awaited in self._awaited.values():
            awaited.settle(reason())
        self._blocks.clear()
        self._unwritten.clear()
        self._awaited.clear()
        self._late.clear()

    def _expire(self, block: _Block[C, R], timeout_s: float) -> None:
        for awaited in [one for one in block.waiting.values() if one.timeout_s == timeout_s]:
            del self._awaited[awaited.corr_id]
            awaited.settle(ResponseTimeoutError())
            if len(self._late) >= self._late_max:
                del self._late[next(iter(self._late))]
            self._late[awaited.corr_id] = awaited
            self._leave(block, awaited)
        self._timed_out()

    def _leave(self, block: _Block[C, R], awaited: Awaited[C, R]) -> None:
        del block.waiting[awaited.corr_id]
        awaited.block = None
        if not block.waiting:
            block.stop()
            self._blocks.discard(block)
