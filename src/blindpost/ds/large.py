"""Large payloads of the embedded store: one file each, so that none waits for another and no turn for any.

A file is written and synced before the commit that makes it part of a queue, and removed after the commit
that takes it out. What a crash leaves in between is in no queue and is removed at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blindpost.engine.loop import StoreFailedError

FILES_AT_ONCE = 16
_PRIVATE = 0o600
_NAME = re.compile("[0-9a-f]{32}")


def large_name(queue: bytes, tag: bytes) -> bytes:
    """The name of a large payload."""
    return hashlib.blake2b(queue + tag, digest_size=16).digest()


class LargeFiles:
    """A folder of large payloads. Each is written or read in its own thread."""

    def __init__(self, folder: Path, *, synced: bool) -> None:
        self._folder = folder
        self._synced = synced
        self._threads = ThreadPoolExecutor(FILES_AT_ONCE, "large-payload")
        with _failures():
            folder.mkdir(mode=0o700, exist_ok=True)

    async def write(self, name: bytes, payload: bytes) -> None:
        """Write a payload to disk, or raise `StoreFailedError` and leave nothing of it."""
        await self._in_thread(self._write, name, payload)

    async def read(self, name: bytes) -> bytes | None:
        """A payload; None if it was removed."""
        return await self._in_thread(self.look, name)

    def look(self, name: bytes) -> bytes | None:
        """As `read`, at once."""
        with _failures(), contextlib.suppress(FileNotFoundError):
            return self._file(name).read_bytes()
        return None

    def remove(self, names: Iterable[bytes]) -> None:
        """Begin to remove payloads that are in no queue any more; `close` waits for it."""
        files = [self._file(name) for name in names]
        if files:
            self._threads.submit(_unlink, files)

    def tidy(self, is_known: Callable[[bytes], bool]) -> None:
        """Remove what a crash left behind; files that are not ours stay."""
        with _failures():
            found = [file for file in self._folder.iterdir() if _NAME.fullmatch(file.name)]
            _unlink(file for file in found if not is_known(bytes.fromhex(file.name)))

    def close(self) -> None:
        self._threads.shutdown()

    async def _in_thread(self, work: Callable[..., bytes | None], *arguments: bytes) -> bytes | None:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _write(self, name: bytes, payload: bytes) -> None:
        file = self._file(name)
        try:
            with _failures():
                descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
                with open(descriptor, "wb", buffering=0) as out:
                    left = memoryview(payload)
                    while left:
                        left = left[out.write(left) :]
                    if self._synced:
                        os.fsync(descriptor)
                if self._synced:
                    self._sync_folder()
        except StoreFailedError:
            _unlink([file])
            raise

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _file(self, name: bytes) -> Path:
        return self._folder / name.hex()


def _unlink(files: Iterable[Path]) -> None:
    """What cannot be removed now is removed at the next start."""
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFailedError("the disk is full") from error
        raise StoreFailedError(f"the store failed: {error.strerror or error}") from error
