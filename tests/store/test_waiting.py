"""Who waits for a database that another server owns, and what those who wait are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg
import pytest

from blindpost.engine.loop import StoreFailedError
from blindpost.store import ownership
from blindpost.store.contract import Durability
from blindpost.store.ownership import BLIND, FOLLOWS, LOOKS, Candidate, Shared, has_candidate
from blindpost.store.postgres import DatabaseAwayError, PostgresStore, Schema
from tests.support.serving.processes import until
from tests.support.store.postgres import PostgresServer, database, postgres, postgres_server

__all__ = ["database", "postgres"]

SCHEMA, OTHER = Schema("tests", (), ()), Schema("others", (), ())


def shared(dsn: str, schema: Schema = SCHEMA) -> Shared:
    return Shared(dsn, schema, 3600.0)


@asynccontextmanager
async def owned(dsn: str, schema: Schema = SCHEMA) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(dsn, schema, Durability.OS)
    try:
        yield store
    finally:
        store.close()


@asynccontextmanager
async def waiting(candidate: Candidate) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(candidate.wait())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def says(candidate: Candidate, words: str) -> None:
    """Wait until this is what it waits for."""

    async def so() -> bool:
        return words in candidate.sentence

    await until(so)


async def counts(dsn: str, schema: Schema, *, some: bool) -> None:
    """Wait until there is a server that waits, or none."""

    async def so() -> bool:
        return await has_candidate(shared(dsn, schema)) is some

    await until(so)


async def asks_again(dsn: str, by: Shared) -> None:
    """Wait until this one has looked at the database once more, and again."""
    asked = "SELECT max(state_change) FROM pg_stat_activity WHERE application_name = $1"
    operator = await asyncpg.connect(dsn)
    try:
        for _ in range(2):
            since = await operator.fetchval("SELECT clock_timestamp()")

            async def so(since: object = since) -> bool:
                last = await operator.fetchval(asked, ownership._name(by))
                return last is not None and bool(last > since)

            await until(so)
    finally:
        await operator.close()


async def test_only_a_server_of_the_same_kind_counts_as_a_standby(database: str) -> None:
    async with owned(database), owned(database, OTHER), waiting(Candidate(shared(database, OTHER))):
        await counts(database, OTHER, some=True)
        assert not await has_candidate(shared(database))


async def test_a_standby_that_is_frozen_does_not_count(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owned(database):
        settings = {"application_name": ownership._name(shared(database))}
        frozen = await asyncpg.connect(database, server_settings=settings)
        await frozen.execute("SELECT 1")
        assert await has_candidate(shared(database))
        monkeypatch.setattr(ownership, "LIVES_S", 0.05)
        await counts(database, SCHEMA, some=False)
        await frozen.close()


async def test_it_says_what_it_waits_for(database: str) -> None:
    candidate = Candidate(shared(database))
    assert (candidate.sentence, candidate.follows) == (LOOKS, False)
    async with owned(database), waiting(candidate) as task:
        await says(candidate, FOLLOWS)
        assert candidate.follows
        assert not task.done()
    lost = Candidate(shared(database.replace("host=/", "host=/nowhere/")))
    async with waiting(lost):
        await says(lost, "the database cannot be used")
        assert not lost.follows


async def test_a_server_with_keys_of_its_own_does_not_take_over(database: str) -> None:
    """Clients of the owner would refuse it. Nor can anybody hand over to it."""
    ours, theirs = (Shared(database, SCHEMA, 3600.0, name * 43) for name in "ab")
    stranger = Candidate(theirs)
    async with owned(database) as store, waiting(stranger) as task, waiting(Candidate(ours)) as next_one:
        await says(stranger, FOLLOWS)
        await store.claim(ours.identity)
        await says(stranger, f"the database belongs to the server {ours.identity}, and this one is")
        assert not stranger.follows

        async def is_right() -> bool:
            return await has_candidate(ours)

        await until(is_right)
        store.close()
        await next_one
        await asks_again(database, theirs)
        assert not task.done()
    async with waiting(stranger), owned(database) as store:
        assert not await has_candidate(ours)
        assert not await has_candidate(shared(database))
        await store.claim(theirs.identity)
        await says(stranger, FOLLOWS)


async def test_a_server_whose_program_is_too_old_does_not_take_over(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would end when it should serve. Nor can anybody hand over to it."""
    newer, candidate = Schema("tests", ("SELECT 1",), ()), Candidate(shared(database))
    async with owned(database), waiting(candidate):
        await says(candidate, FOLLOWS)
    too_old = "this store has schema version 1, this program knows versions up to 0"
    async with owned(database, newer), waiting(candidate):
        await says(candidate, too_old)
        assert not candidate.follows
        await counts(database, SCHEMA, some=False)
    monkeypatch.setattr(ownership, "RETRY_S", 0.01)
    async with waiting(candidate) as task:
        for _ in range(2):
            await asks_again(database, shared(database))
        assert not task.done()
    assert caplog.text.count(too_old) == 1


