"""The last day of counters: minutes, gaps, new processes, clocks that jump, files that are damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from blindpost.ops import history
from blindpost.ops.charts import bar_path, ceiling, curve_drawn, drawn, line_path
from blindpost.ops.history import DAY, History, Track
from blindpost.ops.model import Chart, Curve, Line, Unit
from blindpost.ops.wording import period, shown


def looked(track: Track, *looks: tuple[float, int]) -> Track:
    for at_s, value in looks:
        track.sample(at_s, {"sent": value})
    return track


def test_increments_of_the_last_minute_and_of_each_minute() -> None:
    track = looked(Track(), *((1_200.0 + second, 1_000 + 2 * second) for second in range(0, 181, 10)))
    assert track.per_minute("sent") == 120
    assert track.bars("sent", 4, 1) == (100, 120, 120, 20)
    assert track.last_day("sent") == 360


def test_a_counter_that_went_back_starts_again() -> None:
    track = looked(Track(), (0, 500), (10, 510), (20, 3), (30, 5))
    assert track.per_minute("sent") == 2
    assert track.last_day("sent") == 12


def test_minutes_without_a_sample_are_unknown_and_a_day_is_kept() -> None:
    track = looked(Track(), (0, 0), (30, 7), (200, 7))
    assert track.bars("sent", 5, 1) == (None, 7, None, None, 0)
    for minute in range(10, 10 + 2 * DAY):
        looked(track, (60.0 * minute, 7 + minute))
    assert None not in track.bars("sent", 96, 15)
    assert track.last_day("sent") == DAY
    assert len(json.dumps(track.values())) < 64 * 1024


def test_a_clock_that_jumps_ahead_and_back_loses_only_the_wrong_minutes() -> None:
    track = looked(Track(), *((60.0 * minute, minute) for minute in range(60)))
    looked(track, (1e9, 60), (1e9 + 60, 61))
    looked(track, (60.0 * 60, 62), (60.0 * 60 + 1, 63))
    assert track.bars("sent", 61, 1) == (0, *[1] * 59, 2)
    assert track.per_minute("sent") == 1


def test_without_samples_there_is_no_growth() -> None:
    assert Track().per_minute("sent") == 0
    assert Track().bars("sent", 2, 15) == (None, None)


def test_the_day_outlives_the_page_and_a_second_page_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    first = History(file)
    first.open()
    looked(first.track("/a"), (60, 1), (61, 4), (300, 9))
    first.save()
    second = History(file)
    second.open()
    assert second.track("/a").bars("sent", 6, 1) == (None, 3, None, None, None, 5)
    looked(second.track("/a"), (360, 100), (361, 200))
    second.close()
    first.close()
    third = History(file)
    third.open()
    assert third.track("/a").last_day("sent") == 8
    assert looked(third.track("/a"), (320, 50)).last_day("sent") == 8, "nobody saw what happened meanwhile"
    third.close()


def test_levels_are_kept_as_the_greatest_of_a_span_with_gaps(tmp_path: Path) -> None:
    first = History(tmp_path / "history.json")
    first.open()
    track = first.track("/a")
    for at_s, value in ((60, 4.0), (90, 7.5), (100, 2.0), (180, None), (240, 1.0)):
        track.sample(at_s, {})
        track.level("slowest", value)
    first.close()
    second = History(tmp_path / "history.json")
    second.open()
    levels = second.track("/a").curve("slowest", 5, 1)
    assert levels == (None, 7.5, None, None, 1.0)
    assert second.track("/a").curve("slowest", 2, 4) == (7.5, 1.0)
    second.close()
    assert line_path((*levels, 2.0), 10) == "M1 25.5h1M4 89.2h1V79.4h1"
    html = curve_drawn(
        Curve("time to arrive", (Line("half", (None,), levels), Line("slowest", (None,), levels)))
    )
    assert 'aria-label="time to arrive: at most half 8 ms, slowest 8 ms in the last 24 hours' in html
    assert "No time to arrive measured in the last hour." in html


GOOD = '{"format":1,"servers":{"/a":{"seen":[[1,2]],"grown":{"sent":[[1,3]]}}}}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        GOOD[:40].encode(),
        b"[" * 100_000,
        b'{"format":2,"servers":{}}',
        b'{"format":1,"servers":[]}',
        GOOD.replace("[[1,2]]", "[[1,99999999999]]").encode(),
        GOOD.replace("[[1,2]]", "[[9,1]]").encode(),
        GOOD.replace("[[1,3]]", "[[7,3]]").encode(),
        GOOD.replace("[[1,3]]", "[[1,-3]]").encode(),
        GOOD.replace("[[1,3]]", "[[1,Infinity]]").encode(),
        GOOD.replace('"grown":', '"levels":{"ms":[[7,1.0]]},"grown":').encode(),
        GOOD.replace('"grown":', '"levels":{"ms":[[1,NaN]]},"grown":').encode(),
    ],
)
def test_a_damaged_file_is_set_aside_and_the_day_starts_again(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "history.json"
    file.write_bytes(content)
    kept = History(file)
    kept.open()
    assert kept.track("/a").last_day("sent") == 0
    assert file.with_suffix(".unreadable").read_bytes() == content
    looked(kept.track("/a"), (60, 1), (61, 2))
    kept.close()
    assert kept.trouble == ""
    assert json.loads(file.read_bytes())["servers"]["/a"]["grown"] == {"sent": [[1, 1]]}


def test_a_file_too_large_to_be_ours_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_FILE_MAX", 10)
    file = tmp_path / "history.json"
    file.write_text(GOOD)
    kept = History(file)
    kept.open()
    assert file.with_suffix(".unreadable").exists()
    kept.close()


def test_a_full_disk_is_reported_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = History(tmp_path / "history.json")
    kept.open()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        kept.save()
        assert "No space left on device" in kept.trouble
    kept.save()
    assert kept.trouble == ""
    kept.close()


def test_bars_start_at_the_middle_and_small_values_stay_visible() -> None:
    assert bar_path((None, 0, 100, 1), 100, -1) == "M2.1 50v-49.0h.8v49.0zM3.1 50v-1.5h.8v1.5z"
    assert [ceiling(value) for value in (0, 1, 3, 51, 1_001)] == [1, 1, 5, 100, 2_000]


def test_a_chart_has_a_text_alternative_and_is_left_out_if_empty() -> None:
    quiet = Chart("messages", "in", "out", ((0, None), (0, None)), ((0, 3), (0, 2)))
    html = drawn(quiet)
    assert 'aria-label="messages: in 3, out 2 in the last 24 hours; at most 3 and 2' in html
    assert "No messages in the last hour." in html


def test_numbers_as_people_write_them() -> None:
    assert [shown(value) for value in (1_234_567, 0.25, None)] == ["1,234,567", "0.2", "not yet"]
    assert [shown(value, Unit.BYTES) for value in (0, 1_023, 1_536, 80 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "80 GiB",
    ]
    assert [shown(value, Unit.MILLISECONDS) for value in (48, 12_345)] == ["48 ms", "12.3 s"]
    assert [period(value) for value in (5, 3_700, 90_000, 86_400 * 400)] == [
        "5 s",
        "1 h 1 min",
        "1 d 1 h",
        "400 days",
    ]
