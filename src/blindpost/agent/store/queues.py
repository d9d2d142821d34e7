"""Receive and send queues, and the keys of queues that are being made."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Iterator
from typing import Any

from blindpost.agent.model import (
    ConnId,
    QueueLink,
    QueueStatus,
    RcvQueue,
    RcvSwitch,
    SndQueue,
    SndSwitch,
    UserId,
)
from blindpost.agent.notifications.model import NotifierKeys
from blindpost.agent.store.database import Db
from blindpost.agent.store.servers import loaded_server, server_key, stored_server
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.value import Value


def _mode_text(mode: QueueMode | None) -> str | None:
    return None if mode is None else mode.value.decode("ascii")


def _mode(text: str | None) -> QueueMode | None:
    return None if text is None else QueueMode(text.encode("ascii"))


# Receive queues


def read_rcv(db: Db, row: tuple[Any, ...]) -> RcvQueue:
    """A row of `rcv_queue_rows`."""
    return db.memo.of("rcv", row, lambda: _read_rcv(db, row))


def _read_rcv(db: Db, row: tuple[Any, ...]) -> RcvQueue:
    opened = functools.partial(_opened_rcv, db, row[0], row[6])
    link = None
    if row[21] is not None:
        root_key = PrivateKey.from_pkcs8(opened(row[21], "link_priv_sig_key"))
        fixed_data = opened(row[22], "link_enc_fixed_data")
        link = QueueLink(row[19], opened(row[20], "link_key"), root_key, fixed_data)
    return RcvQueue(
        conn_id=row[0],
        user_id=row[1],
        number=row[2],
        server=loaded_server(row[3], row[4], row[5]),
        rcv_id=row[6],
        snd_id=row[7],
        mode=_mode(row[8]),
        key=PrivateKey.from_pkcs8(opened(row[9], "rcv_private_key")),
        dh_secret=opened(row[10], "rcv_dh_secret"),
        e2e_key=PrivateKey.from_pkcs8(opened(row[11], "e2e_priv_key")),
        e2e_secret=None if row[12] is None else opened(row[12], "e2e_dh_secret"),
        client_version=row[13],
        status=QueueStatus(row[14]),
        primary=bool(row[15]),
        replaces=row[16],
        switch=None if row[17] is None else RcvSwitch(row[17]),
        switch_at=row[18],
        link=link,
        service_associated=bool(row[23]),
        delete_errors=row[24],
        deleted=bool(row[25]),
    )


def sealed_rcv(db: Db, conn_id: ConnId, rcv_id: bytes, value: bytes, column: str) -> bytes:
    """A column of a receive queue."""
    return db.vault.seal(value, f"rcv_queues.{column}", conn_id, rcv_id)


def _opened_rcv(db: Db, conn_id: ConnId, rcv_id: bytes, stored: bytes, column: str) -> bytes:
    return db.vault.open(stored, f"rcv_queues.{column}", conn_id, rcv_id)


class TakenError(Exception):
    """A router gave an id to what it made that another queue of ours has there."""


@contextlib.contextmanager
def named_once() -> Iterator[None]:
    """Ids of a router that are about to be stored; nothing is changed if `TakenError` is raised."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        if "rcv_queues.host" not in str(error):
            raise
        raise TakenError from error


@named_once()
def insert_rcv(db: Db, queue: RcvQueue, *, to_subscribe: bool = False) -> None:
    """Store a new queue; its number must be `next_rcv_number`."""
    sealed, link = functools.partial(sealed_rcv, db, queue.conn_id, queue.rcv_id), queue.link
    host, port, key_hash = stored_server(db, queue.server)
    db.sql.execute(
        "INSERT INTO rcv_queues (host, port, rcv_id, server_key_hash, conn_id, user_id, rcv_queue_id,"
        " rcv_primary, replace_rcv_queue_id, status, rcv_private_key, rcv_dh_secret, e2e_priv_key,"
        " e2e_dh_secret, snd_id, queue_mode, smp_client_version, link_id, link_key, link_priv_sig_key,"
        " link_enc_fixed_data, to_subscribe, rcv_service_assoc)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            host,
            port,
            queue.rcv_id,
            key_hash,
            queue.conn_id,
            queue.user_id,
            queue.number,
            int(queue.primary),
            queue.replaces,
            queue.status.value,
            sealed(queue.key.pkcs8, "rcv_private_key"),
            sealed(queue.dh_secret, "rcv_dh_secret"),
            sealed(queue.e2e_key.pkcs8, "e2e_priv_key"),
            None if queue.e2e_secret is None else sealed(queue.e2e_secret, "e2e_dh_secret"),
            queue.snd_id,
            _mode_text(queue.mode),
            queue.client_version,
            *_link_columns(db, queue, link),
            int(to_subscribe),
            int(queue.service_associated),
        ),
    )


