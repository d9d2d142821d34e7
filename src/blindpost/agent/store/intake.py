"""A log beside the store: messages as they came, durable before they are opened.

Each of the messages that come one after the other (`messages.flows`) waits for the disk. To open it, to store
it and to commit that takes time too; so its bytes are written here first, and the disk works meanwhile. The
store itself is synced now and then, and what it has for good may be overwritten here.
At the next start all that is here is received once more (`messages.receiving`); most of it is known by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from io import FileIO
from itertools import count
from pathlib import Path
from typing import NamedTuple

from blindpost.agent.model import ConnId
from blindpost.agent.store.syncing import SyncThread
from blindpost.agent.store.vault import Vault
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.engine.loop import StoreFailedError
from blindpost.store.sqlite import datasync, sync_whole
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import LIST_MAX, Reader, Writer, decode_whole, encode
from blindpost.wire.value import Buffer, Value

KEY_SIZE = 16
SIZE = 1 << 20
"""Bytes of the file: some sixty messages. It is as long as this from the start: to sync a file that has grown
takes longer."""
_PRIVATE = 0o600
_CHECKSUM_SIZE = 4
"""A record begins with a checksum of all that follows in it."""
_HEAD = struct.Struct(">QII")
"""Round, number in the round, size of what follows."""
_SEALED = "intake"

log = logging.getLogger(__name__)


class Came(NamedTuple):
    """Which message: its connection, the number of its queue there, and the router's id of it."""

    conn_id: ConnId
    queue_number: int
    broker_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Record(Value):
    """A message as it came, and the messages that the program was done with by then."""

    came: Came
    done: tuple[Came, ...]
    body: Buffer


def _write_came(writer: Writer, came: Came) -> None:
    writer.text(came.conn_id).i64(came.queue_number).short(came.broker_id)


def _read_came(reader: Reader) -> Came:
    return Came(reader.text(), reader.i64(), reader.short())


def _write_record(writer: Writer, record: Record) -> None:
    _write_came(writer, record.came)
    writer.list0(record.done, _write_came).raw(record.body)


def _read_record(reader: Reader) -> Record:
    return Record(_read_came(reader), reader.list0(_read_came), reader.rest())


