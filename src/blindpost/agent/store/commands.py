"""Commands: what is to be done with a router, stored before it is done and done once, in order."""

from __future__ import annotations

from typing import Literal

from blindpost.agent.model import ConnId
from blindpost.agent.store.database import Db
from blindpost.agent.store.servers import loaded_server, server_key, stored_server
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

_ONLY = "only command"
"""What waits for a worker, where that is known: one command and no other, or nothing."""


@dataclass(frozen=True, slots=True, repr=False)
class StoredCommand(Value):
    """A row: `tag` names its handler, `content` is the handler's own encoding."""

    command_id: int
    conn_id: ConnId
    server: Server | None
    corr_id: str
    tag: str
    content: bytes
    created_at: int
    others: bool
    """Whether more wait for the same worker."""


_Only = StoredCommand | Literal[False] | None


def _worker(conn_id: ConnId, server: Server | None) -> tuple[ConnId, str | None, str | None]:
    return (conn_id, None, None) if server is None else (conn_id, *server_key(server))


def insert(
    db: Db,
    conn_id: ConnId,
    server: Server | None,
    tag: str,
    content: bytes,
    now: int,
    corr_id: str = "",
    internal_id: int | None = None,
) -> int:
    """`internal_id`: a received message, which triggers mark now and delete together with the command."""
    place = (None, None, None) if server is None else stored_server(db, server)
    done = db.sql.execute_known(
        "INSERT INTO commands (host, port, server_key_hash, conn_id, corr_id, command_tag, command,"
        " created_at, internal_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *place,
            conn_id,
            corr_id,
            tag,
            db.vault.seal(content, "commands.command", conn_id, tag, now),
            now,
            internal_id,
        ),
    )
    assert done.lastrowid is not None
    worker = _worker(conn_id, server)
    if db.sql.of_message(_ONLY, worker, False) is None:
        command = StoredCommand(done.lastrowid, conn_id, server, corr_id, tag, content, now, False)
        db.sql.keep_of_message(_ONLY, worker, command)
    else:
        db.sql.forget_message(_ONLY, worker)
    return done.lastrowid


def next_command(db: Db, conn_id: ConnId, server: Server | None) -> StoredCommand | None:
    """The first command of a worker, whatever the clock said when it was stored. One that was just stored
    behind nothing is not read again."""
    worker = _worker(conn_id, server)
    only: _Only = db.sql.of_message(_ONLY, worker, False)
    if only is not False:
        return only
    query = (
        "SELECT command_id, corr_id, command_tag, command, created_at FROM commands"
        " WHERE conn_id = ? AND host IS ? AND port IS ? AND failed = 0"
        " ORDER BY command_id LIMIT 2"
    )
    rows = db.sql.execute(query, worker).fetchall()
    command = None
    if rows:
        row = rows[0]
        content = db.vault.open(row[3], "commands.command", conn_id, row[2], row[4])
        command = StoredCommand(row[0], conn_id, server, row[1], row[2], content, row[4], len(rows) > 1)
    if len(rows) < 2:
        db.sql.keep_of_message(_ONLY, worker, command)
    return command


def first_id(db: Db, conn_id: ConnId, server: Server | None) -> int | None:
    """The id of `next_command`."""
    query = (
        "SELECT command_id FROM commands WHERE conn_id = ? AND host IS ? AND port IS ? AND failed = 0"
        " ORDER BY command_id LIMIT 1"
    )
    row = db.sql.execute(query, _worker(conn_id, server)).fetchone()
    return None if row is None else int(row[0])


def is_waiting(db: Db, command: StoredCommand) -> bool:
    """Whether it is still to be run by its worker: it may have ended itself, or gone to another one."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM commands WHERE command_id = ? AND host IS ? AND port IS ?"
        " AND failed = 0)"
    )
    _, *place = _worker(command.conn_id, command.server)
    return bool(db.sql.execute(query, (command.command_id, *place)).fetchone()[0])


def waiting(db: Db, conn_id: ConnId | None = None) -> list[tuple[ConnId, Server | None]]:
    """The workers that have something to do."""
    query = (
        "SELECT DISTINCT k.conn_id, k.host, k.port, COALESCE(k.server_key_hash, s.key_hash)"
        " FROM commands k JOIN connections c ON c.conn_id = k.conn_id"
        " LEFT JOIN servers s ON s.host = k.host AND s.port = k.port"
        " WHERE k.failed = 0 AND c.deleted = 0 AND (:conn IS NULL OR k.conn_id = :conn)"
    )
    rows = db.sql.execute(query, {"conn": conn_id}).fetchall()
    return [
        (found, None if host is None else loaded_server(host, port, key_hash))
        for found, host, port, key_hash in rows
    ]


def delete(db: Db, command: StoredCommand) -> None:
    """It was run, or given up. Where nothing else waits for its worker, that is known from now on."""
    statement, worker = "DELETE FROM commands WHERE command_id = ?", _worker(command.conn_id, command.server)
    only: _Only = db.sql.of_message(_ONLY, worker, False)
    if only and only.command_id == command.command_id:
        db.sql.execute_known(statement, (command.command_id,))
        db.sql.keep_of_message(_ONLY, worker, None)
    else:
        db.sql.execute(statement, (command.command_id,))


def set_failed(db: Db, command_id: int) -> None:
    db.sql.execute("UPDATE commands SET failed = 1 WHERE command_id = ?", (command_id,))


def move(db: Db, command_id: int, server: Server) -> None:
    """Give a command to the worker of another router."""
    db.sql.execute(
        "UPDATE commands SET host = ?, port = ?, server_key_hash = ? WHERE command_id = ?",
        (*stored_server(db, server), command_id),
    )


def has_command(db: Db, conn_id: ConnId, tag: str) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM commands WHERE conn_id = ? AND command_tag = ? AND failed = 0)"
    return bool(db.sql.execute(query, (conn_id, tag)).fetchone()[0])
