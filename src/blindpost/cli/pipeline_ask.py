"""`blindpost pipeline check`, `export` and `lineage`: alerts, tables for programs, where a row comes from."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, TextIO

import typer

from blindpost.cli.output import JsonOption, say, working
from blindpost.cli.pipeline import (
    LAKE,
    AsOfOption,
    ConfigOption,
    DayOption,
    FromOption,
    MasterOption,
    OutOption,
    RemoteOption,
    SetOption,
    ToOption,
    ZoneOption,
    check_order,
    chosen,
    days_of,
    opened,
    plain,
    show_rows,
)
from blindpost.serving.failures import OperatorError

TableArgument = Annotated[str, typer.Argument(help="The table; `blindpost pipeline catalogue` lists them.")]


def check(
    out: OutOption = LAKE,
    zone: ZoneOption = None,
    first: FromOption = None,
    last: ToOption = None,
    config: ConfigOption = None,
    as_of: AsOfOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the report's verdicts for alerts, the worst first.

    Exit code 0 if all is well, 1 if something should be watched or was not measured, 2 if you must act.
    """
    check_order(first, last)
    with opened(out, out, zone, master, remote, settings, config, as_of) as lake:
        from blindpost.pipeline.report.build import sections
        from blindpost.pipeline.report.facts import gather
        from blindpost.pipeline.report.page import State, in_order, worst

        with working("reading the tables ..."):
            facts = gather(lake, first and first.date(), last and last.date(), int(lake.clock()))
        found = in_order(sections(facts))
    state = worst(found)
    if as_json:
        told = [{"key": one.key, "state": one.state.value, "verdict": one.verdict} for one in found]
        days = {"first": facts.days[0], "last": facts.days[-1]}
        typer.echo(json.dumps({"state": state.value, "days": days, "verdicts": told}))
    else:
        for section in found:
            say(f"{section.state.value:<8} {section.title} {section.verdict}")
    raise typer.Exit({State.OK: 0, State.BAD: 2}.get(state, 1))


def export(
    table: TableArgument,
    file: Annotated[Path, typer.Option("--file", "-f", help="Where to write it: .csv or .json.")],
    out: OutOption = LAKE,
    zone: ZoneOption = None,
    day: DayOption = None,
    first: FromOption = None,
    last: ToOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    settings: SetOption = None,
) -> None:
    """Write a table as CSV, or as one JSON object per line, for your other programs.

    These are exact numbers of your fleet. For numbers that may leave, use `publish`. A file of a table that
    names queues can be read by its owner only.
    """
    from blindpost.journal.schema import Tier

    if file.suffix not in (".csv", ".json"):
        raise OperatorError(f"{file}: name a file that ends in .csv or .json.")
    (dataset,) = chosen([table])
    days = days_of(day, first, last)
    count = 0
    with opened(out, out, zone, master, remote, settings) as lake:
        held = [one for one in lake.gold_store(dataset).current().partitions if one in days]
        if not held:
            raise OperatorError(f"{table}: nothing is published for these days in {out}.")
        names = dataset.schema.names
        rows = lake.gold(dataset, held).orderBy("day", *dataset.key).toLocalIterator()
        with _whole(file, 0o600 if dataset.tier is Tier.STATE else 0o666) as written:
            table_writer = csv.writer(written, lineterminator="\n")
            if file.suffix == ".csv":
                table_writer.writerow(names)
            for row in rows:
                values = [plain(row[name]) for name in names]
                if file.suffix == ".csv":
                    table_writer.writerow(values)
                else:
                    written.write(json.dumps(dict(zip(names, values, strict=True))) + "\n")
                count += 1
    say(f"{file}: {count} rows.")


@contextlib.contextmanager
def _whole(file: Path, mode: int) -> Iterator[TextIO]:
    """A file that is replaced when everything is written: half a table looks like a whole one."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as written:
            yield written
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def lineage(
    table: TableArgument,
    day: Annotated[datetime, typer.Argument(formats=["%Y-%m-%d"], help="The day (UTC).")],
    out: OutOption = LAKE,
    zone: ZoneOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the journal files that a day of a table was made from, with their hashes."""
    (dataset,) = chosen([table])
    with opened(out, out, zone, master, remote, settings) as lake:
        from blindpost.pipeline.lineage import files_of

        kept = lake.gold_store(dataset).current().partitions.get(day.date().isoformat())
        if kept is None:
            raise OperatorError(f"{table}: nothing is published for {day.date()}.")
        found = files_of(dataset, day.date(), lake.ledger.all().values())
    rows = [
        {"table": one.table, "file": one.path, "rows": one.rows, "gone": one.gone, "sha256": one.sha256}
        for one in found
    ]
    show_rows(rows, as_json=as_json, title=f"{table}, {day.date()}: {kept.rows} rows made from {kept.inputs}")


def add_to(app: typer.Typer) -> None:
    """These commands belong to `blindpost pipeline`."""
    for command in (check, export, lineage):
        app.command()(command)
