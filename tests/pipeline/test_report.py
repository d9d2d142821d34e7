"""The report: verdict first, everything in one file, and words for what is wrong and what is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.files import LocalFiles
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.report import facts as gathering
from blindpost.pipeline.report.build import build, sections
from blindpost.pipeline.report.canaries import spells
from blindpost.pipeline.report.facts import Facts, Row, chosen_days, count, named, span
from blindpost.pipeline.report.page import Report, Section, State, Table, render, shown, worst
from blindpost.pipeline.report.svg import Bar, Series, bars, heat, labels, lines, number, steps
from tests.support.ops.browser import browser, needs_chromium

NOON = 1_767_614_400
DAY = date(2026, 1, 5)
CALM: dict[str, list[Row]] = {
    "service_drift": [
        {"day": DAY, "router": "smp-01", "service": 1, "role": "messaging", "router_stored": 9}
        | {"subscriber_stored": 9, "unassociated": 0, "gone": 0, "unclaimed": 0, "verdict": "agrees"}
    ],
    "canary_integrity": [
        {"from_router": "smp-01", "to_router": "smp-02", "sent": 90, "delivered": 90, "skipped": 0}
        | dict.fromkeys(("lost", "lost_accepted", "duplicates", "bad_id", "bad_hash"), 0)
    ],
    "delivery_slo": [
        {"role": "canary", "from_router": "smp-01", "to_router": "smp-02", "hour_s": NOON, "sent": 600}
        | {"delivered": 600, "late": 0, "lost": 0, "pending": 0, "refused": 0}
        | {"deliver_p50_us": 30_000.0, "deliver_p99_us": 90_000.0, "deliver_max_us": 95_000}
    ],
    "router_backlog": [
        {"router": "smp-01", "hour_s": NOON, "accepted": 5_000, "acked": 5_000, "expired": 0}
        | {"refused_full": 0, "backlog": 40, "backlog_max": 50}
    ],
    "notification_funnel": [
        {"router": "ntf-01", "provider": "apns", "received": 100, "stored": 100, "pushed": 99}
        | {"accepted": 99, "replaced": 1, "retried": 0, "open": 0}
        | dict.fromkeys(
            ("expired", "token_invalid", "token_inactive", "no_token", "refused", "failed", "dropped"), 0
        )
    ],
    "delivery_service": [
        {"router": "ds-01", "hour_s": NOON + hour * 3600, "depth_max": 50.0, "put_back": 1, "waits": 10}
        | {"waits_answered": 7, "waits_expired": 3}
        for hour in range(5)
    ],
    "daily_statistics": [
        {"day": DAY, "router": "smp-01", "msgSent": 5_000, "qCount": 70, "minutes": 1_440}
        | {"activeQueues_day": 50, "active_queues_7d": 60, "active_queues_30d": 65}
    ],
}


def facts(**changed: Any) -> Facts:
    heard = {"smp-01": ("smp", NOON), "ds-01": ("ds", NOON - 60)}
    return Facts(days=["2026-01-05"], made_s=NOON + 600, rows={**CALM, **changed}, heard=heard, files=9)


def states(told: Facts) -> dict[str, State]:
    return {section.key: section.state for section in sections(told)}


def test_a_calm_fleet_is_good() -> None:
    assert set(states(facts()).values()) == {State.OK}
    page = build(facts())
    assert "<h1>All is well</h1>" in page
    assert "10 minutes before this report" in page


def test_nothing_measured_is_not_good() -> None:
    empty = Facts(days=["2026-01-05"], made_s=NOON, rows={})
    found = states(empty)
    assert {found[key] for key in found if key != "data"} == {State.UNKNOWN}
    assert "Not everything was measured" in build(empty)


def changed(table: str, **values: Any) -> Facts:
    """The calm fleet with other values in the last row of a table."""
    rows = [*CALM[table][:-1], {**CALM[table][-1], **values}]
    return facts(**{table: rows})


FLAP = {"router": "smp-01", "ordinal": 0, "service_role": "messaging", "hour_s": NOON, "times": 90}
STORM = {"router": "smp-01", "first_s": NOON, "minutes": 6, "subscribed": 900, "peak_per_minute": 200}
STORM |= {"usual_per_minute": 3.0, "cause": "restart"}
CANARY = {"day": DAY, "router": "ntf-01", "received": 9, "ended_once": 8, "ended_twice": 0, "unfinished": 1}
TOKEN = {"day": DAY, "router": "ntf-01", "to_state": "ACTIVE", "reason": "", "tokens": 1, "legal": False}
MOVED = {"router": "smp-01", "migration": "m", "name": "queues", "role": None, "source_count": 9}


@pytest.mark.parametrize(
    ("key", "told", "state", "said"),
    [
        ("drift", changed("service_drift", gone=2, verdict="drift"), State.BAD, "1 service differs"),
        ("integrity", changed("canary_integrity", lost=1, lost_accepted=1), State.BAD, "after OK 1"),
        ("integrity", changed("canary_integrity", lost=1), State.WARN, "lost 1 (after OK 0)"),
        ("integrity", changed("canary_integrity", duplicates=2), State.WARN, "twice 2"),
        ("integrity", changed("canary_integrity", bad_hash=1), State.BAD, "damaged 1"),
        ("delivery", changed("delivery_slo", late=7), State.WARN, "smp-01 → smp-02"),
        ("delivery", changed("delivery_slo", late=6), State.OK, "100 % is used up"),
        (
            "delivery",
            changed("delivery_slo", delivered=4, late=4),
            State.UNKNOWN,
            "Too few canaries to judge",
        ),
        ("backlog", changed("router_backlog", refused_full=251), State.BAD, "full queues on smp-01"),
        ("backlog", changed("router_backlog", refused_full=250), State.OK, "waits, or aged out"),
        ("backlog", changed("router_backlog", expired=251), State.WARN, "aged out on smp-01"),
        (
            "backlog",
            replace(facts(), broken={("router_backlog", "2026-01-05", "balance"): 2}),
            State.BAD,
            "Totals do not balance in 2 hours",
        ),
        ("storms", facts(subscription_storms=[STORM]), State.WARN, "1 storm of subscriptions, 1 after"),
        (
            "storms",
            facts(subscription_storms=[{**STORM, "cause": "unknown"}]),
            State.BAD,
            "1 storm of subscriptions, 0 after",
        ),
        ("storms", facts(displacement_flapping=[FLAP]), State.BAD, "1 service displaced again and again"),
        (
            "notifications",
            facts(notification_canaries=[{**CANARY, "accepted_ms_p95": 3.0}]),
            State.BAD,
            "1 notification of our canaries did not end",
        ),
        ("notifications", facts(token_transitions=[TOKEN]), State.BAD, "does not have"),
        ("delivery-service", changed("delivery_service", depth_max=251.0), State.BAD, "piled up on ds-01"),
        ("delivery-service", changed("delivery_service", depth_max=250.0), State.OK, "70 % of waiting"),
        (
            "migrations",
            facts(
                migration_proof=[{**MOVED, "result_count": 8, "verdict": "different", "stored_agrees": None}]
            ),
            State.BAD,
            "result and source differ",
        ),
        (
            "data",
            replace(facts(), quarantine=[("P/x.parquet", "corrupt", "why")]),
            State.WARN,
            "1 file of 9 set aside",
        ),
        (
            "data",
            replace(facts(), heard={"smp-01": ("smp", NOON), "smp-02": ("smp", NOON - 3_600)}),
            State.BAD,
            "Silent: smp-02",
        ),
        ("data", replace(facts(), made_s=NOON + 86_400), State.BAD, "Nobody has written for 24 hours"),
        (
            "data",
            replace(facts(), expected=["smp-01", "smp-02", "ds-01"]),
            State.BAD,
            "Expected and not heard of: smp-02",
        ),
        ("data", replace(facts(), expected=["smp-01"]), State.WARN, "Not expected: ds-01"),
        (
            "data",
            replace(facts(), broken={("daily_statistics", "2026-01-05", "one server of a name"): 1}),
            State.BAD,
            "Two servers write under one name on 1 day",
        ),
    ],
)
def test_problems_are_reported(key: str, told: Facts, state: State, said: str) -> None:
    (section,) = [section for section in sections(told) if section.key == key]
    assert (section.state, said in section.verdict) == (state, True), section.verdict
    page = build(told)
    assert f'id="{key}"' in page
    for plot in section.plots:
        assert plot.decision
        assert plot.drawing.startswith(("<svg", '<p class="nothing"'))


def test_a_report_about_the_past_is_judged_by_its_own_end() -> None:
    old = replace(facts(), made_s=NOON + 90 * 86_400, of_the_past=True, silent_s=13 * 3_600)
    assert states(old)["data"] is State.OK
    assert states(replace(old, of_the_past=False))["data"] is State.BAD


def test_hours_with_few_messages_are_judged_together() -> None:
    few = {**CALM["delivery_slo"][0], "sent": 40, "delivered": 40}
    rows = [{**few, "hour_s": NOON + 3_600 * hour, "late": int(hour == 1)} for hour in range(8)]
    judged = [(spell.hours, spell.delivered, spell.late) for spell in spells(rows)]
    assert judged == [
        (3, 120, 1),
        (5, 200, 0),
    ]
    assert states(facts(delivery_slo=rows))["delivery"] is State.OK
    assert states(facts(delivery_slo=[{**row, "late": 1} for row in rows]))["delivery"] is State.BAD
    assert spells(rows[:2]) == []


def test_a_week_is_compared_with_the_one_before() -> None:
    then = {**CALM["daily_statistics"][0], "day": date(2025, 12, 29), "msgSent": 4_000}
    told = replace(facts(), earlier={"daily_statistics": [then]}, made_s=NOON + 86_400)
    page = build(told)
    assert "A week before 2026-01-05 it was 4 000 messages (+25 % since)." in page
    assert "Today so far" in build(facts())


@pytest.mark.parametrize(("points", "labels"), [(1, 1), (2, 3), (48, 3)])
def test_no_two_labels_of_a_time_axis_are_equal(points: int, labels: int) -> None:
    drawn = lines([Series("a", [(NOON + 3_600 * hour, 1.0) for hour in range(points)])], "x", "s")
    found = re.findall(r">(\d\d \w{3} \d\d:\d\d)<", drawn)
    assert len(found) == len(set(found)) == labels


def test_labels_fit_and_no_two_are_equal() -> None:
    pairs = [f"smp-frankfurt-{a} → smp-amsterdam-{b}" for a in range(10, 14) for b in range(10, 14)]
    short = labels(pairs)
    assert len(set(short)) == len(pairs)
    assert max(map(len, short)) <= 23
    assert labels(["smp-01 → smp-02"]) == ["smp-01 → smp-02"]
    same = [f"{'a' * 30}{number}{'b' * 30}" for number in range(3)]
    assert len(set(labels(same))) == 3


def test_the_worst_comes_first() -> None:
    page = build(changed("router_backlog", expired=900))
    assert page.index('id="backlog"') < page.index('id="drift"')
    assert "<h1>Something should be watched</h1>" in page
    order = [State.OK, State.UNKNOWN, State.WARN, State.BAD]
    assert [
        worst([Section("", "", state, "") for state in order[: place + 1]]) for place in range(4)
    ] == order
    assert worst([]) is State.UNKNOWN


def test_files_set_aside_are_listed_with_their_reason() -> None:
    page = build(replace(facts(), quarantine=[("P/a&b.parquet", "corrupt", "it <cannot> be decoded")]))
    assert "P/a&amp;b.parquet" in page
    assert "it &lt;cannot&gt; be decoded" in page
    assert "<dd>1 file</dd>" in page


class _Page(HTMLParser):
    """Every tag must be closed; what a browser would load is written down."""

    VOID = ("meta", "link", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "action", "xlink:href"):
                self.loads.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def whole(page: str) -> _Page:
    read = _Page()
    read.feed(page)
    read.close()
    assert read.open == []
    return read


def test_the_page_is_complete_and_self_contained() -> None:
    page = build(facts(subscription_storms=[STORM], displacement_flapping=[FLAP]))
    read = whole(page)
    assert all(link == "data:," or link.removeprefix("#") in read.ids for link in read.loads)
    assert "<script" not in page
    assert not re.search(r"url\(|@import|https?:", page)
    assert 'name="viewport"' in page
    assert "prefers-color-scheme:dark" in page


def test_long_tables_say_what_they_omit() -> None:
    table = Table("t", ("n",), [[place] for place in range(25)])
    page = render(Report("p", "m", "a", [Section("k", "t", State.OK, "v", (), (table,))]))
    assert '<td data-name="n">19</td>' in page
    assert '<td data-name="n">20</td>' not in page
    assert "and 5 more" in page


WIDE = (
    Table("files", ("file", "reason", "detail"), [[f"P/p_boots/{'0' * 90}.parquet", "corrupt", "x " * 20]]),
    Table("providers", tuple(f"token inactive {place}" for place in range(12)), [[7_395] * 12]),
)
CLIPPED = "[...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth).filter(e => e > 0)"


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(360, True), (1100, False)])
async def test_a_browser_shows_it_without_a_network(tmp_path: Path, width: int, dark: bool) -> None:
    file = tmp_path / "report.html"
    file.write_text(build(facts(subscription_storms=[STORM], displacement_flapping=[FLAP])))
    async with browser(tmp_path, width=width, dark=dark) as seen:
        page = await seen.context.new_page()
        await page.goto(file.as_uri())
        assert await page.inner_text("h1") == "Action is needed"
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.set_content(render(Report("p", "m", "a", [Section("k", "t", State.OK, "v", (), WIDE)])))
        assert await page.evaluate(CLIPPED) == []
        assert seen.console == []
        assert seen.hosts == set()


@given(st.floats(1e-9, 1e15))
@settings(deadline=None)
def test_an_axis_reaches_the_highest_value(top: float) -> None:
    found = steps(top)
    assert found[0] == 0
    assert found[-1] >= top * (1 - 1e-9)
    assert 2 <= len(found) <= 6
    assert steps(0) == [0.0, 1.0]


@given(st.lists(st.tuples(st.floats(0, 1e9), st.none() | st.floats(0, 1e12)), max_size=30))
@settings(deadline=None)
def test_lines_stay_inside_their_frame(points: list[tuple[float, float | None]]) -> None:
    drawing = lines([Series("a<b", points)], "label", "s", limit=5.0)
    if not any(value is not None for _, value in points):
        assert "nothing was recorded" in drawing
        return
    whole(drawing)
    numbers = [float(value) for value in re.findall(r"[ML]([\d.]+) ([\d.]+)", drawing)[0]]
    assert 0 <= numbers[0] <= 400
    assert 0 <= numbers[1] <= 180


def test_a_line_breaks_where_nothing_was_measured() -> None:
    drawing = lines([Series("x", [(0, 1.0), (1, None), (2, 1.0), (3, 1.0)])], "label", "s")
    (path,) = re.findall(r'd="(.*?)"', drawing)
    assert re.sub(r"[\d. ]", "", path) == "MML"


def test_bars_and_cells_above_the_limit_stand_out() -> None:
    drawn = bars([Bar("good", 1, "1"), Bar("bad", 4, "4", bad=True), Bar("none", 0, "0")], "label")
    widths = [float(width) for width in re.findall(r'width="([\d.]+)"', drawn)]
    assert widths[0] * 4 == pytest.approx(widths[1])
    assert widths[2] == 0
    assert drawn.count('class="bar bad"') == 1
    cells = heat(["row"], ["a", "b"], {(0, 0): 1.0, (0, 1): 1.1}, "label", "s", 1.0)
    assert re.findall(r'class="(cell.*?)"', cells) == ["cell", "cell bad"]
    assert "row, b: 1.1 s" in cells


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "-"), (True, "yes"), (12_345, "12 345"), (0.12344, "0.1234"), (12_345.6, "12 346"), ("x", "x")],
)
def test_values_for_people(value: object, words: str) -> None:
    assert shown(value) == words


def test_words_for_people() -> None:
    assert [number(value) for value in (0, 950, 1_200, 3e6, 0.25)] == ["0", "950", "1.2 k", "3 M", "0.25"]
    assert [span(value) for value in (5, 600, 7_200, 300_000)] == [
        "5 seconds",
        "10 minutes",
        "2 hours",
        "3 days",
    ]
    assert named("abcdef") == "a, b, c, d and 2 more"
    assert (count(1, "file"), count(2_000, "file"), count(0, "day")) == ("1 file", "2 000 files", "0 days")


def test_days_of_a_report() -> None:
    there = [f"2026-01-{day:02d}" for day in range(1, 21)]
    assert chosen_days(there, None, None) == there[-7:]
    assert chosen_days(there, date(2026, 1, 19), None) == there[-2:]
    assert chosen_days(there, None, date(2026, 1, 3)) == there[:3]
    with pytest.raises(PipelineError, match="There is 2026-01-01 to 2026-01-20"):
        chosen_days(there, date(2027, 1, 1), date(2027, 1, 2))


def test_who_may_not_enter_the_zone_can_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(cast(SparkSession, None), str(tmp_path / "journal"), str(tmp_path / "lake"))
    look = LocalFiles.read

    def read(files: LocalFiles, path: str) -> bytes | None:
        if path.startswith(lake.zone):
            raise PermissionError(path)
        return look(files, path)

    monkeypatch.setattr(LocalFiles, "read", read)
    monkeypatch.setattr(LocalFiles, "is_closed", lambda _files, root: root == lake.zone)
    assert gathering._conflicts(lake, []) == {}
