"""Messages both ways: what waits to be delivered or acknowledged, and what is remembered of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from blindpost.agent.model import ConnId, ConnRecord, MessageKind
from blindpost.agent.store import connections, ratchets
from blindpost.agent.store.database import Db
from blindpost.agent.store.servers import loaded_server
from blindpost.crypto.ratchet_state import BodyKey, Ratchet
from blindpost.crypto.ratchet_storage import dump_body_key, load_body_key
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value, shown

_READ_AHEAD = "read ahead"
AHEAD_MAX = 8
"""So many messages that wait for one queue are read together."""
_TO_ACKNOWLEDGE = "to acknowledge"

# What is sent


@dataclass(frozen=True, slots=True, repr=False)
class NewSndMessage(Value):
    """A message to be sent. With a `body_key` its body is encrypted when it is sent; without, it is whole."""

    internal_id: int
    snd_id: int
    kind: MessageKind
    body: bytes
    msg_hash: bytes
    prev_hash: bytes
    notify: bool
    pq: bool
    body_key: BodyKey | None = None
    padded_size: int = 0


def insert_snd(
    db: Db,
    record: ConnRecord,
    message: NewSndMessage,
    ratchet: Ratchet | None,
    queue_numbers: Sequence[int],
    now: int,
) -> None:
    """Store a message, that it is to be delivered to these queues, its numbers as the last ones of the
    connection and the ratchet after its step, if it has one: all by one statement, for it is done often."""
    key, seal, conn_id = message.body_key, db.vault.seal, record.conn_id
    row = (conn_id, message.internal_id)
    db.sql.execute_known(
        "INSERT INTO sent_messages (conn_id, internal_id, internal_ts, internal_snd_id, msg_type, msg_body,"
        " msg_flags, pq_encryption, internal_hash, previous_msg_hash, msg_encrypt_key, padded_msg_len,"
        " snd_queue_id, last_snd_msg_hash, ratchet_state)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *row,
            now,
            message.snd_id,
            message.kind.value,
            seal(message.body, "messages.msg_body", *row),
            int(message.notify),
            int(message.pq),
            seal(message.msg_hash, "snd_messages.internal_hash", *row),
            seal(message.prev_hash, "snd_messages.previous_msg_hash", *row),
            None if key is None else seal(dump_body_key(key), "snd_messages.msg_encrypt_key", *row),
            message.padded_size,
            queue_numbers[0] if queue_numbers else None,
            connections.sealed_snd_hash(db, conn_id, message.msg_hash),
            None if ratchet is None else ratchets.sealed_ratchet(db, conn_id, ratchet),
        ),
    )
    connections.snd_numbered(db, record, message.internal_id, message.snd_id, message.msg_hash)
    if ratchet is not None:
        ratchets.stepped(db, conn_id, ratchet)
    for number in queue_numbers[1:]:
        db.sql.execute(
            "INSERT INTO snd_message_deliveries (conn_id, snd_queue_id, internal_id) VALUES (?, ?, ?)",
            (conn_id, number, message.internal_id),
        )


@dataclass(frozen=True, slots=True, repr=False)
class PendingDelivery(Value):
    """The next message for one send queue."""

    delivery_id: int
    internal_id: int
    kind: MessageKind
    body: bytes
    created_at: int
    notify: bool
    pq: bool
    body_key: BodyKey | None
    padded_size: int
    retry_slow_us: int | None
    retry_fast_us: int | None
    others: bool
    """Whether more wait for the same queue."""


def next_delivery(db: Db, conn_id: ConnId, queue_number: int) -> PendingDelivery | None:
    """The first message that waits for this queue; `WireError` if its row cannot be read.

    Some are read together while there are more behind them: the first of those stays what it is, whatever
    is added.
    """
    key = (conn_id, queue_number)
    read: tuple[PendingDelivery, ...] = db.sql.of_message(_READ_AHEAD, key, ())
    if read:
        return read[0]
    read = _first_deliveries(db, conn_id, queue_number)
    if len(read) > 1:
        db.sql.keep_of_message(_READ_AHEAD, key, read)
    return read[0] if read else None


def _taken(db: Db, conn_id: ConnId, queue_number: int, internal_id: int) -> None:
    """A message does not wait for this queue any more."""
    key = (conn_id, queue_number)
    read: tuple[PendingDelivery, ...] = db.sql.of_message(_READ_AHEAD, key, ())
    if len(read) > 2 and read[0].internal_id == internal_id:
        db.sql.keep_of_message(_READ_AHEAD, key, read[1:])
    else:
        db.sql.forget_message(_READ_AHEAD, key)


def _first_deliveries(db: Db, conn_id: ConnId, queue_number: int) -> tuple[PendingDelivery, ...]:
    """The first messages that wait for this queue, up to one that cannot be read.

    QTEST goes to one queue only: what comes after it must not overtake it through another one.
    """
    query = (
        "SELECT d.snd_message_delivery_id, d.internal_id, m.msg_type, m.msg_body, m.internal_ts,"
        " m.msg_flags, m.pq_encryption, s.msg_encrypt_key, s.padded_msg_len, s.retry_int_slow,"
        " s.retry_int_fast, EXISTS (SELECT 1 FROM snd_message_deliveries o WHERE o.conn_id = :conn"
        " AND o.snd_queue_id = :queue AND o.internal_id > d.internal_id) FROM snd_message_deliveries d"
        " JOIN messages m ON m.conn_id = d.conn_id AND m.internal_id = d.internal_id"
        " JOIN snd_messages s ON s.conn_id = d.conn_id AND s.internal_id = d.internal_id"
        " WHERE d.conn_id = :conn AND d.snd_queue_id = :queue AND d.failed = 0 AND NOT EXISTS"
        " (SELECT 1 FROM snd_message_deliveries e JOIN messages t"
        " ON t.conn_id = e.conn_id AND t.internal_id = e.internal_id"
        " WHERE e.conn_id = :conn AND e.snd_queue_id <> :queue AND e.failed = 0"
        " AND e.internal_id < d.internal_id AND t.msg_type = 'QT') ORDER BY d.internal_id LIMIT :most"
    )
    found: list[PendingDelivery] = []
    asked = {"conn": conn_id, "queue": queue_number, "most": AHEAD_MAX}
    for row in db.sql.execute(query, asked).fetchall():
        try:
            found.append(_pending(db, conn_id, row))
        except WireError:
            if not found:
                raise
            break
    return tuple(found)


def _pending(db: Db, conn_id: ConnId, row: tuple[Any, ...]) -> PendingDelivery:
    opened, place = db.vault.open, (conn_id, row[1])
    body_key = None if row[7] is None else opened(row[7], "snd_messages.msg_encrypt_key", *place)
    return PendingDelivery(
        delivery_id=row[0],
        internal_id=row[1],
        kind=MessageKind(row[2]),
        body=opened(row[3], "messages.msg_body", *place),
        created_at=row[4],
        notify=bool(row[5]),
        pq=bool(row[6]),
        body_key=None if body_key is None else load_body_key(body_key),
        padded_size=row[8] or 0,
        retry_slow_us=row[9],
        retry_fast_us=row[10],
        others=bool(row[11]),
    )


def first_delivery(db: Db, conn_id: ConnId, queue_number: int) -> tuple[int, int]:
    """Delivery and message id of `next_delivery`."""
    query = (
        "SELECT snd_message_delivery_id, internal_id FROM snd_message_deliveries"
        " WHERE conn_id = ? AND snd_queue_id = ? AND failed = 0 ORDER BY internal_id LIMIT 1"
    )
    row = db.sql.execute(query, (conn_id, queue_number)).fetchone()
    return row[0], row[1]


def pending_queues(db: Db) -> list[tuple[tuple[ConnId, int], Server]]:
    """The send queues that messages wait for, each with its router."""
    query = (
        "SELECT DISTINCT d.conn_id, d.snd_queue_id, q.host, q.port, q.key_hash FROM snd_message_deliveries d"
        " JOIN connections c ON c.conn_id = d.conn_id"
        " JOIN snd_queue_rows q ON q.conn_id = d.conn_id AND q.snd_queue_id = d.snd_queue_id"
        " WHERE d.failed = 0 AND c.deleted = 0"
    )
    return [
        ((conn_id, number), loaded_server(host, port, key_hash))
        for conn_id, number, host, port, key_hash in db.sql.execute(query)
    ]


def has_pending(db: Db, conn_id: ConnId) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM snd_message_deliveries WHERE conn_id = ? AND failed = 0)"
    return bool(db.sql.execute(query, (conn_id,)).fetchone()[0])


def count_pending(db: Db, conn_id: ConnId) -> int:
    query = "SELECT count(*) FROM snd_message_deliveries WHERE conn_id = ? AND failed = 0"
    return int(db.sql.execute(query, (conn_id,)).fetchone()[0])


def expired_deliveries(
    db: Db, conn_id: ConnId, queue_number: int, before: int
) -> list[tuple[int, int, MessageKind]]:
    """Delivery id, message id and kind of what waits for a queue since before a time."""
    query = (
        "SELECT d.snd_message_delivery_id, d.internal_id, m.msg_type FROM snd_message_deliveries d"
        " JOIN messages m ON m.conn_id = d.conn_id AND m.internal_id = d.internal_id"
        " WHERE d.conn_id = ? AND d.snd_queue_id = ? AND d.failed = 0 AND m.internal_ts < ?"
        " ORDER BY d.internal_id"
    )
    found = db.sql.execute(query, (conn_id, queue_number, before)).fetchall()
    return [(delivery_id, internal_id, MessageKind(kind)) for delivery_id, internal_id, kind in found]


def set_retry(db: Db, conn_id: ConnId, internal_id: int, slow_us: int, fast_us: int) -> None:
    db.sql.execute(
        "UPDATE snd_messages SET retry_int_slow = ?, retry_int_fast = ?"
        " WHERE conn_id = ? AND internal_id = ?",
        (slow_us, fast_us, conn_id, internal_id),
    )


def set_sent(db: Db, conn_id: ConnId, internal_id: int) -> bool:
    """A router has the message; whether it is the first one that does."""
    done = db.sql.execute(
        "UPDATE snd_messages SET sent = 1 WHERE conn_id = ? AND internal_id = ? AND sent = 0",
        (conn_id, internal_id),
    )
    return done.rowcount == 1


def is_waiting(db: Db, delivery_id: int) -> bool:
    """Whether a delivery is still wanted: a receipt may have told that its message arrived."""
    query = "SELECT EXISTS (SELECT 1 FROM snd_message_deliveries WHERE snd_message_delivery_id = ?)"
    return bool(db.sql.execute(query, (delivery_id,)).fetchone()[0])


def is_elsewhere(db: Db, conn_id: ConnId, delivery_id: int, internal_id: int) -> bool:
    """Whether a message was taken through another queue, or still waits for one."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM snd_messages"
        " WHERE conn_id = :conn AND internal_id = :message AND sent = 1)"
        " OR EXISTS (SELECT 1 FROM snd_message_deliveries"
        " WHERE conn_id = :conn AND internal_id = :message AND snd_message_delivery_id <> :delivery)"
    )
    asked = {"conn": conn_id, "message": internal_id, "delivery": delivery_id}
    return bool(db.sql.execute(query, asked).fetchone()[0])


