"""`blindpost pipeline generate`, `seal`, `report` and `bench`: files to begin with, the page, measurements.

What only one command needs is imported by that command, so that the others answer at once.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blindpost.cli.output import say
from blindpost.cli.pipeline import (
    LAKE,
    AsOfOption,
    ConfigOption,
    FromOption,
    MasterOption,
    OutOption,
    RemoteOption,
    SetOption,
    ToOption,
    ZoneOption,
    check_order,
    failing_plainly,
    opened,
    write_report,
)
from blindpost.serving.failures import OperatorError

if TYPE_CHECKING:
    from blindpost.pipeline.bench.measure import Result

REPORT = Path("report.html")
DAYS_MOST = 3_650
YEARS = range(2000, 2101)
NUMBERS_WIDTH = 140
"""The width of a benchmark's numbers; a narrow terminal wraps them, a file has them whole."""


def generate(
    folder: Annotated[Path, typer.Argument(help="A new folder for the journal and the list of its faults.")],
    routers: Annotated[int, typer.Option(min=2, max=10_000, help="Message routers in the fleet.")] = 20,
    days: Annotated[int, typer.Option(min=1, max=DAYS_MOST, help="Days of history.")] = 30,
    scale: Annotated[
        float,
        typer.Option(min=0.001, max=1000, help="How busy the routers are; 1 is a large public router."),
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed and first day give the same files.")] = 1,
    first: Annotated[
        datetime | None,
        typer.Option(
            "--from",
            formats=["%Y-%m-%d"],
            help="The first day.",
            show_default="the last is yesterday",
        ),
    ] = None,
    late: Annotated[
        int,
        typer.Option(
            min=0, max=1_000_000, help="Put this many files into FOLDER/late instead, to add later."
        ),
    ] = 0,
    clean: Annotated[bool, typer.Option("--clean", help="No damaged or duplicate files.")] = False,
) -> None:
    """Generate the journal of an imaginary fleet with known faults.

    FOLDER/journal is what servers and canaries would have written; FOLDER/truth.json lists the faults.
    """
    from blindpost.pipeline.generate.fleet import JOURNAL, TRUTH
    from blindpost.pipeline.generate.fleet import generate as make
    from blindpost.pipeline.generate.plan import Plan

    begin = first.date() if first else datetime.now(UTC).date() - timedelta(days=days)
    if begin.year not in YEARS:
        raise OperatorError(f"--from {begin}: a day of the years {YEARS[0]} to {YEARS[-1]} expected.")
    plan = Plan(routers, days, scale, seed, begin)
    with failing_plainly(), _bar("generating") as progress:
        truth = make(plan, folder, progress, spoiled=not clean, late=late)
    written = truth["written"]
    say(
        f"{folder / JOURNAL}: {written['rows']:,} rows in {written['files']:,} files, "
        f"{written['bytes'] / 1e6:,.1f} MB. The faults are listed in {folder / TRUTH}."
    )


def seal(
    folder: Annotated[
        Path,
        typer.Argument(help="A server's journal, `journal.folder` of its settings, or a folder of exports."),
    ],
    minute_days: Annotated[
        int | None,
        typer.Option(
            min=1, max=DAYS_MOST, help="Delete minutes older than so many days.", show_default="none"
        ),
    ] = None,
    lab_days: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=DAYS_MOST,
            help="Delete events and exports older than so many days.",
            show_default="none",
        ),
    ] = None,
) -> None:
    """Seal what a stopped or killed server left unsealed, so that a run sees it.

    Servers do this themselves while they run and when they start, and delete what is too old; use it for one
    that will not start again. Files that a running server is writing are left alone.
    """
    from blindpost.journal.folder import SEGMENTS
    from blindpost.journal.frames import OPEN
    from blindpost.journal.schema import Tier
    from blindpost.journal.seal import BAD, Rules, seal_folder

    kept = (SEGMENTS, *(tier.value for tier in Tier))
    if not any((folder / name).is_dir() for name in kept):
        raise OperatorError(
            f"{folder}: this is not a server's journal. Name the folder that contains {', '.join(kept)}, or "
            "some of them."
        )
    told = seal_folder(folder, Rules(minute_days, lab_days, sure=True))
    if told is None:
        raise OperatorError(f"{folder}: it is being sealed right now. Wait a moment and try again.")
    say(f"{folder}: sealed {told.rows:,} rows of {told.segments} segments.")
    if told.deleted:
        say(f"Deleted: {told.deleted} folders of days that are too old.")
    if left := len(list((folder / SEGMENTS).glob(f"[!.]*{OPEN}"))):
        say(f"Left alone: {left} that a running server is writing.")
    if told.damaged or told.torn_bytes:
        say(f"Left out: {told.damaged} damaged frames, and {told.torn_bytes} bytes of torn ends.")
    for path in sorted(told.foreign):
        say(f"Left alone, damaged or foreign: {path}")
    if told.unreadable:
        raise OperatorError(f"{told.unreadable} segments cannot be read; they are kept as *{BAD}.")


