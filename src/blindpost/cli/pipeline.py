"""`blindpost pipeline`: PySpark jobs over what servers and canaries recorded.

What only one command needs is imported by that command, so that the others answer at once.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindpost.cli.output import JsonOption, say, working
from blindpost.pipeline.errors import PipelineError, full_disks_explained
from blindpost.serving.failures import OperatorError

if TYPE_CHECKING:
    from blindpost.pipeline.dataset import Dataset
    from blindpost.pipeline.lake import Lake
    from blindpost.pipeline.runner import Days, Step, Summary

app = typer.Typer(
    help="Turn what servers and canaries recorded into tables and a report, with Spark.",
    no_args_is_help=True,
    epilog="First steps: `blindpost pipeline run --journal journal --out lake`. Spark runs on this machine "
    "unless --master names another; paths may be URIs that Hadoop understands.",
)

ROWS_MOST = 1_000_000_000
NOTHING_THERE = (
    "No file of a server's journal is in this folder. Look whether its disk is mounted, and whether servers "
    "write there: they seal the first file some minutes after they start. What was published before stays."
)

JournalOption = Annotated[str, typer.Option("--journal", "-j", help="The folder with the servers' journals.")]
OutOption = Annotated[
    str, typer.Option("--out", "-o", help="The lake: the folder that results are written to.")
]
ZoneOption = Annotated[
    str | None,
    typer.Option(
        help="Where tables that name queues are kept; it must stay with the routers.", show_default="OUT/zone"
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        help="Where Spark runs: local[N], spark://HOST:PORT, yarn, k8s://...", show_default="local[*]"
    ),
]
RemoteOption = Annotated[str | None, typer.Option(help="A Spark Connect server: sc://HOST:PORT.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of Spark. May be repeated.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="A TOML file about the fleet: who must write, and how many days to keep."
    ),
]
AsOfOption = Annotated[
    datetime | None,
    typer.Option(
        "--as-of",
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"],
        help="Judge as of this moment (UTC); for old journals.",
        show_default="now",
    ),
]
DayOption = Annotated[
    datetime | None, typer.Option("--day", formats=["%Y-%m-%d"], help="Only this day (UTC).")
]
FromOption = Annotated[datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day.")]
ToOption = Annotated[datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="The last day.")]
JOURNAL, LAKE = "journal", "lake"


@contextlib.contextmanager
def failing_plainly(place: str = "the files") -> Iterator[None]:
    """What the pipeline cannot do becomes one message, like any other failure."""
    try:
        with full_disks_explained(place):
            yield
    except PipelineError as error:
        raise OperatorError(str(error)) from error


def ready() -> None:
    """Say what to install before anything of Spark is imported."""
    from blindpost.pipeline.session import require_pyspark

    with failing_plainly():
        require_pyspark()


@contextlib.contextmanager
def opened(
    journal: str,
    out: str,
    zone: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    settings: Sequence[str] | None = None,
    config: Path | None = None,
    as_of: datetime | None = None,
) -> Iterator[Lake]:
    """The lake, with Spark started for it."""
    ready()
    from blindpost.pipeline.session import SparkOptions, spark_session
    from blindpost.pipeline.settings import read_settings
    from blindpost.pipeline.sizing import is_small

    pairs = [setting.partition("=") for setting in settings or ()]
    for name, is_pair, _ in pairs:
        if not is_pair or not name:
            raise OperatorError(f"--set {name}: NAME=VALUE expected, such as spark.driver.memory=4g.")
    with failing_plainly(out):
        about = read_settings(config)
        small = is_small(journal)
        options = SparkOptions(master, remote, {name: value for name, _, value in pairs}, small)
        with contextlib.ExitStack() as session:
            with working("starting Spark ..."):
                spark = session.enter_context(spark_session(options))
            from blindpost.pipeline.lake import Lake

            now_s = None if as_of is None else as_of.replace(tzinfo=UTC).timestamp()
            yield Lake(spark, journal, out, zone, about, time.time if now_s is None else lambda: now_s)


def days_of(day: datetime | None, first: datetime | None, last: datetime | None) -> Days:
    """The days that the options name."""
    ready()
    from blindpost.pipeline.runner import Days

    if day is not None and (first is not None or last is not None):
        raise OperatorError("Name one day with --day, or a range with --from and --to, not both.")
    if day is not None:
        return Days(day.date(), day.date())
    check_order(first, last)
    return Days(first and first.date(), last and last.date())


def check_order(first: datetime | None, last: datetime | None) -> None:
    """A range that contains no day would look like one without news."""
    if first is not None and last is not None and first > last:
        raise OperatorError(f"--from {first.date()} is after --to {last.date()}: no day is between them.")


def chosen(names: Collection[str] | None) -> list[Dataset]:
    """The data sets of these names, or all."""
    ready()
    from blindpost.pipeline.dataset import datasets

    known = datasets()
    unknown = sorted(set(names or ()) - known.keys())
    if unknown:
        raise OperatorError(f"There is no table {', '.join(unknown)}. There are: {', '.join(known)}.")
    return [dataset for name, dataset in known.items() if not names or name in names]


@contextlib.contextmanager
def watched() -> Iterator[Callable[[Step], None]]:
    """Progress bars on a terminal; an observer for `run`."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bars:
        tasks = {stage: bars.add_task(stage, total=None, what="") for stage in ("bronze", "silver", "gold")}

        def observe(step: Step) -> None:
            task = tasks[step.stage]
            bars.update(task, what=f"{step.table} {step.point}")
            if step.total:
                bars.update(task, completed=step.done, total=step.total)

        yield observe


