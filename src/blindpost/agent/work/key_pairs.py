"""KEM key pairs made ahead in a separate process, since making one holds the interpreter for 30 ms."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
WORKER = Path(__file__).with_name("kem_worker.py")
PATIENCE_S = 30.0
"""A process that gives no pair for so long, since it was stopped or waits for a disk, is replaced."""
VAIN_MAX = 3
"""After so many processes in a row that gave no pair no more are started."""

log = logging.getLogger(__name__)


class PairMaker(Protocol):
    """Makes one pair at a time."""

    async def make(self) -> KemKeyPair: ...

    async def close(self) -> None: ...


class _KemProcess:
    """One process that makes pairs, and the thread that asks it; a dead one is replaced.

    It ends when its input closes, so it cannot outlive us, however we end.
    """

    def __init__(self, executable: str) -> None:
        self.users = 0
        self.ended = False
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="kem")
        self._executable = executable
        self._process: subprocess.Popen[bytes] | None = None
        self._in_vain = 0 if executable and WORKER.is_file() else VAIN_MAX

    def make(self) -> KemKeyPair:
        """A pair of the process, or of this thread where no process can start."""
        if self.ended:
            raise RuntimeError("the process that makes KEM key pairs has ended")
        made = self._asked() if self._in_vain < VAIN_MAX else b""
        if len(made) == PAIR_SIZE:
            self._in_vain = 0
            return KemKeyPair(made[:KEM_PUBLIC_KEY_SIZE], made[KEM_PUBLIC_KEY_SIZE:])
        self.forget()
        if self.ended:
            raise RuntimeError("the process that makes KEM key pairs has ended")
        return generate_key_pair()

    def _asked(self) -> bytes:
        """What the process gives; less than a pair if it cannot."""
        try:
            process = self._process = self._process or self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b".")
            process.stdin.flush()
            answered, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
            made = process.stdout.read(PAIR_SIZE) if answered else b""
        except BrokenPipeError:
            made = b""
        except OSError:
            return b""  # there may be room for a process later
        if len(made) < PAIR_SIZE and not self.ended:
            self._in_vain += 1
            if self._in_vain == VAIN_MAX:
                log.warning(
                    "KEM key pairs are made in this process: the one that should make them ends at once"
                )
        return made

    def _started(self) -> subprocess.Popen[bytes]:
        # Started with a safe path: the current directory is no place to take modules from.
        here = [folder for folder in sys.path if folder]
        return subprocess.Popen(  # noqa: S603  # our own file
            [self._executable, "-P", str(WORKER), *here], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def kill(self) -> None:
        """Unblock the thread that waits for a pair."""
        self.ended = True
        process = self._process
        if process is not None:
            process.kill()

    def forget(self) -> None:
        """Wait until the process is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.communicate()


_processes: dict[str, _KemProcess] = {}
"""The process of this program, by the interpreter that runs it."""
_guard = threading.Lock()


def _forked() -> None:
    """A copy of this program must not ask the process of the original."""
    global _guard
    _guard = threading.Lock()
    _processes.clear()


os.register_at_fork(after_in_child=_forked)


def _interpreter() -> str:
    """What runs Python files; nothing where that is the program itself, packed together with Python: it would
    be started again, and again from there."""
    return "" if getattr(sys, "frozen", False) else sys.executable or ""


class KemWorker:
    """Makes pairs in the one process of this program, which lives from first use to last close."""

    def __init__(self, executable: str | None = None) -> None:
        self._executable = _interpreter() if executable is None else executable
        self._process: _KemProcess | None = None

    async def make(self) -> KemKeyPair:
        process = self._process = self._process or self._joined()
        return await asyncio.get_running_loop().run_in_executor(process.thread, process.make)

    def _joined(self) -> _KemProcess:
        with _guard:
            process = _processes.get(self._executable)
            if process is None:
                process = _processes[self._executable] = _KemProcess(self._executable)
            process.users += 1
            return process

    async def close(self) -> None:
        """Done with it; the last one waits until the process is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        with _guard:
            process.users -= 1
            if process.users:
                return
            if _processes.get(self._executable) is process:
                del _processes[self._executable]
        process.kill()
        await asyncio.get_running_loop().run_in_executor(process.thread, process.forget)
        process.thread.shutdown(wait=False)


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
        """Stop making pairs; callers that wait for one get an error."""
        if self._filling is not None:
            self._filling.cancel()
            if not self._filling.done():  # as it is where its event loop has ended
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
