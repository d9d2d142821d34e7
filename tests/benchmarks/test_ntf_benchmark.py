"""The notification router's benchmark in its smallest form: every row is there and adds up."""

from __future__ import annotations

from benchmarks.ntf import ROUTERS, measure, shown


def test_a_short_run_gives_every_row() -> None:
    rows = measure(subscriptions=31, notifications=2, push_count=20)
    one_by_one, associating, together, latency, *pushes = rows
    assert [row["commands_sent"] for row in (one_by_one, associating, together)] == [31, 31, ROUTERS]
    assert together["times_faster_than_nsub"] > 0
    assert latency["notifications"] == 2
    assert 0 < latency["p50_ms"] <= latency["p99_ms"]
    assert [row["pushes"] for row in pushes] == [
        "httpx alone",
        "our HTTP/2 connection alone",
        "provider",
        "NMSG to end of push, stored",
    ]
    assert pushes[1]["times_the_connection_alone"] == 1.0
    lines: list[str] = []
    shown(rows, lines.append)
    assert len(lines) == len(rows)
