"""The store's cache always equals what a read would give, whatever was written or rolled back meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import SyncState
from blindpost.agent.store import commands, connections, messages
from blindpost.agent.store.database import Db
from blindpost.agent.store.messages import AHEAD_MAX
from blindpost.agent.store.remembering import RememberingConnection, may_change, may_change_messages
from blindpost.testing.clock import run_virtual
from blindpost.wire.addresses import Server
from tests.support.agent.friends import friends

BEHIND = (
    *("users", "servers", "connections", "rcv_queues", "snd_queues"),
    *("ratchets", "ntf_servers", "ntf_tokens"),
)
"""All that is remembered comes from these tables, by whatever view, or goes with them by a cascade."""


@contextmanager
def verified() -> Iterator[list[str]]:
    """Check every cached value against a fresh read; gives the kinds that were cached."""
    kinds: list[str] = []
    real = RememberingConnection.known

    def known(self: RememberingConnection, kind: str, key: Hashable, read: Callable[[], Any]) -> Any:
        if (kind, key) in self._known:
            kinds.append(kind)
            assert self._known[kind, key] == read(), f"{kind} is not what it was"
        return real(self, kind, key, read)

    def next_delivery(db: Db, conn_id: str, number: int) -> messages.PendingDelivery | None:
        if ("read ahead", (conn_id, number)) in db.sql._known:
            kinds.append("read ahead")
        found = real_next(db, conn_id, number)
        assert (found,) == (messages._first_deliveries(db, conn_id, number) or (None,))[:1]
        return found

    def to_acknowledge(db: Db, conn_id: str, msg_id: int) -> messages.ToAcknowledge | None:
        if ("to acknowledge", (conn_id, msg_id)) in db.sql._known:
            kinds.append("to acknowledge")
        found = real_acknowledge(db, conn_id, msg_id)
        assert found == real_acknowledge(db, conn_id, msg_id), "the second time it is read"
        return found

    def next_command(db: Db, conn_id: str, server: Server | None) -> commands.StoredCommand | None:
        if ("only command", commands._worker(conn_id, server)) in db.sql._known:
            kinds.append("only command")
        found = real_command(db, conn_id, server)
        db.sql.forget_message("only command", commands._worker(conn_id, server))
        assert found == real_command(db, conn_id, server), "the second time it is read"
        return found

    real_next, real_acknowledge = messages.next_delivery, messages.to_acknowledge
    real_command = commands.next_command
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RememberingConnection, "known", known)
        patch.setattr(messages, "next_delivery", next_delivery)
        patch.setattr(messages, "to_acknowledge", to_acknowledge)
        patch.setattr(commands, "next_command", next_command)
        yield kinds


def test_cache_is_right_through_the_life_of_a_connection(tmp_path: Path) -> None:
    """Created, used, rotated, restarted, restored, synchronised and deleted."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob = pair.alice, pair.bob
            for number in range(3):
                await pair.talk(number)
            await alice.conn.switch()
            await pair.quiet(60)
            await pair.talk("after a rotation")
            for _ in range(AHEAD_MAX + 3):
                await alice.conn.send(b"many")
            await pair.quiet(60)
            alice.agent.backup(tmp_path / "older.db")
            for number in range(3):
                await pair.talk(f"after a copy {number}")
            await alice.stop()
            alice.restore(tmp_path / "older.db")
            await alice.start()
            await bob.conn.send(b"that nobody can read")
            await alice.until(lambda: alice.state is SyncState.REQUIRED)
            await alice.conn.synchronize()
            await alice.until(lambda: alice.state is SyncState.OK)
            await pair.quiet(60)
            await pair.talk("again")
            await alice.conn.delete()
            await pair.quiet(60)

    with verified() as kinds:
        run_virtual(main())
    assert set(kinds) == {
        "awaited",
        "connection",
        "has skipped",
        "only command",
        "ratchet",
        "rcv",
        "read ahead",
        "rcv queues",
        "server",
        "snd",
        "snd queues",
        "to acknowledge",
        "token",
        "waiting since",
    }