@app.command()
def run(
    journal: JournalOption = JOURNAL,
    out: OutOption = LAKE,
    zone: ZoneOption = None,
    day: DayOption = None,
    first: FromOption = None,
    last: ToOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Process new files as a stream with a checkpoint, each once.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=86_400,
            help="With --follow: look for new files every so many seconds until interrupted, whatever fails.",
        ),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="Only this table. May be repeated.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Write the report to this file afterwards.", show_default=False),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics", help="Write metrics of each run to this file, for Prometheus.", show_default=False
        ),
    ] = None,
    config: ConfigOption = None,
    as_of: AsOfOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the tables up to date, for all days or those you name. What is up to date is left alone.

    Files that cannot be read are set aside with a reason, and a table that cannot be computed stays as it
    was; the run continues without them. Exit code 1 if a table failed or was left unfinished.
    """
    days = days_of(day, first, last)
    if follow and (day or first or last):
        raise OperatorError("--follow processes whatever is new: leave out --day, --from and --to.")
    if follow and report:
        raise OperatorError(
            "--follow writes no report: leave out --report, and run `blindpost pipeline report`."
        )
    if every is not None and not follow:
        raise OperatorError("--every needs --follow.")
    wanted = chosen(table)
    with opened(journal, out, zone, master, remote, settings, config, as_of) as lake:
        if not follow:
            from blindpost.pipeline.runner import run as run_all

            began = time.monotonic()
            with watched() as observe:
                summary = run_all(lake, wanted, days, observe)
            if not summary.there:
                summary.unfinished[lake.journal] = NOTHING_THERE
            tell(summary, as_json=as_json)
            _measure(metrics, [summary], began)
            if report is not None:
                said = write_report(lake, report, days.first, days.last)
                if not as_json:
                    say(said)
            if summary.failed or summary.unfinished:
                raise typer.Exit(1)
            return
        _follow(lake, wanted, every, metrics, as_json=as_json)


def _measure(file: Path | None, summaries: Sequence[Summary], began: float) -> None:
    if file is not None and summaries:
        from blindpost.cli.pipeline_metrics import write_metrics

        write_metrics(file, summaries[-1], time.time(), time.monotonic() - began)


def write_report(lake: Lake, file: Path, first: date | None, last: date | None) -> str:
    """One HTML file about these days, and what to say of it."""
    from blindpost.pipeline.report.build import build
    from blindpost.pipeline.report.facts import gather
    from blindpost.serving.files import write_file

    with working("reading the tables ..."):
        facts = gather(lake, first, last, int(lake.clock()))
    page = build(facts).encode()
    write_file(file, page, 0o644)
    return f"{file}: {len(page) / 1e3:,.0f} kB about {facts.days[0]} to {facts.days[-1]}."


def _follow(
    lake: Lake, wanted: list[Dataset], every: float | None, metrics: Path | None, *, as_json: bool
) -> None:
    from blindpost.pipeline.follow import follow

    again = True  # an earlier process may have left something undone
    try:
        while True:
            began = time.monotonic()
            summaries: list[Summary] = []
            try:
                with failing_plainly(lake.out), watched() as observe:
                    summaries = follow(lake, wanted, observe, again=again)
            except OperatorError as error:  # another command is at work, or a disk is full
                if every is None:
                    raise
                typer.secho(str(error), fg="red", err=True)
                again = True
            _measure(metrics, summaries, began)
            for summary in summaries:
                if summary.has_news:
                    tell(summary, as_json=as_json)
            if summaries:
                again = bool(summaries[-1].failed or summaries[-1].unfinished)
            if every is None:
                if again:
                    raise typer.Exit(1)
                return
            time.sleep(every)
    except KeyboardInterrupt:
        say("Stopped. The next run continues from here.")


def tell(summary: Summary, *, as_json: bool) -> None:
    """What a run did, and what needs attention."""
    set_aside = [
        {"file": entry.path, "reason": entry.reason, "detail": entry.detail} for entry in summary.set_aside
    ]
    broken = [
        {"table": table, "day": day, "rule": rule, "rows": rows}
        for (table, day, rule), rows in sorted(summary.broken.items())
    ]
    if as_json:
        found: dict[str, Any] = {"computed": summary.computed, "set_aside": set_aside, "broken": broken}
        found |= {"failed": summary.failed, "unfinished": summary.unfinished, "erased": summary.erased}
        typer.echo(json.dumps(found))
        return
    if not summary.has_news:
        say("Everything was up to date.")
    for name, days in sorted(summary.computed.items()):
        shown = days[0] if len(days) == 1 else f"{len(days)} days, {days[0]} to {days[-1]}"
        say(f"{name}: computed {shown}")
    for name, days in sorted(summary.erased.items()):
        say(f"{name}: erased {len(days)} days up to {days[-1]}, past their retention")
    for name, reason in sorted(summary.failed.items()):
        say(f"{name}: NOT computed; what was published before stays. Reason: {reason}")
    for name, reason in sorted(summary.unfinished.items()):
        say(f"{name}: {reason}")
    for file in set_aside:
        say(f"set aside: {file['file']}: {file['reason']} ({file['detail']})")
    for found in broken:
        say(f"{found['table']}, {found['day']}: {found['rows']} rows break the rule: {found['rule']}")


@app.command()
def catalogue(
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Write it to this file.")] = None,
) -> None:
    """Describe every table: its columns and rules, where it runs, and why it uses Spark."""
    ready()
    from blindpost.pipeline.catalogue import catalogue as written

    text = written(chosen(None))
    if file is None:
        typer.echo(text, nl=False)
    else:
        file.write_text(text)


@app.command()
def sql(
    query: Annotated[
        str | None,
        typer.Argument(help="One Spark SQL statement; without it, statements are read from standard input."),
    ] = None,
    out: OutOption = LAKE,
    zone: ZoneOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    settings: SetOption = None,
    limit: Annotated[
        int, typer.Option(min=0, max=ROWS_MOST, help="Show so many rows of an answer at most; 0 for all.")
    ] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Query the tables with Spark SQL. `SHOW TABLES` and `DESCRIBE name` show what there is.

    DuckDB reads the same rows without Spark: SELECT * FROM 'lake/gold/NAME/*.parquet'. Of statements from a
    file or a pipe all are tried; exit code 1 if one failed.
    """
    with opened(out, out, zone, master, remote, settings) as lake:
        from blindpost.journal.schema import Tier

        open_to_us = [one for one in chosen(None) if one.tier is not Tier.STATE or not lake.zone_is_closed]
        for dataset in open_to_us:
            lake.gold(dataset).createOrReplaceTempView(dataset.name)
        if not any(lake.gold_store(dataset).current().partitions for dataset in open_to_us):
            nothing = f"{out}: nothing is published here yet. Run `blindpost pipeline run` first."
            typer.secho(nothing, fg="yellow", err=True)
        if query is not None:
            _answer(lake, query, limit, as_json=as_json)
            return
        failed = False
        for statement in _statements():
            try:
                _answer(lake, statement, limit, as_json=as_json)
            except OperatorError as error:
                typer.secho(str(error), fg="red", err=True)
                failed = True
    if failed and not sys.stdin.isatty():
        raise typer.Exit(1)