def delivered(db: Db, conn_id: ConnId, delivery_id: int, internal_id: int, *, keep: bool) -> None:
    """One delivery is finished. The last one deletes the message, or only its body if a receipt may come."""
    db.sql.execute("DELETE FROM snd_message_deliveries WHERE snd_message_delivery_id = ?", (delivery_id,))
    query = "SELECT EXISTS (SELECT 1 FROM snd_message_deliveries WHERE conn_id = ? AND internal_id = ?)"
    if db.sql.execute(query, (conn_id, internal_id)).fetchone()[0]:
        return
    if keep:
        _erase_body(db, conn_id, internal_id)
        _erase_key(db, conn_id, internal_id)
    else:
        delete(db, conn_id, internal_id)


def delivered_at_once(db: Db, conn_id: ConnId, queue_number: int, delivery_id: int, internal_id: int) -> bool:
    """As `set_sent` and `delivered` of a message for which a receipt may come, and which had one delivery.
    What is remembered of other messages stays."""
    _taken(db, conn_id, queue_number, internal_id)
    execute = db.sql.execute_known
    execute("DELETE FROM snd_message_deliveries WHERE snd_message_delivery_id = ?", (delivery_id,))
    done = execute(
        "UPDATE snd_messages SET msg_encrypt_key = NULL, sent = 1 WHERE conn_id = ? AND internal_id = ?"
        " AND sent = 0",
        (conn_id, internal_id),
    )
    _erase_body(db, conn_id, internal_id)
    if done.rowcount == 1:
        return True
    _erase_key(db, conn_id, internal_id)
    return False


