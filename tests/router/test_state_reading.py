"""The state of all queues is read as of one moment, in chunks, while the router keeps running."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from blindpost.router.bulk import chunks
from blindpost.router.config import RouterRules
from blindpost.router.state_reading import StateReader, lmdb_state, postgres_state
from blindpost.router.tables import QUEUES, LmdbTables
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import DEL, SEND
from tests.support.router.lines import create, lines_of
from tests.support.router.routers import RunningRouter, running_router

CHUNK = 2


async def seen(reader: StateReader) -> dict[str, Any]:
    """Everything that a reader finds, in a form that can be printed."""
    states = [state async for chunk in chunks(reader.queues, CHUNK) for state in chunk.items]
    return {
        "count": await reader.queue_count(),
        "damaged": reader.damaged,
        "queues": {
            state.record.recipient_id.hex(): [
                state.messages.count,
                state.messages.since,
                state.full,
                state.notifications.count,
                state.notifications.since,
            ]
            for state in states
        },
    }


async def look_twice(store: Path) -> None:
    """In a separate process: read, wait for a signal, read again in the same view."""
    async with lmdb_state(store) as reader:
        for _ in range(2):
            print(json.dumps(await seen(reader)), flush=True)
            await asyncio.to_thread(sys.stdin.readline)


class Traffic:
    """Queues in every state, then more."""

    def __init__(self, running: RunningRouter) -> None:
        self.running = running
        self.ids: list[str] = []

    async def before(self) -> dict[str, Any]:
        """What a reader must find, apart from times."""
        self.line, sender = await lines_of(self.running, 2)
        self.queues = [await create(self.line, notifier=number == 1) for number in range(5)]
        full, notified, *_ = self.queues
        for _ in range(4):
            await sender.ask(SEND(False, b"body"), full.sender_id)
        for _ in range(2):
            await sender.ask(SEND(True, b"body"), notified.sender_id)
        self.ids = [queue.recipient_id.hex() for queue in self.queues]
        return {self.ids[0]: (3, True, 0), self.ids[1]: (2, False, 2), self.ids[2]: (0, False, 0)}

    async def after(self) -> None:
        await create(self.line)
        for queue in self.queues[:3]:
            await queue.ask(self.line, DEL())


def check(found: dict[str, Any], expected: dict[str, Any], ids: list[str], now: int) -> None:
    assert (found["count"], found["damaged"]) == (5, 0)
    assert set(found["queues"]) == set(ids)
    for queue_id, (messages, full, notifications) in expected.items():
        count, since, is_full, notified, notified_since = found["queues"][queue_id]
        assert (count, is_full, notified) == (messages, full, notifications)
        assert since == (now if messages else None)
        assert notified_since == (now if notifications else None)


NOW = 1_900_000_000


async def test_the_embedded_store_is_read_as_it_was(tmp_path: Path) -> None:
    async with running_router(
        tmp_path, RouterRules(quota=2), network=MemoryNetwork(), now=lambda: NOW
    ) as running:
        traffic = Traffic(running)
        expected = await traffic.before()
        code = (
            "import asyncio, sys; from pathlib import Path\n"
            "from tests.router.test_state_reading import look_twice\n"
            "asyncio.run(look_twice(Path(sys.argv[1])))"
        )
        looking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, str(tmp_path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert looking.stdin is not None
        assert looking.stdout is not None
        first = json.loads(await looking.stdout.readline())
        check(first, expected, traffic.ids, NOW)
        await traffic.after()
        looking.stdin.write(b"\n")
        assert json.loads(await looking.stdout.readline()) == first
        looking.stdin.write(b"\n")
        assert await looking.wait() == 0
    tables = LmdbTables(tmp_path)
    tables.store.commit([(QUEUES, b"\xff" * 24, b"no record")])
    tables.close()
    async with lmdb_state(tmp_path) as reader:
        found = await seen(reader)
    assert (found["count"], found["damaged"], len(found["queues"])) == (4, 1, 3)


async def test_the_database_is_read_as_it_was(tmp_path: Path, database: str) -> None:
    async with running_router(
        tmp_path, RouterRules(quota=2), network=MemoryNetwork(), now=lambda: NOW, dsn=database
    ) as running:
        traffic = Traffic(running)
        expected = await traffic.before()
        async with postgres_state(database) as reader:
            first = await seen(reader)
            check(first, expected, traffic.ids, NOW)
            await traffic.after()
            assert await seen(reader) == first
        async with postgres_state(database) as reader:
            assert (await seen(reader))["count"] == 3
