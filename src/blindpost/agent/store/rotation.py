"""What rotation asks of the tables of queues and deliveries."""

from __future__ import annotations

from blindpost.agent.model import ConnId, MessageKind, RcvQueue, SndQueue
from blindpost.agent.store.database import Db


def switching(db: Db) -> list[tuple[ConnId, int | None]]:
    """Connections whose receive queue is being replaced, and since when the present step lasts."""
    query = (
        "SELECT q.conn_id, max(q.switch_at) FROM rcv_queues q JOIN connections c ON c.conn_id = q.conn_id"
        " WHERE q.switch_status IS NOT NULL AND q.deleted = 0 AND c.deleted = 0 GROUP BY q.conn_id"
    )
    return db.sql.execute(query).fetchall()


def is_waiting(db: Db, conn_id: ConnId, *kinds: MessageKind, queue: SndQueue | None = None) -> bool:
    """Whether a message of one of these kinds has not been delivered yet, to this queue or any."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM snd_message_deliveries d JOIN messages m"
        " ON m.conn_id = d.conn_id AND m.internal_id = d.internal_id"
        " WHERE d.conn_id = :conn AND m.msg_type = :kind AND d.failed = 0"
        " AND (:queue IS NULL OR d.snd_queue_id = :queue))"
    )
    asked = {"conn": conn_id, "queue": None if queue is None else queue.number}
    return any(db.sql.execute(query, {**asked, "kind": kind.value}).fetchone()[0] for kind in kinds)


KEPT = 2
"""In the column `failed`: the router has taken it, and it is kept in case that it is lost there."""
KEPT_MAX = 1024


def is_keyed(db: Db, old: SndQueue) -> bool:
    """Whether QKEY of the rotation under way has been taken by the old queue."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM snd_message_deliveries d JOIN messages m"
        " ON m.conn_id = d.conn_id AND m.internal_id = d.internal_id"
        " WHERE d.conn_id = ? AND d.snd_queue_id = ? AND d.failed = ? AND m.msg_type = 'QK')"
    )
    return bool(db.sql.execute(query, (old.conn_id, old.number, KEPT)).fetchone()[0])


def keep(db: Db, delivery_id: int) -> None:
    """The old queue has taken this message, and may be deleted with it."""
    db.sql.execute(
        "UPDATE snd_message_deliveries SET failed = ? WHERE snd_message_delivery_id = ?", (KEPT, delivery_id)
    )


def left(db: Db, old: SndQueue, *, kept_only: bool = False) -> list[tuple[int, int, MessageKind]]:
    """Delivery id, message id and kind of all that is kept of this queue, or waits for it as well."""
    query = (
        "SELECT d.snd_message_delivery_id, d.internal_id, m.msg_type FROM snd_message_deliveries d"
        " JOIN messages m ON m.conn_id = d.conn_id AND m.internal_id = d.internal_id"
        " WHERE d.conn_id = ? AND d.snd_queue_id = ? AND d.failed >= ?"
    )
    rows = db.sql.execute(query, (old.conn_id, old.number, KEPT if kept_only else 0)).fetchall()
    return [(delivery_id, internal_id, MessageKind(kind)) for delivery_id, internal_id, kind in rows]


def oldest_kept(db: Db, old: SndQueue) -> tuple[int, int, MessageKind]:
    """The same of the first one that is kept, but for QKEY."""
    query = (
        "SELECT d.snd_message_delivery_id, d.internal_id, m.msg_type FROM snd_message_deliveries d"
        " JOIN messages m ON m.conn_id = d.conn_id AND m.internal_id = d.internal_id"
        " WHERE d.conn_id = ? AND d.snd_queue_id = ? AND d.failed = ? AND m.msg_type <> 'QK'"
        " ORDER BY d.internal_id LIMIT 1"
    )
    delivery_id, internal_id, kind = db.sql.execute(query, (old.conn_id, old.number, KEPT)).fetchone()
    return delivery_id, internal_id, MessageKind(kind)


def count_kept(db: Db, old: SndQueue) -> int:
    query = (
        "SELECT count(*) FROM snd_message_deliveries WHERE conn_id = ? AND snd_queue_id = ? AND failed = ?"
    )
    return int(db.sql.execute(query, (old.conn_id, old.number, KEPT)).fetchone()[0])


def deliver_also(db: Db, old: SndQueue, new: SndQueue) -> None:
    """What waits for the old queue, and what it took since QKEY, goes to the new one too; the peer reads what
    comes first, and knows a copy by its bytes."""
    db.sql.execute(
        "INSERT INTO snd_message_deliveries (conn_id, snd_queue_id, internal_id)"
        " SELECT conn_id, :new, internal_id FROM snd_message_deliveries d"
        " WHERE conn_id = :conn AND snd_queue_id = :old AND (failed = 0 OR failed = 2 AND internal_id >"
        " (SELECT min(m.internal_id) FROM snd_message_deliveries k JOIN messages m"
        " ON m.conn_id = k.conn_id AND m.internal_id = k.internal_id"
        " WHERE k.conn_id = :conn AND k.snd_queue_id = :old AND k.failed = 2 AND m.msg_type = 'QK'))"
        " AND NOT EXISTS"
        " (SELECT 1 FROM snd_message_deliveries n WHERE n.conn_id = d.conn_id AND n.snd_queue_id = :new"
        " AND n.internal_id = d.internal_id) ORDER BY internal_id",
        {"conn": old.conn_id, "old": old.number, "new": new.number},
    )


def remember_aborted(db: Db, new: RcvQueue) -> None:
    """The application took the rotation to this queue back; the peer may still answer to it."""
    db.sql.execute(
        "INSERT OR IGNORE INTO aborted_queues (conn_id, snd_id) VALUES (?, ?)", (new.conn_id, new.snd_id)
    )


def is_aborted(db: Db, conn_id: ConnId, snd_id: bytes) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM aborted_queues WHERE conn_id = ? AND snd_id = ?)"
    return bool(db.sql.execute(query, (conn_id, snd_id)).fetchone()[0])


def remember_left(db: Db, old: SndQueue) -> None:
    """We followed the peer to its next queue, and it may still speak of this one. The last one is enough."""
    db.sql.execute(
        "INSERT OR REPLACE INTO left_queues (conn_id, snd_id) VALUES (?, ?)", (old.conn_id, old.snd_id)
    )


def is_left(db: Db, conn_id: ConnId, snd_id: bytes) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM left_queues WHERE conn_id = ? AND snd_id = ?)"
    return bool(db.sql.execute(query, (conn_id, snd_id)).fetchone()[0])


def has_unacknowledged(db: Db, queue: RcvQueue) -> bool:
    """Whether the application has a message of this queue in hand."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM rcv_messages WHERE conn_id = ? AND rcv_queue_id = ? AND user_ack = 0)"
    )
    return bool(db.sql.execute(query, (queue.conn_id, queue.number)).fetchone()[0])
