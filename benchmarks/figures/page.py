"""Writes tables into the marked sections of a document; what people wrote around them stays."""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmarks.figures.compare import Verdict, compared
from benchmarks.figures.plan import Benchmark
from benchmarks.figures.results import Result, Results
from benchmarks.figures.rows import FiguresError

_SECTION = re.compile(r"<!-- figures: (\w+) -->\n(.*?)<!-- end of figures -->", re.DOTALL)


def best(results: Results, name: str) -> Result | None:
    """Of the long form, if there is one."""
    forms = results.get(name, {})
    return forms.get("full") or forms.get("quick")


def rendered(text: str, results: Results, benchmarks: Iterable[Benchmark]) -> str:
    """The document with every marked section made anew."""
    known = {one.name: one for one in benchmarks}
    marked = [found[1] for found in _SECTION.finditer(text)]
    if text.count("<!-- figures: ") != len(marked) or text.count("<!-- end of figures -->") != len(marked):
        raise FiguresError("a section of figures has no end, or an end no beginning")
    if unknown := [name for name in marked if name not in known]:
        raise FiguresError(f"there is a section of figures for {unknown[0]!r}, but no such benchmark")
    if missing := [name for name in known if name not in marked]:
        raise FiguresError(f"there is no section of figures for {missing[0]!r}")
    return _SECTION.sub(lambda found: _section(known[found[1]], best(results, found[1])), text)


def _section(benchmark: Benchmark, result: Result | None) -> str:
    lines = [f"<!-- figures: {benchmark.name} -->", f"### {benchmark.about}", ""]
    lines += ["Not measured yet."] if result is None else _measured(benchmark, result)
    return "\n".join([*lines, "<!-- end of figures -->"])


def _measured(benchmark: Benchmark, result: Result) -> list[str]:
    runs = f", {result.runs} runs" if result.runs > 1 else ""
    busy = (
        f" Busy: other programs took {result.others:.0%} of the cores; only ratios and counts mean something."
        if result.is_busy
        else ""
    )
    then = {one.name: one for one in result.before or ()}
    lines = [
        f"`{result.command}`{runs}, source of {result.day}, {result.seconds:,.0f} s on "
        f"{result.machine.told}.{busy}",
        "",
        f"![{benchmark.about}](figures/{benchmark.name}.svg)",
        "",
        "| what | median | spread | unit | better | before | |",
        "|---|---:|---:|---|---|---:|---|",
    ]
    for change in compared(result.before or (), result.figures):
        one = change.now
        if one is None:
            lines.append(f"| {change.name} | | | | | {shown(then[change.name].median)} | gone |")
            continue
        spread = "" if one.lower == one.upper else f"{shown(one.lower)} to {shown(one.upper)}"
        before = shown(then[one.name].median) if one.name in then else ""
        verdict = "" if result.before is None or change.verdict is Verdict.WITHIN else change.verdict.value
        cells = (one.name, shown(one.median), spread, one.unit, one.better, before, verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def shown(value: float) -> str:
    """Three digits that count, and none behind a large number."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