def _statements() -> Iterator[str]:
    """Statements from the terminal or a pipe, each ended by a semicolon."""
    asked = sys.stdin.isatty()
    collected = ""
    while True:
        if asked:
            typer.echo("     > " if collected else "spark> ", nl=False)
        line = sys.stdin.readline()
        collected += line
        if not line or collected.rstrip().endswith(";"):
            statement, collected = collected.strip().rstrip(";"), ""
            if statement:
                yield statement
        if not line:
            return


def _answer(lake: Lake, statement: str, limit: int, *, as_json: bool) -> None:
    from pyspark.errors import PySparkException

    try:
        found = lake.spark.sql(statement)
        twice = sorted({name for name in found.columns if found.columns.count(name) > 1})
        if twice:
            raise OperatorError(f"two columns are called {twice[0]}: name them apart with AS.")
        rows = (found.limit(limit + 1) if limit else found).collect()
    except PySparkException as error:
        (first, *_) = [*str(error).strip().splitlines(), type(error).__name__]
        raise OperatorError(first) from error
    shown = rows[:limit] if limit else rows
    show_rows([row.asDict() for row in shown], as_json=as_json)
    if len(shown) < len(rows):
        typer.secho(f"Only the first {limit:,} rows are shown. --limit 0 shows all.", fg="yellow", err=True)


