"""KEM key pairs made ahead in a process of their own, since making one holds the interpreter for 30 ms."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol

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


class PairMaker(Protocol):
    """Makes one pair at a time."""

    async def make(self) -> KemKeyPair: ...

    async def close(self) -> None: ...


class KemWorker:
    """Makes pairs in a process that starts with the first need.

    It ends when its input closes, so it cannot outlive us, however we end. A dead one is replaced; where
    none can start, pairs are made in a thread.
    """

    def __init__(self, executable: str = sys.executable) -> None:
        self._executable = executable
        self._process: asyncio.subprocess.Process | None = None

    async def make(self) -> KemKeyPair:
        try:
            process = self._process or await self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b".")
            await process.stdin.drain()
            made = await process.stdout.readexactly(PAIR_SIZE)
        except (OSError, asyncio.IncompleteReadError):
            await self.close()
            return await asyncio.to_thread(generate_key_pair)
        return KemKeyPair(made[:KEM_PUBLIC_KEY_SIZE], made[KEM_PUBLIC_KEY_SIZE:])

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            self._executable,
            "-m",
            "blindpost.crypto.kem_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return self._process

    async def close(self) -> None:
        """Wait until the process is gone."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


class KemKeyPool:
    """Keeps up to `size` pairs ready; use as `async with`."""

    def __init__(self, size: int = 4, maker: PairMaker | None = None) -> None:
        self._ready: asyncio.Queue[KemKeyPair] = asyncio.Queue(size)
        self._returned: list[KemKeyPair] = []
        self._maker = maker if maker is not None else KemWorker()
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
        """Stop making pairs; whoever waits for one gets an error."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
            self._filling = None
        await self._maker.close()

    async def take(self) -> KemKeyPair:
        """A pair for one use."""
        filling = self._filling
        if filling is None:
            raise RuntimeError("the pool of KEM key pairs is closed")
        if self._returned:
            return self._returned.pop()
        getting = asyncio.ensure_future(self._ready.get())
        try:
            await asyncio.wait([getting, filling], return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                error = None if filling.cancelled() else filling.exception()
                raise RuntimeError("the pool of KEM key pairs has ended") from error
            return getting.result()
        finally:
            getting.cancel()

    @contextlib.asynccontextmanager
    async def source(self) -> AsyncIterator[KemSource]:
        """A source for one step of a ratchet, with a pair in hand that returns to the pool if not used."""
        source = _OnePair(await self.take())
        try:
            yield source
        finally:
            if source.pair is not None:
                self._returned.append(source.pair)

    async def _fill(self) -> None:
        while True:
            await self._ready.put(await self._maker.make())


class _OnePair:
    def __init__(self, pair: KemKeyPair) -> None:
        self.pair: KemKeyPair | None = pair

    def key_pair(self) -> KemKeyPair:
        pair, self.pair = self.pair, None
        return pair if pair is not None else generate_key_pair()

    def encapsulate(self, public_key: bytes) -> Encapsulated:
        return encapsulate(public_key)
