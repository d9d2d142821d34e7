"""The commands, with the Spark of the tests: what they print and write, and their exit codes."""

from __future__ import annotations

import base64
import contextlib
import csv
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from blindpost.cli import pipeline_ask, pipeline_audit
from blindpost.cli.pipeline import _follow, app, tell
from blindpost.pipeline import session
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.follow import follow
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import Days, Summary
from blindpost.serving.failures import OperatorError
from tests.support.pipeline import journals, oracles
from tests.support.pipeline.lakes import AS_OF, Journal, Row, seal_journal

pytestmark = pytest.mark.timeout(900)
if "audit" not in {command.callback.__name__ for command in app.registered_commands if command.callback}:
    pipeline_audit.add_to(app)
    pipeline_ask.add_to(app)


@pytest.fixture(autouse=True)
def _shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def shared(_options: Any = None) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "spark_session", shared)


def _invoke(*arguments: str, ends: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == ends, result.output
    return result.output


def _places(tmp_path: Path, journal: Journal) -> tuple[str, ...]:
    seal_journal(tmp_path / "journal", journal, random.Random(1))
    return "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "lake")


THEN = ("--as-of", AS_OF)


def test_audit_finds_the_drift_and_writes_what_repairs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.state(random.Random(10), routers=1, days=1)
    places = _places(tmp_path, journal)
    repairs = tmp_path / "repairs"
    repairs.touch(0o644)
    rows = [
        json.loads(line)
        for line in _invoke("audit", *places, "--json", "--repairs", str(repairs), *THEN, ends=1).splitlines()
    ]
    wanted = oracles.service_drift(journal)
    assert sorted(row["verdict"] for row in rows) == sorted(row["verdict"] for row in wanted)
    commands = [json.loads(line) for line in repairs.read_text().splitlines()]
    queues = [row for row in oracles.drift_queues(journal) if row["repair"] in ("SUB", "NSUB")]
    assert queues
    assert sorted((row["command"], base64.urlsafe_b64decode(row["queue_id"])) for row in commands) == sorted(
        (row["repair"], row["queue_id"]) for row in queues
    )
    assert repairs.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "lake" / "zone").stat().st_mode & 0o777 == 0o700
    exported = tmp_path / "queues.csv"
    exported.touch(0o644)
    _invoke("export", "service_drift_queues", "--file", str(exported), *places[2:])
    assert exported.stat().st_mode & 0o777 == 0o600
    with monkeypatch.context() as patched:
        patched.setattr(Lake, "zone_is_closed", True)  # as for anybody else
        shown = _invoke("sql", "SHOW TABLES", *places[2:], "--json")
    assert "service_drift" in shown
    assert "service_drift_queues" not in shown
    shown = _invoke(
        "sql", "SELECT verdict, count(*) AS n FROM service_drift GROUP BY 1", *places[2:], "--json"
    )
    assert sum(json.loads(line)["n"] for line in shown.splitlines()) == len(wanted)
    row = queues[0]
    cells = str(tmp_path / "cells")
    of = (
        "--router",
        row["router"],
        "--role",
        row["role"],
        "--service",
        base64.urlsafe_b64encode(row["service_id"]).decode(),
    )
    _invoke("cells", cells, *of, "--side", "router", *places, *THEN)
    unknown = ("cells", str(tmp_path / "empty"), *of[:4], "--service", "AAAA", "--side", "router")
    assert "has no queues of this service as" in _invoke(*unknown, *places, *THEN)
    found = json.loads(
        _invoke("cells", cells, *of, "--side", "subscriber", "--compare", "--json", *places, *THEN)
    )
    here = {
        one["queue_id"]
        for one in oracles.drift_queues(journal)
        if (one["service_id"], one["role"]) == (row["service_id"], row["role"])
        and one["problem"] != "unclaimed"
    }
    assert {base64.urlsafe_b64decode(queue) for queue in found["only_here"]} == here


def test_nothing_to_compare_is_no_agreement(tmp_path: Path) -> None:
    places = _places(tmp_path, journals.messages(random.Random(2), count=5, days=1))
    for command in ("audit", "verify-migration"):
        with pytest.raises(OperatorError, match="Nothing was compared"):
            _invoke(command, *places, *THEN)


def test_a_migration_is_verified(tmp_path: Path) -> None:
    journal = journals.migrations(random.Random(6), routers=2)
    wrong = [row for row in oracles.migration_proof(journal) if row["verdict"] != "equal"]
    assert wrong
    lines = _invoke("verify-migration", *_places(tmp_path, journal), "--json", *THEN, ends=1).splitlines()
    assert sum(json.loads(line)["verdict"] != "equal" for line in lines) == len(wrong)


def _in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["hour_s"], row["role"], row["from_router"], row["to_router"]))