def next_rcv_number(db: Db, conn_id: ConnId) -> int:
    query = "SELECT COALESCE(MAX(rcv_queue_id), 0) + 1 FROM rcv_queues WHERE conn_id = ?"
    (number,) = db.sql.execute(query, (conn_id,)).fetchone()
    return int(number)


def rcv_queues(db: Db, conn_id: ConnId, *, deleted: bool = False) -> tuple[RcvQueue, ...]:
    """The queues of a connection in their order; those being deleted only when asked for."""
    query = (
        "SELECT * FROM rcv_queue_rows WHERE conn_id = ? AND deleted <= ?"
        " ORDER BY rcv_primary DESC, replace_rcv_queue_id IS NOT NULL, rcv_queue_id"
    )

    def read() -> tuple[RcvQueue, ...]:
        return tuple(read_rcv(db, row) for row in db.sql.execute(query, (conn_id, int(deleted))))

    return db.sql.known("rcv queues", (conn_id, deleted), read)


def find_rcv(db: Db, server: Server, rcv_id: bytes) -> RcvQueue | None:
    query = "SELECT * FROM rcv_queue_rows WHERE host = ? AND port = ? AND rcv_id = ?"
    return _one_rcv(db, query, (*server_key(server), rcv_id))


def find_rcv_number(db: Db, conn_id: ConnId, number: int) -> RcvQueue | None:
    query = "SELECT * FROM rcv_queue_rows WHERE conn_id = ? AND rcv_queue_id = ?"
    return _one_rcv(db, query, (conn_id, number))


def _one_rcv(db: Db, query: str, key: tuple[object, ...]) -> RcvQueue | None:
    def read() -> RcvQueue | None:
        row = db.sql.execute(query, key).fetchone()
        return None if row is None else read_rcv(db, row)

    return db.sql.known("rcv", key, read)


def set_rcv_confirmed(db: Db, queue: RcvQueue, e2e_secret: bytes, client_version: int) -> None:
    """The secret with the sender is agreed, and what client version both know."""
    _update(
        db,
        queue,
        "UPDATE rcv_queues SET e2e_dh_secret = ?, smp_client_version = MIN(smp_client_version, ?),"
        " status = ? WHERE conn_id = ? AND rcv_queue_id = ?",
        sealed_rcv(db, queue.conn_id, queue.rcv_id, e2e_secret, "e2e_dh_secret"),
        client_version,
        QueueStatus.CONFIRMED.value,
    )


def set_rcv_deleted(db: Db, queue: RcvQueue) -> None:
    _update(db, queue, "UPDATE rcv_queues SET deleted = 1 WHERE conn_id = ? AND rcv_queue_id = ?")


def count_delete_error(db: Db, queue: RcvQueue) -> None:
    _update(
        db,
        queue,
        "UPDATE rcv_queues SET delete_errors = delete_errors + 1 WHERE conn_id = ? AND rcv_queue_id = ?",
    )


def set_rcv_link(db: Db, queue: RcvQueue, link: QueueLink | None) -> None:
    _update(
        db,
        queue,
        "UPDATE rcv_queues SET link_id = ?, link_key = ?, link_priv_sig_key = ?, link_enc_fixed_data = ?"
        " WHERE conn_id = ? AND rcv_queue_id = ?",
        *_link_columns(db, queue, link),
    )


def _link_columns(db: Db, queue: RcvQueue, link: QueueLink | None) -> tuple[bytes | None, ...]:
    if link is None:
        return None, None, None, None
    sealed = functools.partial(sealed_rcv, db, queue.conn_id, queue.rcv_id)
    return (
        link.link_id,
        sealed(link.link_key, "link_key"),
        sealed(link.root_key.pkcs8, "link_priv_sig_key"),
        sealed(link.fixed_data, "link_enc_fixed_data"),
    )


# Queues that are being made


@dataclass(frozen=True, slots=True, repr=False)
class RcvQueueRequest(Value):
    """The keys of a NEW, stored before it is sent, so that a repeated one has the same."""

    conn_id: ConnId
    user_id: UserId
    server: Server
    replaces: int | None
    key: PrivateKey
    dh_key: PrivateKey
    e2e_key: PrivateKey
    corr_id: bytes
    mode: QueueMode
    root_key: PrivateKey | None = None
    """Of the short link that the queue is to have."""
    notifier: NotifierKeys | None = None
    """Where connections notify."""