def report(
    file: Annotated[Path, typer.Option("--file", "-f", help="Where to write the page.")] = REPORT,
    out: OutOption = LAKE,
    zone: ZoneOption = None,
    first: FromOption = None,
    last: ToOption = None,
    config: ConfigOption = None,
    as_of: AsOfOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    settings: SetOption = None,
) -> None:
    """Write one HTML page about the tables: the verdict first, then why. The newest week by default.

    The page loads nothing from the network and names no queue.
    """
    check_order(first, last)
    with opened(out, out, zone, master, remote, settings, config, as_of) as lake:
        say(write_report(lake, file, first and first.date(), last and last.date()))


def publish(
    file: Annotated[Path, typer.Option("--file", "-f", help="Where to write the numbers: .csv or .json.")],
    out: OutOption = LAKE,
    epsilon: Annotated[
        str, typer.Option(help="The privacy budget of a day, shared by its numbers; smaller is noisier.")
    ] = "1",
    as_of: AsOfOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    settings: SetOption = None,
) -> None:
    """Write totals of whole days that may be published: noised once, rounded, small ones withheld.

    No other command's output is meant for others. A day keeps the numbers it was first published with.
    """
    from fractions import Fraction

    from blindpost.serving.files import write_file

    try:
        budget = Fraction(epsilon)
    except (ValueError, ZeroDivisionError):
        raise OperatorError(f"--epsilon: a number such as 0.5 expected, not {epsilon!r}.") from None
    if file.suffix not in (".csv", ".json"):
        raise OperatorError(f"{file}: name a file that ends in .csv or .json.")
    with opened(out, out, None, master, remote, settings, None, as_of) as lake:
        from blindpost.pipeline import outside

        rows = outside.publish(lake, budget)
    if not rows:
        raise OperatorError(f"{out}: there is no whole day yet. Run `blindpost pipeline run` first.")
    write_file(file, outside.written(rows, as_json=file.suffix == ".json").encode(), 0o644)
    say(f"{file}: {len(rows)} days.")


def bench(
    rows: Annotated[
        list[str] | None, typer.Option("--rows", help="How many rows: 1e5, 1e6 ... May be repeated.")
    ] = None,
    job: Annotated[
        list[str] | None, typer.Option("--job", help="once, audit, meters, reconcile; all by default.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1_000, help="Repetitions after one that warms up.")] = 3,
    cores: Annotated[int, typer.Option(min=1, max=1_024, help="Cores for each of the engines.")] = 2,
    folder: Annotated[
        Path | None, typer.Option(help="Where to keep the generated files and find them again.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Write all numbers and plans to this file, as JSON.")
    ] = None,
    settings: SetOption = None,
) -> None:
    """Measure the pipeline's jobs beside DuckDB and Polars, on the same files in the same run.

    Each repetition plans anew; starting Spark is measured separately. 1e8 rows take minutes and 5 GB.
    """
    from blindpost.pipeline.bench.jobs import JOBS

    unknown = sorted(set(job or ()) - JOBS.keys())
    if unknown:
        raise OperatorError(f"There is no job {', '.join(unknown)}. There are: {', '.join(JOBS)}.")
    sizes = [_number(text) for text in rows or ["1e5", "1e6"]]
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory())) if folder is None else folder
        lake = stack.enter_context(opened("", str(place), None, f"local[{cores}]", None, settings))
        startup_s = time.perf_counter() - began
        from blindpost.pipeline.bench.measure import run, written

        with _bar("measuring") as progress:
            results = list(
                run(
                    lake.spark,
                    place,
                    sizes,
                    job or list(JOBS),
                    cores,
                    repeat,
                    lambda _, *done: progress(*done),
                )
            )
    if file is not None:
        file.write_text(written(results, startup_s))
    _show(results, startup_s)


