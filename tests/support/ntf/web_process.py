"""A Web Push service in a process of its own that can be killed, and what it accepted in all its lives."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.webpush import new_private_key, point_of
from blindpost.serving.children import free_port
from blindpost.testing.webpush import HOST, Browser
from blindpost.wire.ntf.pushes import Push
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.ntf.webpush import Subscription
from tests.support.ntf.apns_process import ACCEPTED_FILE, OUTAGE_FILE
from tests.support.serving.processes import Forked, forking

WEB_CERTIFICATE_FILE = "push.pem"


class WebPushInProcess(Forked):
    """The push service of one folder. It accepts pushes to any path."""

    def __init__(self, folder: Path, port: int, process: asyncio.subprocess.Process) -> None:
        super().__init__(folder, port, process)
        self._read = 0
        self._browsers: dict[str, Browser] = {}

    def device(self, number: int) -> DeviceToken:
        """A device that is subscribed here."""
        key, path = new_private_key(system_entropy), f"/{number}"
        subscription = Subscription(HOST, str(self.port), path.encode(), bytes(16), point_of(key))
        self._browsers[path] = Browser(subscription, key)
        return DeviceToken.web(subscription)

    def fail(self, share: float) -> None:
        """Have its lives, from the next one, answer so many pushes with an outage."""
        (self.folder / OUTAGE_FILE).write_text(str(share))

    def new(self) -> list[tuple[bytes, Push]]:
        """What was accepted since it was asked last, by device."""
        with (self.folder / ACCEPTED_FILE).open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(lines)
        found = []
        for line in lines.splitlines():
            path, body = line.decode().split(" ")
            browser = self._browsers[path]
            name = DeviceToken.web(browser.subscription).token
            found.append((name, browser.opened(bytes.fromhex(body))))
        return found


@asynccontextmanager
async def web_push_in_process(folder: Path) -> AsyncIterator[WebPushInProcess]:
    """A new push service that was not started yet."""
    await asyncio.to_thread(folder.mkdir)
    port = free_port()
    process = await forking(sys.executable, "-m", "tests.support.ntf.forked_webpush", str(folder), str(port))
    service = WebPushInProcess(folder, port, process)
    service.fail(0.0)
    try:
        yield service
    finally:
        await service.close()
