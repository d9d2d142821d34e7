"""From the database of an ntf-server into a router and back: every row arrives or is counted as skipped."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from blindpost.engine.undo import Undo
from blindpost.ntf.meters import Meter, NtfMeters
from blindpost.ntf.model import SmpRouter, Subscription
from blindpost.ntf.moving.certificate import Moved
from blindpost.ntf.moving.moves import export_database, import_database
from blindpost.ntf.moving.stats import NAMES
from blindpost.ntf.process import open_store
from blindpost.ntf.settings import NtfPlace
from blindpost.ntf.view import View, Wanted
from blindpost.serving.counters import KeptCounters
from blindpost.serving.failures import OperatorError
from blindpost.serving.old_stats import read_stats
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.status import SubStatus
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.ntf.webpush import Subscription as WebSubscription
from blindpost.wire.private_keys import EncodedPrivateKey
from tests.support.ntf.old_database import fill, key, make_tables
from tests.support.ntf.process import invoke
from tests.support.serving.commands import run

COLUMNS = {
    "tokens": "*",
    "smp_servers": "smp_host, smp_port, smp_keyhash, ntf_service_id, smp_notifier_count, "
    "smp_notifier_ids_hash, ntf_service_cert, ntf_service_cert_hash, ntf_service_priv_key",
    "subscriptions": "subscription_id, token_id, smp_notifier_id, smp_notifier_key, status, "
    "ntf_service_assoc",
    "last_notifications": "token_id, subscription_id, sent_at, nmsg_nonce, nmsg_data",
}
"""What rows say, apart from the numbers that the database gives them."""


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    old = await asyncpg.connect(dsn, server_settings={"search_path": "ntf_server"})
    try:
        yield old
    finally:
        await old.close()


async def all_rows(old: asyncpg.Connection[asyncpg.Record]) -> dict[str, list[tuple[Any, ...]]]:
    found = {
        table: await old.fetch(f"SELECT {columns} FROM {table} ORDER BY 1, 2")  # noqa: S608
        for table, columns in COLUMNS.items()
    }
    return {table: [tuple(row) for row in rows] for table, rows in found.items()}


async def new_router(folder: Path, *words: str) -> NtfPlace:
    options = ("--host", "127.0.0.1", "--key-algorithm", "ed25519", "--json", *words)
    await asyncio.to_thread(invoke, "init", folder, *options)
    return NtfPlace.read(folder)


async def moved_in(place: NtfPlace, database: str) -> Moved:
    return await import_database(place, database, "ntf_server", place.folder / "in.json")


async def moved_out(place: NtfPlace, database: str) -> Moved:
    return await export_database(place, database, "ntf_server", place.folder / "out.json")


def counts_of(told: dict[str, Any]) -> dict[str, int]:
    return {name: count for name, count in told.items() if isinstance(count, int)}


async def test_an_old_database_is_imported_completely(database: str, tmp_path: Path) -> None:
    async with connected(database) as old:
        await make_tables(old)
        tokens = await fill(old)
        members = await old.fetch("SELECT smp_notifier_count, smp_notifier_ids_hash FROM smp_servers")
    await new_router(tmp_path / "ntf")
    words = ("ntf", "import", "--to", tmp_path / "ntf", "--from-database", database)
    done = json.loads(run(*words, "--json").stdout)
    assert done["differing"] == []
    assert done["source"] == done["result"]
    assert counts_of(done["result"]) == {
        "tokens": 2,
        "subscriptions": 3,
        "notifications": 3,
        "services": 1,
    }
    assert done["left"] == {"tokens": 1, "subscriptions": 1, "notifications": 1}
    certificate = json.loads((tmp_path / "ntf" / "import-certificate.json").read_text())
    assert certificate["source"] == done["source"]
    store = await open_store(NtfPlace.read(tmp_path / "ntf"))
    try:
        view = View(Undo(), store.received)
        await store.load(Wanted(tokens=set(tokens)), view)
        active, confirmed = view.tokens.get(tokens[0]), view.tokens.get(tokens[1])
        assert active is not None
        assert confirmed is not None
        assert active.updated_day % 86_400 == 0
        assert abs(active.updated_day - time.time()) < 2 * 86_400
        assert (active.was_verified, confirmed.was_verified, confirmed.period_minutes) == (True, False, 20)
        # Two databases with triggers of their own agree on what a service is subscribed to.
        stored = {(router.members.count, router.members.ids_hash) for router in await store.all_routers()}
        assert stored == {tuple(row) for row in members}
    finally:
        store.close()
    assert "not empty" in run(*words, code=1).stderr


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_an_import_is_exported_byte_for_byte(database: str, tmp_path: Path, kind: str) -> None:
    async with connected(database) as old:
        await make_tables(old)
        unreadable = (await fill(old))[2]
        await old.execute("DELETE FROM tokens WHERE token_id = $1", unreadable)
        before = await all_rows(old)
    store = () if kind == "sqlite" else ("--store", "postgres", "--dsn", database)
    place = await new_router(tmp_path / "ntf", *store)
    arrived = await moved_in(place, database)
    with pytest.raises(OperatorError, match="not empty"):
        await moved_out(place, database)
    async with connected(database) as old:
        assert await all_rows(old) == before
        await old.execute("DROP SCHEMA ntf_server CASCADE")
        with pytest.raises(OperatorError, match="Start ntf-server once"):
            await moved_out(place, database)
        await make_tables(old)
    done = await moved_out(place, database)
    assert (done.differing, done.left) == ([], {})
    async with connected(database) as old:
        assert await all_rows(old) == before
    told = json.loads((place.folder / "out.json").read_text())
    assert told["source"] == told["result"] == arrived.result.values()


async def test_rows_unreadable_for_ntf_server_are_skipped_and_counted(database: str, tmp_path: Path) -> None:
    async with connected(database) as old:
        await make_tables(old)
        tokens = await fill(old)
    place = await new_router(tmp_path / "ntf")
    await moved_in(place, database)
    store = await open_store(place)
    try:
        view = View(Undo(), store.received)
        await store.load(Wanted(tokens=set(tokens)), view)
        confirmed = view.tokens.get(tokens[1])
        assert confirmed is not None
        web = WebSubscription("push.example.org", "", b"/1", bytes(16), b"\x04" + bytes(64))
        view.put_token(dataclasses.replace(confirmed, device=DeviceToken.web(web)))
        # Named by a device, and never reached: no column of text can hold its port.
        strange = Server((Host("smp3.example.org"),), "5223\0", os.urandom(32))
        view.put_router(SmpRouter(strange))
        notifier_key = EncodedPrivateKey.from_pkcs8(key(Algorithm.ED25519).pkcs8)
        view.add_subscription(Subscription(b"s" * 24, tokens[0], strange, b"n" * 24, notifier_key))
        reported = SubStatus.failed(b"\0\xff\n words")
        plain = next(router for router in await store.all_routers() if router.service is None)
        view.add_subscription(
            Subscription(b"t" * 24, tokens[0], plain.server, b"o" * 24, notifier_key, reported)
        )
        await store.commit(view)
    finally:
        store.close()
    async with connected(database) as old:
        await old.execute("DROP SCHEMA ntf_server CASCADE")
        await make_tables(old)
    words = ("ntf", "export", "--from", tmp_path / "ntf", "--to-database", database)
    done = json.loads(run(*words, "--json").stdout)
    assert done["differing"] == []
    assert done["left"] == {"devices of Web Push": 1, "tokens": 1, "subscriptions": 2, "notifications": 1}
    async with connected(database) as old:
        assert await old.fetchval("SELECT array_agg(push_provider) FROM tokens") == ["apns_prod"]
        said = await old.fetchval("SELECT status FROM subscriptions WHERE subscription_id = $1", b"t" * 24)
        assert said == "ERR ??? words"


OLD_STATS = """\
fromTime=2026-01-02T03:04:05.678Z
tknCreated=11
tknVerified=9
tknDeleted=4
tknReplaced=1
subCreated=100
subDeleted=40
ntfReceived=1000
ntfReceivedAuth=3
ntfDelivered=990
ntfFailed=7
ntfReceivedOwn=smp.example.org 5
ntfReceivedAuthOwn=
ntfDeliveredOwn=smp.example.org 5
ntfFailedOwn=
ntfCronDelivered=2
ntfCronFailed=1
ntfVrfQueued=12
ntfVrfDelivered=11
ntfVrfFailed=1
ntfVrfInvalidTkn=0
activeTokens:
dayHashes=1,-2
weekHashes=
monthHashes=3
activeSubs:
dayHashes=
weekHashes=
monthHashes=
"""


async def test_its_statistics_continue_in_a_new_router(tmp_path: Path) -> None:
    found = read_stats(OLD_STATS, NAMES)
    assert {meter for meter in Meter if meter.is_of_reference} == set(found.counts)
    lines = sum("=" in line for line in OLD_STATS.splitlines())
    assert len(found.counts) + len(found.left) + 1 == lines
    await new_router(tmp_path / "ntf")
    (tmp_path / "stats.log").write_text(OLD_STATS)
    words = ("ntf", "import-stats", tmp_path / "stats.log", "--to", tmp_path / "ntf")
    told = json.loads(run(*words, "--json").stdout)
    assert told["counts"]["notifications_received"] == 1000
    meters = NtfMeters()
    kept = KeptCounters(NtfPlace.read(tmp_path / "ntf").counters, meters)
    kept.load()
    assert (meters[Meter.RECEIVED], meters[Meter.COMMANDS], kept.since) == (1000, 0, 1_767_323_045)
    assert "has counted already" in run(*words, code=1).stderr


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[" * 100_000, b"[1]", b'{"format": 1, "since": Infinity, "counts": {}}']
)
def test_damaged_counters_are_set_aside(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "counters.json"
    file.write_bytes(content)
    KeptCounters(file, NtfMeters()).load()
    assert not file.exists()
    assert file.with_suffix(".unreadable").read_bytes() == content


def test_a_failed_start_keeps_the_counts(tmp_path: Path) -> None:
    meters = NtfMeters()
    kept = KeptCounters(tmp_path / "counters.json", meters)
    kept.load()
    meters.add(Meter.RECEIVED, 5)
    kept.save()
    KeptCounters(tmp_path / "counters.json", NtfMeters()).save()
    again = NtfMeters()
    KeptCounters(tmp_path / "counters.json", again).load()
    assert again[Meter.RECEIVED] == 5
