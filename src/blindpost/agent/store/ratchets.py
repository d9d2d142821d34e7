"""Ratchets: keys that wait for a peer's, ratchet states, and keys of messages that have not come."""

from __future__ import annotations

from blindpost.agent.model import ConnId
from blindpost.agent.store.database import Db
from blindpost.crypto.ratchet_state import (
    MessageKey,
    Ratchet,
    SkippedAdded,
    SkippedChange,
    SkippedKeys,
    SkippedRemoved,
)
from blindpost.crypto.ratchet_storage import (
    dump_message_key,
    dump_params,
    dump_ratchet,
    load_message_key,
    load_params,
    load_ratchet,
)
from blindpost.crypto.x3dh import PrivateParams
from blindpost.wire.e2e import E2EParams, read_e2e_params, write_e2e_params
from blindpost.wire.primitives import decode_whole, encode

SKIPPED_MAX = 4096
"""How many keys of missing messages a connection keeps; the oldest go first."""


def find_params(db: Db, conn_id: ConnId) -> PrivateParams | None:
    """The private half of parameters that were sent, while the peer's are awaited."""
    query = "SELECT x3dh_params FROM ratchets WHERE conn_id = ?"
    row = db.sql.execute(query, (conn_id,)).fetchone()
    return (
        None
        if row is None or row[0] is None
        else load_params(db.vault.open(row[0], "ratchets.x3dh_params", conn_id))
    )


def set_params(db: Db, conn_id: ConnId, params: PrivateParams) -> None:
    """Remember the private half of parameters before they are sent. A ratchet in use stays."""
    db.sql.execute(
        "INSERT INTO ratchets (conn_id, x3dh_params) VALUES (?, ?)"
        " ON CONFLICT DO UPDATE SET x3dh_params = excluded.x3dh_params",
        (conn_id, db.vault.seal(dump_params(params), "ratchets.x3dh_params", conn_id)),
    )


def forget_params(db: Db, conn_id: ConnId) -> None:
    db.sql.execute("UPDATE ratchets SET x3dh_params = NULL WHERE conn_id = ?", (conn_id,))


def set_ratchet(db: Db, conn_id: ConnId, ratchet: Ratchet) -> None:
    """Store the state after a step; keys that waited for the peer's are erased."""
    db.sql.execute(
        "INSERT INTO ratchets (conn_id, ratchet_state) VALUES (?, ?)"
        " ON CONFLICT DO UPDATE SET ratchet_state = excluded.ratchet_state, x3dh_params = NULL",
        (conn_id, sealed_ratchet(db, conn_id, ratchet)),
    )


def sealed_ratchet(db: Db, conn_id: ConnId, ratchet: Ratchet) -> bytes:
    """The ratchet as a column; it is likely to be asked for next."""
    stored = db.vault.seal(dump_ratchet(ratchet), "ratchets.ratchet_state", conn_id)
    db.memo.keep("ratchet", stored, ratchet)
    return stored


def step_ratchet(db: Db, conn_id: ConnId, ratchet: Ratchet) -> None:
    """Store the state after a step while keys for another ratchet may be waiting."""
    db.sql.execute_known(
        "UPDATE ratchets SET ratchet_state = ? WHERE conn_id = ?",
        (sealed_ratchet(db, conn_id, ratchet), conn_id),
    )
    stepped(db, conn_id, ratchet)


def stepped(db: Db, conn_id: ConnId, ratchet: Ratchet) -> None:
    """The state was stored together with a message."""
    db.sql.replace_known("ratchet", conn_id, lambda _: ratchet)


def set_sending(db: Db, conn_id: ConnId, ratchet: Ratchet, public: E2EParams) -> None:
    """The ratchet of a joiner, with what a repeated confirmation must carry."""
    set_ratchet(db, conn_id, ratchet)
    written = encode(public, write_e2e_params)
    db.sql.execute(
        "UPDATE ratchets SET x3dh_pub_params = ? WHERE conn_id = ?",
        (db.vault.seal(written, "ratchets.x3dh_pub_params", conn_id), conn_id),
    )