def _fleet(folder: Path, *expected: str) -> Path:
    file = folder / "pipeline.toml"
    file.write_text(f"[fleet]\nexpected = {json.dumps(expected)}\n")
    return file


def test_tables_are_checked_exported_and_traced(tmp_path: Path) -> None:
    """On one small table: verdicts with an exit code, rows for other programs, and the files behind them."""
    journal = journals.messages(random.Random(2), count=60, days=1)
    places = _places(tmp_path, journal)
    out, table = places[2:], "delivery_slo"
    told = json.loads(_invoke("run", *places, "--table", table, "--json", *THEN))
    assert (told["failed"], told["computed"][table][0]) == ({}, "2025-01-30")
    state = json.loads(_invoke("check", *out, "--json", *THEN, ends=1))
    assert state["state"] == "watch"  # canaries' messages came twice
    assert {one["key"]: one["state"] for one in state["verdicts"]}["backlog"] == "no data"
    assert _invoke("check", *out, *THEN, ends=1).startswith("watch")
    silent = _invoke("check", *out, "--config", str(_fleet(tmp_path, "smp-1")), *THEN, ends=2)
    assert "xpected and not heard of: smp-1" in silent
    for suffix in ("csv", "json"):
        _invoke("export", table, "--file", str(tmp_path / f"x.{suffix}"), *out)
    rows = [json.loads(line) for line in (tmp_path / "x.json").read_text().splitlines()]
    with (tmp_path / "x.csv").open() as file:
        assert [row["sent"] for row in csv.DictReader(file)] == [str(row["sent"]) for row in rows]
    assert [row["sent"] for row in rows] == [row["sent"] for row in _in_order(oracles.delivery_slo(journal))]
    lines = _invoke("lineage", table, "2025-01-30", *out, "--json").splitlines()
    files = {
        str(path.relative_to(tmp_path / "journal")) for path in (tmp_path / "journal").rglob("*.parquet")
    }
    assert {json.loads(line)["file"] for line in lines} == files
    shown = _invoke("lineage", table, "2025-01-30", *out)
    assert max(map(len, shown.splitlines())) <= 80 + 20  # a hash and a path on lines of their own
    assert shown.count("row ") == len(files)
    with pytest.raises(OperatorError, match=r"ends in \.csv or \.json"):
        _invoke("export", table, "--file", str(tmp_path / "x.xls"), *out)
    with pytest.raises(OperatorError, match="nothing is published for these days"):
        _invoke("export", table, "--file", str(tmp_path / "y.csv"), "--day", "2020-01-01", *out)
    assert not (tmp_path / "y.csv").exists()
    page = tmp_path / "day.html"
    told = _invoke("run", *places, "--day", "2025-01-30", "--table", table, "--report", str(page), *THEN)
    assert "about 2025-01-30 to 2025-01-30." in told


def test_a_missing_master_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    began = time.monotonic()
    with pytest.raises(OperatorError, match="no Spark master is there"):
        CliRunner().invoke(
            app, ["sql", "SELECT 1", "--master", "spark://127.0.0.1:1"], catch_exceptions=False
        )
    assert time.monotonic() - began < 60


def test_answers_of_any_kind_are_shown_whole(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path))
    statement = (
        "SELECT 1.5 AS part, CAST(7 AS DECIMAL(38, 0)) AS whole, double('nan') AS strange, x'00ff' AS bytes, "
        "INTERVAL '1' DAY AS while, map(1, DATE'2026-01-02') AS by_day, '[/x] [red]' AS text, '' AS nothing, "
        "struct(1 AS a, array(2.5) AS b) AS both"
    )
    assert json.loads(CliRunner().invoke(app, ["sql", statement, *out, "--json"]).stdout) == {
        "part": 1.5,
        "whole": 7,
        "strange": "nan",
        "bytes": "00ff",
        "while": "1 day, 0:00:00",
        "by_day": {"1": "2026-01-02"},
        "both": {"a": 1, "b": [2.5]},
        "text": "[/x] [red]",
        "nothing": "",
    }
    assert "[/x] [red]" in _invoke("sql", "SELECT '[/x] [red]' AS `[b]`", *out)
    with pytest.raises(OperatorError, match="two columns are called day: name them apart with AS"):
        CliRunner().invoke(app, ["sql", "SELECT 1 AS day, 2 AS day", *out], catch_exceptions=False)

    def counted(*more: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["sql", "SELECT id FROM range(1002)", *out, "--json", *more])
        return len(done.stdout.splitlines()), done.stderr

    nothing = f"{tmp_path}: nothing is published here yet. Run `blindpost pipeline run` first.\n"
    assert counted() == (1000, f"{nothing}Only the first 1,000 rows are shown. --limit 0 shows all.\n")
    assert counted("--limit", "1002") == counted("--limit", "0") == (1002, nothing)
    piped = CliRunner().invoke(app, ["sql", *out, "--json"], input="SELECT nonsense;\nSELECT 3 AS three;\n")
    assert piped.exit_code == 1
    assert piped.stdout == '{"three": 3}\n'


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("the last one")

    def interrupted() -> None:
        with pipeline_ask._whole(file, 0o600) as written:
            written.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_text() == "the last one"
    assert list(tmp_path.iterdir()) == [file]


