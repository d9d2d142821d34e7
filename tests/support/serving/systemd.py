"""What a server tells systemd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path


class Systemd:
    """systemd's end of a notification socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        self.said: list[str] = []

    def __enter__(self) -> Systemd:
        asyncio.get_running_loop().add_reader(self._socket, self._hear)
        return self

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self.said.append(self._socket.recv(4096).decode())

    def __exit__(self, *_: object) -> None:
        self._hear()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
