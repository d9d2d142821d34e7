"""Apple in a process of its own that can be killed, and what it accepted in all its lives."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from blindpost.serving.children import free_port
from blindpost.wire.ntf.pushes import Push, decode_apns_body
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from tests.support.ntf.routers import device_token
from tests.support.serving.processes import Forked, forking

KEY_FILE = "apple.p8"
CERTIFICATE_FILE = "apple.pem"
ACCEPTED_FILE = "accepted"
OUTAGE_FILE = "outage"


class ApnsInProcess(Forked):
    """The push server of one folder."""

    def __init__(self, folder: Path, port: int, process: asyncio.subprocess.Process) -> None:
        super().__init__(folder, port, process)
        self._read = 0

    def fail(self, share: float) -> None:
        """Have its lives, from the next one, answer so many pushes with an outage."""
        (self.folder / OUTAGE_FILE).write_text(str(share))

    def device(self, number: int) -> DeviceToken:
        return device_token(f"{number:08x}", PushProvider.APNS_TEST)

    def new(self) -> list[tuple[bytes, Push]]:
        """What was accepted since it was asked last, by device."""
        with (self.folder / ACCEPTED_FILE).open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(lines)
        found = []
        for line in lines.splitlines():
            device, _, body = line.partition(b" ")
            found.append((device, decode_apns_body(body)))
        return found


@asynccontextmanager
async def apns_in_process(folder: Path) -> AsyncIterator[ApnsInProcess]:
    """A new push server that was not started yet."""
    await asyncio.to_thread(folder.mkdir)
    port = free_port()
    process = await forking(sys.executable, "-m", "tests.support.ntf.forked_apns", str(folder), str(port))
    apple = ApnsInProcess(folder, port, process)
    apple.fail(0.0)
    try:
        yield apple
    finally:
        await apple.close()
