"""An agent in a process of its own that can be killed at any time, and what it wrote down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from blindpost.wire.addresses import RouterAddress, Scheme, Server
from tests.support.agent.forked import Journal
from tests.support.serving.commands import ENVIRONMENT
from tests.support.serving.processes import ROOT, until

START_S = 60.0
ANSWER_S = 60.0


class KilledError(Exception):
    """The agent was killed before it answered."""


class AgentInProcess:
    """The agent of one folder; `start` and `kill` it as often as you like."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.log = b""
        self.pid = 0
        self._process = process
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_log())]

    async def start(self) -> None:
        """Begin a life; returns when the agent is open."""
        assert not self.pid, "the agent runs"
        self._ready.clear()
        self._ended.clear()
        self._write("live")
        async with asyncio.timeout(START_S):
            await self._ready.wait()

    async def kill(self) -> None:
        """`kill -9`; returns when the process is gone."""
        pid, self.pid = self.pid, 0
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(START_S):
            await self._ended.wait()

    async def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """One request at a time; `KilledError` if the agent dies meanwhile."""
        if not self.pid:
            raise KilledError
        while not self._answers.empty():
            self._answers.get_nowait()
        self._write(json.dumps({"do": what, **more}))
        async with asyncio.timeout(ANSWER_S):
            answer = await self._answers.get()
        if answer is None:
            raise KilledError
        return answer

    def restore(self, backup: Path) -> None:
        """Put an older store in the place of the present one; the application knows that it was done."""
        assert not self.pid
        for left in self.folder.glob("agent.db*"):
            left.unlink()
        shutil.copy(backup, self.folder / "agent.db")
        with contextlib.closing(sqlite3.connect(self.folder / "agent.db")) as file, file:
            file.execute("DELETE FROM settings WHERE name = 'copy' OR name LIKE 'life%'")
        journal = Journal(self.folder / "journal")
        journal.write(restored=True)
        journal.close()

    def lines(self) -> list[dict[str, Any]]:
        """The journal so far."""
        path = self.folder / "journal"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]

    def all(self, key: str) -> list[Any]:
        return [line[key] for line in self.lines() if key in line]

    async def told(self, event: str) -> None:
        """Wait until the application was told this."""

        async def is_told() -> bool:
            return event in self.all("event")

        await until(is_told)

    async def close(self) -> None:
        if self.pid:
            await self.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await asyncio.gather(*self._tasks)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            word, _, rest = line.decode().partition(" ")
            if word == "ready":
                self.pid = int(rest)
                self._ready.set()
            elif word == "ended":
                self.pid = 0
                self._answers.put_nowait(None)
                self._ended.set()
            else:
                self._answers.put_nowait(json.loads(line))

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.log += line


@asynccontextmanager
async def agent_in_process(folder: Path, servers: Iterable[Server]) -> AsyncIterator[AgentInProcess]:
    """An agent that was not started yet."""
    await asyncio.to_thread(folder.mkdir)
    texts = [RouterAddress(Scheme.SMP, server).text for server in servers]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.agent.forked", str(folder), *texts),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    agent = AgentInProcess(folder, process)
    try:
        yield agent
    finally:
        await agent.close()
