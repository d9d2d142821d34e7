"""The servers of the demonstration, each a process that the operator's own command starts."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blindpost.serving.children import COMMAND, Child, free_port

_ASK_AGAIN_S = 0.1


class CommandFailedError(Exception):
    """What the command said."""


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
        self._child = Child(kind, folder, log=folder.with_name(f"{folder.name}.log"))
        self.config = self._child.config

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
        await asyncio.to_thread(self._child.start)
        return time.monotonic() - started

    async def ask(self, question: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._child.ask, question)

    async def until(self, name: str, count: int) -> dict[str, Any]:
        """Its status, once that counts this many."""
        told = await self.ask("status")
        while told[name] < count:
            await asyncio.sleep(_ASK_AGAIN_S)
            told = await self.ask("status")
        return told

    async def kill(self) -> None:
        """`kill -9`."""
        await asyncio.to_thread(self._child.end, signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM, if it runs."""
        await asyncio.to_thread(self._child.end)


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
