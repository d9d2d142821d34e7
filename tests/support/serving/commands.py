"""The real command in processes of its own, and a router that it started."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from blindpost.client.smp import SmpClient
from blindpost.serving.children import COMMAND, Child, DidNotStartError
from blindpost.wire.addresses import Host, Server
from blindpost.wire.text import unb64
from tests.support.router.routers import FRONTS

ENVIRONMENT = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}


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
    entry = () if "--password" in arguments else ("--open",)
    done = run("router", "init", folder, *at, "--json", *entry, *arguments)
    result: dict[str, Any] = json.loads(done.stdout)
    set_fronts(folder, FRONTS)
    return result


def set_fronts(folder: Path, count: int) -> None:
    """So many, whatever machine this is."""
    file = folder / "router.toml"
    text, found = re.subn(r"^fronts = .*$", f"fronts = {count}", file.read_text(), flags=re.MULTILINE)
    assert found == 1
    file.write_text(text)


def edit(folder: Path, before: str, after: str) -> None:
    """Change one line of the configuration."""
    file = folder / "router.toml"
    text = file.read_text()
    assert text.count(before) == 1, f"{before!r} is there {text.count(before)} times"
    file.write_text(text.replace(before, after))


class Started:
    """A server in a process of its own that can be killed, started again, asked and read."""

    kind = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = dict(ENVIRONMENT)
        self.status: dict[str, Any] = {}
        self.child = Child(
            self.kind, folder, log=folder.with_name(f"{folder.name}.log"), environment=self.environment
        )

    @property
    def log(self) -> bytes:
        return self.child.log

    async def start(self) -> None:
        """Returns when it serves."""
        try:
            self.status = await asyncio.to_thread(self.child.start)
        except DidNotStartError as error:
            raise AssertionError(str(error)) from error

    async def told(self, text: bytes, count: int = 1) -> None:
        """Wait until the log says so."""
        while True:
            if self.log.count(text) >= count:
                return
            await asyncio.sleep(0.01)

    async def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self.child.ask, command, **arguments)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal and wait for the end; the exit code."""
        code = await asyncio.to_thread(self.child.end, number)
        assert code is not None, "it was not started"
        return code

    async def close(self) -> None:
        if self.child.runs:
            await self.end(signal.SIGKILL)


class StartedRouter(Started):
    """`blindpost router start` in a process."""

    kind = "router"

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        return await super().end(number)

    async def connect(self, host: str = "127.0.0.1") -> SmpClient:
        server = Server((Host(host),), str(self.status["ports"][0]), unb64(str(self.status["fingerprint"])))
        return await SmpClient.connect(server)


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[StartedRouter]:
    """The router of this folder until the end of the block, whatever happens."""
    router = StartedRouter(folder)
    try:
        await router.start()
        yield router
    finally:
        await router.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something holds that no event tells; the test's own time limit is the end."""
    for _ in itertools.count():
        if condition():
            return
        await asyncio.sleep(0)
