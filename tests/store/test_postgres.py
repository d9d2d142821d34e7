"""One owner at a time, migrations in order, and no commit's outcome is ever misjudged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from blindpost.engine.loop import OutcomeUnknownError, StoreFailedError
from blindpost.store import postgres as driver
from blindpost.store.contract import Durability, StoreVersionError
from blindpost.store.postgres import (
    DatabaseAwayError,
    DatabaseInUseError,
    PostgresStore,
    Schema,
    Step,
    Work,
    snapshot,
)
from tests.support.store.postgres import PostgresServer
from tests.support.store.wires import wired

FIRST = (
    "CREATE TABLE words (word text PRIMARY KEY, value bigint CHECK (value >= 0));"
    "ALTER TABLE state ADD COLUMN words bigint NOT NULL DEFAULT 0"
)
SCHEMA = Schema("tests", (FIRST,), ("words",))
PUT = Step(
    "words",
    "INSERT INTO words SELECT * FROM unnest({0}::text[], {1}::bigint[]) "
    "ON CONFLICT (word) DO UPDATE SET value = excluded.value RETURNING xmax = 0 AS fresh",
)
DELETE = Step(
    "words", "DELETE FROM words WHERE word = ANY({0}::text[]) RETURNING true AS fresh", is_delete=True
)


def put(**values: int) -> Work:
    return [(PUT, [list(values), list(values.values())])]


@asynccontextmanager
async def opened(dsn: str, schema: Schema = SCHEMA) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(dsn, schema, Durability.OS)
    try:
        yield store
    finally:
        store.close()


async def words(store: PostgresStore) -> dict[str, int]:
    return {row["word"]: row["value"] for row in await store.fetch("SELECT * FROM words")}


async def back(store: PostgresStore) -> None:
    """Wait until the store owns its database again."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.fetch("SELECT 1")
                return
            except StoreFailedError:
                await asyncio.sleep(0.01)


async def gone(store: PostgresStore) -> None:
    """Wait until the store has noticed that its connection is lost."""
    with contextlib.suppress(StoreFailedError):
        while True:
            await store.fetch("SELECT 1")


