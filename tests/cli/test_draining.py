"""The drain, in this process, so the test can see what was accepted when it began."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.client.errors import ClientError
from blindpost.client.smp import SmpClient
from blindpost.journal.folder import SEGMENTS
from blindpost.journal.frames import read_segment
from blindpost.journal.keeping import JournalKeeper
from blindpost.router.changes import Change
from blindpost.router.meters import Meter
from blindpost.router.running import choices
from blindpost.router.running.process import RouterService
from blindpost.router.running.settings import RouterPlace
from blindpost.router.tables_postgres import PostgresTables
from blindpost.serving.children import free_port
from blindpost.serving.process import Process
from blindpost.serving.service import Ports
from blindpost.transport.errors import TransportError
from blindpost.wire.addresses import Host, Server
from blindpost.wire.smp.commands import SEND
from tests.support.router.routers import new_queue
from tests.support.serving.commands import edit, init, until
from tests.support.serving.kinds import http
from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]

LETTERS = 100


async def running(folder: Path) -> tuple[Process[RouterService], asyncio.Task[None]]:
    process = await Process.open(RouterService, RouterPlace.read(folder))
    ready = asyncio.Event()
    task = asyncio.create_task(process.run(ready.set))
    await ready.wait()
    return process, task


def port_of(process: Process[RouterService]) -> int:
    (port,) = process.ports
    return int(port)


async def connect(process: Process[RouterService]) -> SmpClient:
    host = (Host("127.0.0.1"),)
    return await SmpClient.connect(
        Server(host, str(port_of(process)), process.service.credentials.fingerprint)
    )


async def test_everything_accepted_is_answered_and_nothing_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(tmp_path / "router")
    process, task = await running(tmp_path / "router")
    clients = [await connect(process) for _ in range(4)]
    queue = await new_queue(clients[0], secured=True)
    confirmed: list[int] = []
    may_commit, commit = asyncio.Event(), process.service.router.store.commit

    async def commit_later(changes: Sequence[Change]) -> None:
        await may_commit.wait()
        await commit(changes)

    monkeypatch.setattr(process.service.router.store, "commit", commit_later)

    async def send(number: int) -> None:
        client = clients[number % len(clients)]
        try:
            await client.send(SEND(False, bytes(15_000)), queue.sender_id, queue.sender_key)
        except (TransportError, ClientError):
            return
        confirmed.append(number)

    sending = [asyncio.create_task(send(number)) for number in range(LETTERS)]
    await until(lambda: process.service.router.engine.waiting >= 4)
    process.stop()
    await until(lambda: process.service.router.draining)
    accepted = process.service.router.engine.waiting
    assert (confirmed, process.service.router.store.counts()["messages"]) == ([], 0)
    may_commit.set()
    await task
    await asyncio.gather(*sending)
    assert LETTERS > len(confirmed) >= accepted
    with pytest.raises(TransportError):
        await connect(process)
    again, task = await running(tmp_path / "router")
    assert again.service.router.store.counts()["messages"] == len(confirmed)
    again.stop()
    await task


async def test_a_draining_router_accepts_nothing_new(tmp_path: Path) -> None:
    init(tmp_path / "router")
    process, task = await running(tmp_path / "router")
    async with await connect(process) as client:
        queue = await new_queue(client, secured=True)
        process.service.router.draining = True
        with pytest.raises(ClientError, match="did not answer"):
            await client.send(SEND(False, b"late"), queue.sender_id, queue.sender_key, timeout_s=0.2)
        assert process.service.router.store.counts()["messages"] == 0
    process.stop()
    await task


async def test_a_client_that_does_not_close_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = choices.session_limits
    monkeypatch.setattr(
        choices, "session_limits", lambda settings: replace(patient(settings), close_timeout_s=3600.0)
    )
    init(tmp_path / "router")
    edit(tmp_path / "router", "drain_s = 30", "drain_s = 1")
    process, task = await running(tmp_path / "router")
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(process))
    await until(lambda: bool(process.service.server.sessions))
    process.stop()
    await task
    assert not process.service.server.sessions
    writer.close()


async def test_what_happens_while_a_server_drains_is_in_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(tmp_path / "router")
    needed = "Needs the extra \"pipeline\" (pip install 'blindpost[pipeline]').\nenabled = "
    edit(tmp_path / "router", f"{needed}false", f"{needed}true")
    process, task = await running(tmp_path / "router")
    order: list[str] = []
    drain, close = process.service.drain, JournalKeeper.close

    async def drained(seconds: float) -> None:
        await drain(seconds)
        order.append("drained")

    async def closed(journal: JournalKeeper) -> None:
        await close(journal)
        order.append("journal closed")

    monkeypatch.setattr(process.service, "drain", drained)
    monkeypatch.setattr(JournalKeeper, "close", closed)
    process.stop()
    await task
    assert order == ["drained", "journal closed"]


async def test_another_may_serve_before_the_last_client_has_read_its_answers(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never does would keep a standby from serving, and `/health` would not tell where to go."""
    patient = choices.session_limits
    monkeypatch.setattr(
        choices, "session_limits", lambda settings: replace(patient(settings), close_timeout_s=3600.0)
    )
    init(tmp_path / "router", "--store", "postgres", "--dsn", database)
    edit(tmp_path / "router", "standby = false", "standby = true")
    edit(tmp_path / "router", "drain_s = 30", "drain_s = 3600")
    with_metrics = f'enabled = true\naddress = "127.0.0.1"\nport = {free_port()}'
    edit(tmp_path / "router", 'enabled = false\naddress = "127.0.0.1"\nport = 9464', with_metrics)
    process, task = await running(tmp_path / "router")
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(process))
    await until(lambda: bool(process.service.server.sessions))
    process.stop()
    (await PostgresTables.open(database)).close()
    assert not task.done()
    status = await process._status({})
    assert (status["state"], status["ready"]) == ("draining", False)
    assert 'blindpost_router_ready{reason="answering what was accepted"} 0' in await process._render()
    assert process.metrics_port is not None
    assert (await http(process.metrics_port, "/health"))[0] == 503
    writer.close()
    await task


async def test_counters_are_saved_while_the_router_runs(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    init(folder)
    edit(folder, "counters_save_s = 60", "counters_save_s = 1")
    process, task = await running(folder)
    async with await connect(process) as client:
        queue = await new_queue(client, secured=True)
        await client.send(SEND(False, b"use"), queue.sender_id, queue.sender_key)
        await until((folder / "activity.json").exists)
        assert '"qCreated": 1' in (folder / "counters.json").read_text()
    process.stop()
    await task


async def test_what_is_counted_while_listeners_open_is_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may be served before the last listener is there."""
    folder = tmp_path / "router"
    init(folder)
    edit(folder, 'enabled = false\nfolder = "journal"', 'enabled = true\nfolder = "journal"')
    listen = RouterService.listen

    async def listen_and_serve(service: RouterService) -> Ports:
        ports = await listen(service)
        service.router.plan.meters.add(Meter.SENT)
        return ports

    async def sealed_later(journal: JournalKeeper) -> None:
        pass

    monkeypatch.setattr(RouterService, "listen", listen_and_serve)
    monkeypatch.setattr(JournalKeeper, "_seal", sealed_later)
    process, task = await running(folder)
    process.stop()
    await task
    paths = (folder / "journal" / SEGMENTS).glob("records*")
    records = [json.loads(bytes(body)) for path in paths for body in read_segment(path.read_bytes()).bodies]
    counted = [row for record in records for row in record["rows"].get("p_counters", ())]
    assert ["msgSent", 1] in counted