def insert_request(db: Db, request: RcvQueueRequest) -> None:
    """Remember the keys; those of an earlier attempt for the same place are forgotten."""

    def seal(key: PrivateKey, column: str) -> bytes:
        place = (request.conn_id, request.replaces or 0)
        return db.vault.seal(key.pkcs8, f"rcv_queue_requests.{column}", *place)

    db.sql.execute(
        "INSERT OR REPLACE INTO rcv_queue_requests (host, port, server_key_hash, conn_id,"
        " replace_rcv_queue_id, rcv_private_key, rcv_dh_key, e2e_priv_key, corr_id, queue_mode,"
        " link_priv_sig_key, ntf_private_key, ntf_dh_key) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *stored_server(db, request.server),
            request.conn_id,
            request.replaces or 0,
            seal(request.key, "rcv_private_key"),
            seal(request.dh_key, "rcv_dh_key"),
            seal(request.e2e_key, "e2e_priv_key"),
            request.corr_id,
            _mode_text(request.mode),
            None if request.root_key is None else seal(request.root_key, "link_priv_sig_key"),
            None if request.notifier is None else seal(request.notifier.key, "ntf_private_key"),
            None if request.notifier is None else seal(request.notifier.dh_key, "ntf_dh_key"),
        ),
    )


def find_request(db: Db, conn_id: ConnId, replaces: int | None = None) -> RcvQueueRequest | None:
    query = (
        "SELECT c.user_id, q.host, q.port, COALESCE(q.server_key_hash, s.key_hash), q.rcv_private_key,"
        " q.rcv_dh_key, q.e2e_priv_key, q.corr_id, q.queue_mode, q.link_priv_sig_key,"
        " q.ntf_private_key, q.ntf_dh_key"
        " FROM rcv_queue_requests q JOIN servers s ON s.host = q.host AND s.port = q.port"
        " JOIN connections c ON c.conn_id = q.conn_id"
        " WHERE q.conn_id = ? AND q.replace_rcv_queue_id = ?"
    )
    row = db.sql.execute(query, (conn_id, replaces or 0)).fetchone()
    if row is None:
        return None

    def opened(stored: bytes, column: str) -> PrivateKey:
        place = (conn_id, replaces or 0)
        return PrivateKey.from_pkcs8(db.vault.open(stored, f"rcv_queue_requests.{column}", *place))

    keys = (
        opened(row[4], "rcv_private_key"),
        opened(row[5], "rcv_dh_key"),
        opened(row[6], "e2e_priv_key"),
    )
    mode = QueueMode(row[8].encode("ascii"))
    server = loaded_server(*row[1:4])
    root_key = None if row[9] is None else opened(row[9], "link_priv_sig_key")
    notifier = None
    if row[10] is not None:
        notifier = NotifierKeys(opened(row[10], "ntf_private_key"), opened(row[11], "ntf_dh_key"))
    return RcvQueueRequest(conn_id, row[0], server, replaces, *keys, row[7], mode, root_key, notifier)


def delete_request(db: Db, conn_id: ConnId, replaces: int | None = None) -> None:
    db.sql.execute(
        "DELETE FROM rcv_queue_requests WHERE conn_id = ? AND replace_rcv_queue_id = ?",
        (conn_id, replaces or 0),
    )


# Send queues


def _read_snd(db: Db, row: tuple[Any, ...]) -> SndQueue:
    return db.memo.of("snd", row, lambda: _new_snd(db, row))


def _new_snd(db: Db, row: tuple[Any, ...]) -> SndQueue:
    def opened(stored: bytes, column: str) -> bytes:
        return db.vault.open(stored, f"snd_queues.{column}", row[0], row[2])

    return SndQueue(
        conn_id=row[0],
        user_id=row[1],
        number=row[2],
        server=loaded_server(row[3], row[4], row[5]),
        snd_id=row[6],
        mode=_mode(row[7]),
        key=PrivateKey.from_pkcs8(opened(row[8], "snd_private_key")),
        e2e_public=PublicKey.from_spki(opened(row[9], "e2e_pub_key")),
        e2e_secret=opened(row[10], "e2e_dh_secret"),
        client_version=row[11],
        status=QueueStatus(row[12]),
        primary=bool(row[13]),
        replaces=row[14],
        switch=None if row[15] is None else SndSwitch(row[15]),
        switch_at=row[16],
    )