async def test_who_waits_for_a_database_that_nobody_had_or_of_an_older_program_does_not_mind(
    database: str,
) -> None:
    named = Shared(database, SCHEMA, 3600.0, "a" * 43)
    await asyncio.wait_for(Candidate(named).wait(), 60)
    async with owned(database) as store:
        await store.fetch("ALTER TABLE state DROP COLUMN identity")
        candidate = Candidate(named)
        async with waiting(candidate):
            await says(candidate, FOLLOWS)


async def test_an_owner_is_cut_off_after_its_time_whatever_the_clock_of_the_database_shows(
    database: str,
) -> None:
    """That clock may be set forward by a minute while the owner lives, or back while it is frozen."""
    mine, shown_silent = Shared(database, SCHEMA, 0.05), "SELECT clock_timestamp() - state_change > '0.1 s'"
    time = 0.0
    async with owned(database) as store, waiting(Candidate(mine, now=lambda: time)) as task:
        operator = await asyncpg.connect(database)

        async def shows_silence() -> bool:
            of_owner = f"{shown_silent} FROM pg_stat_activity WHERE application_name = 'blindpost owner'"
            return bool(await operator.fetchval(of_owner))

        await until(shows_silence)
        await asks_again(database, mine)
        await store.fetch("SELECT 1")
        await asks_again(database, mine)
        time += 0.05
        await task
        with pytest.raises(StoreFailedError):
            await store.fetch("SELECT 1")
        await operator.close()


async def test_an_owner_that_it_could_not_cut_off_is_told(database: str) -> None:
    """Another role does not see what a session does."""
    async with owned(database) as store:
        await store.fetch("CREATE ROLE other LOGIN")
        try:
            candidate = Candidate(shared(database.replace("//tests@", "//other@")))
            async with waiting(candidate):
                await says(candidate, BLIND)
                assert not candidate.follows
        finally:
            await store.fetch("DROP ROLE other")


async def takes_connections(dsn: str) -> None:
    """Wait until it does."""

    async def so() -> bool:
        with suppress(OSError, asyncpg.PostgresError):
            await (await asyncpg.connect(dsn)).close()
            return True
        return False

    await until(so)


def become_replica(server: PostgresServer) -> None:
    server.stop()
    (server.data / "standby.signal").touch()
    server.spawn()


async def test_a_replica_is_neither_owned_nor_free_until_it_is_promoted() -> None:
    """Its locks are its own: the owner of the real database holds another one."""
    with postgres_server() as server:
        dsn = server.new_database()
        async with owned(dsn) as store:
            await asyncio.to_thread(become_replica, server)
            await takes_connections(dsn)
            operator = await asyncpg.connect(dsn)
            with pytest.raises(DatabaseAwayError, match="it is a replica, which takes no writes"):
                await PostgresStore.open(dsn, SCHEMA)
            candidate = Candidate(shared(dsn))
            async with waiting(candidate) as task:
                await says(candidate, "the database cannot be used: it is a replica")
                with pytest.raises(StoreFailedError):
                    await store.fetch("SELECT 1")
                held = await operator.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
                assert (held, store.is_away, task.done()) == (0, True, False)
                await operator.execute("SELECT pg_promote()")
                await says(candidate, FOLLOWS)

                async def is_back() -> bool:
                    return not store.is_away

                await until(is_back)
            await operator.close()


async def test_a_database_that_is_set_to_read_only_is_waited_for(database: str) -> None:
    name = database.split("/")[3].split("?")[0]
    async with owned(database):
        pass
    operator = await asyncpg.connect(database)
    await operator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(DatabaseAwayError, match="it is set to read-only"):
        await PostgresStore.open(database, SCHEMA)
    candidate = Candidate(shared(database))
    async with waiting(candidate) as task:
        await says(candidate, "the database cannot be used: it is set to read-only")
        await operator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
        await task
    await operator.close()
