"""A generated fleet and a real router, run through the whole pipeline once for all tests that look at it."""

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
from tests.cli.test_journal import Lives, with_journal
from tests.support.commands import run as command
from tests.support.lakes import Row, plain

PLAN = Plan(routers=3, days=1, scale=0.004, seed=7)
BEFORE = "daily_statistics"
"""What is computed before the late files come."""
REAL = "smp-1"
"""The name of the router that really ran; those of the fleet have two digits."""


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
        """The real router's counters when it stopped, and every id that took part."""
        found: dict[str, Any] = json.loads((self.folder / "real.json").read_text())
        return found

    def rows(self, spark: SparkSession, name: str) -> list[Row]:
        """The published rows of the fleet, without those of the real router."""
        found = plain(self.lake(spark).gold(dataset(name)).collect())
        return [row for row in found if row.get("router") != REAL]

    def lake(self, spark: SparkSession) -> Lake:
        return Lake(spark, str(self.journal), str(self.out))


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
    _real_router(folder)
    fleet = Fleet(folder, json.loads((folder / TRUTH).read_text()))
    lake = fleet.lake(spark)
    run(lake, [dataset(BEFORE)])
    (folder / "before").write_text(str(sum(row["msgSent"] for row in fleet.rows(spark, BEFORE))))
    for late in fleet.truth["files"]["late"]:
        (folder / LATE / late).rename(fleet.journal / late)
    run(lake, list(datasets().values()))
    page = build(gather(lake, PLAN.first, date(2100, 1, 1), 4_000_000_000))
    (folder / "report.html").write_text(page)


def _real_router(folder: Path) -> None:
    """A router that lived, and exported its state, writes into the same journal."""
    lived = Lives(folder / "router")
    with_journal(lived.folder)
    asyncio.run(lived.live())
    command("router", "export-state", folder / JOURNAL, "-c", lived.folder)
    seal_folder(lived.journal)
    for path in lived.journal.glob("P/*/date=*/*.parquet"):
        target = folder / JOURNAL / path.relative_to(lived.journal)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    counters = json.loads((lived.folder / "counters.json").read_text())["counts"]
    secrets = [secret.hex() for secret in lived.secrets]
    (folder / "real.json").write_text(json.dumps({"counters": counters, "secrets": secrets}))
