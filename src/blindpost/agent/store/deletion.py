"""Connections that are to be deleted: at once, or when their messages are delivered."""

from __future__ import annotations

from blindpost.agent.model import ConnId
from blindpost.agent.store.database import Db


def mark(db: Db, conn_id: ConnId) -> None:
    """The application has no such connection any more."""
    db.sql.execute("UPDATE connections SET deleted = 1 WHERE conn_id = ?", (conn_id,))


def mark_waiting(db: Db, conn_id: ConnId, now: int) -> None:
    """As `mark`, once what waits to be delivered is delivered."""
    db.sql.execute(
        "UPDATE connections SET deleted_at_wait_delivery = ? WHERE conn_id = ? AND"
        " deleted_at_wait_delivery IS NULL",
        (now, conn_id),
    )


def marked(db: Db) -> list[ConnId]:
    query = "SELECT conn_id FROM connections WHERE deleted = 1 OR deleted_at_wait_delivery IS NOT NULL"
    return [conn_id for (conn_id,) in db.sql.execute(query)]


def waiting_since(db: Db, conn_id: ConnId) -> int | None:
    """Since when a connection waits for its deliveries; None when it need not."""

    def read() -> int | None:
        query = "SELECT deleted_at_wait_delivery FROM connections WHERE conn_id = ? AND deleted = 0"
        row = db.sql.execute(query, (conn_id,)).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    return db.sql.known("waiting since", conn_id, read)
