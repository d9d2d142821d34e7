"""The notifications of connections: the rows of the pipeline, and what queues notify with."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from blindpost.agent.model import ConnId, RcvQueue
from blindpost.agent.notifications.model import SMP_STEPS, NotifierCreds, NtfSubscription, Step
from blindpost.agent.store.database import Db
from blindpost.agent.store.ntf_tokens import store_server
from blindpost.agent.store.queues import named_once, read_rcv, sealed_rcv
from blindpost.agent.store.servers import loaded_server, server_key, stored_server
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value


def _read(row: tuple[Any, ...]) -> NtfSubscription:
    smp, ntf = loaded_server(*row[1:4]), loaded_server(*row[5:8])
    step = None if row[10] is None else Step(row[10])
    return NtfSubscription(row[0], smp, row[4], ntf, row[8], row[9], step)


def find(db: Db, conn_id: ConnId) -> NtfSubscription | None:
    row = db.sql.execute("SELECT * FROM ntf_subscription_rows WHERE conn_id = ?", (conn_id,)).fetchone()
    return None if row is None else _read(row)


def put(db: Db, sub: NtfSubscription, at: int, *, by_supervisor: bool) -> None:
    """Store a row; `at`: not before this time its step is taken."""
    step = sub.step
    db.sql.execute(
        "INSERT OR REPLACE INTO ntf_subscriptions (conn_id, smp_host, smp_port, smp_server_key_hash,"
        " smp_ntf_id, ntf_host, ntf_port, ntf_sub_id, ntf_sub_status, ntf_sub_action, ntf_sub_smp_action,"
        " ntf_sub_action_ts, updated_by_supervisor) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            sub.conn_id,
            *stored_server(db, sub.smp_server),
            sub.notifier_id,
            *store_server(db, sub.ntf_server),
            sub.subscription_id,
            sub.status,
            None if step is None or step in SMP_STEPS else step.value,
            step.value if step in SMP_STEPS else None,
            at,
            int(by_supervisor),
        ),
    )


def finish(db: Db, sub: NtfSubscription, at: int) -> bool:
    """Store what a worker reached, unless the row is gone. Where the supervisor came between, its step
    stays, and only ids and status are new; whether the worker's own step was taken over."""
    query = "SELECT updated_by_supervisor FROM ntf_subscriptions WHERE conn_id = ?"
    row = db.sql.execute(query, (sub.conn_id,)).fetchone()
    if row is None:
        return False
    if not row[0]:
        put(db, sub, at, by_supervisor=False)
        return True
    db.sql.execute(
        "UPDATE ntf_subscriptions SET smp_ntf_id = ?, ntf_sub_id = ?, ntf_sub_status = ? WHERE conn_id = ?",
        (sub.notifier_id, sub.subscription_id, sub.status, sub.conn_id),
    )
    return False


def fail(db: Db, sub: NtfSubscription) -> None:
    """The step of a row failed for good, and nothing more is done about it for now."""
    smp = sub.step in SMP_STEPS
    db.sql.execute(
        "UPDATE ntf_subscriptions SET ntf_sub_action = NULL, ntf_sub_smp_action = NULL, smp_failed = ?,"
        " ntf_failed = ? WHERE conn_id = ? AND updated_by_supervisor = 0",
        (int(smp), int(not smp), sub.conn_id),
    )


def delete(db: Db, conn_id: ConnId) -> None:
    db.sql.execute("DELETE FROM ntf_subscriptions WHERE conn_id = ?", (conn_id,))


def delete_all(db: Db) -> None:
    db.sql.execute("DELETE FROM ntf_subscriptions")


def delete_finished(db: Db, conn_id: ConnId) -> None:
    """As `delete`, unless the supervisor wants something else by now."""
    db.sql.execute(
        "DELETE FROM ntf_subscriptions WHERE conn_id = ? AND updated_by_supervisor = 0", (conn_id,)
    )


def take_smp(db: Db, server: Server, steps: frozenset[Step], most: int) -> list[NtfSubscription]:
    """Rows for the worker of a message router; from now on it sees when the supervisor changes them."""
    query = (
        "SELECT * FROM ntf_subscription_rows WHERE smp_host = ? AND smp_port = ?"
        " AND ntf_sub_smp_action IN (?, ?) ORDER BY ntf_sub_action_ts LIMIT ?"
    )
    return _taken(db, query, (*server_key(server), *_two(steps), most))


def take_ntf(db: Db, server: Server, now: int, most: int) -> list[NtfSubscription]:
    """The same for the worker of a notification router: what is due."""
    query = (
        "SELECT * FROM ntf_subscription_rows WHERE ntf_host = ? AND ntf_port = ?"
        " AND ntf_sub_action IN (?, ?) AND ntf_sub_action_ts <= ? ORDER BY ntf_sub_action_ts LIMIT ?"
    )
    return _taken(db, query, (*server_key(server), Step.NEW.value, Step.CHECK.value, now, most))


