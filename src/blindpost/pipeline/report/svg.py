"""Plots as inline SVG: drawn here, coloured by the page's style sheet, readable at the width of a phone.

Every mark carries a `<title>`, so the exact number is there for a pointer and for a screen reader; colour
never says anything that a word or a position does not say as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

WIDTH = 400
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 22
COLOURS = 5
"""Series beyond this share the last colour; sections name the worst ones and sum up the rest."""

_At = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: seconds since 1970 and a value, or None where nothing was measured."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar with its label, the number beside it, and whether it is what somebody must look at."""

    label: str
    value: float
    shown: str
    bad: bool = False


def number(value: float) -> str:
    """Short enough for an axis: 950, 1.2 k, 3 M, 0.25."""
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g} {letter}"
    return f"{value:.3g}"


def steps(top: float, wanted: int = 4) -> list[float]:
    """Round values from zero to at least `top`."""
    if top <= 0 or not math.isfinite(top):
        return [0.0, 1.0]
    raw = top / wanted
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= raw)
    return [step * k for k in range(math.ceil(top / step - 1e-9) + 1)]


def lines(series: Sequence[Series], label: str, unit: str, *, limit: float | None = None) -> str:
    """Values over time; a dashed line where the limit is."""
    seen = [(x, y) for one in series for x, y in one.points if y is not None]
    if not seen:
        return nothing(label)
    height = 180
    left, right = min(x for x, _ in seen), max(x for x, _ in seen)
    span = max(right - left, 1.0)
    ticks = steps(max(*(y for _, y in seen), limit or 0.0))

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - left) / span * (WIDTH - LEFT - RIGHT),
            height - BOTTOM - y / ticks[-1] * (height - TOP - BOTTOM),
        )

    parts = [*_value_axis(ticks, at(left, 0)[1], at(left, ticks[-1])[1], unit)]
    parts += _time_axis(left, right, height)
    for place, one in enumerate(series):
        colour = min(place, COLOURS - 1)
        parts += _line(one, colour, at, unit)
    if limit is not None:
        y = at(left, limit)[1]
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = escape(f"limit {number(limit)} {unit}")
        parts.append(f'<text class="limit-label" x="{LEFT + 4}" y="{y - 3:.1f}">{text}</text>')
    return _frame(height, label, parts) + _legend(series)


def bars(rows: Sequence[Bar], label: str) -> str:
    """Horizontal bars, longest scale for all, the number at the end of each."""
    if not rows:
        return nothing(label)
    top = max((row.value for row in rows), default=0.0) or 1.0
    names = labels([row.label for row in rows])
    left = _width(names)
    room, high = WIDTH - left - 70, 20
    parts: list[str] = []
    for place, row in enumerate(rows):
        y = place * high + 2
        length = max(row.value / top * room, 1.0 if row.value else 0.0)
        kind = "bar bad" if row.bad else "bar"
        said = escape(f"{row.label}: {row.shown}")
        parts.append(f'<text class="name" x="{left - 6:.0f}" y="{y + 12}">{escape(names[place])}</text>')
        parts.append(
            f'<rect class="{kind}" x="{left:.0f}" y="{y + 2}" width="{length:.1f}" height="13" rx="2">'
            f"<title>{said}</title></rect>"
        )
        parts.append(f'<text x="{left + 4 + length:.1f}" y="{y + 12}">{escape(row.shown)}</text>')
    return _frame(len(rows) * high + 6, label, parts)


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: dict[tuple[int, int], float],
    label: str,
    unit: str,
    limit: float,
) -> str:
    """A grid whose darkness is the value against the limit; above the limit a cell is marked as bad."""
    if not cells:
        return nothing(label)
    names = labels(rows)
    left = _width(names)
    wide = (WIDTH - left) / max(len(columns), 1)
    high = 14
    parts: list[str] = []
    for y, name in enumerate(rows):
        parts.append(f'<text class="name" x="{left - 6:.0f}" y="{y * high + 11}">{escape(names[y])}</text>')
        for x, column in enumerate(columns):
            value = cells.get((y, x))
            if value is None:
                continue
            kind = "cell bad" if value > limit else "cell"
            depth = min(0.12 + 0.88 * value / limit, 1.0) if limit else 1.0
            said = escape(f"{name}, {column}: {number(value)} {unit}")
            parts.append(
                f'<rect class="{kind}" x="{left + x * wide:.1f}" y="{y * high + 1}" '
                f'width="{max(wide - 0.6, 0.6):.1f}" height="{high - 2}" fill-opacity="{depth:.2f}">'
                f"<title>{said}</title></rect>"
            )
    bottom = len(rows) * high + 12
    if columns:
        parts.append(f'<text x="{left:.0f}" y="{bottom}">{escape(columns[0])}</text>')
    if columns[:1] != columns[-1:]:
        parts.append(f'<text class="name" x="{WIDTH - 2}" y="{bottom}">{escape(columns[-1])}</text>')
    return _frame(bottom + 6, label, parts)