def _erase_key(db: Db, conn_id: ConnId, internal_id: int) -> None:
    db.sql.execute(
        "UPDATE snd_messages SET msg_encrypt_key = NULL WHERE conn_id = ? AND internal_id = ?",
        (conn_id, internal_id),
    )


def _erase_body(db: Db, conn_id: ConnId, internal_id: int) -> None:
    db.sql.execute_known(
        "UPDATE messages SET msg_body = ? WHERE conn_id = ? AND internal_id = ?",
        (db.vault.seal(b"", "messages.msg_body", conn_id, internal_id), conn_id, internal_id),
    )


def set_delivery_failed(db: Db, delivery_id: int) -> None:
    db.sql.execute(
        "UPDATE snd_message_deliveries SET failed = 1 WHERE snd_message_delivery_id = ?", (delivery_id,)
    )


def delete(db: Db, conn_id: ConnId, internal_id: int) -> None:
    db.sql.execute("DELETE FROM messages WHERE conn_id = ? AND internal_id = ?", (conn_id, internal_id))


@dataclass(frozen=True, slots=True, repr=False)
class SentMessage(Value):
    """What is kept of a message that was sent, for its receipt."""

    internal_id: int
    kind: MessageKind
    msg_hash: bytes
    receipt_status: str | None


def find_sent(db: Db, conn_id: ConnId, snd_id: int) -> SentMessage | None:
    query = (
        "SELECT s.internal_id, m.msg_type, s.internal_hash, s.rcpt_status FROM snd_messages s"
        " JOIN messages m ON m.conn_id = s.conn_id AND m.internal_id = s.internal_id"
        " WHERE s.conn_id = ? AND s.internal_snd_id = ?"
    )
    row = db.sql.execute(query, (conn_id, snd_id)).fetchone()
    if row is None:
        return None
    msg_hash = db.vault.open(row[2], "snd_messages.internal_hash", conn_id, row[0])
    return SentMessage(row[0], MessageKind(row[1]), msg_hash, row[3])


