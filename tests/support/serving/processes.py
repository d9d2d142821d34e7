"""Servers in processes of their own that can be killed, restarted and looked at from outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import lmdb

from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.router.tables import TABLES
from blindpost.serving.children import free_port
from blindpost.serving.control import ask
from blindpost.wire.addresses import Host, Server
from blindpost.wire.text import unb64
from tests.support.serving.commands import ENVIRONMENT, edit, init

START_S, END_S = 60.0, 30.0
ROOT = Path(__file__).parents[3]

Dump = dict[str, dict[bytes, bytes]]
"""Every row of every table."""


class Forked:
    """The server of one folder; `start` and `end` its lives as often as you like."""

    def __init__(self, folder: Path, port: int, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.port = port
        self.log = b""
        self.pid = 0
        self._process = process
        self._reading = asyncio.create_task(self._read_log())

    async def start(self) -> None:
        """Begin a life; returns when the server serves."""
        assert not self.pid, "it runs"
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        kind, *values = await self._told(START_S)
        assert kind == "ready", f"it did not start: {self.log.decode()}"
        self.pid, port = map(int, values)
        assert port == self.port

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to the server, which must be alive, and wait until it is gone; its exit code."""
        pid, self.pid = self.pid, 0
        os.kill(pid, number)
        kind, code = await self._told(END_S)
        assert kind == "ended"
        return int(code)

    async def close(self) -> None:
        if self.pid:
            await self.end()
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _told(self, timeout_s: float) -> list[str]:
        assert self._process.stdout is not None
        async with asyncio.timeout(timeout_s):
            return (await self._process.stdout.readline()).decode().split()

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.log += line


class RouterInProcess(Forked):
    """The message router of one folder."""

    def __init__(
        self, folder: Path, port: int, fingerprint: bytes, process: asyncio.subprocess.Process
    ) -> None:
        super().__init__(folder, port, process)
        self.server = Server((Host("127.0.0.1"),), str(port), fingerprint)
        self._descriptors = 0

    async def start(self) -> None:
        await super().start()
        self._descriptors = self._open_descriptors()

    async def connect(self, options: SmpOptions | None = None) -> SmpClient:
        return await SmpClient.connect(self.server, options or SmpOptions())

    async def ask(self, command: str) -> dict[str, Any]:
        """Ask through the control socket."""
        return await asyncio.to_thread(ask, self.folder / "control.sock", command)

    def memory(self) -> int:
        """Bytes of anonymous memory: what the router itself holds, without files that are mapped."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^RssAnon:\s+(\d+) kB$", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def _open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    async def as_few_descriptors_as_at_start(self) -> None:
        """Wait until nothing is open that was not when the router had started."""

        async def few() -> bool:
            return self._open_descriptors() <= self._descriptors

        await until(few)

    def dump(self) -> Dump:
        return dump(self.folder / "store")

    async def emptied(self) -> None:
        """Wait until no connection is left, begun or complete."""

        async def empty() -> bool:
            status = await self.ask("status")
            return not status["connections"] and not status["handshakes"]

        await until(empty)


def dump(store: Path) -> Dump:
    """All that a store holds, also while a router has it open."""
    with (
        lmdb.open(str(store), readonly=True, create=False, max_dbs=len(TABLES)) as environment,
        environment.begin() as transaction,
    ):
        tables = {table: environment.open_db(table.encode(), transaction, create=False) for table in TABLES}
        return {
            name: {bytes(key): bytes(value) for key, value in transaction.cursor(db=table)}
            for name, table in tables.items()
        }


async def until(true: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    """Ask again and again until it is so."""
    async with asyncio.timeout(timeout_s):
        while True:
            if await true():
                return
            await asyncio.sleep(0.02)


async def forking(*command: str) -> asyncio.subprocess.Process:
    """A process that forks lives when it is told to."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=ENVIRONMENT,
    )


@asynccontextmanager
async def router_in_process(
    folder: Path, *edits: tuple[str, str], wrapper: Sequence[str] = ()
) -> AsyncIterator[RouterInProcess]:
    """A new router that was not started yet. `edits` change its configuration; `wrapper` runs it."""
    fingerprint = unb64(str((await asyncio.to_thread(init, folder))["fingerprint"]))
    port = free_port()
    for before, after in (("ports = [0]", f"ports = [{port}]"), *edits):
        edit(folder, before, after)
    process = await forking(*wrapper, sys.executable, "-m", "tests.support.router.forked", str(folder))
    router = RouterInProcess(folder, port, fingerprint, process)
    try:
        yield router
    finally:
        await router.close()
