"""Journals of the simulated network through the pipeline: its tables say what stores took."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from blindpost.ds.turn import Turn as DsTurn
from blindpost.journal.frames import RecordWriter
from blindpost.router.meters import Meter
from blindpost.router.turn import Turn
from simulation.faults import Point, Step
from simulation.genesis import Genesis, make_genesis
from simulation.journals import Keeper
from simulation.network import Ending
from simulation.run import FailedRunError
from simulation.schedules import Cast, Schedule
from simulation.simulate import fast_folder, simulate
from simulation.tables import differences, sealed

pytestmark = [
    pytest.mark.timeout(600),
    # A process that dies between making a coroutine and awaiting it leaves the coroutine as it is.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NOTIFIED = Schedule(
    Cast(("alice", "bob"), ntf=True),
    [
        Step(1.0, "send", "bob", ("alice", 3)),
        Step(70.0, "switch", "alice", ("bob",)),
        Step(100.0, "send", "alice", ("bob", 2)),
        Step(100.0, "crash", "router2", (Point.AFTER_COMMIT, Ending.RESET, 2, 3.0)),
        Step(130.0, "notifier crash", "ntf", (Point.NOW, Ending.RESET, 1, 3.0)),
        Step(140.0, "send", "bob", ("alice", 2)),
        Step(150.0, "restart", "router1", (2.0,)),
    ],
)
"""Messages before a crash that its journal has, and some that it loses."""
DELIVERED = Schedule(
    Cast((), ("dave",), ds=True),
    [
        Step(1.0, "write", "dave", (3,)),
        Step(1.0, "put", "dora", ("dirk", 4, False)),
        Step(70.0, "write", "dave", (2,)),
        Step(75.0, "delivery crash", "ds", (Point.NOW, Ending.RESET, 1, 3.0)),
        Step(90.0, "put", "dirk", ("dora", 2, False)),
    ],
)


@pytest.fixture(scope="module")
def genesis() -> Iterator[Genesis]:
    folder = fast_folder()
    yield make_genesis(folder)
    shutil.rmtree(folder)


def forget_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router does not count the second message that is acknowledged."""
    real, counted = Turn.count, itertools.count(1)

    def count(turn: Turn, meter: Meter, by: int = 1) -> None:
        if meter is not Meter.RECEIVED or next(counted) != 2:
            real(turn, meter, by)

    monkeypatch.setattr(Turn, "count", count)


def count_a_payload_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real, counted = DsTurn.count, itertools.count(1)

    def count(turn: DsTurn, meter: Any, by: int = 1) -> None:
        twice = meter.value == "enqueued" and next(counted) == 1
        real(turn, meter, 2 * by if twice else by)

    monkeypatch.setattr(DsTurn, "count", count)


def forget_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a journal was given in its second minute is not in its file."""
    real = RecordWriter.add

    def add(writer: RecordWriter, record: Any) -> None:
        if writer.records == 1:
            record = {**record, "rows": {}}
        real(writer, record)

    monkeypatch.setattr(RecordWriter, "add", add)


def test_tables_say_what_stores_took_and_find_what_was_miscounted(
    genesis: Genesis, spark: SparkSession, tmp_path: Path
) -> None:
    journals = tmp_path / "journals"
    for seed, schedule in ((3, NOTIFIED), (13, DELIVERED), (23, None)):
        simulate(genesis, seed, schedule, journals)
    plants = {
        1003: (forget_a_message, NOTIFIED, "msgRecv in daily_statistics"),
        1013: (count_a_payload_twice, DELIVERED, "enqueued in delivery_service"),
        1023: (forget_a_record, NOTIFIED, "stored in notification_funnel"),
    }
    for seed, (plant, schedule, _) in plants.items():
        with pytest.MonkeyPatch.context() as planting:
            plant(planting)
            simulate(genesis, seed, schedule, journals)
    assert list(sealed(journals)) == []
    found = list(differences(spark, journals, tmp_path / "lake"))
    for seed, (_, _, symptom) in plants.items():
        assert any(f"seed-{seed}-" in each and symptom in each for each in found), (seed, found)
    assert all(any(f"seed-{seed}-" in each for seed in plants) for each in found), found


def test_a_journal_that_skips_minutes_is_noticed_in_the_run(
    genesis: Genesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may cost what came after the last record, and that was a minute ago at most."""
    real = Keeper.record

    async def record(keeper: Keeper, minute_s: int | None = None) -> None:
        if minute_s is None:
            await real(keeper)

    monkeypatch.setattr(Keeper, "record", record)
    with pytest.raises(FailedRunError, match="the journal of ds lost 7"):
        simulate(genesis, 13, DELIVERED)
