"""Which ratchet keys of peers were processed: a key that comes again must not start anything."""

from __future__ import annotations

from blindpost.agent.model import ConnId
from blindpost.agent.store.database import Db

KEYS_MAX = 1024
"""How many keys a connection remembers; the oldest go first, though age removes them long before."""


def _blind(db: Db, key_hash: bytes) -> bytes:
    return db.vault.blind(key_hash, "processed_ratchet_key_hashes.hash")


def is_processed(db: Db, conn_id: ConnId, key_hash: bytes) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM processed_ratchet_key_hashes WHERE conn_id = ? AND hash = ?)"
    return bool(db.sql.execute(query, (conn_id, _blind(db, key_hash))).fetchone()[0])


def count_since(db: Db, conn_id: ConnId, since: int) -> int:
    """How many keys were processed since then."""
    query = "SELECT count(*) FROM processed_ratchet_key_hashes WHERE conn_id = ? AND created_at >= ?"
    return int(db.sql.execute(query, (conn_id, since)).fetchone()[0])


def remember(db: Db, conn_id: ConnId, key_hash: bytes, now: int) -> None:
    db.sql.execute(
        "INSERT INTO processed_ratchet_key_hashes (conn_id, hash, created_at) VALUES (?, ?, ?)",
        (conn_id, _blind(db, key_hash), now),
    )
    db.sql.execute(
        "DELETE FROM processed_ratchet_key_hashes WHERE processed_ratchet_key_hash_id IN"
        " (SELECT processed_ratchet_key_hash_id FROM processed_ratchet_key_hashes WHERE conn_id = ?"
        " ORDER BY processed_ratchet_key_hash_id DESC LIMIT -1 OFFSET ?)",
        (conn_id, KEYS_MAX),
    )
