"""Expired data is in no byte of the lake; what was computed from it stays. And a canary that dies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import datasketches
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from blindpost.journal.author import Author
from blindpost.journal.folder import DAY_S, date_of
from blindpost.journal.minutes import MinuteJournal, Reading, Sketch
from blindpost.journal.schema import L_MESSAGES, TABLES
from blindpost.journal.seal import Rules, seal_folder
from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import run
from blindpost.pipeline.settings import Keep, Settings, read_settings
from tests.support.pipeline import journals
from tests.support.pipeline.lakes import LASTING, Row, plain, seal_journal, seal_rows

pytestmark = pytest.mark.timeout(300)
DRIFT = [datasets()[name] for name in ("service_drift", "service_drift_queues")]
START = datetime.fromtimestamp(journals.FIRST_S, UTC)


def _contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file of a folder: its bytes, and if it is Parquet every value in it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            yield path, content
            if content.startswith(b"PAR1"):
                for column in pq.ParquetFile(path).read().columns:
                    yield (
                        path,
                        b"".join(
                            value if isinstance(value, bytes) else str(value).encode()
                            for value in column.to_pylist()
                        ),
                    )


def _holding(folder: Path, secrets: set[bytes]) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path, content in _contents(folder)
        if any(secret in content for secret in secrets)
    }


def test_no_byte_of_an_expired_queue_id_is_in_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(3)
    state = journals.state(rng, routers=2, days=1, queues=20)
    seal_journal(tmp_path / "journal", state, rng)
    ids = {row["queue_id"] for row in state["s_queues"]}
    now = [START + timedelta(days=2)]
    lake = Lake(spark, str(tmp_path / "journal"), str(tmp_path / "lake"), clock=lambda: now[0].timestamp())
    run(lake, DRIFT)
    before = plain(lake.gold(DRIFT[0]).collect())
    differing = {row["queue_id"] for row in plain(lake.gold(DRIFT[1]).collect())}
    assert before
    assert differing
    late = state["s_queues"][:1]  # the same rows in a second version
    seal_rows(tmp_path / "journal" / "S" / "s_queues" / "late.parquet", TABLES["s_queues"], late)
    run(lake, DRIFT)
    held = _holding(tmp_path / "lake", ids)
    assert {place.split("/")[1] for place in held} == {"versions", "results"}
    published = plain(lake.gold(DRIFT[0]).collect())

    now[0] += timedelta(days=8)
    summary = run(lake, DRIFT)
    assert {"s_queues", "s_service_claims", "s_snapshot", "service_drift_queues"} == set(summary.erased)
    assert _holding(tmp_path / "lake", ids) == set()
    assert plain(lake.gold(DRIFT[0]).collect()) == published  # sums stay as they were
    assert plain(lake.gold(DRIFT[1]).collect()) == []
    again = run(lake, DRIFT)  # the journal still has the files: they are not taken up again
    assert (again.computed, again.erased) == ({}, {})
    assert _holding(tmp_path / "lake", ids) == set()


def test_a_run_killed_while_erasing_is_completed(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(4)
    state = journals.state(rng, routers=2, days=1, queues=10)
    seal_journal(tmp_path / "journal", state, rng)
    lake = Lake(
        spark,
        str(tmp_path / "journal"),
        str(tmp_path / "lake"),
        clock=(START + timedelta(days=2)).timestamp,
    )
    run(lake, DRIFT[1:])
    store = lake.silver_store(TABLES["s_queues"])
    kept = {
        path: path.read_bytes() for path, _ in _contents(tmp_path / "lake" / "zone" / "versions" / "silver")
    }
    store.erase("2100-01-01")
    for path, content in kept.items():  # as if it had been killed before it removed anything
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert store.erase("2100-01-01") == []
    ids = {row["queue_id"] for row in state["s_queues"]}
    assert _holding(tmp_path / "lake" / "zone" / "versions" / "silver", ids) == set()


def _zone(spark: SparkSession, tmp_path: Path, now: list[datetime], keep: Keep | None) -> Lake:
    folders = str(tmp_path / "journal"), str(tmp_path / "lake")
    return Lake(spark, *folders, settings=Settings(keep=keep), clock=lambda: now[0].timestamp())


def test_only_a_run_erases_and_it_keeps_what_an_earlier_one_was_told_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Commands without the settings of the hourly run, and a clock that is years ahead, erase nothing."""
    rng = random.Random(3)
    seal_journal(tmp_path / "journal", journals.state(rng, routers=2, days=1, queues=20), rng)
    now = [START + timedelta(days=2)]
    told, bare = (_zone(spark, tmp_path, now, keep) for keep in (Keep(state_days=30), None))
    assert bare.keep == Keep()
    assert run(told, DRIFT).erased == {}
    rows = plain(told.gold(DRIFT[1]).collect())
    assert rows
    now[0] += timedelta(days=10)
    assert run(bare, DRIFT).erased == {}, "it keeps them for thirty days, as it was told"
    assert bare.keep == Keep(state_days=30)
    looking = _zone(spark, tmp_path, now, Keep(state_days=1))
    assert run(looking, DRIFT[:1], erases=False).erased == {}
    assert bare.keep == Keep(state_days=30)
    now[0] += timedelta(days=4_000)
    summary = run(told, DRIFT[1:])
    assert (summary.erased, summary.computed) == ({}, {})
    day = START.date().isoformat()
    assert f"the newest record is of {day}: is the clock right?" in summary.unfinished[told.out]
    now[0] = START + timedelta(days=12)
    assert run(told, DRIFT).unfinished == {}
    assert plain(told.gold(DRIFT[1]).collect()) == rows


