"""Claims about services that look into the store itself, on PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from blindpost.router.audit import audit
from blindpost.router.bulk_postgres import PostgresBulk
from blindpost.router.tables_postgres import PostgresTables
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import ACK, SUB
from blindpost.wire.smp.errors import STORE, Code
from blindpost.wire.smp.responses import ERR
from tests.support.router.lines import Line, open_line, pushed
from tests.support.router.routers import running_router
from tests.support.router.services import back, left, new_service, open_service, service_queues, set_of

SETS = """
SELECT domain, service_id, entity_id FROM blindpost_router.members
EXCEPT SELECT 'M'::bytea, service_id, recipient_id FROM blindpost_router.queues WHERE service_id IS NOT NULL
"""
OWNED = """
SELECT 'M'::bytea, service_id, recipient_id FROM blindpost_router.queues WHERE service_id IS NOT NULL
EXCEPT SELECT domain, service_id, entity_id FROM blindpost_router.members
"""


@pytest.mark.claim("SVC-27")
async def test_a_reader_of_the_database_never_sees_a_set_that_contradicts_its_records(
    tmp_path: Path, database: str
) -> None:
    """Another client reads repeatedly while queues change hands; the audit agrees at the end."""
    stop, looks = asyncio.Event(), 0

    async def look() -> None:
        nonlocal looks
        connection = await asyncpg.connect(database)
        while not stop.is_set():
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                assert await connection.fetch(SETS) == []
                assert await connection.fetch(OWNED) == []
            looks += 1
        await connection.close()

    async with running_router(tmp_path, dsn=database, network=MemoryNetwork()) as running:
        looking = asyncio.create_task(look())
        lines = [await open_service(running, new_service()) for _ in range(2)]
        plain = await open_line(running)
        queues = await service_queues(lines[0], 8)
        for turn in range(12):
            taker: Line = (lines[1], plain, lines[0])[turn % 3]
            await taker.ask_many([queue.said(SUB()) for queue in queues])
            await queues[turn % 8].send(plain, b"more")
        stop.set()
        await looking
        for line in (*lines, plain):
            await line.stream.close()
        store = running.router.store
        assert isinstance(store, PostgresTables)
        found = await audit(PostgresBulk(store.store))
        assert (found.clean, found.queues, found.services) == (True, 8, 2)
    assert looks > 1


@pytest.mark.claim("SVC-38", "SVC-37")
@pytest.mark.parametrize("damage", ["no message", "record"])
async def test_a_queue_failing_in_the_database_is_reported_before_alls_and_stops_no_other(
    tmp_path: Path, database: str, damage: str
) -> None:
    async with running_router(tmp_path, dsn=database, network=MemoryNetwork()) as running:
        credentials, queues = await left(running, [1] * 4)
    queues.sort(key=lambda queue: queue.recipient_id)
    bad, good = queues[1], [queues[0], *queues[2:]]
    change = {
        "no message": "DELETE FROM blindpost_router.messages WHERE recipient_id = $1",
        "record": r"UPDATE blindpost_router.queues SET record = '\x01ff' WHERE recipient_id = $1",
    }
    connection = await asyncpg.connect(database)
    await connection.execute(change[damage], bad.recipient_id)
    await connection.close()
    async with running_router(tmp_path, dsn=database, network=MemoryNetwork()) as running:
        line = await back(running, credentials)
        assert await line.subs() == set_of(queues)
        assert len(await line.all_delivered()) == len(queues)
        for queue in good:
            assert await pushed(line, queue) == b"0"
        told = (await line.event(bad.recipient_id)).response
        assert isinstance(told, ERR)
        assert (told.error is Code.INTERNAL) == (damage != "record")
        assert isinstance(told.error, STORE) == (damage == "record")
        assert await bad.ask(line, ACK(b"")) != ERR(Code.AUTH), "it is not a deleted one"
        await line.stream.close()
