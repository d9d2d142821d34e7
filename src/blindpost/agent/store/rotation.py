"""What rotation asks of the tables of queues and deliveries."""

from __future__ import annotations

from blindpost.agent.model import ConnId, MessageKind, RcvQueue, SndQueue
from blindpost.agent.store.database import Db


def switching(db: Db) -> list[ConnId]:
    """Connections whose receive queue is being replaced."""
    query = (
        "SELECT DISTINCT q.conn_id FROM rcv_queues q JOIN connections c ON c.conn_id = q.conn_id"
        " WHERE q.switch_status IS NOT NULL AND q.deleted = 0 AND c.deleted = 0"
    )
    return [conn_id for (conn_id,) in db.sql.execute(query)]


def is_waiting(db: Db, conn_id: ConnId, kind: MessageKind) -> bool:
    """Whether a message of this kind has not been delivered yet."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM snd_message_deliveries d JOIN messages m"
        " ON m.conn_id = d.conn_id AND m.internal_id = d.internal_id"
        " WHERE d.conn_id = ? AND m.msg_type = ? AND d.failed = 0)"
    )
    return bool(db.sql.execute(query, (conn_id, kind.value)).fetchone()[0])


def deliver_also(db: Db, old: SndQueue, new: SndQueue) -> None:
    """What waits for the old queue goes to the new one too; the peer reads what comes first, not the copy."""
    db.sql.execute(
        "INSERT INTO snd_message_deliveries (conn_id, snd_queue_id, internal_id)"
        " SELECT conn_id, ?3, internal_id FROM snd_message_deliveries d"
        " WHERE conn_id = ?1 AND snd_queue_id = ?2 AND failed = 0 AND NOT EXISTS"
        " (SELECT 1 FROM snd_message_deliveries n WHERE n.conn_id = d.conn_id AND n.snd_queue_id = ?3"
        " AND n.internal_id = d.internal_id) ORDER BY internal_id",
        (old.conn_id, old.number, new.number),
    )


def has_unacknowledged(db: Db, queue: RcvQueue) -> bool:
    """Whether the application has a message of this queue in hand."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM rcv_messages WHERE conn_id = ? AND rcv_queue_id = ? AND user_ack = 0)"
    )
    return bool(db.sql.execute(query, (queue.conn_id, queue.number)).fetchone()[0])
