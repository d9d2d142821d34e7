"""The table of connections, and connections with all of their queues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from blindpost.agent.errors import ConnectionCode, ConnError
from blindpost.agent.model import ConnId, ConnMode, ConnRecord, SyncState, UserId, Whole
from blindpost.agent.store import queues
from blindpost.agent.store.database import Db

_RCV_HASH, _SND_HASH = "connections.last_rcv_msg_hash", "connections.last_snd_msg_hash"


def insert(
    db: Db,
    conn_id: ConnId,
    user_id: UserId,
    mode: ConnMode,
    *,
    agent_version: int,
    pq_support: bool,
    auto_allow: bool = True,
    own_info: bytes = b"",
) -> None:
    db.sql.execute(
        "INSERT INTO connections (conn_id, user_id, conn_mode, smp_agent_version, pq_support, auto_allow,"
        " own_conn_info, last_rcv_msg_hash, last_snd_msg_hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            conn_id,
            user_id,
            mode.value,
            agent_version,
            int(pq_support),
            int(auto_allow),
            db.vault.seal(own_info, "connections.own_conn_info", conn_id),
            db.vault.seal(b"", _RCV_HASH, conn_id),
            db.vault.seal(b"", _SND_HASH, conn_id),
        ),
    )


def find(db: Db, conn_id: ConnId, *, deleted: bool = False) -> ConnRecord | None:
    """The record, or None; those that are being deleted only when asked for."""
    record = db.sql.known("connection", conn_id, lambda: _found(db, conn_id))
    return None if record is None or (record.deleted and not deleted) else record


def _found(db: Db, conn_id: ConnId) -> ConnRecord | None:
    row = db.sql.execute("SELECT * FROM connection_rows WHERE conn_id = ?", (conn_id,)).fetchone()
    return None if row is None else db.memo.of("connection", row, lambda: _read(db, row))


def _read(db: Db, row: tuple[Any, ...]) -> ConnRecord:
    return ConnRecord(
        conn_id=row[0],
        user_id=row[1],
        mode=ConnMode(row[2]),
        agent_version=row[3],
        pq_support=bool(row[4]),
        sync_state=SyncState(row[5]),
        last_internal_id=row[6],
        last_rcv_id=row[7],
        last_snd_id=row[8],
        last_external_id=row[9],
        last_rcv_hash=db.vault.open(row[10], _RCV_HASH, row[0]),
        last_snd_hash=db.vault.open(row[11], _SND_HASH, row[0]),
        enable_ntfs=bool(row[12]),
        auto_allow=bool(row[13]),
        own_info=db.vault.open(row[14], "connections.own_conn_info", row[0]),
        deleted=bool(row[15]),
    )


def load(db: Db, conn_id: ConnId, *, deleted: bool = False) -> ConnRecord:
    record = find(db, conn_id, deleted=deleted)
    if record is None:
        raise ConnError(ConnectionCode.NOT_FOUND)
    return record


def load_whole(db: Db, conn_id: ConnId, *, deleted: bool = False) -> Whole:
    """The connection with its queues; one whose queues make no sense counts as not found."""
    whole = Whole(
        load(db, conn_id, deleted=deleted), queues.rcv_queues(db, conn_id), queues.snd_queues(db, conn_id)
    )
    if whole.type is None:
        raise ConnError(ConnectionCode.NOT_FOUND, "a contact address with send queues")
    return whole


def conn_ids(db: Db, user_id: UserId | None = None) -> Iterator[ConnId]:
    """All connections that the program has been given and that are not being deleted, now or when their
    messages are delivered."""
    query = (
        "SELECT conn_id FROM connections WHERE deleted = 0 AND deleted_at_wait_delivery IS NULL"
        " AND conn_id NOT IN (SELECT conn_id FROM unclaimed_connections)"
        " AND (:user IS NULL OR user_id = :user)"
    )
    return (conn_id for (conn_id,) in db.sql.execute(query, {"user": user_id}))


def delete(db: Db, conn_id: ConnId) -> None:
    db.sql.execute("DELETE FROM connections WHERE conn_id = ?", (conn_id,))


def set_version(db: Db, conn_id: ConnId, agent_version: int) -> None:
    db.sql.execute("UPDATE connections SET smp_agent_version = ? WHERE conn_id = ?", (agent_version, conn_id))


def set_pq_support(db: Db, conn_id: ConnId, pq_support: bool) -> None:
    db.sql.execute("UPDATE connections SET pq_support = ? WHERE conn_id = ?", (int(pq_support), conn_id))


def set_sync_state(db: Db, conn_id: ConnId, state: SyncState) -> None:
    db.sql.execute("UPDATE connections SET ratchet_sync_state = ? WHERE conn_id = ?", (state.value, conn_id))


def require_sync(db: Db, min_version: int) -> list[ConnId]:
    """Make every connection that can be synchronised wait for that; returns them. What was under way when the
    copy was made came to its end elsewhere, and would be waited for in vain."""
    done = db.sql.execute(
        "UPDATE connections SET ratchet_sync_state = 'required' WHERE deleted = 0 AND smp_agent_version >= ?"
        " AND EXISTS (SELECT 1 FROM snd_queues s WHERE s.conn_id = connections.conn_id)"
        " AND EXISTS (SELECT 1 FROM rcv_queues r WHERE r.conn_id = connections.conn_id AND r.deleted = 0)"
        " RETURNING conn_id",
        (min_version,),
    )
    return [conn_id for (conn_id,) in done.fetchall()]


def set_unclaimed(db: Db, conn_id: ConnId) -> None:
    """The program does not have this connection yet; if the agent ends first, it never will."""
    db.sql.execute("INSERT INTO unclaimed_connections (conn_id) VALUES (?)", (conn_id,))


def claim(db: Db, conn_id: ConnId) -> None:
    db.sql.execute("DELETE FROM unclaimed_connections WHERE conn_id = ?", (conn_id,))


def unclaimed(db: Db) -> list[ConnId]:
    return [conn_id for (conn_id,) in db.sql.execute("SELECT conn_id FROM unclaimed_connections")]


def unsettled_sync(db: Db) -> list[tuple[ConnId, SyncState]]:
    """Connections whose ratchets are being synchronised."""
    query = (
        "SELECT conn_id, ratchet_sync_state FROM connections"
        " WHERE ratchet_sync_state IN ('started', 'agreed') AND deleted = 0"
    )
    return [(conn_id, SyncState(state)) for conn_id, state in db.sql.execute(query)]


def snd_numbered(db: Db, record: ConnRecord, internal_id: int, snd_id: int, msg_hash: bytes) -> None:
    """The numbers of a message to be sent were stored with it: the record is known to have them."""

    def taken(known: ConnRecord) -> ConnRecord:
        return replace(known, last_internal_id=internal_id, last_snd_id=snd_id, last_snd_hash=msg_hash)

    db.sql.replace_known("connection", record.conn_id, taken)


def sealed_snd_hash(db: Db, conn_id: ConnId, msg_hash: bytes) -> bytes:
    return db.vault.seal(msg_hash, _SND_HASH, conn_id)


def set_last_rcv(db: Db, record: ConnRecord, external_id: int, msg_hash: bytes) -> None:
    """Take the next ids for a received message that has this number and hash with the peer."""
    internal_id, rcv_id = record.next_rcv
    db.sql.execute_known(
        "UPDATE connections SET last_internal_msg_id = ?, last_internal_rcv_msg_id = ?,"
        " last_external_snd_msg_id = ?, last_rcv_msg_hash = ? WHERE conn_id = ?",
        (internal_id, rcv_id, external_id, sealed_rcv_hash(db, record.conn_id, msg_hash), record.conn_id),
    )
    rcv_numbered(db, record, internal_id, rcv_id, external_id, msg_hash)


def sealed_rcv_hash(db: Db, conn_id: ConnId, msg_hash: bytes) -> bytes:
    return db.vault.seal(msg_hash, _RCV_HASH, conn_id)


def rcv_numbered(
    db: Db, record: ConnRecord, internal_id: int, rcv_id: int, external_id: int, msg_hash: bytes
) -> None:
    """As `snd_numbered`, of a message that came."""

    def taken(known: ConnRecord) -> ConnRecord:
        return replace(
            known,
            last_internal_id=internal_id,
            last_rcv_id=rcv_id,
            last_external_id=external_id,
            last_rcv_hash=msg_hash,
        )

    db.sql.replace_known("connection", record.conn_id, taken)


def confirmation_counted(db: Db, conn_id: ConnId, msg_hash: bytes) -> None:
    """A confirmation is the peer's message number 1, unless messages were received before it."""
    db.sql.execute(
        "UPDATE connections SET last_external_snd_msg_id = 1, last_rcv_msg_hash = ?"
        " WHERE conn_id = ? AND last_external_snd_msg_id = 0",
        (sealed_rcv_hash(db, conn_id, msg_hash), conn_id),
    )
