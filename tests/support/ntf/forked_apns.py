"""Runs `ApnsServer`, each life of it in a fresh fork (`tests.support.serving.forking`).

What it accepts is in a file before it is answered, so that it is known after any kill. Key and certificate
are made once for all its lives; a file tells each life which share of the pushes is answered with an outage.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blindpost.testing.apns import ACCEPTED, UNAVAILABLE, ApnsServer, Delivered, Reaction
from tests.support.ntf.apns_process import ACCEPTED_FILE, CERTIFICATE_FILE, KEY_FILE, OUTAGE_FILE
from tests.support.serving.forking import lives, ready


class RecordingServer(ApnsServer):
    """Writes down what it accepts."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__()
        self.folder = folder
        self.port = port
        self.decide = self._decide
        pem = self.signing.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / KEY_FILE).write_bytes(pem)
        (folder / CERTIFICATE_FILE).write_bytes(self.certificate)
        self._file = os.open(folder / ACCEPTED_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._outage = 0.0
        self._chance = random.Random(port)

    def keep(self, delivered: Delivered) -> None:
        if delivered.accepted:
            os.write(self._file, delivered.device_token.encode() + b" " + delivered.body + b"\n")

    async def serve(self) -> None:
        self._outage = float((self.folder / OUTAGE_FILE).read_text())
        await self.start()
        ready(self.port)
        await asyncio.Event().wait()

    def _decide(self, _device_token: str) -> Reaction:
        return UNAVAILABLE if self._chance.random() < self._outage else ACCEPTED


if __name__ == "__main__":
    server = RecordingServer(Path(sys.argv[1]), int(sys.argv[2]))
    lives(lambda: asyncio.run(server.serve()))