def test_what_was_erased_too_early_comes_back_if_all_of_it_is_still_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(3)
    seal_journal(tmp_path / "journal", journals.state(rng, routers=2, days=1, queues=20), rng)
    now = [START + timedelta(days=10)]
    long, short = (_zone(spark, tmp_path, now, Keep(state_days=days)) for days in (30, 7))
    run(long, DRIFT)
    before = [plain(long.gold(dataset).collect()) for dataset in DRIFT]
    names = {"s_queues", "s_service_claims", "s_snapshot", "service_drift_queues"}
    assert set(run(short, DRIFT).erased) == names
    assert plain(long.gold(DRIFT[1]).collect()) == []
    assert set(run(long, DRIFT).computed) == names
    assert [plain(long.gold(dataset).collect()) for dataset in DRIFT] == before
    assert run(long, DRIFT).computed == {}

    run(short, DRIFT)
    next((tmp_path / "journal" / "S" / "s_queues").iterdir()).unlink()
    assert set(run(long, DRIFT).computed) == {"s_service_claims", "s_snapshot"}
    assert plain(long.gold(DRIFT[0]).collect()) == before[0], "half of a day replaces nothing"
    assert plain(long.gold(DRIFT[1]).collect()) == []


def _event(number: int, event: str, time_us: int, seq: int) -> Row:
    row = {"router": "canary", "role": "canary", "boot": "00" * 8, "seq": seq, "time_us": time_us}
    row |= {"from_router": "a", "to_router": "b", "connection": 1, "number": number, "event": event}
    return row | {"integrity": "ok" if event == "delivered" else "", "size": 100}