def _two(steps: frozenset[Step]) -> tuple[str, str]:
    """One or two steps, as two."""
    first, *others = (step.value for step in steps)
    return first, others[0] if others else first


def _taken(db: Db, query: str, values: tuple[object, ...]) -> list[NtfSubscription]:
    taken = [_read(row) for row in db.sql.execute(query, values).fetchall()]
    db.sql.executemany(
        "UPDATE ntf_subscriptions SET updated_by_supervisor = 0 WHERE conn_id = ?",
        [(sub.conn_id,) for sub in taken],
    )
    return taken


def next_due(db: Db, server: Server) -> int | None:
    """When the worker of a notification router has something to do next."""
    query = (
        "SELECT MIN(ntf_sub_action_ts) FROM ntf_subscription_rows"
        " WHERE ntf_host = ? AND ntf_port = ? AND ntf_sub_action IS NOT NULL"
    )
    (due,) = db.sql.execute(query, server_key(server)).fetchone()
    return None if due is None else int(due)


def all_rows(db: Db) -> Iterator[NtfSubscription]:
    return (_read(row) for row in db.sql.execute("SELECT * FROM ntf_subscription_rows"))


# Queues


@dataclass(frozen=True, slots=True, repr=False)
class PrimaryQueue(Value):
    """The queue of a connection that should notify, and what it notifies with by now."""

    queue: RcvQueue
    creds: NotifierCreds | None

    @property
    def server(self) -> Server:
        return self.queue.server

    @property
    def notifier_id(self) -> bytes | None:
        return None if self.creds is None else self.creds.notifier_id


def primary(db: Db, conn_id: ConnId) -> PrimaryQueue | None:
    """The queue of a connection that should notify."""
    query = "SELECT * FROM rcv_queue_ntf_rows WHERE conn_id = ? AND rcv_primary = 1 AND deleted = 0"
    row = db.sql.execute(query, (conn_id,)).fetchone()
    return None if row is None else PrimaryQueue(read_rcv(db, row[:-4]), _read_creds(db, row))


def notifying(db: Db, server: Server, notifier_id: bytes) -> tuple[PrimaryQueue, int | None] | None:
    """The queue with this notifier at these hosts, and when its newest known message came."""
    query = "SELECT conn_id, rcv_queue_id FROM rcv_queues WHERE host = ? AND port = ? AND ntf_id = ?"
    found = db.sql.execute(query, (*server_key(server), notifier_id)).fetchone()
    if found is None:
        return None
    query = "SELECT * FROM rcv_queue_ntf_rows WHERE conn_id = ? AND rcv_queue_id = ? AND deleted = 0"
    row = db.sql.execute(query, found).fetchone()
    return None if row is None else (PrimaryQueue(read_rcv(db, row[:-4]), _read_creds(db, row)), row[-1])


def _read_creds(db: Db, row: tuple[Any, ...]) -> NotifierCreds | None:
    notifier_id, key, secret = row[-4:-1]
    if notifier_id is None:
        return None
    place = (row[0], row[6])
    opened = db.vault.open(key, "rcv_queues.ntf_private_key", *place)
    opened_secret = db.vault.open(secret, "rcv_queues.rcv_ntf_dh_secret", *place)
    return NotifierCreds(notifier_id, PrivateKey.from_pkcs8(opened), opened_secret)


@named_once()
def set_creds(db: Db, queue: RcvQueue, creds: NotifierCreds | None) -> None:
    sealed = functools.partial(sealed_rcv, db, queue.conn_id, queue.rcv_id)
    db.sql.execute(
        "UPDATE rcv_queues SET ntf_id = ?, ntf_public_key = ?, ntf_private_key = ?, rcv_ntf_dh_secret = ?"
        " WHERE conn_id = ? AND rcv_queue_id = ?",
        (
            None if creds is None else creds.notifier_id,
            None if creds is None else sealed(creds.key.public.spki, "ntf_public_key"),
            None if creds is None else sealed(creds.key.pkcs8, "ntf_private_key"),
            None if creds is None else sealed(creds.secret, "rcv_ntf_dh_secret"),
            queue.conn_id,
            queue.number,
        ),
    )


def set_enabled(db: Db, conn_id: ConnId, enabled: bool) -> None:
    """Whether a connection is to have notifications."""
    db.sql.execute("UPDATE connections SET enable_ntfs = ? WHERE conn_id = ?", (int(enabled), conn_id))


def came(db: Db, queue: RcvQueue, seconds: int) -> None:
    """A message of this time is known, or is not there any more; times never go back."""
    db.sql.execute_known(
        "UPDATE rcv_queues SET last_broker_ts = MAX(COALESCE(last_broker_ts, 0), ?)"
        " WHERE conn_id = ? AND rcv_queue_id = ?",
        (seconds, queue.conn_id, queue.number),
    )


def enabled_conns(db: Db) -> list[ConnId]:
    """Connections that are to have notifications."""
    query = "SELECT conn_id FROM connections WHERE deleted = 0 AND enable_ntfs = 1"
    return [conn_id for (conn_id,) in db.sql.execute(query)]