def nothing(label: str) -> str:
    """Said in words, so that an empty plot is never mistaken for a good one."""
    return f'<p class="nothing">{escape(label)}: nothing was recorded in this period.</p>'


LETTER, CAPITAL = 7.2, 9.0
"""The width of a letter on a phone, where text is largest."""
LETTERS = 22
"""The longest label; a longer one loses its middle, and no two become equal."""


def labels(texts: Sequence[str]) -> list[str]:
    """Labels that fit beside a drawing."""
    found = [shortened(text, LETTERS) for text in texts]
    return [
        label if found.count(label) == 1 or text == label else shortened(text, LETTERS - 3) + f" {place + 1}"
        for place, (text, label) in enumerate(zip(texts, found, strict=True))
    ]


def shortened(text: str, size: int) -> str:
    """A text without its middle; of two names with an arrow between them, each without its own."""
    if len(text) <= size:
        return text
    if " → " in text:
        one, _, other = text.partition(" → ")
        each = (size - 3) // 2
        spare = max(each - len(one), 0), max(each - len(other), 0)
        return f"{shortened(one, each + spare[1])} → {shortened(other, each + spare[0])}"
    return f"{text[: size // 2]}…{text[len(text) - (size - 1) // 2 :]}"


def _width(names: Sequence[str]) -> float:
    wide = (sum(CAPITAL if letter.isupper() else LETTER for letter in name) for name in names)
    return max(wide, default=0) + 10


def _line(one: Series, colour: int, at: _At, unit: str) -> Iterable[str]:
    """A path that is broken where nothing was measured, and a dot for each value when there are few."""
    path, pen = [], "M"
    for x, y in one.points:
        if y is None:
            pen = "M"
            continue
        px, py = at(x, y)
        path.append(f"{pen}{px:.1f} {py:.1f}")
        pen = "L"
    yield f'<path class="line s{colour}" d="{"".join(path)}"><title>{escape(one.name)}</title></path>'
    if len(one.points) > 200:
        return
    for x, y in one.points:
        if y is not None:
            px, py = at(x, y)
            said = escape(f"{one.name}, {moment(x)}: {number(y)} {unit}")
            dot = f'<circle class="dot s{colour}" cx="{px:.1f}" cy="{py:.1f}" r="2">'
            yield f"{dot}<title>{said}</title></circle>"


def _value_axis(ticks: Sequence[float], low: float, high: float, unit: str) -> Iterable[str]:
    for tick in ticks:
        y = low - (low - high) * tick / ticks[-1]
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="name" x="{LEFT - 4}" y="{y + 3:.1f}">{number(tick)}</text>'
    yield f'<text x="2" y="11">{escape(unit)}</text>'


def _time_axis(left: float, right: float, height: int) -> Iterable[str]:
    """Up to three moments; a short time needs fewer, since equal labels say nothing."""
    y = height - 6
    told: set[str] = set()
    for part, anchor in ((0.0, "start"), (1.0, "end"), (0.5, "middle")):
        x = LEFT + part * (WIDTH - LEFT - RIGHT)
        said = moment(left + part * (right - left))
        if said not in told:
            yield f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{said}</text>'
        told.add(said)


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %H:%M")


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    named = "".join(
        f'<span><i class="s{min(place, COLOURS - 1)}"></i>{escape(one.name)}</span>'
        for place, one in enumerate(series)
    )
    return f'<p class="legend">{named}</p>'


def _frame(height: float, label: str, parts: Iterable[str]) -> str:
    inside = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{inside}</svg>"
    )
