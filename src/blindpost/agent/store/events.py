"""Events that the program has not taken, or has taken last: they come again after a crash."""

from __future__ import annotations

from blindpost.agent.store.database import Db
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class StoredEvent(Value):
    """A row: `name` says how its content is read; there is none where it cannot be opened."""

    event_id: int
    name: str
    content: bytes | None


def insert(db: Db, conn_id: str | None, name: str, content: bytes) -> int:
    done = db.sql.execute(
        "INSERT INTO events (conn_id, name, content) VALUES (?, ?, ?)",
        (conn_id, name, db.vault.seal(content, "events.content", name)),
    )
    assert done.lastrowid is not None
    return done.lastrowid


def waiting(db: Db) -> list[StoredEvent]:
    rows = db.sql.execute("SELECT event_id, name, content FROM events ORDER BY event_id").fetchall()
    return [StoredEvent(event_id, name, _opened(db, name, content)) for event_id, name, content in rows]


def _opened(db: Db, name: str, content: bytes) -> bytes | None:
    try:
        return db.vault.open(content, "events.content", name)
    except WireError:
        return None


def delete(db: Db, event_id: int) -> None:
    db.sql.execute("DELETE FROM events WHERE event_id = ?", (event_id,))