def set_receipt(db: Db, conn_id: ConnId, snd_id: int, receipt_internal_id: int, status: str) -> None:
    db.sql.execute(
        "UPDATE snd_messages SET rcpt_internal_id = ?, rcpt_status = ?"
        " WHERE conn_id = ? AND internal_snd_id = ?",
        (receipt_internal_id, status, conn_id, snd_id),
    )


def receipted(db: Db, conn_id: ConnId, receipt_internal_id: int, status: str) -> list[int]:
    """The messages that a receipt message was about, with this status."""
    query = (
        "SELECT internal_id FROM snd_messages WHERE conn_id = ? AND rcpt_internal_id = ? AND rcpt_status = ?"
    )
    return [found for (found,) in db.sql.execute(query, (conn_id, receipt_internal_id, status))]


def receipts_in(db: Db, conn_id: ConnId, receipt_internal_id: int) -> list[tuple[int, str]]:
    """The messages that a receipt message was about, and what it said."""
    query = "SELECT internal_id, rcpt_status FROM snd_messages WHERE conn_id = ? AND rcpt_internal_id = ?"
    return db.sql.execute(query, (conn_id, receipt_internal_id)).fetchall()


# What is received


@dataclass(frozen=True, slots=True, repr=False)
class RcvMessage(Value):
    """A received message; `integrity` is the stored form of the outcome."""

    internal_id: int
    rcv_id: int
    kind: MessageKind
    body: bytes
    received_at: int
    pq: bool
    external_id: int
    broker_id: bytes
    broker_ts: int
    queue_number: int
    msg_hash: bytes
    prev_hash: bytes
    integrity: bytes
    user_ack: bool = False
    attempts: int = 0


