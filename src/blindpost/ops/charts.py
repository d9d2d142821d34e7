"""What came in and went out, as bars above and below one line; the axes are text, which keeps its size."""

from __future__ import annotations

from html import escape
from math import ceil

from blindpost.ops.history import Bars, Levels
from blindpost.ops.model import Chart, Curve, Unit
from blindpost.ops.wording import shown

_TICKS = {
    "hour": ("60 min ago", "45", "30", "15", "now"),
    "day": ("24 h ago", "18 h", "12 h", "6 h", "now"),
}
_SPAN = {"hour": ("the last hour", "minute"), "day": ("the last 24 hours", "quarter of an hour")}
_CAPTION = {"hour": "60 min, each bar one", "day": "24 h, each bar 15 min"}
_HALF = 50
_LOOKS = ("in", "out")
"""Of the lines of a curve, in their order."""


def drawn(chart: Chart) -> str:
    """Both spans; the page shows one of them."""
    return _figure(chart, "day", chart.day) + _figure(chart, "hour", chart.hour)


def _figure(chart: Chart, span: str, bars: tuple[Bars, Bars]) -> str:
    arrived, left = bars
    total_in, total_out = _sum(arrived), _sum(left)
    period, each = _SPAN[span]
    if not (total_in or total_out):
        return f'<p class="span {span} quiet">No {escape(chart.noun)} in {period}.</p>'
    most_in, most_out = (max(value or 0 for value in each) for each in bars)
    told = (
        f"{chart.noun}: {chart.arrived} {total_in:,}, {chart.left} {total_out:,} in {period}; "
        f"at most {most_in:,} and {most_out:,} in a {each}"
    )
    top = ceiling(max(most_in, most_out))
    ticks = "".join(f"<span>{tick}</span>" for tick in _TICKS[span])
    return (
        f'<figure class="span {span}"><figcaption><strong>{escape(chart.noun)}</strong>'
        f'<span><i class="in"></i>{escape(chart.arrived)} <b>{total_in:,}</b></span>'
        f'<span><i class="out"></i>{escape(chart.left)} <b>{total_out:,}</b></span>'
        f"<small>{_CAPTION[span]}</small></figcaption>"
        f'<div class="plot"><div class="y" aria-hidden="true"><span>{top:,}</span><span>0</span>'
        f"<span>{top:,}</span></div>"
        f'<svg viewBox="0 0 {len(arrived)} {2 * _HALF}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(told, quote=True)}">'
        f'<path class="unseen" d="{_unseen(arrived)}"/>'
        f'<path class="in" d="{bar_path(arrived, top, -1)}"/><path class="out" d="{bar_path(left, top, 1)}"/>'
        f'<path class="zero" d="M0 {_HALF}H{len(arrived)}"/></svg></div>'
        f'<div class="x" aria-hidden="true">{ticks}</div></figure>'
    )


def curve_drawn(curve: Curve) -> str:
    """Both spans of a curve; the page shows one of them."""
    return "".join(
        _curve_figure(curve, span, [line.day if span == "day" else line.hour for line in curve.lines])
        for span in ("day", "hour")
    )


def _curve_figure(curve: Curve, span: str, lines: list[Levels]) -> str:
    period, each = _SPAN[span]
    most = [max((value for value in line if value is not None), default=None) for line in lines]
    known = [value for value in most if value is not None]
    if not known:
        return f'<p class="span {span} quiet">No {escape(curve.noun)} measured in {period}.</p>'
    top = ceiling(max(1, ceil(max(known))))
    words = [f"{line.word} {_milliseconds(value)}" for line, value in zip(curve.lines, most, strict=True)]
    told = f"{curve.noun}: at most {', '.join(words)} in {period}, the greatest of each {each}"
    ticks = "".join(f"<span>{tick}</span>" for tick in _TICKS[span])
    keys = "".join(
        f'<span><i class="{look}"></i>{escape(line.word)} <b>{_milliseconds(value)}</b></span>'
        for look, line, value in zip(_LOOKS, curve.lines, most, strict=True)
    )
    paths = "".join(
        f'<path class="line {look}" d="{line_path(line, top)}"/>'
        for look, line in zip(_LOOKS, lines, strict=True)
    )
    return (
        f'<figure class="span {span} curve"><figcaption><strong>{escape(curve.noun)}</strong>{keys}'
        f"<small>greatest of each {'minute' if span == 'hour' else '15 min'}</small></figcaption>"
        f'<div class="plot"><div class="y" aria-hidden="true"><span>{_milliseconds(top)}</span>'
        f"<span>{_milliseconds(top / 2)}</span><span>0</span></div>"
        f'<svg viewBox="0 0 {len(lines[0])} {2 * _HALF}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(told, quote=True)}"><path class="unseen" d="{_unseen(lines[0])}"/>'
        f"{paths}</svg></div>"
        f'<div class="x" aria-hidden="true">{ticks}</div></figure>'
    )


def line_path(line: Levels, top: int) -> str:
    """A step for each span that is known; what is not known is a gap."""
    found, before = [], None
    for number, value in enumerate(line):
        if value is not None:
            height = 2 * _HALF - 1 - (2 * _HALF - 2) * value / top
            found.append(f"M{number} {height:.1f}h1" if before is None else f"V{height:.1f}h1")
        before = value
    return "".join(found)


def _milliseconds(value: float | None) -> str:
    return shown(value, Unit.MILLISECONDS)


def ceiling(value: int) -> int:
    """The next round number: 1, 2 or 5 and zeros."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if value <= step * power:
                return step * power
        power *= 10


def bar_path(bars: Bars, top: int, direction: int) -> str:
    """A bar for each span in which something grew, from the middle up (-1) or down (1)."""
    found = []
    for number, value in enumerate(bars):
        if value:
            height = direction * _height(value, top)
            found.append(f"M{number}.1 {_HALF}v{height:.1f}h.8v{-height:.1f}z")
    return "".join(found)


def _height(value: int, top: int) -> float:
    """What is not nothing can be seen."""
    return max(1.5, (_HALF - 1) * value / top)


def _unseen(bars: Bars | Levels) -> str:
    return "".join(f"M{number} 0h1v{2 * _HALF}h-1z" for number, value in enumerate(bars) if value is None)


def _sum(bars: Bars) -> int:
    return sum(value or 0 for value in bars)
