"""Health is one sentence, the same everywhere, and correct within seconds."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blindpost.engine.loop import StoreFailedError
from blindpost.ops.servers import find
from blindpost.serving import descriptors, health
from blindpost.serving.health import WELL, Health, Watch
from tests.support.serving.commands import edit, init, started
from tests.support.serving.kinds import http
from tests.support.serving.processes import until
from tests.support.store.postgres import PostgresServer, postgres

__all__ = ["postgres"]

NOW = datetime(2026, 11, 16, tzinfo=UTC)


class Fake:
    """A service whose store, certificate and meters a test decides."""

    def __init__(self) -> None:
        self.refused = 0
        self.error: StoreFailedError | None = None
        self.waits = False
        self.probes = 0
        self.noticed: str | None = None
        self.valid = (NOW - timedelta(days=1), NOW + timedelta(days=1))

    async def probe(self) -> None:
        self.probes += 1
        if self.waits:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    def certificates(self) -> list[Any]:
        return [SimpleNamespace(not_valid_before_utc=self.valid[0], not_valid_after_utc=self.valid[1])]

    def trouble(self) -> str | None:
        return None

    def notice(self) -> str | None:
        return self.noticed


def watch(service: Fake, tmp_path: Path, now: datetime = NOW) -> Watch:
    return Watch(service, [tmp_path], now.timestamp)  # type: ignore[arg-type]  # as much of one as is looked at


async def test_what_needs_attention_is_told_by_a_server_that_is_ready(tmp_path: Path) -> None:
    service = Fake()
    looking = watch(service, tmp_path)
    service.noticed = "the web certificate could not be renewed"
    assert await looking.look() == Health(True, "the web certificate could not be renewed")
    service.refused, service.error = 1, StoreFailedError("the disk is full")
    assert await looking.look() == Health(False, "the store takes no writes: the disk is full")


async def test_a_refusing_store_is_reported_until_it_accepts_writes_again(tmp_path: Path) -> None:
    service = Fake()
    looking = watch(service, tmp_path)
    assert (await looking.look()).sentence == WELL
    assert service.probes == 1
    await looking.look()
    assert service.probes == 1, "an idle store is not written to at every look"
    service.refused, service.error = 1, StoreFailedError("the disk is full")
    assert (await looking.look()).sentence == "the store takes no writes: the disk is full"
    assert not (await looking.look()).ready
    service.error, probes = None, service.probes
    assert (await looking.look()).ready
    assert service.probes == probes + 1, "turns without a write say nothing of the store"


async def test_a_store_that_does_not_answer_is_asked_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBE_S_MAX", 0.01)
    service = Fake()
    service.waits = True
    looking = watch(service, tmp_path)
    for _ in range(3):
        assert (await looking.look()).sentence == "the store does not answer"
    assert service.probes == 1
    await looking.close()


async def test_problems_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Fake()
    late, early = NOW + timedelta(days=2), NOW - timedelta(days=2)
    assert "has expired" in (await watch(service, tmp_path, late).look()).sentence
    assert "not valid yet, or the clock" in (await watch(service, tmp_path, early).look()).sentence
    long_ago = datetime(1970, 1, 2, tzinfo=UTC)
    assert "the clock of this machine is wrong" in (await watch(service, tmp_path, long_ago).look()).sentence
    with monkeypatch.context() as patched:
        patched.setattr(descriptors, "left", lambda: 0)
        assert "no more files can be opened" in (await watch(service, tmp_path).look()).sentence
    full = SimpleNamespace(f_flag=0, f_bavail=256, f_frsize=4096)
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda _path: full)
        told = (await watch(service, tmp_path).look()).sentence
        assert told == f"the disk of {tmp_path} is full: 1 MiB are left, 64 are needed"
        full.f_flag = os.ST_RDONLY
        assert "mounted read-only" in (await watch(service, tmp_path).look()).sentence


@pytest.mark.timeout(120)
async def test_an_unreachable_database_is_reported_everywhere_in_the_same_words(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    folder, dsn = tmp_path / "router", postgres.new_database()
    await asyncio.to_thread(init, folder, "--store", "postgres", "--dsn", dsn)
    edit(folder, "only.\nenabled = false", "only.\nenabled = true")
    edit(folder, "port = 9464", "port = 0")
    async with started(folder) as router:
        port = int(router.status["metrics_port"])
        assert await http(port, "/health") == (200, f"{WELL}\n")
        await asyncio.to_thread(postgres.stop)
        try:

            async def is_told() -> bool:
                return (await http(port, "/health"))[0] == 503

            await until(is_told, 60)
            _, sentence = await http(port, "/health")
            assert sentence.startswith("the store takes no writes: the database is away")
            status = await router.ask("status")
            assert (status["ready"], status["health"]) == (False, sentence.strip())
            card = await find(folder).look()
            assert (card.health.value, card.note) == ("not ready", sentence.strip())
            code, metrics = await http(port, "/metrics")
            assert code == 200
            assert f'blindpost_router_ready{{reason="{sentence.strip()}"}} 0' in metrics
            await router.told(f"not ready: {sentence.strip()}".encode())
        finally:
            await asyncio.to_thread(postgres.start)

        async def is_well() -> bool:
            return (await http(port, "/health"))[0] == 200

        await until(is_well, 60)
        await router.told(b"ready again")
