"""Every command of docs/pipeline.md, typed in its order over a small fleet, and `make pipeline`."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from blindpost.demo.report import commands
from blindpost.pipeline import session
from tests.support.docs.executed import Place, commands_at
from tests.support.docs.typing_reader import Reader

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def reader(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Reader]:
    @contextlib.contextmanager
    def shared(_options: Any = None) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "spark_session", shared)
    with Reader(tmp_path) as reader:
        yield reader


def test_every_command_works(reader: Reader) -> None:
    """The fleet has a drifted service and an import that lost a message; two commands report them."""
    today = datetime.now(UTC).date()
    reader.replace(
        ("--routers 3 --days 2 --scale 0.02", "--routers 2 --days 1 --scale 0.001"),
        ("2031-05-01", (today - timedelta(days=1)).isoformat()),
        ("pipeline publish", f"pipeline publish --as-of {today + timedelta(days=1)}"),
        (" --every 60", ""),
        ("pipeline run", "pipeline run --table delivery_slo --table daily_statistics"),
        ("pipeline bench", "pipeline bench --rows 2e2 --job meters --repeat 1"),
    )
    (reader.folder / "journal").symlink_to("try/journal")
    differ = ("blindpost pipeline audit", "blindpost pipeline verify-migration")
    for text in dict.fromkeys(command.text for command in commands_at(Place.ON_SPARK)):
        reader.type(text, 1 if text.startswith(differ) else 0)
    assert (reader.folder / "commands.jsonl").read_text()
    assert "messages_sent" in (reader.folder / "numbers.csv").read_text()
    assert (reader.folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (reader.folder / "build" / "pipeline" / "report.html").exists()


def test_the_demonstration_runs_the_same_commands(reader: Reader) -> None:
    """The commands at its end, on another journal and one table."""
    folder = reader.folder
    places = (folder / "fleet" / "journal", folder / "lake", folder / "report.html")
    seal, compute = commands(*places, ["delivery_slo"])
    (places[0] / "segments").mkdir(parents=True)
    reader.type(shlex.join(["blindpost", *seal]))
    shutil.rmtree(folder / "fleet")  # which is sealed, and so old that it would be deleted
    reader.type("blindpost pipeline generate fleet --routers 2 --days 1 --scale 0.001")
    reader.type(shlex.join(["blindpost", *compute]))
    assert places[2].read_text().startswith("<!DOCTYPE html>")