async def sleeping(dsn: str) -> None:
    """Wait until a statement sleeps in the database."""
    connection = await asyncpg.connect(dsn)
    found = (
        "SELECT pg_stat_clear_snapshot(), count(*) AS here FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    )
    try:
        for _ in range(1_000):
            if (await connection.fetch(found))[0]["here"]:
                return
            await asyncio.sleep(0.01)
    finally:
        await connection.close()
    raise AssertionError("nothing sleeps")


async def test_a_commit_is_one_statement_and_outlives_its_owner(database: str) -> None:
    async with opened(database) as store:
        before = store.statements
        await store.commit([[*put(a=1, b=2), (DELETE, [["c"]])]], {})
        assert store.statements == before + 1
    async with opened(database) as store:
        assert await words(store) == {"a": 1, "b": 2}
        assert store.counts == {"words": 2}


async def test_rows_are_counted_once_however_they_are_written(database: str) -> None:
    async with opened(database) as store:
        await store.commit([put(a=1, b=2)], {})
        await store.commit([put(a=5, c=3)], {})
        assert store.counts == {"words": 3}
        await store.commit([[(DELETE, [["a", "missing"]])]], {})
        assert store.counts == {"words": 2}
        await store.commit([put(d=1)], {"words": 10})
        assert store.counts == {"words": 13}
        assert await words(store) == {"b": 2, "c": 3, "d": 1}


async def test_an_argument_that_no_column_can_hold_is_no_failure_of_the_database(database: str) -> None:
    """So the one that passed it is told, and not everybody who asks at the same time."""
    async with opened(database) as store:
        with pytest.raises(asyncpg.DataError, match="int64"):
            await store.fetch("SELECT * FROM words WHERE value = ANY($1::bigint[])", [2**63])
        assert await words(store) == {}
        assert not store.is_away


async def test_phases_follow_each_other_in_one_transaction(database: str) -> None:
    async with opened(database) as store:
        await store.commit([put(a=1)], {})
        await store.commit([[(DELETE, [["a"]])], put(a=2)], {"words": 5})
        assert (await words(store), store.counts) == ({"a": 2}, {"words": 6})
        with pytest.raises(StoreFailedError) as refused:
            await store.commit([put(b=1), put(c=-1)], {})
        assert not isinstance(refused.value, OutcomeUnknownError)
        assert (await words(store), store.counts) == ({"a": 2}, {"words": 6})
        await store.commit([put(e=1)], {})
    async with opened(database) as store:
        assert (await words(store), store.counts) == ({"a": 2, "e": 1}, {"words": 7})


async def test_a_refused_commit_is_known_not_to_be_stored(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database) as store:
        for bad in (put(a=1, secret=-1), put(secret=1 << 70)):
            with pytest.raises(StoreFailedError) as refused:
                await store.commit([bad], {})
            assert not isinstance(refused.value, OutcomeUnknownError)
        with pytest.raises(StoreFailedError):
            await store.fetch("SELECT missing")
        assert await words(store) == {}
        await store.commit([put(b=1)], {})
        assert await words(store) == {"b": 1}
        assert store.connects == 0
    assert "secret" not in caplog.text


async def test_a_database_has_one_owner(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LOCK_WAIT_S", 0.05)
    async with opened(database):
        with pytest.raises(DatabaseInUseError, match="another server uses this database"):
            await PostgresStore.open(database, SCHEMA)
        async with opened(database, Schema("others", (), ())):
            pass
    monkeypatch.setattr(driver, "LOCK_WAIT_S", 10)
    async with opened(database):
        pass


async def test_a_database_is_opened_while_somebody_reads_all_of_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `pg_dump` for a backup: a server that starts, or a standby, must not wait for its end."""
    monkeypatch.setattr(driver, "LOCK_WAIT_S", 0.05)
    async with opened(database):
        pass
    async with snapshot(database, SCHEMA), opened(database) as store:
        await store.commit([put(a=1)], {})


async def test_a_migration_that_has_to_wait_for_others_may_be_tried_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby with a newer program waits for the end of a backup instead of ending itself."""
    monkeypatch.setattr(driver, "LOCK_WAIT_S", 0.05)
    async with opened(database):
        pass
    newer = Schema("tests", (FIRST, "ALTER TABLE words RENAME COLUMN value TO number"), ("words",))
    async with snapshot(database, SCHEMA) as reader:
        await reader.fetch("SELECT * FROM words")
        with pytest.raises(DatabaseAwayError, match="cannot be prepared: canceling statement due to lock"):
            await PostgresStore.open(database, newer)
    async with opened(database, newer):
        pass


async def test_migrations_run_once_each_and_in_order(database: str) -> None:
    async with opened(database) as store:
        await store.commit([put(a=1)], {})
    second = "UPDATE words SET value = value + 1; ALTER TABLE words ADD COLUMN more int NOT NULL DEFAULT 7"
    newer = Schema("tests", (FIRST, second), ("words",))
    for _ in range(2):
        async with opened(database, newer) as store:
            rows = await store.fetch("SELECT * FROM words")
            assert [tuple(row) for row in rows] == [("a", 2, 7)]
    with pytest.raises(StoreVersionError, match="schema version 2, this program knows versions up to 1"):
        await PostgresStore.open(database, SCHEMA)
    async with opened(database, newer):
        pass


async def test_a_migration_that_fails_changes_nothing(database: str) -> None:
    broken = Schema("tests", (FIRST, "CREATE TABLE half (x int); SELECT 1 / 0"), ("words",))
    with pytest.raises(StoreFailedError, match="division by zero"):
        await PostgresStore.open(database, broken)
    async with opened(database) as store:
        assert await store.fetch("SELECT FROM pg_tables WHERE tablename = 'half'") == []


@pytest.mark.parametrize("durability", list(Durability))
async def test_durability_sets_synchronous_commit(database: str, durability: Durability) -> None:
    store = await PostgresStore.open(database, SCHEMA, durability)
    rows = await store.fetch("SELECT current_setting('synchronous_commit')")
    assert rows[0][0] == ("on" if durability is Durability.FULL else "off")
    store.close()


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        ("postgresql://someone:hush%21@localhost:1/x", "the database cannot be opened"),
        ("postgresql://someone:hush%21@localhost:none/x", "the database cannot be opened"),
        ("http://someone:hush%21@localhost/x?password=hush%21", "the database cannot be opened"),
    ],
)
async def test_a_failure_to_open_is_reported_without_the_password(dsn: str, told: str) -> None:
    with pytest.raises(StoreFailedError, match=told) as error:
        await PostgresStore.open(dsn, SCHEMA)
    assert "hush" not in str(error.value)
    assert error.value.__suppress_context__