class Entry:
    """A message in the log."""

    __slots__ = ("_is_kept", "_waiting", "came", "done")

    def __init__(self, came: Came, done: tuple[Came, ...] = ()) -> None:
        self.came = came
        self.done = done
        """Messages that the program was done with by then."""
        self._is_kept: bool | None = None
        self._waiting: list[Callable[[bool], None]] = []

    def once_kept(self, work: Callable[[bool], None]) -> None:
        """Do this in the moment in which a power loss cannot take it away any more, which may be now, or in
        which the disk turns out to be broken."""
        if self._is_kept is None:
            self._waiting.append(work)
        else:
            work(self._is_kept)

    async def kept(self) -> bool:
        """Wait for that; False if the disk is broken."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.once_kept(lambda is_kept: None if told.done() else told.set_result(is_kept))
        return await told

    def end(self, is_kept: bool) -> None:
        self._is_kept = is_kept
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            try:
                work(is_kept)
            except Exception:
                log.exception("what waited for a message to be durable failed")


def left_at(path: Path, key: bytes, vault: Vault) -> list[Record]:
    """What an agent that did not end by itself left here, in its order."""
    try:
        content = memoryview(path.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreFailedError(
            f"{path} cannot be read, and may have messages that are nowhere else: {error.strerror}"
        ) from error
    found: list[Record] = []
    first, at = None, 0
    while (read := _record_at(content, at, key)) is not None:
        of_round, number, sealed = read
        first = of_round if first is None else first
        if (of_round, number) != (first, len(found)):
            break  # it is of an earlier round, and was not overwritten
        try:
            opened = vault.open(bytes(sealed), _SEALED, of_round, number)
            found.append(decode_whole(opened, _read_record))
        except (CryptoError, WireError):
            break
        at += _CHECKSUM_SIZE + _HEAD.size + len(sealed)
    return found


def _record_at(content: memoryview, at: int, key: bytes) -> tuple[int, int, memoryview] | None:
    start = at + _CHECKSUM_SIZE
    try:
        of_round, number, size = _HEAD.unpack_from(content, start)
    except struct.error:
        return None
    end = start + _HEAD.size + size
    if zlib.crc32(content[start:end], zlib.crc32(key)) != int.from_bytes(content[at:start], "big"):
        return None
    return of_round, number, content[start + _HEAD.size : end]


class Intake:
    """The log of an open agent. Its file is made when it is needed first, and goes when it is closed."""

    def __init__(
        self, path: Path, key: bytes, vault: Vault, entropy: Entropy, left: Sequence[Record] = ()
    ) -> None:
        self._path = path
        self._seed = zlib.crc32(key)
        self._vault = vault
        self.left = left
        """What was found in the file: until `forget_left` nothing is added."""
        self._thread = SyncThread()
        self._file: FileIO | None = None
        self._is_made = False
        """Whether it was tried to make the file: a disk that has no room for it is not asked again."""
        self._is_broken = False
        self._rounds = count(int.from_bytes(entropy(4), "big") << 32)
        """None is that of anything that may be left in the file."""
        self._round = self._number = self._at = 0
        self._needed: dict[Came, Entry] = {}
        """Those that the store does not have for good."""
        self._done: dict[Came, Entry] = {}
        """Those of them that say so of a message."""
        self._written: list[Entry] = []
        self._under_sync: list[Entry] = []
        self.on_failure: Callable[[StoreFailedError], object] = lambda _: None
        """Called when the disk could not make something durable."""

    def of(self, came: Came) -> Entry | None:
        """The entry of a message, as long as it is needed."""
        return self._needed.get(came)

    def saying_done(self, came: Came) -> Entry | None:
        """The entry which says that the program is done with a message, as long as it is needed."""
        return self._done.get(came)

    def add(self, record: Record) -> Entry | None:
        """Write a message down, and begin to make it durable; None where there is no room for it, or no file
        yet, or it is here. It is needed until `release`."""
        if self._file is None or self._is_broken:
            self._make()
            return None
        if record.came in self._needed or len(record.done) > LIST_MAX:
            return None
        if not self._needed:
            self._at, self._number, self._round = 0, 0, next(self._rounds)
        content = self._vault.seal(encode(record, _write_record), _SEALED, self._round, self._number)
        head = _HEAD.pack(self._round, self._number, len(content))
        checksum = zlib.crc32(content, zlib.crc32(head, self._seed))
        whole = b"".join((checksum.to_bytes(_CHECKSUM_SIZE, "big"), head, content))
        if self._at + len(whole) > SIZE:
            return None
        try:
            self._file.seek(self._at)
            if self._file.write(whole) != len(whole):
                return None
        except OSError:
            return None
        self._at += len(whole)
        self._number += 1
        entry = Entry(record.came, record.done)
        self._needed[record.came] = entry
        self._done.update(dict.fromkeys(record.done, entry))
        self._written.append(entry)
        self._sync()
        return entry

    def release(self, entry: Entry) -> None:
        """The store has it for good, or it will be received again."""
        del self._needed[entry.came]
        for came in entry.done:
            if self._done.get(came) is entry:
                del self._done[came]

    def forget_left(self) -> None:
        """The store has for good what was left."""
        self._path.unlink(missing_ok=True)
        self.left = ()

    def _make(self) -> None:
        if self._is_made or self.left:
            return
        self._is_made = True
        with contextlib.suppress(RuntimeError):  # the machine has no thread for us
            asyncio.get_running_loop().run_in_executor(self._thread, self._make_file)

    def _make_file(self) -> None:
        """In the thread: an agent that is closed meanwhile waits for it."""
        try:
            self._file = _made(self._path)
        except OSError as error:
            log.info("%s was not made, and messages in a row take longer: %s", self._path, error)

    def _sync(self) -> None:
        if self._under_sync or not self._written or self._file is None:
            return
        self._under_sync, self._written = self._written, []
        loop = asyncio.get_running_loop()
        syncing = loop.run_in_executor(self._thread, datasync, self._file.fileno())
        syncing.add_done_callback(self._synced)

    def _synced(self, syncing: asyncio.Future[None]) -> None:
        error = syncing.exception()
        if error is not None:
            self.fail()
            self.on_failure(StoreFailedError(f"{self._path} cannot be synced: {error}"))
            return
        ended, self._under_sync = self._under_sync, []
        for entry in ended:
            entry.end(True)
        self._sync()

    def fail(self) -> None:
        """The disk is broken: nothing is taken any more."""
        self._is_broken = self._is_made = True
        ended, self._under_sync, self._written = [*self._under_sync, *self._written], [], []
        for entry in ended:
            entry.end(False)

    def close(self, *, is_stored: bool) -> None:
        """`is_stored`: the store has all of it for good."""
        self._thread.shutdown()
        file, self._file, self._is_made = self._file, None, True
        if file is not None:
            file.close()
            if is_stored:
                self._path.unlink(missing_ok=True)


def _made(path: Path) -> FileIO:
    """A file of its full size, which a power loss does not take away."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE), "wb") as file:
            file.write(bytes(SIZE))
        for place in (path, path.parent):
            sync_whole(place)
        return FileIO(path, "r+")
    except BaseException:
        path.unlink(missing_ok=True)
        raise
