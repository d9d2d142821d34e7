"""Records of the program above the agent: what it must know together with what it sent and acknowledged."""

from __future__ import annotations

from collections.abc import Iterator

from blindpost.agent.store.database import Db

_CHUNK = 500


def find(db: Db, space: str, key: str) -> bytes | None:
    query = "SELECT value FROM records WHERE space = ? AND key = ?"
    row = db.sql.execute(query, (space, key)).fetchone()
    return None if row is None else db.vault.open(row[0], "records.value", space, key)


def put(db: Db, space: str, key: str, value: bytes) -> None:
    db.sql.execute(
        "INSERT INTO records (space, key, value) VALUES (?, ?, ?)"
        " ON CONFLICT (space, key) DO UPDATE SET value = excluded.value",
        (space, key, db.vault.seal(value, "records.value", space, key)),
    )


def delete(db: Db, space: str, key: str) -> None:
    db.sql.execute("DELETE FROM records WHERE space = ? AND key = ?", (space, key))


def scan(db: Db, space: str, after: str, until: str | None) -> Iterator[tuple[str, bytes]]:
    """Records in order of key, from behind `after` to before `until`; read in parts, so that they may change
    meanwhile."""
    query = (
        "SELECT key, value FROM records WHERE space = :space AND key > :after"
        " AND (:until IS NULL OR key < :until) ORDER BY key LIMIT :most"
    )
    asked = {"space": space, "after": after, "until": until, "most": _CHUNK}
    while rows := db.sql.execute(query, asked).fetchall():
        for key, value in rows:
            yield key, db.vault.open(value, "records.value", space, key)
        asked["after"] = rows[-1][0]


def count(db: Db, space: str) -> int:
    (found,) = db.sql.execute("SELECT count(*) FROM records WHERE space = ?", (space,)).fetchone()
    return int(found)