async def test_the_password_is_removed_from_any_text() -> None:
    store = PostgresStore("postgresql://a:p%40ss@h/x?password=other", SCHEMA, Durability.FULL)
    told = store._told(ValueError("p%40ss, p@ss and other did not help"))
    assert told == "***, *** and *** did not help"


async def kill_backend(store: PostgresStore, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'blindpost%'"
        )
    finally:
        await connection.close()


async def test_a_store_refuses_while_its_connection_is_lost_and_reconnects(database: str) -> None:
    async with opened(database) as store:
        await store.commit([put(a=1)], {})
        await kill_backend(store, database)
        await gone(store)
        await back(store)
        assert store.connects == 1
        await store.commit([put(b=1)], {})
        assert await words(store) == {"a": 1, "b": 1}
        assert store.counts == {"words": 2}


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("phases", [1, 2])
async def test_a_commit_whose_answer_is_lost_is_resolved(database: str, arrives: bool, phases: int) -> None:
    async with wired(database) as (wire, dsn), opened(dsn) as store:
        await store.commit([put(z=1)] * phases, {})
        wire.cut(b"" if phases == 1 else b"COMMIT", after=arrives)
        with pytest.raises(OutcomeUnknownError) as unknown:
            await store.commit([put(b=2), put(c=3)][:phases], {})
        with pytest.raises(StoreFailedError):
            await store.commit([put(d=4)], {})
        async with asyncio.timeout(60):
            assert await unknown.value.outcome is arrives
        await back(store)
        written = dict(list({"b": 2, "c": 3}.items())[:phases]) if arrives else {}
        assert store.counts == {"words": 1 + len(written)}
        await store.commit([put(e=5)], {})
        assert await words(store) == {"z": 1, "e": 5, **written}
        assert store.counts == {"words": 2 + len(written)}


async def test_a_commit_that_still_runs_when_its_connection_is_lost_is_waited_for(database: str) -> None:
    """The lock is freed only when the old session ends: nothing can commit after the check."""
    text = "INSERT INTO words SELECT 'slow', 1 FROM pg_sleep({0}::float) RETURNING true AS fresh"
    async with wired(database) as (wire, dsn), opened(dsn) as store:
        slow = [(Step("words", text), [0.0])]
        await store.commit([slow], {})
        await store.commit([[(DELETE, [["slow"]])]], {})
        wire.cut(after=True)
        committing = asyncio.create_task(store.commit([[(slow[0][0], [1.0])]], {}))
        await sleeping(database)
        assert store._connection is not None
        store._connection.terminate()
        with pytest.raises(OutcomeUnknownError) as unknown:
            await committing
        assert await unknown.value.outcome is True
        await back(store)
        assert await words(store) == {"slow": 1}


async def test_a_statement_that_takes_too_long_is_abandoned(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "STATEMENT_S", 0.3)
    text = "INSERT INTO words SELECT 'slow', 1 FROM pg_sleep(60) RETURNING true AS fresh"
    async with opened(database) as store:
        with pytest.raises(StoreFailedError):
            await store.fetch("SELECT pg_sleep(60)")
        with pytest.raises(StoreFailedError) as refused:
            await store.commit([[(Step("words", text), [])]], {})
        assert not isinstance(refused.value, OutcomeUnknownError)
        assert store.connects == 0
        await store.commit([put(a=1)], {})
        assert await words(store) == {"a": 1}


async def test_a_silent_database_is_treated_as_lost(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "STATEMENT_S", 1.0)
    monkeypatch.setattr(driver, "SILENCE_S", 0.5)
    async with opened(database) as store:
        with pytest.raises(StoreFailedError):
            await store.fetch("SELECT pg_sleep(60)")
        await back(store)
        assert store.connects == 1


@pytest.mark.parametrize(
    ("has_standby", "told"),
    [(False, "restart this server"), (True, "it lost commits that were answered")],
    ids=["alone", "of a pair"],
)
async def test_a_database_with_another_history_is_not_served(
    database: str, caplog: pytest.LogCaptureFixture, has_standby: bool, told: str
) -> None:
    """Restored from a backup or written by another process: memory and store would disagree."""
    displaced = asyncio.Event()
    async with opened(database) as store:
        store.on_displaced = displaced.set if has_standby else None
        await store.commit([put(a=1)], {})
        other = await asyncpg.connect(database)
        await other.execute("UPDATE tests.state SET commits = 0")
        await other.close()
        await kill_backend(store, database)
        await gone(store)
        assert store._reconnecting is not None
        await store._reconnecting
        with pytest.raises(StoreFailedError):
            await store.fetch("SELECT 1")
    assert displaced.is_set() is has_standby
    assert told in caplog.text