def test_the_next_command_is_known_through_all_that_happens_to_commands(tmp_path: Path) -> None:
    """One, two, the first gone, both gone, one that was taken back, moved to another worker or set aside."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice = pair.alice
            store, conn_id = alice.agent._ground.store, alice.conn.id
            server = connections.load_whole(store.reading, conn_id).rcv[0].server

            def next_is(*expected: int) -> commands.StoredCommand:
                found = commands.next_command(db, conn_id, None)
                assert found is not None
                assert (found.command_id, found.others) == (expected[0], len(expected) > 1)
                return found

            def nothing_waits() -> bool:
                return commands.next_command(db, conn_id, None) is None

            def add() -> int:
                return commands.insert(db, conn_id, None, "NOBODY", b"content", 1)

            with store.transaction() as db:
                assert nothing_waits()
                first = add()
                next_is(first)
                second = add()
                commands.delete(db, next_is(first, second))
                commands.delete(db, next_is(second))
                assert nothing_waits()
            with suppress(LookupError), store.transaction() as db:
                next_is(add())
                raise LookupError
            with store.transaction() as db:
                assert nothing_waits()
                third, fourth = add(), add()
                next_is(third, fourth)
                commands.move(db, third, server)
                next_is(fourth)
                commands.set_failed(db, fourth)
                assert nothing_waits()
                db.sql.execute("DELETE FROM commands")

    with verified() as kinds:
        run_virtual(main())
    assert "only command" in kinds


@pytest.fixture
def sql() -> Iterator[RememberingConnection]:
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=RememberingConnection)
    connection.execute("CREATE TABLE connections (conn_id INTEGER PRIMARY KEY, version INTEGER)")
    connection.execute("CREATE TABLE messages (conn_id INTEGER)")
    connection.execute("INSERT INTO connections VALUES (1, 1)")
    yield connection
    connection.close()


def version(sql: RememberingConnection) -> int:
    query = "SELECT version FROM connections WHERE conn_id = 1"
    return sql.known("version", 1, lambda: int(sql.execute(query).fetchone()[0]))


def test_a_row_is_read_once_until_its_table_changes(sql: RememberingConnection) -> None:
    assert version(sql) == 1
    sql.execute_known("UPDATE connections SET version = 2")
    assert version(sql) == 1, "the caller did not say what it changed"
    sql.replace_known("version", 1, lambda before: before + 1)
    assert version(sql) == 2
    sql.execute("INSERT INTO messages VALUES (1)")
    sql.execute_known("UPDATE connections SET version = 3")
    assert version(sql) == 2
    sql.execute("UPDATE connections SET version = 4")
    assert version(sql) == 4
    sql.executemany("UPDATE connections SET version = ?", [(5,)])
    assert version(sql) == 5


@pytest.mark.parametrize("end", ["ROLLBACK", "ROLLBACK TO attempt"])
def test_rolled_back_changes_are_not_cached(sql: RememberingConnection, end: str) -> None:
    assert version(sql) == 1
    sql.execute("BEGIN IMMEDIATE")
    sql.execute("SAVEPOINT attempt")
    sql.execute("UPDATE connections SET version = 2")
    assert version(sql) == 2
    sql.execute(end)
    assert version(sql) == 1


def test_a_failing_statement_may_have_rolled_back(sql: RememberingConnection) -> None:
    sql.execute("BEGIN IMMEDIATE")
    sql.execute("UPDATE connections SET version = 2")
    assert version(sql) == 2
    with pytest.raises(sqlite3.IntegrityError):
        sql.execute("INSERT OR ROLLBACK INTO connections VALUES (1, 1)")
    assert not sql.in_transaction
    assert version(sql) == 1
    sql.execute("BEGIN IMMEDIATE")
    sql.execute("UPDATE connections SET version = 2")
    assert version(sql) == 2
    with pytest.raises(sqlite3.IntegrityError):
        sql.execute_known("INSERT OR ROLLBACK INTO connections VALUES (1, 1)")
    assert version(sql) == 1


def test_empty_results_are_cached_and_the_oldest_evicted_first(
    sql: RememberingConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.agent.store.remembering._KNOWN_MAX", 3)
    read: list[int] = []

    def nothing(number: int) -> None:
        sql.known("nothing", number, lambda: read.append(number))

    for number in (1, 1, 2, 3, 1, 4, 1):
        nothing(number)
    assert read == [1, 2, 3, 4, 1]


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("SELECT 1 FROM connections", False),
        ("\n  SELECT 1", False),
        ("BEGIN IMMEDIATE", False),
        ("COMMIT", False),
        ("SAVEPOINT attempt", False),
        ("RELEASE attempt", False),
        ("ROLLBACK", True),
        ("ROLLBACK TO attempt", True),
        ("INSERT INTO messages (conn_id) VALUES (1)", False),
        ("INSERT OR REPLACE INTO ntf_subscriptions (conn_id) VALUES (1)", False),
        ("DELETE FROM messages WHERE conn_id IN (SELECT conn_id FROM connections)", False),
        ("UPDATE rcv_messages SET user_ack = 1", False),
        ("REPLACE INTO messages VALUES (1)", True),
        ("WITH x AS (SELECT 1) DELETE FROM connections", True),
        ("ALTER TABLE messages ADD COLUMN x", True),
        ("PRAGMA foreign_keys = OFF", True),
        ("PRAGMA wal_checkpoint(TRUNCATE)", False),
        *(
            (statement.replace("TABLE", table), True)
            for table in BEHIND
            for statement in (
                "INSERT INTO TABLE (a) VALUES (1)",
                "INSERT OR IGNORE INTO TABLE (a) VALUES (1)",
                "UPDATE TABLE SET a = 1",
                "DELETE FROM TABLE",
            )
        ),
    ],
)
def test_which_statements_invalidate_the_cache(statement: str, changes: bool) -> None:
    assert may_change(statement) is changes


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("SELECT 1 FROM messages", False),
        ("INSERT INTO commands (conn_id) VALUES (1)", True),
        ("INSERT INTO settings (name) VALUES ('one')", False),
        ("INSERT INTO messages (conn_id) VALUES (1)", True),
        ("DELETE FROM messages", True),
        ("UPDATE rcv_messages SET user_ack = 1", True),
        ("UPDATE snd_messages SET sent = 1", True),
        ("UPDATE snd_message_deliveries SET failed = 1", True),
    ],
)
def test_which_statements_make_it_forget_messages_that_wait(
    sql: RememberingConnection, statement: str, changes: bool
) -> None:
    assert may_change_messages(statement) is changes
    assert version(sql) == 1
    sql.keep_of_message("first", 1, "kept")
    sql._look(statement)
    assert sql.of_message("first", 1, None) == (None if changes else "kept")
    sql.execute_known("UPDATE connections SET version = 2")
    assert version(sql) == 1, "of connections nothing is forgotten"