def find_public(db: Db, conn_id: ConnId) -> E2EParams | None:
    row = db.sql.execute("SELECT x3dh_pub_params FROM ratchets WHERE conn_id = ?", (conn_id,)).fetchone()
    if row is None or row[0] is None:
        return None
    return decode_whole(db.vault.open(row[0], "ratchets.x3dh_pub_params", conn_id), read_e2e_params)


def find_ratchet(db: Db, conn_id: ConnId) -> Ratchet | None:
    def opened(stored: bytes) -> bytes:
        return db.vault.open(stored, "ratchets.ratchet_state", conn_id)

    def read() -> Ratchet | None:
        row = db.sql.execute("SELECT ratchet_state FROM ratchets WHERE conn_id = ?", (conn_id,)).fetchone()
        if row is None or row[0] is None:
            return None
        return db.memo.of("ratchet", row[0], lambda: load_ratchet(opened(row[0])))

    return db.sql.known("ratchet", conn_id, read)


def delete_ratchet(db: Db, conn_id: ConnId) -> None:
    """The ratchet and its skipped keys."""
    db.sql.execute("DELETE FROM ratchets WHERE conn_id = ?", (conn_id,))


def skipped_keys(db: Db, conn_id: ConnId) -> SkippedKeys:
    loaded: dict[bytes, dict[int, MessageKey]] = {}
    if not _has_skipped(db, conn_id):
        return loaded
    query = "SELECT header_key, msg_n, msg_key FROM skipped_messages WHERE conn_id = ?"
    opened: dict[bytes, bytes] = {}
    for stored, number, key in db.sql.execute(query, (conn_id,)):
        header_key = opened.get(stored)
        if header_key is None:
            header_key = opened[stored] = db.vault.open(stored, "skipped_messages.header_key", conn_id)
        message_key = db.vault.open(key, "skipped_messages.msg_key", conn_id, number)
        loaded.setdefault(header_key, {})[number] = load_message_key(message_key)
    return loaded


def _has_skipped(db: Db, conn_id: ConnId) -> bool:
    """Whether there are any: almost never, and this is remembered."""
    query = "SELECT EXISTS (SELECT 1 FROM skipped_messages WHERE conn_id = ?)"

    def read() -> bool:
        return bool(db.sql.execute(query, (conn_id,)).fetchone()[0])

    return db.sql.known("has skipped", conn_id, read)


def change_skipped(db: Db, conn_id: ConnId, change: SkippedChange, now: int) -> None:
    """Store what a step did to the skipped keys; there is a bound on how many are kept."""
    match change:
        case SkippedRemoved(header_key, number):
            query = "SELECT rowid, header_key FROM skipped_messages WHERE conn_id = ? AND msg_n = ?"
            for rowid, stored in db.sql.execute(query, (conn_id, number)).fetchall():
                if db.vault.open(stored, "skipped_messages.header_key", conn_id) == header_key:
                    db.sql.execute("DELETE FROM skipped_messages WHERE rowid = ?", (rowid,))
        case SkippedAdded(keys):
            for header_key, numbered in keys.items():
                sealed = db.vault.seal(header_key, "skipped_messages.header_key", conn_id)
                db.sql.executemany(
                    "INSERT INTO skipped_messages (conn_id, header_key, msg_n, msg_key, created_at)"
                    " VALUES (?, ?, ?, ?, ?)",
                    (
                        (conn_id, sealed, number, _sealed_key(db, conn_id, number, key), now)
                        for number, key in numbered.items()
                    ),
                )
            db.sql.execute(
                "DELETE FROM skipped_messages WHERE rowid IN (SELECT rowid FROM skipped_messages"
                " WHERE conn_id = ? ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
                (conn_id, SKIPPED_MAX),
            )


def _sealed_key(db: Db, conn_id: ConnId, number: int, key: MessageKey) -> bytes:
    return db.vault.seal(dump_message_key(key), "skipped_messages.msg_key", conn_id, number)
