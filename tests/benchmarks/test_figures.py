"""Figures made by the run: one shape, a comparison that knows spreads, tables between marks, plots."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.figures import __main__ as command
from benchmarks.figures import page, plot, results
from benchmarks.figures.compare import Verdict, compared, hindrance
from benchmarks.figures.plan import BENCHMARKS, Benchmark
from benchmarks.figures.results import Machine, Result
from benchmarks.figures.rows import Better, Figure, FiguresError, as_json, merged, parsed, single
from benchmarks.figures.running import Share

ROOT = Path(__file__).parents[2]
HERE = Machine("a processor", 2, 8, "3.11.7")
SHOP = Benchmark("shop", "A <shop>")


def spread(lower: float, median: float, upper: float, better: Better = Better.LOWER) -> Figure:
    return Figure("sale", "us", median, lower, upper, better)


def result(*figures: Figure, others: float = 0.0) -> Result:
    return Result("benchmarks.shop", "2026-01-02", HERE, others, 1, 3.0, figures)


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (spread(90, 100, 110), Verdict.WITHIN),
        (spread(109, 120, 130), Verdict.WITHIN),
        (spread(111, 125, 130), Verdict.WORSE),
        (spread(70, 75, 89), Verdict.BETTER),
        (spread(111, 111, 111), Verdict.WITHIN),  # the spread is at least 5 % to each side
        (spread(111, 125, 130, Better.HIGHER), Verdict.BETTER),
        (spread(70, 75, 89, Better.HIGHER), Verdict.WORSE),
        (spread(70, 75, 89, Better.NEITHER), Verdict.MOVED),
        (Figure("sale", "ms", 1, 1, 1), Verdict.NEW),
    ],
)
def test_a_figure_is_worse_only_if_the_spreads_do_not_overlap(now: Figure, verdict: Verdict) -> None:
    (change,) = compared([spread(90, 100, 110, now.better)], [now])
    assert change.verdict is verdict
    assert change.verdict.value in change.told


def test_new_and_lost_figures_are_told() -> None:
    changes = compared([single("old", "us", 1)], [single("new", "us", 1)])
    assert [(change.name, change.verdict) for change in changes] == [
        ("new", Verdict.NEW),
        ("old", Verdict.GONE),
    ]


def test_only_like_is_compared_with_like() -> None:
    now = result(single("sale", "us", 1))
    assert hindrance(now, now) is None
    for before, reason in (
        (None, "nothing was stored"),
        (replace(now, machine=replace(HERE, cores=4)), "another machine"),
        (replace(now, command="benchmarks.shop --quick"), "other options"),
    ):
        assert reason in (hindrance(before, now) or "")


def test_several_runs_become_one() -> None:
    runs = [[single("sale", "us", value), single("once", "us", 7)][: 1 + (value == 3)] for value in (3, 9, 4)]
    assert merged(runs) == [Figure("sale", "us", 4, 3, 9), single("once", "us", 7)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"rows": [{}]}',
        '{"rows": [7]}',
        as_json([single("sale", "us", float("nan"))]),
        as_json([single("sale", "us", 1), single("sale", "ms", 2)]),
        as_json([single("sale", "us", 1)]).replace('lower"', 'sideways"'),
    ],
)
def test_what_is_not_figures_is_refused(text: str) -> None:
    with pytest.raises(FiguresError):
        parsed(text)


DOCUMENT = "Words.\n\n<!-- figures: shop -->\nold\n<!-- end of figures -->\n\nMore words.\n"


def test_only_what_is_between_the_marks_changes() -> None:
    assert "Not measured yet." in page.rendered(DOCUMENT, {}, [SHOP])
    now = replace(
        result(spread(190, 200, 210), single("new", "us", 1234), others=0.5),
        before=(spread(90, 100, 110), single("lost", "us", 5)),
    )
    text = page.rendered(DOCUMENT, {"shop": {"quick": now}}, [SHOP])
    assert text.startswith("Words.\n\n<!-- figures: shop -->\n### A <shop>")
    assert text.endswith("<!-- end of figures -->\n\nMore words.\n")
    assert "| sale | 200 | 190 to 210 | us | lower | 100 | worse |" in text
    assert "| new | 1,234 |  | us | lower |  | new |" in text
    assert "| lost | | | | | 5 | gone |" in text
    assert "Busy: other programs took 50% of the cores" in text
    assert page.rendered(text, {"shop": {"quick": now}}, [SHOP]) == text
    full = {"quick": now, "full": result(single("sale", "us", 3))}
    assert "| sale | 3 |" in page.rendered(text, {"shop": full}, [SHOP]), "the long form is shown"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Words.\n", "no section of figures for 'shop'"),
        (DOCUMENT.replace("shop", "bakery"), "'bakery', but no such benchmark"),
        (DOCUMENT.replace("<!-- end of figures -->", ""), "no end"),
        (DOCUMENT + "<!-- end of figures -->", "no beginning"),
    ],
)
def test_wrong_marks_are_refused_before_anything_is_measured(text: str, reason: str) -> None:
    with pytest.raises(FiguresError, match=reason):
        page.rendered(text, {}, [SHOP])


def test_a_plot_is_one_picture_for_light_and_dark() -> None:
    before = (spread(90, 100, 110),)
    picture = plot.drawn(
        "A <shop>", replace(result(spread(0, 0, 0), single("a & b", "MB", -2)), before=before)
    )
    root = ET.fromstring(picture)  # noqa: S314  # our own
    kinds = [node.get("class") for node in root]
    assert kinds.count("median") == 2
    assert kinds.count("before") == 1
    assert "prefers-color-scheme: dark" in picture
    left, right = plot.LEFT, plot.WIDTH - plot.RIGHT
    assert all(left <= float(node.get("cx", left)) <= right for node in root)


def test_what_others_took_of_the_machine_is_a_share_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    before = Share(at=100.0, everybody=50.0, own=7.0)
    assert Share(110.0, 65.0, 12.0).others_since(before) == 0.5
    assert Share(110.0, 55.0, 12.0).others_since(before) == 0.0
    assert Share(100.0, 50.0, 7.0).others_since(before) == 0.0


def test_stored_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "results.json"
    assert results.read(path) == {}
    stored = {"shop": {"quick": replace(result(spread(1, 2, 3)), before=(spread(4, 5, 6),))}}
    results.write(path, stored)
    assert results.read(path) == stored
    path.write_text(path.read_text()[:-40])
    with pytest.raises(FiguresError, match="damaged"):
        results.read(path)


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of documents with one benchmark, which measures what the test sets."""
    (tmp_path / "benchmarks.md").write_text(DOCUMENT)
    monkeypatch.setattr(command, "BENCHMARKS", (SHOP,))
    return tmp_path