def connects_later(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """It cannot reach its database again until this is set."""
    may_connect, connect = asyncio.Event(), store._connect

    async def connect_later(wait_s: float) -> driver.Connection:
        await may_connect.wait()
        return await connect(wait_s)

    monkeypatch.setattr(store, "_connect", connect_later)
    return may_connect


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_a_commit_of_another_owner_is_never_taken_for_the_one_in_doubt(
    database: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The other one came and went while this one could not reach the database."""
    displaced = asyncio.Event()
    async with wired(database) as (wire, dsn), opened(dsn) as store:
        store.on_displaced = displaced.set
        await store.commit([put(a=1)], {})
        may_connect = connects_later(store, monkeypatch)
        wire.cut(after=False)
        with pytest.raises(OutcomeUnknownError) as unknown:
            await store.commit([put(b=2)], {})
        async with opened(database) as other:
            for number in range(count):
                await other.commit([put(c=number)], {})
        may_connect.set()
        with pytest.raises(OutcomeUnknownError):
            await unknown.value.outcome
        await displaced.wait()
        assert store.is_away


async def test_an_owner_does_not_resume_with_a_schema_that_another_one_has_begun_to_change(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is of a newer program, and its second migration failed."""
    displaced = asyncio.Event()
    newer = Schema("tests", (FIRST, "ALTER TABLE words RENAME TO terms", "SELECT 1 / 0"), ("words",))
    async with opened(database) as store:
        store.on_displaced = displaced.set
        may_connect = connects_later(store, monkeypatch)
        await kill_backend(store, database)
        await gone(store)
        with pytest.raises(StoreFailedError, match="division by zero"):
            await PostgresStore.open(database, newer)
        may_connect.set()
        assert store._reconnecting is not None
        await store._reconnecting
        assert displaced.is_set()


async def test_an_owner_whose_database_can_be_reached_but_not_used_gives_way_in_time(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    displaced = asyncio.Event()
    async with opened(database) as store:
        store.on_displaced, store.takeover_s = displaced.set, 0.3
        other = await asyncpg.connect(database)
        await other.execute("ALTER TABLE tests.state RENAME TO elsewhere")
        await other.close()
        await kill_backend(store, database)
        await gone(store)
        async with asyncio.timeout(10):
            await displaced.wait()
        assert caplog.text.count("the database cannot be used, trying again") == 1


async def test_an_owner_that_cannot_reach_its_database_gives_way_in_time(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients would stay with it, and the standby serves by then. What is in doubt is not answered."""
    displaced = asyncio.Event()
    async with wired(database) as (wire, dsn), opened(dsn) as store:
        store.on_displaced, store.takeover_s = displaced.set, 0.3

        async def unreachable(wait_s: float) -> driver.Connection:
            raise ConnectionRefusedError

        monkeypatch.setattr(store, "_connect", unreachable)
        wire.cut(after=False)
        with pytest.raises(OutcomeUnknownError) as unknown:
            await store.commit([put(a=1)], {})
        assert not displaced.is_set()
        await displaced.wait()
        with pytest.raises(OutcomeUnknownError):
            await unknown.value.outcome


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_the_database_server_may_be_restarted(
    postgres: PostgresServer, database: str, how: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    store = await PostgresStore.open(database, SCHEMA, Durability.FULL)
    await store.commit([put(a=1)], {})
    await asyncio.to_thread(postgres.stop, how)
    with pytest.raises(StoreFailedError):
        await store.commit([put(b=1)], {})
    with pytest.raises(StoreFailedError):
        await store.fetch("SELECT 1")
    postgres.spawn()
    await asyncio.to_thread(postgres.wait_ready)
    await back(store)
    assert await words(store) == {"a": 1}
    store.close()
    assert "the database is back" in caplog.text


async def test_an_owner_is_sure_for_as_long_as_nobody_can_have_cut_it_off(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(driver, "_loop_time", lambda: now)
    async with opened(database) as store:
        assert store.is_sure, "without a standby"
        store.takeover_s = 3.0
        await store.sign()
        now += 2.9
        assert store.is_sure
        await store.commit([put(a=1)], {})
        now += 2.9
        assert store.is_sure
        now += 0.2
        assert not store.is_sure
        await store.sign()
        assert store.is_sure
