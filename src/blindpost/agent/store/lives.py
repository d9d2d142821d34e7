"""Whether a store's file is the one that was open last, or a copy of it by other means than `backup`.

Every opening and every closing has a random number, which is kept in the store and in a small file beside it;
the store also keeps where it lay. A copy that is put elsewhere lies elsewhere; one that is put back in place
of the store has an older number than the small file, unless it was made since an opening that nothing closed.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from blindpost.agent.model import ConnId
from blindpost.crypto.entropy import Entropy
from blindpost.engine.loop import StoreFailedError

_LIFE, _BEFORE, _PLACE, _ENDED = "life", "life_before", "life_place", "life_ended"
_SIZE = 16
_PRIVATE = 0o600


def is_other_file(sql: sqlite3.Connection, path: Path) -> bool:
    """Whether somebody copied the file since it was open last, or moved it without what is beside it."""
    life, before, beside = _setting(sql, _LIFE), _setting(sql, _BEFORE), _number_beside(path)
    if life is None:
        return False
    # The store is written first: whoever ends in between leaves the number before beside it.
    return beside is None or beside not in (life, before) or _setting(sql, _PLACE) != _place_of(path)


def begin(sql: sqlite3.Connection, path: Path, entropy: Entropy) -> bytes:
    """A new number in the store, within its transaction; `finish` puts it beside the store. The number before
    is the one that is there still: it stays there as often as `finish` fails."""
    life, beside = entropy(_SIZE), _number_beside(path)
    before = _setting(sql, _BEFORE)
    if before is None or beside != before:
        before = _setting(sql, _LIFE) or life
    for name, value in ((_LIFE, life), (_BEFORE, before), (_PLACE, _place_of(path))):
        sql.execute("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", (name, value))
    return life


def ended_surely(sql: sqlite3.Connection) -> bool:
    """Whether the life before was closed, with all stored that it had told routers; asked once, at the start
    of the next one."""
    return sql.execute("DELETE FROM settings WHERE name = ?", (_ENDED,)).rowcount == 1


def in_doubt(sql: sqlite3.Connection) -> set[tuple[ConnId, int]]:
    """What no router may have any more, where the life before was cut: all that is not acknowledged."""
    return set(sql.execute("SELECT conn_id, internal_id FROM rcv_messages WHERE user_ack = 0"))


def end_surely(sql: sqlite3.Connection) -> None:
    """All that routers were told is stored."""
    sql.execute("INSERT OR REPLACE INTO settings (name, value) VALUES (?, x'01')", (_ENDED,))


def finish(path: Path, life: bytes) -> None:
    """The number is in the store for good: put it beside the store too."""
    beside = _beside(path)
    fresh = beside.with_name(f"{beside.name}.new")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE), "w") as file:
            file.write(life.hex())
            file.flush()
            os.fsync(file.fileno())  # a power loss must not leave the name without the number
        fresh.replace(beside)
    except OSError as error:
        raise StoreFailedError(
            f"{beside} cannot be written: {error.strerror}. Make room, or look at its owner"
        ) from error


def _number_beside(path: Path) -> bytes | None:
    try:
        return bytes.fromhex(_beside(path).read_text())
    except (OSError, ValueError):
        return None


def _setting(sql: sqlite3.Connection, name: str) -> bytes | None:
    row = sql.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return None if row is None else bytes(row[0])


def _place_of(path: Path) -> bytes:
    """Which file this is; a copy is another one. The device has another number after some restarts."""
    return str(os.stat(path).st_ino).encode()


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}-life")
