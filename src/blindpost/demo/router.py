"""A durable router in a process of its own, started with the command that operators use."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from blindpost.client.smp import SmpClient
from blindpost.serving.control import NotRunningError, ask
from blindpost.wire.addresses import Host, Server
from blindpost.wire.text import unb64

COMMAND = (sys.executable, "-m", "blindpost.cli", "router")
_POLL_S = 0.02
_START_S_MAX = 30.0


class RouterDidNotStartError(Exception):
    """Its log says why."""


class DemoRouter:
    """One router on loopback; everything it has is in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.with_name("router.log")
        self.status: dict[str, Any] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def init(self) -> str:
        """Set it up; its address."""
        at = ("--host", "localhost", "--port", "0", "--listen", "127.0.0.1")
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "init", str(self.folder), *at, "--json", stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        return str(json.loads(printed)["address"])

    async def start(self) -> float:
        """Start it and wait until it answers; how long that took."""
        started = time.monotonic()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND, "start", "-c", str(self.folder), stdout=log, stderr=log
            )
        while True:
            try:
                self.status = await asyncio.to_thread(ask, self.folder / "control.sock", "status")
                return time.monotonic() - started
            except NotRunningError as error:
                overdue = time.monotonic() - started > _START_S_MAX
                if overdue or self._process.returncode is not None:
                    raise RouterDidNotStartError(self.log.read_text()) from error
                await asyncio.sleep(_POLL_S)

    async def connect(self) -> SmpClient:
        port, fingerprint = self.status["ports"][0], unb64(self.status["fingerprint"])
        return await SmpClient.connect(Server((Host("127.0.0.1"),), str(port), fingerprint))

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

    def stored_bytes(self) -> int:
        """What the store takes on disk."""
        return sum(os.stat(file).st_blocks * 512 for file in (self.folder / "store").iterdir())
