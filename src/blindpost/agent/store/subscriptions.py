"""What subscribing reads and writes: pages of receive queues, associations with services, service rows.

The count and hash of a service follow from its queues by triggers; `audit` compares them with the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blindpost.agent.store.database import Db
from blindpost.agent.store.servers import loaded_server, server_key, stored_server
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

_NAMES_MAX = 500
"""How many queues one statement names."""

_QUEUE_COLUMNS = "q.conn_id, q.rcv_id, q.rcv_private_key, q.rcv_service_assoc, q.to_subscribe"
_OF_SERVER = """FROM rcv_queues q JOIN servers s ON s.host = q.host AND s.port = q.port
    WHERE q.user_id = ? AND q.host = ? AND q.port = ? AND q.deleted = 0
    AND coalesce(q.server_key_hash, s.key_hash) = ?"""


@dataclass(frozen=True, slots=True, repr=False)
class SubQueue(Value):
    """As much of a receive queue as subscribing it takes."""

    conn_id: str
    rcv_id: bytes
    key: PrivateKey
    associated: bool = False
    to_subscribe: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class ServiceRow(Value):
    """Our identity as a service at one router; the id is the router's, None before the first handshake."""

    credentials: Credentials
    service_id: bytes | None
    queues: QueueSet


def _place(user_id: int, server: Server) -> tuple[int, str, str, bytes]:
    return user_id, *server_key(server), server.key_hash


def _queue(db: Db, row: tuple[str, bytes, bytes, int, int]) -> SubQueue:
    conn_id, rcv_id, key, associated, to_subscribe = row
    opened = PrivateKey.from_pkcs8(db.vault.open(key, "rcv_queues.rcv_private_key", conn_id, rcv_id))
    return SubQueue(conn_id, rcv_id, opened, bool(associated), bool(to_subscribe))


# Queues


def servers_with_queues(db: Db, *, needed_only: bool = False) -> list[tuple[int, Server]]:
    """Every user and router between whom there are queues; or only those that were never subscribed."""
    query = """SELECT DISTINCT q.user_id, q.host, q.port, coalesce(q.server_key_hash, s.key_hash)
        FROM rcv_queues q JOIN servers s ON s.host = q.host AND s.port = q.port
        WHERE q.deleted = 0 AND q.to_subscribe >= ? ORDER BY 1, 2, 3"""
    rows = db.sql.execute(query, (int(needed_only),)).fetchall()
    return [(user_id, loaded_server(host, port, key_hash)) for user_id, host, port, key_hash in rows]


def page(
    db: Db,
    user_id: int,
    server: Server,
    after: bytes,
    limit: int,
    *,
    associated: bool,
    needed_only: bool = False,
) -> list[SubQueue]:
    """The next queues behind `after`, in the order of their ids, of a service or of none."""
    query = f"""SELECT {_QUEUE_COLUMNS} {_OF_SERVER}
        AND q.rcv_service_assoc = ? AND q.rcv_id > ? AND q.to_subscribe >= ? ORDER BY q.rcv_id LIMIT ?"""
    given = (*_place(user_id, server), int(associated), after, int(needed_only), limit)
    return [_queue(db, row) for row in db.sql.execute(query, given).fetchall()]


def named(db: Db, user_id: int, server: Server, rcv_ids: Sequence[bytes]) -> list[SubQueue]:
    """Those of the named queues that are still there."""
    found: list[SubQueue] = []
    for start in range(0, len(rcv_ids), _NAMES_MAX):
        part = rcv_ids[start : start + _NAMES_MAX]
        query = f"SELECT {_QUEUE_COLUMNS} {_OF_SERVER} AND q.rcv_id IN ({','.join('?' * len(part))})"
        rows = db.sql.execute(query, (*_place(user_id, server), *part)).fetchall()
        found += [_queue(db, row) for row in rows]
    return found


def set_subscribed(db: Db, server: Server, rcv_ids: Iterable[bytes]) -> None:
    """These were subscribed for the first time."""
    query = "UPDATE rcv_queues SET to_subscribe = 0 WHERE host = ? AND port = ? AND rcv_id = ?"
    db.sql.executemany(query, [(*server_key(server), rcv_id) for rcv_id in rcv_ids])


def set_associated(db: Db, server: Server, rcv_ids: Iterable[bytes], associated: bool) -> None:
    """The router counts these for our service, or does not any more."""
    query = "UPDATE rcv_queues SET rcv_service_assoc = ? WHERE host = ? AND port = ? AND rcv_id = ?"
    db.sql.executemany(query, [(int(associated), *server_key(server), rcv_id) for rcv_id in rcv_ids])


