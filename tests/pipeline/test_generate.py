"""The generator writes what the journal's writers write, the same for a seed, and it adds up."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from blindpost.cli.main import app
from blindpost.journal import arrow
from blindpost.journal.compaction import compact
from blindpost.journal.folder import DAY_S
from blindpost.journal.schema import ALL_TABLES, P_COUNTERS, TABLES
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.generate.canary import PAIRS_MOST, Canary
from blindpost.pipeline.generate.faults import choose
from blindpost.pipeline.generate.fleet import JOURNAL, LATE, TRUTH, generate
from blindpost.pipeline.generate.plan import Plan, boots, curve, minutes, start_s
from blindpost.serving.failures import OperatorError

PLAN = Plan(routers=2, days=2, scale=0.003, seed=5)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "fleet"
    generate(PLAN, folder, lambda done, total: None, spoiled=False)
    return folder


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((folder / JOURNAL / TABLES[name].tier.value / name).glob("date=*/*.parquet")):
        found += pq.ParquetFile(path).read().to_pylist()
    return found


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_same_seed_makes_the_same_files(tmp_path: Path) -> None:
    small = Plan(routers=2, days=1, scale=0.001, seed=5)
    for name, plan in (("one", small), ("two", small), ("other", Plan(2, 1, 0.001, 6))):
        generate(plan, tmp_path / name, lambda done, total: None, late=1)
    first, second, other = (digests(tmp_path / name) for name in ("one", "two", "other"))
    assert first == second
    assert not set(first.values()) & set(other.values()) - {sha256(b"").hexdigest(), *_foreign(first)}


def _foreign(found: dict[str, str]) -> list[str]:
    """The text file among the bad ones is always the same."""
    return [digest for path, digest in found.items() if "x-foreign" in path]


def test_every_table_is_there_and_every_file_is_one_of_the_journals(made: Path) -> None:
    seen = set()
    for path in (made / JOURNAL).rglob("*.parquet"):
        sealed = arrow.look(path)
        read = pq.ParquetFile(path).read()
        assert read.schema.remove_metadata().equals(arrow.schema_of(sealed.table).remove_metadata())
        assert path.relative_to(made / JOURNAL).parts[:2] == (sealed.table.tier.value, sealed.table.name)
        unit = DAY_S * (1_000_000 if sealed.table.time.endswith("_us") else 1)
        day = date.fromisoformat(path.parent.name.removeprefix("date="))
        assert {sealed.first // unit, sealed.last // unit} == {start_s(day) // DAY_S}
        seen.add(sealed.table)
    assert seen == set(ALL_TABLES)


def test_the_journals_own_compaction_takes_the_files(made: Path, tmp_path: Path) -> None:
    """Two halves of a generated file become one again, with the same rows."""
    whole = next((made / JOURNAL / "P" / "p_counters").rglob("smp-02*.parquet"))
    folder = tmp_path / "P" / "p_counters" / whole.parent.name
    folder.mkdir(parents=True)
    read = pq.ParquetFile(whole).read()
    stem = whole.name.rsplit("-", 2)[0]
    for place, part in enumerate((read.slice(0, 1000), read.slice(1000))):
        arrow.seal(folder / f"{stem}-{place:012d}-{place + 1:012d}.parquet", P_COUNTERS, part)
    assert compact(tmp_path, P_COUNTERS, 4e9, set()) == 2
    (merged,) = folder.glob("*.parquet")
    assert pq.ParquetFile(merged).read().to_pylist() == read.sort_by("seq").to_pylist()


@pytest.mark.parametrize("name", [table.name for table in ALL_TABLES])
def test_values_are_legal_and_keys_are_unique(made: Path, name: str) -> None:
    found, table = rows(made, name), TABLES[name]
    keys = {tuple(row[column] for column in table.key) for row in found}
    assert len(keys) == len(found)
    for column in table.columns:
        values = {row[column.name] for row in found} if column.values else set()
        assert values - {None} <= set(column.values)
        assert column.nullable or all(row[column.name] is not None for row in found)


def test_records_of_a_boot_have_no_gaps(made: Path) -> None:
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in rows(made, "p_gauges"):
        seen[row["router"], row["boot"]].add(row["seq"])
    assert all(found == set(range(len(found))) for found in seen.values())
    starts = {(row["router"], row["boot"]) for row in rows(made, "p_boots")}
    assert starts == seen.keys()
    numbers = [row["seq"] for row in rows(made, "l_messages")]
    assert sorted(numbers) == list(range(len(numbers)))


def test_messages_in_minus_messages_out_is_the_backlog(made: Path) -> None:
    signs = {
        "msgSent": 1,
        "msgMarkers": 1,
        "msgRecv": -1,
        "msgExpired": -1,
        "msgDeleted": -1,
        "msgMarkersGone": -1,
    }
    grown: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows(made, "p_counters"):
        grown[row["router"]][row["minute_s"]] += signs.get(row["name"], 0) * row["value"]
    levels: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows(made, "p_gauges"):
        if row["name"] == "messages":
            levels[row["router"]].append((row["minute_s"], row["value"]))
    for router in PLAN.smp:
        (_, level), *later = sorted(levels[router])
        assert level >= 0
        for minute, value in later:
            level += grown[router][minute]
            assert value == level >= 0


def test_the_sums_of_a_day_are_those_of_its_minutes(made: Path) -> None:
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for row in rows(made, "p_counters"):
        day_s = row["minute_s"] // DAY_S * DAY_S
        sums[row["router"], row["boot"], str(day_s), row["name"]] += row["value"]
    kept = {
        (row["router"], row["boot"], str(row["day_s"]), row["name"]): row["value"]
        for row in rows(made, "p_day")
        if row["kind"] == "counter"
    }
    assert kept == sums


def test_bad_and_late_files_are_listed(tmp_path: Path) -> None:
    truth = generate(Plan(2, 1, 0.001), tmp_path / "x", lambda done, total: None, late=2)
    files = truth["files"]
    assert len(files["late"]) == 2
    for path in files["late"]:
        assert (tmp_path / "x" / LATE / path).exists()
        assert not (tmp_path / "x" / JOURNAL / path).exists()
    for path in [*files["quarantined"], *files["repeated"]]:
        assert (tmp_path / "x" / JOURNAL / path).exists()
    assert json.loads((tmp_path / "x" / TRUTH).read_text())["written"] == truth["written"]


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    generate(Plan(2, 1, 0.001), tmp_path / "x", lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(seen), len(seen))


def test_a_folder_that_is_in_use_and_a_fleet_of_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(PipelineError, match="not empty"):
        generate(PLAN, tmp_path, lambda done, total: None)
    with pytest.raises(PipelineError, match="at least 2 routers"):
        generate(Plan(routers=1), tmp_path / "new", lambda done, total: None)


def test_the_command(tmp_path: Path) -> None:
    arguments = [
        "pipeline",
        "generate",
        str(tmp_path / "x"),
        "--routers",
        "2",
        "--days",
        "1",
        "--scale",
        "0.001",
    ]
    done = CliRunner().invoke(app, [*arguments, "--from", "2031-05-01", "--clean"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "truth.json" in done.output.replace("\n", "")
    assert {path.name for path in (tmp_path / "x" / JOURNAL).rglob("date=*")} == {"date=2031-05-01"}
    for day in ("0001-01-01", "9999-12-31"):
        done = CliRunner().invoke(app, [*arguments, "--from", day])
        assert isinstance(done.exception, OperatorError)
        assert str(done.exception) == f"--from {day}: a day of the years 2000 to 2100 expected."


def test_faults_are_on_one_day_whatever_the_size_of_the_fleet() -> None:
    for plan in (Plan(2, 1), Plan(2, 2), Plan(20, 30)):
        faults = choose(plan)
        day_s = start_s(faults.day)
        for span in (faults.storm, faults.quota, faults.expiry, faults.flapping, faults.backlog, faults.slow):
            assert day_s <= span.first_s < span.end_s <= day_s + DAY_S
    assert choose(Plan(seed=1)) != choose(Plan(seed=2))


def test_a_restart_begins_a_new_boot_after_two_minutes() -> None:
    at = start_s(PLAN.first) + 7200
    first, second = boots(PLAN, "smp-01", "smp", (at,))[:2]
    assert (second.first_s, first.end_s) == (at, at - 120)
    there = minutes([first, second], PLAN.first)
    assert (~there.up).nonzero()[0].tolist()[:2] == [118, 119]
    assert there.seq[[0, 117, 120, 121]].tolist() == [0, 117, 0, 1]


def test_nights_and_weekends_are_quiet() -> None:
    monday, sunday = curve(0.0, date(2026, 1, 5)), curve(0.0, date(2026, 1, 4))
    assert monday[0] < monday.mean() < monday[720]
    assert np.allclose(sunday, 0.8 * monday)
    assert (monday > 0).all()


def test_a_canary_of_a_large_fleet_measures_every_router_but_not_every_pair() -> None:
    plan = Plan(400, 1)
    faults = choose(plan)
    pairs = Canary(plan, faults).pairs
    assert len(set(pairs)) == len(pairs) <= PAIRS_MOST + 3
    assert {one for pair in pairs for one in pair} == set(plan.smp)
    for fault in (faults.slow, faults.lost, faults.duplicate):
        assert (fault.from_router, fault.to_router) in pairs
    assert len(Canary(Plan(3, 1), choose(Plan(3, 1))).pairs) == 9
