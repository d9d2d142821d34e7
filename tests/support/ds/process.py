"""`blindpost ds start` in a process of its own that can be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from blindpost.ds.client import DsClient
from blindpost.serving.children import free_port
from tests.support.serving.commands import Started, run


class StartedDs(Started):
    """The service of one folder; `start` and `end` it as often as you like."""

    kind = "ds"

    def __init__(self, folder: Path, port: int, fingerprint: bytes) -> None:
        super().__init__(folder)
        self.port = port
        self.fingerprint = fingerprint

    def hang_up(self) -> None:
        self.child.send(signal.SIGHUP)

    async def client(self, token: bytes = b"", *, quic: bool = False) -> DsClient:
        return await DsClient.connect(
            "127.0.0.1", self.port, token=token, fingerprint=self.fingerprint, quic=quic
        )


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
