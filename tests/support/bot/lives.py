"""A bot in a process of its own that can be killed at any time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.serving.commands import ENVIRONMENT
from tests.support.serving.processes import ROOT

PATIENCE_S = 100.0


class BotInProcess:
    """`start` and `kill` it as often as you like."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: dict[str, asyncio.Queue[str]] = {
            word: asyncio.Queue() for word in ("begun", "open", "ended")
        }
        self._pid = 0
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            word, _, rest = line.decode().strip().partition(" ")
            if word in self._lines:
                self._lines[word].put_nowait(rest)
            else:
                print(f"the bot said: {line!r}")
        for queue in self._lines.values():
            queue.put_nowait("the process that begins lives is gone")

    async def _told(self, word: str) -> str:
        async with asyncio.timeout(PATIENCE_S):
            return await self._lines[word].get()

    async def start(self) -> None:
        """Begin a life; returns when it has begun, not when the bot is open."""
        assert self._process.stdin is not None
        while not self._lines["open"].empty():
            self._lines["open"].get_nowait()
        self._process.stdin.write(b"live\n")
        self._pid = int(await self._told("begun"))

    async def link(self) -> str:
        """Where the bot is, once it is open."""
        return await self._told("open")

    async def kill(self) -> None:
        """`kill -9`; returns when the process is gone."""
        os.kill(self._pid, signal.SIGKILL)
        assert await self._told("ended") == "-9", "the bot ended by itself"
        self._pid = 0

    async def close(self) -> None:
        if self._pid:
            await self.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._task


@asynccontextmanager
async def bot_in_process(path: Path, server: str) -> AsyncIterator[BotInProcess]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.bot.forked",
        str(path),
        server,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    bot = BotInProcess(process)
    try:
        yield bot
    finally:
        await bot.close()
