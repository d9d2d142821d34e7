"""The real command in processes of its own, and a router that it started."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from blindpost.client.smp import SmpClient
from blindpost.serving.control import ask
from blindpost.wire.addresses import Host, Server
from blindpost.wire.text import unb64

COMMAND = (sys.executable, "-m", "blindpost.cli")
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
READY = b"the router is ready"


def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `blindpost` to its end; it must end with this exit code."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def init(folder: Path, *arguments: str) -> dict[str, Any]:
    """A new router at a port that the system will choose; what `init --json` printed."""
    at = ("--host", "localhost", "--port", "0", "--listen", "127.0.0.1")
    done = run("router", "init", folder, *at, "--json", *arguments)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def edit(folder: Path, before: str, after: str) -> None:
    """Change one line of the configuration."""
    file = folder / "router.toml"
    text = file.read_text()
    assert text.count(before) == 1, f"{before!r} is there {text.count(before)} times"
    file.write_text(text.replace(before, after))


class StartedRouter:
    """`blindpost router start` in a process."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.process = process
        self.log = b""
        self.status: dict[str, Any] = {}
        self._told = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        assert self.process.stderr is not None
        while READY not in self.log:
            line = await self.process.stderr.readline()
            assert line, f"the router did not start: {self.log.decode()}"
            self.log += line
        self._reading = asyncio.create_task(self._read())
        self.status = await self.ask("status")

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log += line
            self._told.set()

    async def told(self, text: bytes) -> None:
        """Wait until the log says so."""
        while text not in self.log:
            self._told.clear()
            await self._told.wait()

    async def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return await asyncio.to_thread(ask, self.folder / "control.sock", command, **arguments)

    async def connect(self, host: str = "127.0.0.1") -> SmpClient:
        server = Server((Host(host),), str(self.status["ports"][0]), unb64(str(self.status["fingerprint"])))
        return await SmpClient.connect(server)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        code = await self.process.wait()
        if self._reading is not None:
            await self._reading
        return code


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[StartedRouter]:
    """The router of this folder until the end of the block, whatever happens."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "router", "start", "-c", str(folder), stderr=asyncio.subprocess.PIPE, env=ENVIRONMENT
    )
    router = StartedRouter(folder, process)
    try:
        await router.ready()
        yield router
    finally:
        await router.end(signal.SIGKILL)


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something holds that no event tells; the test's own time limit is the end."""
    for _ in itertools.count():
        if condition():
            return
        await asyncio.sleep(0)
