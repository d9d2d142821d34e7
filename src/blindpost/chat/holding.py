"""What cannot be sent while the ratchets of a connection are not in step: kept, and sent once they are."""

from __future__ import annotations

from collections.abc import Iterator

from blindpost.agent import Connection, OutOfStepError, Records, Transaction

HELD = "chat.held"
HELD_MAX = 100
"""For each connection; what comes after that is refused."""
_QUIET, _NOTIFYING = b"-", b"+"


def held(records: Records) -> Iterator[str]:
    """The connections for which something is kept."""
    after = ""
    while (first := next(records.scan(HELD, after=after), None)) is not None:
        conn_id = first[0].partition(" ")[0]
        yield conn_id
        after = f"{conn_id}!"


def is_held(records: Records, conn_id: str) -> bool:
    return next(_rows(records, conn_id), None) is not None


def hold(tx: Transaction, conn: Connection, body: bytes, *, notify: bool) -> None:
    """Keep a message behind those that are kept already."""
    rows = list(_rows(tx, conn.id))
    if len(rows) >= HELD_MAX:
        raise OutOfStepError
    number = 1 + int(rows[-1][0].rpartition(" ")[2]) if rows else 0
    tx.put(HELD, f"{conn.id} {number:012d}", (_NOTIFYING if notify else _QUIET) + body)


def release(tx: Transaction, conn: Connection) -> None:
    """Send all that was kept, in order; `OutOfStepError` if it is still too early."""
    for key, data in list(_rows(tx, conn.id)):
        tx.send(conn, data[1:], notify=data[:1] == _NOTIFYING)
        tx.delete(HELD, key)


def forget(tx: Transaction, conn_id: str) -> None:
    """The connection is gone."""
    for key, _ in list(_rows(tx, conn_id)):
        tx.delete(HELD, key)


def _rows(records: Records, conn_id: str) -> Iterator[tuple[str, bytes]]:
    return records.scan(HELD, after=f"{conn_id} ", until=f"{conn_id}!")
