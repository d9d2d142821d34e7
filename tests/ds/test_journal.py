"""The journal of a real delivery service: its totals equal the counters; no key or channel is in it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from blindpost.journal.folder import SEGMENTS
from blindpost.journal.frames import read_segment
from blindpost.journal.seal import seal_folder
from tests.support.ds.delivery import ALICE, BOB
from tests.support.ds.process import configure, ds_in_process
from tests.support.serving.commands import run, until

CHANNEL = b"a channel that nobody else has"


def rows(root: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((root / "P" / table).glob("date=*/*.parquet")):
        found += pq.ParquetFile(path).read().to_pylist()
    return found


async def test_the_totals_of_the_journal_are_the_counters_of_the_service(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    journal = folder / "journal"
    async with ds_in_process(folder) as ds:
        configure(
            folder, "'blindpost[pipeline]').\nenabled = false", "'blindpost[pipeline]').\nenabled = true"
        )
        await ds.start()
        async with await ds.client() as client, await ds.client() as waiting:
            await client.enqueue(ALICE, b"one")
            assert await client.fetch(ALICE) == (b"one",)
            fetching = asyncio.create_task(waiting.fetch_wait(ALICE, timeout_s=60.0))
            status = {"waiting": 0}
            while not status["waiting"]:
                told = await asyncio.to_thread(run, "ds", "status", "-c", folder, "--json")
                status = json.loads(told.stdout)
            await client.enqueue(ALICE, b"two")
            assert await fetching == (b"two",)
            await client.enqueue(BOB, b"a payload that stays", CHANNEL)
        told = await asyncio.to_thread(run, "ds", "status", "-c", folder, "--json")
        counters = {name: count for name, count in json.loads(told.stdout)["counters"].items() if count}
        assert await ds.end(signal.SIGTERM) == 0
    records = [
        bytes(body)
        for path in (journal / SEGMENTS).glob("*.seg")
        for body in read_segment(path.read_bytes()).bodies
    ]
    await until(lambda: seal_folder(journal) is not None)
    found: Counter[str] = Counter()
    for row in rows(journal, "p_counters"):
        assert (row["router"], row["role"]) == ("ds", "ds")
        found[row["name"]] += row["value"]
    assert {name: found[name] for name in counters} == counters
    assert (counters["enqueued"], counters["wakes"]) == (3, 1)
    levels = {row["name"]: row["value"] for row in rows(journal, "p_gauges")}
    assert (levels["payloads"], levels["waiting"], levels["connections"]) == (1, 0, 0)
    waited = [row for row in rows(journal, "p_histograms") if row["name"] == "wait_s"]
    assert [sum(row["counts"]) for row in waited] == [1]
    files = [path for path in journal.rglob("*") if path.is_file()]
    everything = b"\n".join([*records, *(path.read_bytes() for path in files)])
    for secret in (ALICE, BOB, CHANNEL, b"a payload that stays"):
        for raw in (secret, hashlib.md5(secret, usedforsecurity=False).digest()):
            for form in (raw, raw.hex().encode(), base64.b64encode(raw).rstrip(b"=")):
                assert form not in everything
