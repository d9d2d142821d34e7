"""Runs `PushService`, each life of it in a fresh fork, as `tests.support.ntf.forked_apns` runs Apple."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from blindpost.testing.webpush import Arrived, PushService, WebAnswer
from tests.support.ntf.apns_process import ACCEPTED_FILE, OUTAGE_FILE
from tests.support.ntf.web_process import WEB_CERTIFICATE_FILE
from tests.support.serving.forking import lives, ready


class RecordingService(PushService):
    """Writes down what it accepts; it knows every subscription."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(port=port, certificate=folder / WEB_CERTIFICATE_FILE)
        self.folder = folder
        self._file = os.open(folder / ACCEPTED_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._chance = random.Random(port)

    def knows(self, path: str, key: str) -> bool:
        return True

    def keep(self, arrived: Arrived) -> None:
        os.write(self._file, f"{arrived.path} {arrived.body.hex()}\n".encode())

    async def serve(self) -> None:
        outage = float((self.folder / OUTAGE_FILE).read_text())
        self.answer = lambda _: WebAnswer(503 if self._chance.random() < outage else 201)
        async with self:
            ready(self.port)
            await asyncio.Event().wait()


if __name__ == "__main__":
    service = RecordingService(Path(sys.argv[1]), int(sys.argv[2]))
    lives(lambda: asyncio.run(service.serve()))
