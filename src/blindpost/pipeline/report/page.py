"""The frame of the report: what a section is, and how sections become one file.

A section says first whether all is well, then why, then shows a plot with the decision it serves. Nothing in
the file refers to anything outside it, and it holds no script at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from html import escape

from blindpost.pipeline.report.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
FOOTER = (
    "Made by <code>blindpost pipeline report</code>. "
    "Counts about users are sums over many; only our own canaries are seen one by one."
)


WORDS = {
    "acked": "fetched",
    "backlog": "waiting",
    "backlog_max": "most waiting",
    "expired": "aged out",
    "refused_full": "refused, queue full",
    "router_stored": "queues at the router",
    "subscriber_stored": "queues at the service",
    "source_count": "in the source",
    "result_count": "in the result",
    "stored_agrees": "still stored",
    "accepted_ms_p95": "accepted within, ms (95 %)",
    "leased_age_ms_p95": "age when leased, ms (95 %)",
    "leased_age_ms_max": "age when leased, ms (most)",
    "woken_ms_p95": "woken within, ms (95 %)",
    "depth_max": "most waiting",
}
"""Columns of tables in the words of somebody who reads only this page."""


class State(Enum):
    """The state of a section, in the order in which somebody must look at it."""

    BAD = "act"
    WARN = "watch"
    UNKNOWN = "no data"
    OK = "well"


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing, and the decision it is for."""

    title: str
    decision: str
    drawing: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows behind a verdict; long ones are cut, and the page says how many were left out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    most: int = 20


@dataclass(frozen=True, slots=True)
class Page:
    """All about one server, folded until somebody asks for it."""

    name: str
    said: str
    plots: Sequence[Plot] = field(default=())
    tables: Sequence[Table] = field(default=())


@dataclass(frozen=True, slots=True)
class Section:
    """One question of the operator and its answer."""

    key: str
    title: str
    state: State
    verdict: str
    plots: Sequence[Plot] = field(default=())
    tables: Sequence[Table] = field(default=())
    pages: Sequence[Page] = field(default=())


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page."""

    period: str
    made_at: str
    age: str
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]] = field(default=())


def worst(sections: Sequence[Section]) -> State:
    """A fleet is as healthy as its worst part; where nothing was measured nothing is known."""
    states = {section.state for section in sections}
    return next((state for state in State if state in states), State.UNKNOWN)


def in_order(sections: Sequence[Section]) -> list[Section]:
    """The worst first."""
    return sorted(sections, key=lambda section: list(State).index(section.state))


def render(report: Report) -> str:
    """The whole file."""
    state = worst(report.sections)
    ordered = in_order(report.sections)
    return "".join(
        (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<link rel="icon" href="data:,">',
            f"<title>Blindpost fleet: {_headline(state)}</title><style>{STYLE}</style></head><body><main>",
            _header(report, state, ordered),
            *(_section(section) for section in ordered),
            f"<footer>{FOOTER}</footer></main></body></html>\n",
        )
    )


def _headline(state: State) -> str:
    return {
        State.BAD: "action is needed",
        State.WARN: "something should be watched",
        State.UNKNOWN: "not everything was measured",
        State.OK: "all is well",
    }[state]


def _header(report: Report, state: State, sections: Sequence[Section]) -> str:
    summary = "".join(
        f'<li><a href="#{escape(section.key)}">{_badge(section.state)}<b>{escape(section.title)}</b></a> '
        f"<span>{escape(section.verdict)}</span></li>"
        for section in sections
    )
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in report.facts
    )
    return (
        f'<header class="{state.name.lower()}"><p class="kind">Blindpost fleet report</p>'
        f"<h1>{escape(_headline(state).capitalize())}</h1>"
        f"<dl><div><dt>Period</dt><dd>{escape(report.period)}</dd></div>"
        f"<div><dt>Newest data</dt><dd>{escape(report.age)}</dd></div>"
        f"<div><dt>Made</dt><dd>{escape(report.made_at)}</dd></div>{facts}</dl></header>"
        f'<nav aria-label="verdicts"><ul>{summary}</ul></nav>'
    )


def _badge(state: State) -> str:
    return f'<span class="badge {state.name.lower()}">{state.value}</span>'


def _section(section: Section) -> str:
    return (
        f'<section id="{escape(section.key)}"><h2>{escape(section.title)} {_badge(section.state)}</h2>'
        f'<p class="verdict">{escape(section.verdict)}</p>{_inside(section.plots, section.tables)}'
        f"{''.join(map(_page, section.pages))}</section>"
    )


def _page(page: Page) -> str:
    return (
        f'<details class="page" id="server-{escape(page.name)}"><summary>{escape(page.name)} '
        f"<span>{escape(page.said)}</span></summary>{_inside(page.plots, page.tables)}</details>"
    )


def _inside(plots: Sequence[Plot], tables: Sequence[Table]) -> str:
    drawn = "".join(
        f"<figure><h3>{escape(plot.title)}</h3>{plot.drawing}"
        f"<figcaption><b>Decides:</b> {escape(plot.decision)}</figcaption></figure>"
        for plot in plots
    )
    return f'<div class="plots">{drawn}</div>{"".join(map(_table, tables))}'


_LONG = ' class="long"'
"""A cell that takes a line of its own on a phone."""


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    names = [escape(WORDS.get(column, column.replace("_", " "))) for column in table.columns]
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-name="{name}"{_LONG if len(shown(value)) > 22 else ""}>{escape(shown(value))}</td>'
            for name, value in zip(names, row, strict=True)
        )
        + "</tr>"
        for row in table.rows[: table.most]
    )
    left = len(table.rows) - table.most
    more = f'<p class="more">and {left} more, in the gold table.</p>' if left > 0 else ""
    return (
        f'<details open><summary>{escape(table.title)}</summary><div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}</details>"
    )


def shown(value: object) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    if isinstance(value, float):
        return f"{value:,.4g}".replace(",", " ") if abs(value) < 1e4 else f"{value:,.0f}".replace(",", " ")
    return str(value)
