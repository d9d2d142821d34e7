"""Numbers of messages that were passed over during a rotation and may still come."""

from __future__ import annotations

from blindpost.agent.messages.integrity import Awaited
from blindpost.agent.model import ConnId
from blindpost.agent.store.database import Db


def find(db: Db, conn_id: ConnId) -> Awaited | None:
    def read() -> Awaited | None:
        query = "SELECT first_id, last_id, prev_hash FROM awaited_messages WHERE conn_id = ?"
        row = db.sql.execute(query, (conn_id,)).fetchone()
        if row is None:
            return None
        return Awaited(row[0], row[1], db.vault.open(row[2], "awaited_messages.prev_hash", conn_id))

    return db.sql.known("awaited", conn_id, read)


def put(db: Db, conn_id: ConnId, awaited: Awaited | None) -> None:
    db.sql.execute("DELETE FROM awaited_messages WHERE conn_id = ?", (conn_id,))
    if awaited is not None:
        db.sql.execute(
            "INSERT INTO awaited_messages (conn_id, first_id, last_id, prev_hash) VALUES (?, ?, ?, ?)",
            (
                conn_id,
                awaited.first,
                awaited.last,
                db.vault.seal(awaited.prev_hash, "awaited_messages.prev_hash", conn_id),
            ),
        )