def test_the_last_hour_of_a_dead_canary_is_counted_the_same_everywhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It sends a message a minute; from 23:15 nothing arrives, and at 23:59 it dies."""
    day_us = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * 10**6
    rows: list[Row] = []
    for minute in range(22 * 60, 24 * 60):
        sent_us = day_us + minute * 60_000_000
        rows.append(_event(minute, "sent", sent_us, len(rows)))
        if minute < 23 * 60 + 15:
            rows.append(_event(minute, "delivered", sent_us + 100_000, len(rows)))
    seal_rows(tmp_path / "journal" / "L" / "l_messages" / "x.parquet", L_MESSAGES, rows)
    lake = Lake(
        spark,
        str(tmp_path / "journal"),
        str(tmp_path / "lake"),
        settings=LASTING,
        clock=datetime(2026, 3, 2, 9, tzinfo=UTC).timestamp,
    )
    wanted = [datasets()[name] for name in ("canary_integrity", "delivery_slo", "canary_faults")]
    assert run(lake, wanted).failed == {}
    names = ("sent", "delivered", "refused", "lost", "pending")
    sums = [
        {name: sum(row[name] for row in plain(lake.gold(dataset).collect())) for name in names}
        for dataset in wanted[:2]
    ]
    assert sums == [{"sent": 120, "delivered": 75, "refused": 0, "lost": 0, "pending": 45}] * 2


def _minutes(root: Path, day_s: int, minutes: range, first_queue: int) -> None:
    """A server that sends a message a minute, with fifty queues in use."""
    active = datasketches.hll_sketch(12, datasketches.HLL_8)
    for number in range(first_queue, first_queue + 50):
        active.update(number)
    journal = MinuteJournal(root, Author.started("smp-1", "smp"), Reading({"msgSent": 0}, {}), day_s)
    for sent, minute in enumerate(minutes, start=1):
        sketches = [Sketch("queues", day_s, active.serialize_compact())]
        journal.record(Reading({"msgSent": sent}, {"queues": 5.0}, sketches=sketches), day_s + 60 * minute)
    journal.close()
    seal_folder(root, Rules(None, None), now=day_s + 60 * minutes.stop)


def test_days_are_computed_although_days_before_them_were_erased(spark: SparkSession, tmp_path: Path) -> None:
    """Rolling numbers look back further than minutes are kept; the sketches of days are still there."""
    now = [0]
    root, wanted = tmp_path / "journal", [datasets()["daily_statistics"]]
    keep = Settings(keep=Keep(minute_days=1))
    lake = Lake(spark, str(root), str(tmp_path / "lake"), settings=keep, clock=lambda: now[0])

    def computed(day: int, minutes: range) -> list[str]:
        _minutes(root, journals.FIRST_S + day * DAY_S, minutes, 50 * day)
        now[0] = journals.FIRST_S + day * DAY_S + 60 * minutes.stop
        return run(lake, wanted).computed.get("daily_statistics", [])

    first, third = (date_of(journals.FIRST_S + day * DAY_S) for day in (0, 2))
    assert computed(0, range(3)) == [first]
    assert computed(2, range(120, 124)) == [third]
    assert computed(2, range(124, 126)) == [third], "a day that grows is computed again"
    found = {str(row["day"]): row for row in plain(lake.gold(wanted[0]).collect())}
    assert {day: row["msgSent"] for day, row in found.items()} == {first: 3, third: 6}
    assert found[third]["active_queues_7d"] == pytest.approx(100, abs=3)
    assert lake.silver_store(TABLES["p_sketches"]).current().partitions[first].erased


def test_an_erased_day_stays_as_published_and_is_not_published_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One whose own events are gone; the day after it is computed of what is left."""
    day_us, root = journals.FIRST_S * 10**6, tmp_path / "journal" / "L" / "l_messages"
    for number in range(3):
        sent_us = day_us + number * DAY_S * 10**6 + 60_000_000
        events = [
            _event(number, "sent", sent_us, 2 * number),
            _event(number, "delivered", sent_us + 1, 2 * number + 1),
        ]
        seal_rows(root / f"{number}.parquet", L_MESSAGES, events)
    now = [journals.FIRST_S + 3 * DAY_S]
    keep = Settings(keep=Keep(lab_days=2))
    lake = Lake(spark, str(tmp_path / "journal"), str(tmp_path / "lake"), settings=keep, clock=lambda: now[0])
    early, late = datasets()["canary_integrity"], datasets()["canary_faults"]
    days = [date_of(journals.FIRST_S + number * DAY_S) for number in range(4)]
    assert run(lake, [early]).computed["canary_integrity"] == days[1:], "the first is past its time already"
    now[0] += DAY_S
    seal_rows(root / "late.parquet", L_MESSAGES, [_event(9, "sent", day_us + 2 * DAY_S * 10**6, 99)])
    summary = run(lake, [early, late])
    assert summary.erased == {"l_messages": days[1:2]}
    assert summary.computed["canary_integrity"] == days[2:]
    assert summary.computed["canary_faults"] == days[2:]
    sent = {str(row["day"]): row["sent"] for row in plain(lake.gold(early).collect())}
    assert sent == {days[1]: 1, days[2]: 2}


def test_settings_of_the_fleet(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('[fleet]\nexpected = ["a", "b"]\nsilent_minutes = 20\n[keep]\nlab_days = 3\n')
    found = read_settings(file)
    assert (found.fleet.expected, found.fleet.silent_minutes, found.keep) == (
        ("a", "b"),
        20,
        Keep(lab_days=3),
    )
    assert read_settings(None) == Settings()
    for text, said in (
        ("[flete]\n", "no section"),
        ("[keep]\nlab = 3\n", "no setting lab"),
        ("[keep]\nlab_days = 0\n", "1 to 36500"),
        ('[fleet]\nexpected = "a"\n', "names expected"),
        ("[", "no TOML"),
    ):
        file.write_text(text)
        with pytest.raises(PipelineError, match=said):
            read_settings(file)
    with pytest.raises(PipelineError, match="No such file"):
        read_settings(tmp_path / "none.toml")