def insert_snd(db: Db, queue: SndQueue) -> None:
    def sealed(value: bytes, column: str) -> bytes:
        return db.vault.seal(value, f"snd_queues.{column}", queue.conn_id, queue.number)

    host, port, key_hash = stored_server(db, queue.server)
    db.sql.execute(
        "INSERT INTO snd_queues (host, port, snd_id, server_key_hash, conn_id, user_id, snd_queue_id,"
        " snd_primary, replace_snd_queue_id, status, snd_private_key, e2e_pub_key, e2e_dh_secret,"
        " queue_mode, smp_client_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            host,
            port,
            queue.snd_id,
            key_hash,
            queue.conn_id,
            queue.user_id,
            queue.number,
            int(queue.primary),
            queue.replaces,
            queue.status.value,
            sealed(queue.key.pkcs8, "snd_private_key"),
            sealed(queue.e2e_public.spki, "e2e_pub_key"),
            sealed(queue.e2e_secret, "e2e_dh_secret"),
            _mode_text(queue.mode),
            queue.client_version,
        ),
    )


def next_snd_number(db: Db, conn_id: ConnId) -> int:
    query = "SELECT COALESCE(MAX(snd_queue_id), 0) + 1 FROM snd_queues WHERE conn_id = ?"
    (number,) = db.sql.execute(query, (conn_id,)).fetchone()
    return int(number)


def snd_queues(db: Db, conn_id: ConnId) -> tuple[SndQueue, ...]:
    query = (
        "SELECT * FROM snd_queue_rows WHERE conn_id = ?"
        " ORDER BY snd_primary DESC, replace_snd_queue_id IS NOT NULL, snd_queue_id"
    )

    def read() -> tuple[SndQueue, ...]:
        return tuple(_read_snd(db, row) for row in db.sql.execute(query, (conn_id,)))

    return db.sql.known("snd queues", conn_id, read)


def find_snd_number(db: Db, conn_id: ConnId, number: int) -> SndQueue | None:
    query = "SELECT * FROM snd_queue_rows WHERE conn_id = ? AND snd_queue_id = ?"

    def read() -> SndQueue | None:
        row = db.sql.execute(query, (conn_id, number)).fetchone()
        return None if row is None else _read_snd(db, row)

    return db.sql.known("snd", (conn_id, number), read)


# Queues of either kind

Queue = RcvQueue | SndQueue

_STATUS: dict[type[Queue], str] = {
    RcvQueue: "UPDATE rcv_queues SET status = ? WHERE conn_id = ? AND rcv_queue_id = ?",
    SndQueue: "UPDATE snd_queues SET status = ? WHERE conn_id = ? AND snd_queue_id = ?",
}
_SWITCH: dict[type[Queue], str] = {
    RcvQueue: "UPDATE rcv_queues SET switch_status = ?, switch_at = ? WHERE conn_id = ? AND rcv_queue_id = ?",
    SndQueue: "UPDATE snd_queues SET switch_status = ?, switch_at = ? WHERE conn_id = ? AND snd_queue_id = ?",
}
_PRIMARY: dict[type[Queue], str] = {
    RcvQueue: "UPDATE rcv_queues SET rcv_primary = (rcv_queue_id = :queue), replace_rcv_queue_id ="
    " CASE WHEN rcv_queue_id = :queue THEN NULL ELSE replace_rcv_queue_id END WHERE conn_id = :conn",
    SndQueue: "UPDATE snd_queues SET snd_primary = (snd_queue_id = :queue), replace_snd_queue_id ="
    " CASE WHEN snd_queue_id = :queue THEN NULL ELSE replace_snd_queue_id END WHERE conn_id = :conn",
}
_DELETE: dict[type[Queue], str] = {
    RcvQueue: "DELETE FROM rcv_queues WHERE conn_id = ? AND rcv_queue_id = ?",
    SndQueue: "DELETE FROM snd_queues WHERE conn_id = ? AND snd_queue_id = ?",
}


def _update(db: Db, queue: Queue, statement: str, *values: object) -> None:
    db.sql.execute(statement, (*values, queue.conn_id, queue.number))


def set_status(db: Db, queue: Queue, status: QueueStatus) -> None:
    _update(db, queue, _STATUS[type(queue)], status.value)


def set_switch(db: Db, queue: Queue, switch: RcvSwitch | SndSwitch | None, at: int | None) -> None:
    _update(db, queue, _SWITCH[type(queue)], switch and switch.value, at)


def set_primary(db: Db, queue: Queue) -> None:
    """Make this the primary queue of its connection; it replaces nothing any more."""
    db.sql.execute(_PRIMARY[type(queue)], {"queue": queue.number, "conn": queue.conn_id})


def delete(db: Db, queue: Queue) -> None:
    """The queue, and what waits to be delivered to it."""
    _update(db, queue, _DELETE[type(queue)])
