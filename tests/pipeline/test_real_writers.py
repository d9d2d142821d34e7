"""Every table against what real servers and a real canary did: over midnight, restarts, kills, a clock that
jumps and a full disk. Generated journals cannot show what writers do wrong."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import CONFLICTS, Summary, run
from tests.support.pipeline import real_fleet
from tests.support.pipeline.lakes import Row, plain
from tests.support.pipeline.real_fleet import Done, SetClock
from tests.support.pipeline.real_servers import OWN_MESSAGES
from tests.support.serving.commands import ENVIRONMENT

pytestmark = pytest.mark.timeout(600)
TABLES = (
    "canary_integrity",
    "canary_faults",
    "delivery_slo",
    "daily_statistics",
    "router_backlog",
    "notification_funnel",
    "notification_canaries",
    "delivery_service",
    "delivery_lab",
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte, where one can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1048576", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Tables:
    """Published rows, and sums of them over all days."""

    def __init__(self, lake: Lake, summary: Summary) -> None:
        self.rows: dict[str, list[Row]] = {
            name: plain(lake.gold(datasets()[name]).collect()) for name in TABLES
        }
        self.summary = summary

    def total(self, table: str, column: str, router: str | None = None) -> int:
        rows = self.rows[table]
        return sum(row[column] for row in rows if router is None or row["router"] == router)


def test_tables_say_what_the_parties_did(
    spark: SparkSession, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock(tmp_path / "clock")
    for name, value in clock.environment().items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(time, "time", clock.now)  # certificates must be valid on both sides
    done = asyncio.run(real_fleet.live(tmp_path, disk, clock))
    journal = real_fleet.sealed(done, tmp_path / "all", clock.now())
    lake = Lake(spark, str(journal), str(tmp_path / "lake"), clock=clock.now)
    tables = Tables(lake, run(lake, [datasets()[name] for name in TABLES]))
    assert (tables.summary.failed, tables.summary.set_aside) == ({}, [])
    assert not [rule for _, _, rule in tables.summary.broken if rule == CONFLICTS]
    _messages(tables, done)
    _servers(tables, done)


def _messages(tables: Tables, done: Done) -> None:
    """Nothing was lost although routers were killed and the canary restarted over midnight."""
    for table in ("canary_integrity", "delivery_slo"):
        fates = {
            fate: tables.total(table, fate)
            for fate in ("sent", "delivered", "refused", "lost", "pending", "duplicates")
        }
        told = {name: sum(life[name] for life in done.canary) for name in ("sent", "delivered")}
        assert fates["lost"] == fates["refused"] == fates["duplicates"] == 0, (table, fates)
        assert fates["sent"] == fates["delivered"] + fates["pending"]
        assert told["sent"] <= fates["sent"] <= told["sent"] + 12  # what it sent while it was told to stop
        assert told["delivered"] <= fates["delivered"]
        assert fates["pending"] <= 12
    assert tables.rows["canary_faults"] == []
    assert len({row["day"] for row in tables.rows["delivery_slo"]}) == 2
    longest_us = [row["deliver_max_us"] for row in tables.rows["delivery_slo"] if row["deliver_max_us"]]
    assert max(longest_us) < 30 * 60_000_000  # of those that waited for the next process


def _servers(tables: Tables, done: Done) -> None:
    for counter in ("msgSent", "msgRecv", "qCreated"):
        assert tables.total("daily_statistics", counter, "one") == done.routers["one"][counter]
        assert tables.total("daily_statistics", counter, "two") <= done.routers["two"][counter]
    assert len([row for row in tables.rows["daily_statistics"] if row["router"] == "one"]) == 2
    ntf = done.told["ntf"].all["counters"]
    assert tables.total("notification_funnel", "received") == ntf["notifications_received"]
    assert tables.total("notification_funnel", "ended") == ntf["notifications_received"]
    assert tables.total("notification_canaries", "received") == OWN_MESSAGES
    for wrong in ("unfinished", "ended_twice", "out_of_order"):
        assert tables.total("notification_canaries", wrong) == 0
    ds = done.told["ds"]
    assert b"the journal cannot be written" in ds.log
    for counter in ("enqueued", "handed_out", "finished", "acknowledged", "waits"):
        assert tables.total("delivery_service", counter) == ds.all["counters"][counter], counter