def show_rows(rows: Sequence[dict[str, Any]], *, as_json: bool, title: str | None = None) -> None:
    """Rows as a table for people or as JSON lines."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps({name: plain(value) for name, value in row.items()}))
        return
    if not rows:
        say("No rows.")
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    shown = [["-" if value is None else str(plain(value)) for value in row.values()] for row in rows]
    names = list(rows[0])
    widths = [max(map(len, column)) for column in zip(names, *shown, strict=True)]
    if sum(widths) + len(widths) - 1 > console.width:
        _show_one_by_one(names, shown, title)
        return
    table = Table(*names, title=title, title_justify="left", box=None, pad_edge=False)
    for values in shown:
        table.add_row(*values)
    console.print(table)


def _show_one_by_one(names: Sequence[str], rows: Sequence[Sequence[str]], title: str | None) -> None:
    """Rows wider than the terminal: one column per line."""
    wide = max(map(len, names))
    if title:
        typer.echo(title)
    for number, values in enumerate(rows, start=1):
        typer.echo(f"row {number}")
        for name, value in zip(names, values, strict=True):
            typer.echo(f"  {name:<{wide}}  {value}")


def plain(value: Any) -> Any:
    """A value as JSON and people take it."""
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(plain(key)): plain(of_key) for key, of_key in value.items()}
    if isinstance(value, tuple) and hasattr(value, "asDict"):  # a struct
        return plain(value.asDict())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    is_json = value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))
    return value if is_json else str(value)
