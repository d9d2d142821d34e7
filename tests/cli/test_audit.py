"""`blindpost router audit` on real routers: running, stopped, with drift and without."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blindpost.crypto.ids_hash import QueueSet
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.changes import PutService, SetMember
from blindpost.router.model import Domain, ServiceRecord
from blindpost.router.tables import LmdbTables
from blindpost.wire.smp.commands import SUBS
from blindpost.wire.smp.responses import SOKS
from tests.support.router.connecting import connected
from tests.support.router.routers import Queue, new_queue
from tests.support.serving.commands import init, run, started


async def make_queues(folder: Path, count: int) -> list[Queue]:
    init(folder)
    async with started(folder) as router:
        async with await connected(router) as client:
            queues = [await new_queue(client) for _ in range(count)]
        await router.end()
    return queues


def store_of(folder: Path) -> Path:
    return folder / "store"


async def stored_service(tables: LmdbTables) -> ServiceRecord:
    (service,) = (await LmdbBulk(tables).services(b"", 10)).items
    return service


async def corrupt_counter(folder: Path, wrong: QueueSet) -> ServiceRecord:
    """Write another count and hash into the store; return the previous ones."""
    tables = LmdbTables(store_of(folder))
    service = await stored_service(tables)
    await tables.commit([PutService(replace(service, queues=wrong))])
    tables.close()
    return service


def audited(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = run("router", "audit", "-c", folder, "--json", *arguments, code=code)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_an_audit_finds_repairs_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    queues = asyncio.run(make_queues(folder, 3))
    good = audited(folder)
    assert (good["clean"], good["services"], good["queues"]) == (True, 1, 3)
    assert "Everything agrees." in run("router", "audit", "-c", folder).stdout

    service = asyncio.run(corrupt_counter(folder, QueueSet(3, bytes(16))))
    bad = audited(folder, code=1)
    assert (bad["clean"], bad["wrong_counters"], bad["repaired"]) == (False, 1, False)
    assert "--repair" in run("router", "audit", "-c", folder, code=1).stdout
    repaired = audited(folder, "--repair")
    assert (repaired["clean"], repaired["repaired"]) == (False, True)
    assert audited(folder)["clean"]
    tables = LmdbTables(store_of(folder))
    found = asyncio.run(stored_service(tables))
    tables.close()
    assert found == service
    assert found.queues == QueueSet.of(queue.recipient_id for queue in queues)


async def test_a_running_router_is_audited_by_a_copy_and_repaired_only_when_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    await make_queues(folder, 2)
    await corrupt_counter(folder, QueueSet(2, bytes(16)))
    async with started(folder) as router:
        bad = await asyncio.to_thread(audited, folder, code=1)
        assert bad["wrong_counters"] == 1
        done = await asyncio.to_thread(run, "router", "audit", "-c", folder, "--repair", code=1)
        assert "a router is running in this folder" in done.stderr
        assert await router.end() == 0
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".audit")) == []
    assert (await asyncio.to_thread(audited, folder, "--repair"))["repaired"]


@pytest.mark.claim("SVC-70")
async def test_a_router_repairs_at_its_start_what_its_counters_show(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    queues = await make_queues(folder, 3)
    service = await corrupt_counter(folder, QueueSet(1, bytes(16)))
    tables = LmdbTables(store_of(folder))
    await tables.commit([SetMember(Domain.MESSAGES, service.service_id, queues[0].recipient_id, False)])
    tables.close()
    async with started(folder) as router:
        await router.told(b"are repaired")
        assert b"wrong counters 1" in router.log
        assert b"missing members 1" in router.log
        async with await connected(router) as client:
            reply = await client.send(SUBS(0, bytes(16)))
            assert isinstance(reply, SOKS)
            assert QueueSet(reply.count, reply.ids_hash) == service.queues
    assert (await asyncio.to_thread(audited, folder))["clean"]


def test_an_audit_without_a_store_says_what_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    init(folder)
    for file in store_of(folder).iterdir():
        file.unlink()
    assert "the router's store is missing" in run("router", "audit", "-c", folder, code=1).stderr
