"""What the store and the sockets report."""

from __future__ import annotations

import os
from pathlib import Path

from blindpost.crypto.ids_hash import QueueSet
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.changes import PutService
from blindpost.router.model import Domain, ServiceRecord
from blindpost.router.running.metrics import look_at_services
from blindpost.router.tables import LmdbTables
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import DEL
from blindpost.wire.smp.handshake import ServiceRole
from tests.support.router.lines import create, open_line
from tests.support.router.routers import running_router


def service(role: ServiceRole, queues: int, notifiers: int) -> PutService:
    sets = (QueueSet(count, bytes(16)) for count in (queues, notifiers))
    return PutService(ServiceRecord(os.urandom(24), role, os.urandom(32), (b"",), 0, *sets))


async def test_known_services_and_their_queues(tmp_path: Path) -> None:
    tables = LmdbTables(tmp_path)
    bulk = LmdbBulk(tables)
    nothing = await look_at_services(bulk)
    assert (nothing.known[ServiceRole.MESSAGING], nothing.queues[Domain.MESSAGES]) == (0, 0)
    messaging = [service(ServiceRole.MESSAGING, count, 0) for count in (3, 4)]
    await tables.commit([*messaging, service(ServiceRole.NOTIFIER, 0, 50)])
    found = await look_at_services(bulk)
    assert found.known == {ServiceRole.MESSAGING: 2, ServiceRole.NOTIFIER: 1}
    assert found.queues == {Domain.MESSAGES: 7, Domain.NOTIFICATIONS: 50}
    tables.close()


async def test_loaded_queues_are_those_in_memory(tmp_path: Path) -> None:
    async with running_router(tmp_path, network=MemoryNetwork()) as up:
        line = await open_line(up)
        assert up.router.store.loaded == 0
        queue = await create(line)
        await create(line)
        assert up.router.store.loaded == 2
        await queue.ask(line, DEL())
        assert up.router.store.loaded == 1
