"""The files of a router's store, while the router is stopped: wiped, copied, put back, looked into."""

from __future__ import annotations

import shutil
from pathlib import Path

from blindpost.router.records import message_from_row, message_prefix
from blindpost.router.tables import MESSAGES, QUEUES
from tests.support.serving.processes import dump

NUMBER_SIZE = 8


class StoreFiles:
    """The store in one folder, and at most one older copy of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copy = folder.with_name(folder.name + " copy")

    @property
    def has_copy(self) -> bool:
        return self._copy.exists()

    def wipe(self) -> None:
        shutil.rmtree(self.folder)

    def copy(self) -> None:
        if self.has_copy:
            shutil.rmtree(self._copy)
        shutil.copytree(self.folder, self._copy)

    def put_back(self) -> None:
        self.wipe()
        shutil.copytree(self._copy, self.folder)

    def queues(self) -> set[bytes]:
        """Recipient ids of all queues."""
        return set(dump(self.folder)[QUEUES]) if self.folder.exists() else set()

    def messages(self) -> set[tuple[bytes, bytes]]:
        """Recipient id and body of every message that waits."""
        if not self.folder.exists():
            return set()
        found = set()
        for key, row in dump(self.folder)[MESSAGES].items():
            rcv_id, message = key[1:-NUMBER_SIZE], message_from_row(row)
            assert key.startswith(message_prefix(rcv_id))
            if message.body is not None:
                found.add((rcv_id, bytes(message.body)))
        return found
