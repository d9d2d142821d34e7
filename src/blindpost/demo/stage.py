"""The servers of the demonstration, each a process that the operator's own command starts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blindpost.serving import ending
from blindpost.serving.control import NotRunningError, ask

COMMAND = (sys.executable, "-m", "blindpost.cli")
_POLL_S = 0.02
_ASK_AGAIN_S = 0.1
_START_S_MAX = 60.0
_BELOW_EPHEMERAL = range(20_000, 32_000)
"""Ports that the system gives to no outgoing connection, so that a killed server finds its own free again."""


class DidNotStartError(Exception):
    """A server's log says why."""


class CommandFailedError(Exception):
    """What the command said."""


def free_port() -> int:
    """A port on which nobody listens."""
    start = int.from_bytes(os.urandom(2), "big")
    for step in range(len(_BELOW_EPHEMERAL)):
        port = _BELOW_EPHEMERAL[(start + step) % len(_BELOW_EPHEMERAL)]
        with socket.socket() as sock, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            try:
                sock.bind(("127.0.0.1", port))
                datagrams.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DidNotStartError("no free port on loopback")


async def command(*words: str | Path) -> str:
    """Run a command of ours to its end; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        printed, told = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    if process.returncode:
        raise CommandFailedError(f"blindpost {' '.join(map(str, words))}: {told.decode()}")
    return printed.decode()


class Served:
    """One server: its folder, its log, its process."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}.log")
        self.config = folder / f"{kind}.toml"
        self._process: asyncio.subprocess.Process | None = None

    def edit(self, **changes: str) -> None:
        """Put `name = value` in place of the first line of that name; `table__name` for one in a table."""
        text = self.config.read_text()
        for where, value in changes.items():
            table, _, name = where.rpartition("__")
            start = text.index(f"[{table}]") if table else 0
            line = re.compile(rf"^(?:# )?{name} = .*$", re.MULTILINE)
            text = text[:start] + line.sub(f"{name} = {value}", text[start:], count=1)
        self.config.write_text(text)

    async def start(self) -> float:
        """Start it and wait until it answers; how long that took."""
        started = time.monotonic()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*COMMAND, ending.OPTION, self.kind, "start", "-c", str(self.folder)),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        while True:
            try:
                await self.ask("status")
                return time.monotonic() - started
            except NotRunningError as error:
                overdue = time.monotonic() - started > _START_S_MAX
                if overdue or self._process.returncode is not None:
                    raise DidNotStartError(f"{self.kind}: {self.log.read_text()[-2000:]}") from error
                await asyncio.sleep(_POLL_S)

    async def ask(self, question: str) -> dict[str, Any]:
        return await asyncio.to_thread(ask, self.folder / "control.sock", question)

    async def until(self, name: str, count: int) -> dict[str, Any]:
        """Its status, when that counts so many."""
        told = await self.ask("status")
        while told[name] < count:
            await asyncio.sleep(_ASK_AGAIN_S)
            told = await self.ask("status")
        return told

    async def kill(self) -> None:
        """`kill -9`."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


class Router(Served):
    """An SMP router."""

    address = ""

    @classmethod
    async def set_up(cls, folder: Path, journal: Path) -> Router:
        router = cls("router", folder)
        port = str(free_port())
        at = ("--host", "127.0.0.1", "--port", port, "--listen", "127.0.0.1", "--json")
        router.address = str(json.loads(await command("router", "init", folder, *at))["address"])
        router.edit(limits__exempt='["127.0.0.0/8"]', limits__new_burst="50000")
        keep_journal(router, journal, folder.name)
        return router


def keep_journal(server: Served, journal: Path, name: str) -> None:
    server.edit(
        journal__enabled="true", journal__folder=json.dumps(str(journal)), journal__name=json.dumps(name)
    )


async def stop_all(servers: Sequence[Served]) -> None:
    await asyncio.gather(*(server.stop() for server in servers))
