"""A generated fleet and a real server of each kind, run through the pipeline once for all who look at it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from blindpost.journal.seal import seal_folder
from blindpost.pipeline.dataset import Dataset, datasets
from blindpost.pipeline.generate.fleet import JOURNAL, LATE, TRUTH, generate
from blindpost.pipeline.generate.plan import Plan
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.report.build import build
from blindpost.pipeline.report.facts import gather
from blindpost.pipeline.runner import run
from tests.support.journal.lives import Lives, with_journal
from tests.support.pipeline import real_servers
from tests.support.pipeline.lakes import LASTING, Row, plain
from tests.support.pipeline.real_servers import Told, delivered, notified
from tests.support.serving.commands import StartedRouter
from tests.support.serving.commands import run as command

PLAN = Plan(routers=3, days=1, scale=0.004, seed=7)
BEFORE = "daily_statistics"
"""What is computed before the late files come."""
REAL = "smp-1"
"""The name of the router that really ran; those of the fleet have two digits."""
REALS = (REAL, real_servers.NTF, real_servers.DS)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The folders of a fleet and of what was made of its journal, and the truth about it."""

    folder: Path
    truth: dict[str, Any]

    @property
    def journal(self) -> Path:
        return self.folder / JOURNAL

    @property
    def out(self) -> Path:
        return self.folder / "lake"

    @property
    def report(self) -> str:
        return (self.folder / "report.html").read_text()

    @property
    def faults(self) -> dict[str, Any]:
        found: dict[str, Any] = self.truth["faults"]
        return found

    @property
    def before(self) -> int:
        """How many messages had been sent before the late files came."""
        return int((self.folder / "before").read_text())

    @property
    def real(self) -> dict[str, Any]:
        """The real servers' counters when they stopped, and every id that took part."""
        found: dict[str, Any] = json.loads((self.folder / "real.json").read_text())
        return found

    def rows(self, spark: SparkSession, name: str) -> list[Row]:
        """The published rows of the fleet, without those of real servers."""
        found = plain(self.lake(spark).gold(dataset(name)).collect())
        return [row for row in found if row.get("router") not in REALS]

    def real_rows(self, spark: SparkSession, name: str, router: str) -> list[Row]:
        """The rows of a real server, of whatever days it ran on."""
        table = dataset(name)
        lake = self.lake(spark)
        frames = {given.table: lake.silver(given.table) for given in table.inputs}
        frames |= {sums.name: lake.summed(sums) for sums in table.sums}
        return plain(table.computed(frames).where(f"router = '{router}'").collect())

    def lake(self, spark: SparkSession) -> Lake:
        return Lake(spark, str(self.journal), str(self.out), settings=LASTING)


def dataset(name: str) -> Dataset:
    return datasets()[name]


def the_fleet(spark: SparkSession, temporary: pytest.TempPathFactory) -> Fleet:
    """One for all tests, also where several processes run them: the first that asks makes it, others wait."""
    base = temporary.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fleet"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "fleet"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _make(made, spark)
            (folder / "done").touch()
    return Fleet(made, json.loads((made / TRUTH).read_text()))


def _make(folder: Path, spark: SparkSession) -> None:
    generate(PLAN, folder, lambda done, total: None, late=4)
    asyncio.run(_real_servers(folder))
    fleet = Fleet(folder, json.loads((folder / TRUTH).read_text()))
    lake = fleet.lake(spark)
    run(lake, [dataset(BEFORE)])
    (folder / "before").write_text(str(sum(row["msgSent"] for row in fleet.rows(spark, BEFORE))))
    for late in fleet.truth["files"]["late"]:
        (folder / LATE / late).rename(fleet.journal / late)
    run(lake, list(datasets().values()))
    page = build(gather(lake, PLAN.first, date(2100, 1, 1), 4_000_000_000))
    (folder / "report.html").write_text(page)


async def _real_servers(folder: Path) -> None:
    """A router that lived and exported its state, and servers of the other kinds, write into the journal."""
    lived = Lives(folder / "router")
    with_journal(lived.folder)
    told: dict[str, Told] = {}

    async def others(router: StartedRouter) -> None:
        told["ntf"] = await notified(folder / "ntf", router)
        told["ds"] = await delivered(folder / "ds")

    await lived.live(others)
    exported = folder / "state"  # not where the fleet's are: an export deletes old ones
    await asyncio.to_thread(command, "router", "export-state", exported, "-c", lived.folder)
    seal_folder(lived.journal)
    for journal in (exported, lived.journal, *(found.journal for found in told.values())):
        for path in journal.glob("[PSL]/*/date=*/*.parquet"):
            target = folder / JOURNAL / path.relative_to(journal)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    counters = json.loads((lived.folder / "counters.json").read_text())["counts"]
    secrets = [*lived.secrets, *(secret for found in told.values() for secret in found.secrets)]
    real = {
        "counters": counters,
        "secrets": [secret.hex() for secret in secrets],
        **{name: {"own": found.own, "all": found.all} for name, found in told.items()},
    }
    (folder / "real.json").write_text(json.dumps(real))