def test_every_table_is_in_the_catalogue() -> None:
    text = _invoke("catalogue")
    for name, dataset in datasets().items():
        assert f"### {name}\n" in text
        assert all((dataset.title, dataset.where, dataset.size, dataset.why_spark))
        assert all(column.metadata.get("comment") for column in dataset.schema.fields), name
        assert dataset.schema.names[0] == "day"
        assert {*dataset.key} <= {*dataset.schema.names}


def test_an_audit_without_its_tables_says_so_instead_of_comparing_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = Summary(failed={"s_queues": "one export is strange"})
    asked: list[bool] = []

    def run(*_: object, erases: bool = True) -> Summary:
        asked.append(erases)
        return failed

    monkeypatch.setattr("blindpost.pipeline.runner.run", run)
    with pytest.raises(OperatorError, match=r"Nothing was compared.*s_queues: one export is strange"):
        pipeline_audit._computed(cast(Lake, None), ["service_drift"], Days())
    assert asked == [False], "who only looks erases nothing"


def test_a_follower_goes_on_when_another_command_holds_the_lake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[bool] = []
    lake = cast(Lake, SimpleNamespace(out="lake"))

    def followed(*_: object, again: bool) -> list[Summary]:
        asked.append(again)
        if len(asked) == 2:
            raise PipelineError("lake: another run is writing there.")
        return [Summary()]

    def sleep(_seconds: float) -> None:
        if len(asked) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("blindpost.pipeline.follow.follow", followed)
    monkeypatch.setattr("time.sleep", sleep)
    _follow(lake, [], 60.0, None, as_json=False)
    assert asked == [True, False, True, False], "what failed is tried again"
    assert "another run is writing there" in capsys.readouterr().err
    asked[:] = [True]
    with pytest.raises(OperatorError, match="another run"):
        _follow(lake, [], None, None, as_json=False)


@pytest.mark.parametrize(
    ("summary", "told"),
    [
        (Summary(), False),
        (Summary(computed={"a": ["2031-05-01"]}), True),
        (Summary(erased={"a": ["2031-05-01"]}), True),
        (Summary(failed={"a": "why"}), True),
        (Summary(unfinished={"a": "why"}), True),
    ],
)
def test_a_follower_through_spark_connect_tells_all_but_that_nothing_was_new(
    monkeypatch: pytest.MonkeyPatch, summary: Summary, told: bool
) -> None:
    monkeypatch.setattr("blindpost.pipeline.follow.is_remote", lambda _spark: True)
    monkeypatch.setattr("blindpost.pipeline.follow.run", lambda *_: summary)
    assert follow(cast(Lake, SimpleNamespace(spark=None)), []) == ([summary] if told else [])


def test_what_was_erased_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    tell(Summary(erased={"s_queues": ["2031-05-01", "2031-05-02"]}), as_json=False)
    assert capsys.readouterr().out == "s_queues: erased 2 days up to 2031-05-02, past their retention\n"


def test_options_that_make_no_sense_are_refused() -> None:
    for arguments in (
        ["sql", "SELECT 1", "--set", "spark.driver.memory"],
        ["cells", "x", "--router", "a", "--service", "not base64", "--side", "router"],
        ["run", "--table", "nothing"],
        ["run", "--follow", "--day", "2031-01-01"],
        ["run", "--every", "5"],
    ):
        with pytest.raises(OperatorError):
            CliRunner().invoke(app, arguments, catch_exceptions=False)
    cells = ("cells", "x", "--router", "a", "--service", "AAAA")
    for wrong in (("--side", "mine"), ("--side", "router", "--role", "notifiers")):
        assert CliRunner().invoke(app, [*cells, *wrong]).exit_code == 2


def test_a_journal_without_files_and_a_range_without_days_are_told(tmp_path: Path) -> None:
    """Both looked like "everything was up to date"."""
    (tmp_path / "journal").mkdir()
    places = ("--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "lake"))
    said = _invoke("run", *places, ends=1)
    assert "No file of a server's journal is in this folder" in said
    assert "up to date" not in said
    for command in ("run", "check"):
        with pytest.raises(OperatorError, match="no day is between them"):
            _invoke(command, "--from", "2031-05-02", "--to", "2031-05-01")