def insert_rcv(
    db: Db,
    record: ConnRecord,
    message: RcvMessage,
    last: tuple[int, bytes],
    encrypted_hash: bytes | None = None,
    ratchet: Ratchet | None = None,
) -> None:
    """Store a message, and number and hash of the last one of the peer; what it is known by when it comes
    again and the ratchet after its step, unless they are stored. As `insert_snd` by one statement."""
    blind, label = db.vault.blind, "encrypted_rcv_message_hashes.hash"
    seal, conn_id, row = db.vault.seal, record.conn_id, (record.conn_id, message.internal_id)
    db.sql.execute_known(
        "INSERT INTO received_messages (conn_id, internal_id, internal_ts, internal_rcv_id, msg_type,"
        " msg_body, pq_encryption, external_snd_id, broker_id, broker_ts, rcv_queue_id, internal_hash,"
        " external_prev_snd_hash, integrity, last_external_snd_msg_id, last_rcv_msg_hash, encrypted_hash,"
        " ratchet_state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *row,
            message.received_at,
            message.rcv_id,
            message.kind.value,
            seal(message.body, "messages.msg_body", *row),
            int(message.pq),
            message.external_id,
            message.broker_id,
            message.broker_ts,
            message.queue_number,
            seal(message.msg_hash, "rcv_messages.internal_hash", *row),
            seal(message.prev_hash, "rcv_messages.external_prev_snd_hash", *row),
            seal(message.integrity, "rcv_messages.integrity", *row),
            last[0],
            connections.sealed_rcv_hash(db, conn_id, last[1]),
            None if encrypted_hash is None else blind(encrypted_hash, label),
            None if ratchet is None else ratchets.sealed_ratchet(db, conn_id, ratchet),
        ),
    )
    waiting = ToAcknowledge(
        message.kind, message.external_id, message.broker_id, message.queue_number, message.msg_hash, False
    )
    db.sql.keep_of_message(_TO_ACKNOWLEDGE, row, waiting)
    connections.rcv_numbered(db, record, message.internal_id, message.rcv_id, *last)
    if ratchet is not None:
        ratchets.stepped(db, conn_id, ratchet)


def find_rcv(db: Db, conn_id: ConnId, internal_id: int) -> RcvMessage | None:
    query = (
        "SELECT m.internal_id, m.internal_rcv_id, m.msg_type, m.msg_body, m.internal_ts, m.pq_encryption,"
        " r.external_snd_id, r.broker_id, r.broker_ts, r.rcv_queue_id, r.internal_hash,"
        " r.external_prev_snd_hash, r.integrity, r.user_ack, r.receive_attempts FROM rcv_messages r"
        " JOIN messages m ON m.conn_id = r.conn_id AND m.internal_id = r.internal_id"
        " WHERE r.conn_id = ? AND r.internal_id = ?"
    )
    row = db.sql.execute(query, (conn_id, internal_id)).fetchone()
    if row is None:
        return None
    opened, place = db.vault.open, (conn_id, row[0])
    return RcvMessage(
        internal_id=row[0],
        rcv_id=row[1],
        kind=MessageKind(row[2]),
        body=opened(row[3], "messages.msg_body", *place),
        received_at=row[4],
        pq=bool(row[5]),
        external_id=row[6],
        broker_id=row[7],
        broker_ts=row[8],
        queue_number=row[9],
        msg_hash=opened(row[10], "rcv_messages.internal_hash", *place),
        prev_hash=opened(row[11], "rcv_messages.external_prev_snd_hash", *place),
        integrity=opened(row[12], "rcv_messages.integrity", *place),
        user_ack=bool(row[13]),
        attempts=row[14],
    )


class ToAcknowledge(NamedTuple):
    """What the acknowledgement of a message needs of it; `user_ack`: it was given already."""

    kind: MessageKind
    external_id: int
    broker_id: bytes
    queue_number: int
    msg_hash: bytes
    user_ack: bool

    def __repr__(self) -> str:
        return shown(self)


def to_acknowledge(db: Db, conn_id: ConnId, internal_id: int) -> ToAcknowledge | None:
    """What an acknowledgement needs; of a message that came a moment ago it is not read again."""
    waiting: ToAcknowledge | None = db.sql.of_message(_TO_ACKNOWLEDGE, (conn_id, internal_id), None)
    if waiting is not None:
        return waiting
    found = find_rcv(db, conn_id, internal_id)
    if found is None:
        return None
    return ToAcknowledge(
        found.kind, found.external_id, found.broker_id, found.queue_number, found.msg_hash, found.user_ack
    )


