"""KEM key pairs made ahead in a process of their own, since making one holds the interpreter for 30 ms."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from types import TracebackType

from blindpost.crypto.kem import (
    SECRET_KEY_SIZE,
    Encapsulated,
    KemKeyPair,
    KemSource,
    encapsulate,
    generate_key_pair,
)
from blindpost.wire.e2e import KEM_PUBLIC_KEY_SIZE

PAIR_SIZE = KEM_PUBLIC_KEY_SIZE + SECRET_KEY_SIZE


class KemKeyPool:
    """Keeps up to `size` pairs ready; use as `async with`.

    The worker process is asked for one pair at a time, ends when its input closes (so it cannot outlive us,
    however we end) and is replaced when it dies. Where none can start, pairs are made in a thread.
    """

    def __init__(self, size: int = 4, executable: str = sys.executable) -> None:
        self._ready: asyncio.Queue[KemKeyPair] = asyncio.Queue(size)
        self._executable = executable
        self._worker: asyncio.subprocess.Process | None = None
        self._filling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> KemKeyPool:
        self._filling = asyncio.create_task(self._fill())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop making pairs and wait until the worker process is gone."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
            self._filling = None
        await self._end_worker()

    async def take(self) -> KemKeyPair:
        """A pair for one use."""
        if self._filling is None:
            raise RuntimeError("the pool of KEM key pairs is closed")
        return await self._ready.get()

    @contextlib.asynccontextmanager
    async def source(self) -> AsyncIterator[KemSource]:
        """A source for one step of a ratchet, with a pair in hand that returns to the pool if not used."""
        source = _OnePair(await self.take())
        try:
            yield source
        finally:
            if source.pair is not None:
                with contextlib.suppress(asyncio.QueueFull):
                    self._ready.put_nowait(source.pair)

    async def _fill(self) -> None:
        while True:
            await self._ready.put(await self._make())

    async def _make(self) -> KemKeyPair:
        try:
            worker = self._worker or await self._start_worker()
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(b".")
            await worker.stdin.drain()
            made = await worker.stdout.readexactly(PAIR_SIZE)
        except (OSError, asyncio.IncompleteReadError):
            await self._end_worker()
            return await asyncio.to_thread(generate_key_pair)
        return KemKeyPair(made[:KEM_PUBLIC_KEY_SIZE], made[KEM_PUBLIC_KEY_SIZE:])

    async def _start_worker(self) -> asyncio.subprocess.Process:
        self._worker = await asyncio.create_subprocess_exec(
            self._executable,
            "-m",
            "blindpost.crypto.kem_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return self._worker

    async def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        assert worker.stdin is not None
        worker.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.communicate()


class _OnePair:
    def __init__(self, pair: KemKeyPair) -> None:
        self.pair: KemKeyPair | None = pair

    def key_pair(self) -> KemKeyPair:
        pair, self.pair = self.pair, None
        return pair if pair is not None else generate_key_pair()

    def encapsulate(self, public_key: bytes) -> Encapsulated:
        return encapsulate(public_key)