def clear_associations(db: Db, user_id: int, server: Server) -> int:
    """No queue of this user and router is of a service; how many were."""
    query = """UPDATE rcv_queues SET rcv_service_assoc = 0
        WHERE user_id = ? AND host = ? AND port = ? AND rcv_service_assoc = 1"""
    return db.sql.execute(query, (user_id, *server_key(server))).rowcount


# Services


def service(db: Db, user_id: int, server: Server) -> ServiceRow | None:
    query = """SELECT service_cert, service_priv_key, service_id, service_queue_count, service_queue_ids_hash
        FROM client_services WHERE user_id = ? AND host = ? AND port = ?"""
    row = db.sql.execute(query, (user_id, *server_key(server))).fetchone()
    if row is None:
        return None
    certificate, key, service_id, count, ids_hash = row
    place = (user_id, *server_key(server))
    opened = db.vault.open(certificate, "client_services.service_cert", *place)
    opened_key = db.vault.open(key, "client_services.service_priv_key", *place)
    credentials = Credentials((opened,), PrivateKey.from_pkcs8(opened_key))
    return ServiceRow(credentials, service_id, QueueSet(count, ids_hash))


def put_credentials(db: Db, user_id: int, server: Server, credentials: Credentials) -> None:
    """A new identity, also in place of an old one, whose id is then forgotten."""
    (certificate,) = credentials.chain
    host, port, key_hash = stored_server(db, server)
    seal, place = db.vault.seal, (user_id, host, port)
    db.sql.execute(
        """INSERT INTO client_services
            (user_id, host, port, server_key_hash, service_cert, service_cert_hash, service_priv_key)
            VALUES (?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (user_id, host, port) DO UPDATE SET service_cert = excluded.service_cert,
            service_cert_hash = excluded.service_cert_hash, service_priv_key = excluded.service_priv_key,
            service_id = NULL""",
        (
            user_id,
            host,
            port,
            key_hash,
            seal(certificate, "client_services.service_cert", *place),
            seal(credentials.fingerprint, "client_services.service_cert_hash", *place),
            seal(credentials.key.pkcs8, "client_services.service_priv_key", *place),
        ),
    )


def set_service_id(db: Db, user_id: int, server: Server, service_id: bytes) -> None:
    query = "UPDATE client_services SET service_id = ? WHERE user_id = ? AND host = ? AND port = ?"
    db.sql.execute(query, (service_id, user_id, *server_key(server)))


def delete_service(db: Db, user_id: int, server: Server) -> None:
    """The identity goes, and with it all associations."""
    query = "DELETE FROM client_services WHERE user_id = ? AND host = ? AND port = ?"
    db.sql.execute(query, (user_id, *server_key(server)))
    clear_associations(db, user_id, server)


def servers_with_service(db: Db) -> list[tuple[int, Server]]:
    """Every user and router between whom there is an identity."""
    query = """SELECT c.user_id, c.host, c.port, coalesce(c.server_key_hash, s.key_hash)
        FROM client_services c JOIN servers s ON s.host = c.host AND s.port = c.port ORDER BY 1, 2, 3"""
    rows = db.sql.execute(query).fetchall()
    return [(user_id, loaded_server(host, port, key_hash)) for user_id, host, port, key_hash in rows]


def queues_leaving(db: Db, user_id: int, server: Server) -> QueueSet:
    """Queues of the service that are deleted here; the router may or may not have heard of it yet."""
    query = """SELECT rcv_id FROM rcv_queues
        WHERE user_id = ? AND host = ? AND port = ? AND rcv_service_assoc = 1 AND deleted = 1"""
    rows = db.sql.execute(query, (user_id, *server_key(server)))
    return QueueSet.of(rcv_id for (rcv_id,) in rows)


def queues_coming(db: Db, user_id: int, server: Server) -> int:
    """How many queues were asked for whose answer is not here: the router may have made them."""
    query = """SELECT count(*) FROM rcv_queue_requests r JOIN connections c ON c.conn_id = r.conn_id
        WHERE c.user_id = ? AND r.host = ? AND r.port = ?"""
    (count,) = db.sql.execute(query, (user_id, *server_key(server))).fetchone()
    return int(count)


def audit(db: Db, user_id: int, server: Server) -> bool:
    """Recount the queues of the service and correct what is stored; whether it was right."""
    query = """SELECT rcv_id FROM rcv_queues
        WHERE user_id = ? AND host = ? AND port = ? AND rcv_service_assoc = 1 AND deleted = 0"""
    rows = db.sql.execute(query, (user_id, *server_key(server)))
    true = QueueSet.of(rcv_id for (rcv_id,) in rows)
    found = service(db, user_id, server)
    if found is None or found.queues == true:
        return True
    query = """UPDATE client_services SET service_queue_count = ?, service_queue_ids_hash = ?
        WHERE user_id = ? AND host = ? AND port = ?"""
    db.sql.execute(query, (true.count, true.ids_hash, user_id, *server_key(server)))
    return False