def acknowledging(db: Db, conn_id: ConnId, internal_id: int) -> None:
    """The acknowledgement is stored: what was remembered of the message is out of date."""
    db.sql.forget_message(_TO_ACKNOWLEDGE, (conn_id, internal_id))


def acknowledged(db: Db, conn_id: ConnId, internal_id: int) -> None:
    """The router knows that the program is done with a message. What is remembered of others stays."""
    db.sql.execute_known("DELETE FROM messages WHERE conn_id = ? AND internal_id = ?", (conn_id, internal_id))
    acknowledging(db, conn_id, internal_id)


def unacknowledged(db: Db) -> list[tuple[ConnId, int]]:
    """What was shown and not acknowledged."""
    query = (
        "SELECT r.conn_id, r.internal_id FROM rcv_messages r"
        " JOIN connections c ON c.conn_id = r.conn_id"
        " WHERE r.user_ack = 0 AND c.deleted = 0 AND c.deleted_at_wait_delivery IS NULL"
        " ORDER BY r.conn_id, r.internal_id"
    )
    return db.sql.execute(query).fetchall()


def find_by_broker_id(db: Db, conn_id: ConnId, queue_number: int, broker_id: bytes) -> RcvMessage | None:
    """The stored message that the router delivers again."""
    query = "SELECT internal_id FROM rcv_messages WHERE conn_id = ? AND rcv_queue_id = ? AND broker_id = ?"
    row = db.sql.execute(query, (conn_id, queue_number, broker_id)).fetchone()
    return None if row is None else find_rcv(db, conn_id, row[0])


def count_attempt(db: Db, conn_id: ConnId, internal_id: int) -> None:
    db.sql.execute(
        "UPDATE rcv_messages SET receive_attempts = receive_attempts + 1"
        " WHERE conn_id = ? AND internal_id = ?",
        (conn_id, internal_id),
    )


def remember_hash(db: Db, conn_id: ConnId, encrypted_hash: bytes, now: int) -> None:
    """Remember a message by its ciphertext, to know it when it comes again."""
    db.sql.execute(
        "INSERT INTO encrypted_rcv_message_hashes (conn_id, hash, created_at) VALUES (?, ?, ?)",
        (conn_id, db.vault.blind(encrypted_hash, "encrypted_rcv_message_hashes.hash"), now),
    )


def is_known_hash(db: Db, conn_id: ConnId, encrypted_hash: bytes) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM encrypted_rcv_message_hashes WHERE conn_id = ? AND hash = ?)"
    blind = db.vault.blind(encrypted_hash, "encrypted_rcv_message_hashes.hash")
    return bool(db.sql.execute(query, (conn_id, blind)).fetchone()[0])


# What is old


def forget_before(db: Db, before: int, limit: int) -> None:
    """Delete hashes and sent messages that are older, so many of each at most."""
    for statement in (
        "DELETE FROM encrypted_rcv_message_hashes WHERE encrypted_rcv_message_hash_id IN"
        " (SELECT encrypted_rcv_message_hash_id FROM encrypted_rcv_message_hashes"
        " WHERE created_at < ? ORDER BY created_at LIMIT ?)",
        "DELETE FROM processed_ratchet_key_hashes WHERE processed_ratchet_key_hash_id IN"
        " (SELECT processed_ratchet_key_hash_id FROM processed_ratchet_key_hashes"
        " WHERE created_at < ? ORDER BY created_at LIMIT ?)",
        "DELETE FROM messages WHERE (conn_id, internal_id) IN"
        " (SELECT m.conn_id, m.internal_id FROM messages m WHERE m.internal_snd_id IS NOT NULL"
        " AND m.internal_ts < ? AND NOT EXISTS (SELECT 1 FROM snd_message_deliveries d"
        " WHERE d.conn_id = m.conn_id AND d.internal_id = m.internal_id AND d.failed = 0)"
        " ORDER BY m.internal_ts LIMIT ?)",
    ):
        db.sql.execute(statement, (before, limit))