def _number(text: str) -> int:
    try:
        found = int(float(text))
    except ValueError:
        found = 0
    if found < 1:
        raise OperatorError(f"--rows: a number such as 1e6 expected, not {text!r}.")
    return found


def _show(results: list[Result], startup_s: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from blindpost.pipeline.bench.jobs import JOBS
    from blindpost.pipeline.bench.measure import against, growth

    table = Table(
        *("job", "rows", "engine", "s", "rows/s/core", "CPU s", "rows/CPU s", "of DuckDB", "aim"),
        *("shuffled", "peak"),
        box=None,
    )
    for result in results:
        share = against(results, result, "duckdb")
        aim = JOBS[result.job].aim if result.engine == "spark" else None
        table.add_row(
            result.job,
            f"{result.rows:,}",
            result.engine,
            f"{result.median_s:.3f}",
            f"{result.per_core:,.0f}",
            f"{result.rows / result.per_cpu_s:.3f}",
            f"{result.per_cpu_s:,.0f}",
            "-" if share is None else f"{share:.2f}",
            "-" if aim is None else f"{aim:.2f}",
            "-" if result.shuffle_bytes is None else f"{result.shuffle_bytes / 1e6:,.2f} MB",
            f"{result.peak_bytes / 1e6:,.0f} MB",
        )
    console = Console(highlight=False)
    console.width = max(console.width, NUMBERS_WIDTH)
    console.print(table)
    say(f"Starting Spark took {startup_s:.1f} s, which is not included.")
    for job in sorted({result.job for result in results}):
        for small, big, power in growth(results, job, "spark"):
            say(f"{job}, Spark: from {small:,} to {big:,} rows, CPU time grows with the power {power:.2f}.")
    for result in results:
        share, aim = against(results, result, "duckdb"), JOBS[result.job].aim
        if result.engine == "spark" and share is not None and aim is not None and share < aim:
            _explain(result, share, aim)


def _explain(result: Result, share: float, aim: float) -> None:
    """Where the time went of a job that was slower than it should be."""
    say(f"\n{result.job}, {result.rows:,} rows: {share:.2f} of DuckDB's rate; the aim is {aim:.2f}.")
    in_tasks = sum(stage["run_s"] for stage in result.stages)
    outside = max(result.seconds[-1] - in_tasks / result.cores, 0.0)
    for stage in result.stages:
        say(
            f"  stage {stage['stage']}: {stage['tasks']} tasks, {stage['run_s']:.2f} s in them, of these "
            f"{stage['cpu_s']:.2f} s of CPU and {stage['gc_s']:.2f} s of garbage collection, "
            f"{stage['shuffle_bytes'] / 1e6:.2f} MB shuffled"
        )
    say(
        f"  about {outside:.2f} s of {result.seconds[-1]:.2f} s outside tasks: "
        "planning, scheduling, listing files"
    )
    say(result.plan.rstrip())


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for a person who watches."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def add_to(app: typer.Typer) -> None:
    """These commands belong to `blindpost pipeline`."""
    for command in (generate, seal, report, publish, bench):
        app.command()(command)
