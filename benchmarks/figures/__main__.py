"""All figures, made by one run: `python -m benchmarks.figures [--quick] [--only NAME] [--check]`.

Benchmarks run one after another, each as a process of its own. What came out is compared with what is stored
in docs/figures/results.json, stored there, and written as tables and plots into docs/benchmarks.md. With
`--check` nothing is written, and a figure that is worse by more than its spread makes the exit code 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import page, plot, results
from benchmarks.figures.compare import Change, Verdict, compared, hindrance
from benchmarks.figures.plan import BENCHMARKS, Benchmark
from benchmarks.figures.results import Result
from benchmarks.figures.rows import FiguresError
from benchmarks.figures.running import ROOT, measured


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description="Make all figures.")
    names = [one.name for one in BENCHMARKS]
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", action="append", choices=names, help="this one (may be repeated)")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if something is worse")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the documents")
    given = parser.parse_args(words)
    chosen = [one for one in BENCHMARKS if given.only is None or one.name in given.only]
    try:
        return _made(chosen, given.docs, is_quick=given.quick, is_check=given.check)
    except FiguresError as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("figures: stopped; what was finished is stored.", file=sys.stderr)
        return 130


def _made(chosen: Sequence[Benchmark], docs: Path, *, is_quick: bool, is_check: bool) -> int:
    stored, form = results.read(docs / "figures" / "results.json"), "quick" if is_quick else "full"
    render(docs, stored, write=False)  # a document that cannot take the figures is told before hours of work
    worse: list[str] = []
    failed: list[str] = []
    began = time.monotonic()
    for number, benchmark in enumerate(chosen, 1):
        before = stored.get(benchmark.name, {}).get(form)
        left = _left(chosen[number - 1 :], stored, form)

        def tell(what: str, number: int = number, left: str = left) -> None:
            print(f"[{number} of {len(chosen)}, {left}] {what}", file=sys.stderr, flush=True)

        try:
            now = measured(benchmark, is_quick, tell)
        except FiguresError as error:
            failed.append(benchmark.name)
            print(f"{benchmark.name}: {error}. Its figures stay as they were.", file=sys.stderr, flush=True)
            continue
        worse += _told(benchmark, before, now)
        if hindrance(before, now) is None and before is not None:
            now = replace(now, before=before.figures)
        if not is_check:
            stored.setdefault(benchmark.name, {})[form] = now
            results.write(docs / "figures" / "results.json", stored)
            render(docs, stored, write=True)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} benchmarks in {time.monotonic() - began:,.0f} s")
    for told in worse:
        print(f"regression: {told}")
    if failed:
        return 2
    return 1 if worse and is_check else 0


def _left(rest: Sequence[Benchmark], stored: results.Results, form: str) -> str:
    """How long what is left took last time."""
    known = [stored[one.name][form].seconds for one in rest if form in stored.get(one.name, {})]
    least = "" if len(known) == len(rest) else "more than "
    return f"{least}{sum(known) / 60:.0f} min left" if known else "time left unknown"


def _told(benchmark: Benchmark, before: Result | None, now: Result) -> list[str]:
    """Print what changed; what is worse is returned, unless a busy machine may explain it."""
    if (reason := hindrance(before, now)) is not None or before is None:
        print(f"{benchmark.name}: not compared: {reason}.", flush=True)
        return []
    changes = compared(before.figures, now.figures)
    moved = [change for change in changes if change.verdict is not Verdict.WITHIN]
    print(f"{benchmark.name}: {len(changes) - len(moved)} of {len(changes)} within the spread", flush=True)
    for change in moved:
        print(f"  {change.told}", flush=True)
    worse = [change for change in moved if change.verdict is Verdict.WORSE]
    if worse and (before.is_busy or now.is_busy):
        print("  The machine was busy in one of the runs: what is worse is told, but counts for nothing.")
        worse = []
    return [_named(benchmark, change) for change in worse]


def _named(benchmark: Benchmark, change: Change) -> str:
    return f"{benchmark.name}: {change.told}"


def render(docs: Path, stored: results.Results, *, write: bool) -> None:
    """The document and the plots of what is stored."""
    document = docs / "benchmarks.md"
    text = page.rendered(document.read_text(), stored, BENCHMARKS)
    if not write:
        return
    for benchmark in BENCHMARKS:
        if (result := page.best(stored, benchmark.name)) is not None:
            picture = plot.drawn(benchmark.about, result)
            (docs / "figures" / f"{benchmark.name}.svg").write_text(picture)
    document.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