Measure = Callable[[float], None]


@pytest.fixture
def measure(docs: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    def becomes(median: float, others: float = 0.0) -> None:
        now = result(single("sale", "us", median), others=others)
        monkeypatch.setattr(command, "measured", lambda *_: now)

    return becomes


def test_a_regression_is_named_and_a_check_fails_and_writes_nothing(
    docs: Path, measure: Measure, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(100)
    assert command.main(["--docs", str(docs)]) == 0
    assert "not compared: nothing was stored before" in capsys.readouterr().out
    stored = (docs / "figures" / "results.json").read_text()
    measure(200)
    assert command.main(["--docs", str(docs), "--check"]) == 1
    assert "regression: shop: sale: worse, 100 " in capsys.readouterr().out
    assert (docs / "figures" / "results.json").read_text() == stored
    measure(50)
    assert command.main(["--docs", str(docs), "--check"]) == 0
    measure(200)
    assert command.main(["--docs", str(docs)]) == 0
    assert "| 100 | worse |" in (docs / "benchmarks.md").read_text()
    assert (docs / "figures" / "shop.svg").exists()


def test_a_busy_machine_is_no_regression(
    docs: Path, measure: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    measure(100)
    assert command.main(["--docs", str(docs)]) == 0
    measure(200, others=0.4)
    assert command.main(["--docs", str(docs), "--check"]) == 0
    assert "The machine was busy" in capsys.readouterr().out


def test_a_benchmark_that_fails_leaves_its_figures(
    docs: Path, measure: Measure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(100)
    assert command.main(["--docs", str(docs)]) == 0
    stored = (docs / "figures" / "results.json").read_text()

    def fails(*_: object) -> Result:
        raise FiguresError("it ended with exit code 1")

    monkeypatch.setattr(command, "measured", fails)
    assert command.main(["--docs", str(docs)]) == 2
    assert "exit code 1. Its figures stay as they were." in capsys.readouterr().err
    assert (docs / "figures" / "results.json").read_text() == stored


def test_a_real_run_of_the_cheapest_benchmark(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text((ROOT / "docs" / "benchmarks.md").read_text())
    words = ["--quick", "--only", "floor", "--docs", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.figures", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "[1 of 1, time left unknown] -m benchmarks.floor" in done.stderr
    stored = json.loads((tmp_path / "figures" / "results.json").read_text())["floor"]["quick"]
    assert set(stored["machine"]) == {"cpu", "cores", "memory_gb", "python"}
    assert "| the floor |" in (tmp_path / "benchmarks.md").read_text()


def test_the_page_shows_what_is_stored() -> None:
    docs = ROOT / "docs"
    stored = results.read(docs / "figures" / "results.json")
    text = (docs / "benchmarks.md").read_text()
    assert page.rendered(text, stored, BENCHMARKS) == text
    for benchmark in BENCHMARKS:
        if (best := page.best(stored, benchmark.name)) is not None:
            picture = (docs / "figures" / f"{benchmark.name}.svg").read_text()
            assert picture == plot.drawn(benchmark.about, best)


WITHIN = {"agent_rates"}
"""What another benchmark measures too."""


def test_every_benchmark_of_the_repository_has_figures() -> None:
    modules = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main" in path.read_text()}
    assert modules - WITHIN == {one.name for one in BENCHMARKS}
