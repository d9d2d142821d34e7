"""`blindpost ds start` in a process of its own that can be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from blindpost.ds.client import Client
from blindpost.serving.control import ask
from tests.support.serving.commands import COMMAND, ENVIRONMENT, run
from tests.support.serving.processes import free_port

READY = b"the delivery service is ready"
START_S = 60.0


class StartedDs:
    """The service of one folder; `start` and `end` it as often as you like."""

    def __init__(self, folder: Path, port: int, fingerprint: bytes) -> None:
        self.folder = folder
        self.port = port
        self.fingerprint = fingerprint
        self.log = b""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "ds", "start", "-c", str(self.folder)),
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(START_S):
            while READY not in (line := await self._process.stderr.readline()):
                assert line, f"the service did not start: {self.log.decode()}"
                self.log += line
        self.log += line

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert process.stderr is not None
        process.send_signal(number)
        self.log += await process.stderr.read()
        return await process.wait()

    def hang_up(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    async def client(self, token: bytes = b"", *, quic: bool = False) -> Client:
        return await Client.connect(
            "127.0.0.1", self.port, token=token, fingerprint=self.fingerprint, quic=quic
        )

    async def status(self) -> dict[str, Any]:
        """What the service says about itself."""
        return await asyncio.to_thread(ask, self.folder / "control.sock", "status")

    async def close(self) -> None:
        if self._process is not None:
            await self.end()


def configure(folder: Path, before: str, after: str) -> None:
    """Change one line of the configuration."""
    file = folder / "ds.toml"
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, after))


@contextlib.asynccontextmanager
async def ds_in_process(folder: Path, *, is_open: bool = True) -> AsyncIterator[StartedDs]:
    """A new service that was not started yet."""
    port = free_port()
    done = await asyncio.to_thread(
        run, "ds", "init", folder, "--host", "127.0.0.1", "--port", str(port), "--json"
    )
    if is_open:
        configure(folder, 'mode = "tokens"', 'mode = "open"')
    configure(folder, 'address = "*"', 'address = "127.0.0.1"')
    started = StartedDs(folder, port, bytes.fromhex(json.loads(done.stdout)["fingerprint"]))
    try:
        yield started
    finally:
        await started.close()
