"""Draws figures as SVG: a dot for the median, a line for the spread, a scale for each unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.figures.page import shown
from benchmarks.figures.results import Result
from benchmarks.figures.rows import Figure

WIDTH, LEFT, RIGHT = 860, 380, 90
ROW, HEAD, GAP = 22, 26, 12
_STYLE = """\
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.unit { font-weight: 600; }
.value { fill: #59636e; }
.axis { stroke: #d1d9e0; }
.spread { stroke: #0969da; stroke-width: 4; stroke-linecap: round; opacity: 0.45; }
.median { fill: #0969da; }
.before { fill: none; stroke: #9a6700; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.value { fill: #9198a1; }
.axis { stroke: #3d444d; }
.spread { stroke: #4493f8; }
.median { fill: #4493f8; }
.before { stroke: #d29922; }
}
</style>"""


def drawn(title: str, result: Result) -> str:
    """One picture; a ring is what the figure was before."""
    before = {one.name: one for one in result.before or ()}
    units: dict[str, list[Figure]] = {}
    for one in result.figures:
        units.setdefault(one.unit, []).append(one)
    parts: list[str] = []
    top = GAP
    for unit, figures in units.items():
        parts += _group(unit, figures, before, top)
        top += HEAD + ROW * len(figures) + GAP
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    return "\n".join([head, _STYLE, *parts, "</svg>", ""])


def _group(unit: str, figures: Sequence[Figure], before: dict[str, Figure], top: int) -> Iterator[str]:
    """Figures of one unit, on one scale that begins at nothing."""
    ends = [one.upper for one in figures] + [before[one.name].median for one in figures if one.name in before]
    least, most = min([0.0, *(one.lower for one in figures)]), max([0.0, *ends])
    span = (most - least) or 1.0

    def across(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (value - least) / span, 1)

    bottom = top + HEAD + ROW * len(figures)
    yield f'<text class="unit" x="{LEFT}" y="{top + 14}">{escape(unit)}</text>'
    yield f'<line class="axis" x1="{across(0)}" y1="{top + HEAD - 6}" x2="{across(0)}" y2="{bottom}"/>'
    for number, one in enumerate(figures):
        y = top + HEAD + ROW * number + 8
        yield f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(_short(one.name))}</text>'
        if one.lower != one.upper:
            line = f'x1="{across(one.lower)}" y1="{y}" x2="{across(one.upper)}" y2="{y}"'
            yield f'<line class="spread" {line}/>'
        if one.name in before:
            yield f'<circle class="before" cx="{across(before[one.name].median)}" cy="{y}" r="6"/>'
        yield f'<circle class="median" cx="{across(one.median)}" cy="{y}" r="4"/>'
        yield f'<text class="value" x="{WIDTH - RIGHT + 14}" y="{y + 4}">{escape(shown(one.median))}</text>'


def _short(name: str, most: int = 56) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
