"""A run of the pipeline in numbers: a file for Prometheus' textfile collector."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from blindpost.serving.files import write_file
from blindpost.serving.prometheus import Labels, Text

if TYPE_CHECKING:
    from blindpost.pipeline.runner import Summary

PREFIX = "blindpost_pipeline_"


def write_metrics(file: Path, summary: Summary, ended_s: float, took_s: float) -> None:
    """Replace the file as a whole: a collector may be reading it."""
    write_file(file, text_of(summary, ended_s, took_s).encode(), 0o644)


def text_of(summary: Summary, ended_s: float, took_s: float) -> str:
    text = Text()
    text.gauge(PREFIX + "last_run_seconds", "When the last run ended, in Unix seconds", ended_s)
    text.gauge(PREFIX + "run_seconds", "How long the last run took", took_s)
    text.gauge(PREFIX + "files", "Known files of the journal", summary.files)
    text.gauge(PREFIX + "rows", "Rows in the files that are read", summary.rows)
    _each(
        text,
        "days_computed",
        "Days that the last run computed",
        {name: len(days) for name, days in summary.computed.items()},
    )
    _each(
        text,
        "days_erased",
        "Days that the last run erased",
        {name: len(days) for name, days in summary.erased.items()},
    )
    _each(text, "failed", "Tables that could not be computed", dict.fromkeys(summary.failed, 1))
    _each(text, "unfinished", "Tables left unfinished", dict.fromkeys(summary.unfinished, 1))
    aside = Counter(entry.reason for entry in summary.set_aside)
    _each(text, "files_set_aside", "Files that were set aside", aside, "reason")
    broken: Counter[tuple[str, str]] = Counter()
    for (table, _, rule), rows in summary.broken.items():
        broken[table, rule] += rows
    samples: list[tuple[str, Labels, float]] = [
        ("", (("table", table), ("rule", rule)), rows) for (table, rule), rows in sorted(broken.items())
    ]
    text.metric(PREFIX + "rows_breaking_a_rule", "gauge", "Rows that break a rule", samples)
    return text.done()


def _each(text: Text, name: str, help_text: str, found: dict[str, int], label: str = "table") -> None:
    samples: list[tuple[str, Labels, float]] = [
        ("", ((label, key),), value) for key, value in sorted(found.items())
    ]
    text.metric(PREFIX + name, "gauge", help_text, samples)
