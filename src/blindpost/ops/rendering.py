"""The page as HTML. The script updates what has a `data-` name; without a script the page is still whole."""

from __future__ import annotations

from html import escape
from itertools import chain

from blindpost.ops.model import Card, Line, Snapshot, Tile

_WIDTH, _HEIGHT = 240, 48


def document(snapshot: Snapshot) -> str:
    cards = "".join(_card(number, card) for number, card in enumerate(snapshot.cards))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>Blindpost</title>"
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/page.css">'
        '<script src="/page.js" defer></script></head><body>'
        '<header><h1>Blindpost</h1><p><span id="live" role="status">live</span> '
        f'<time id="at">{escape(snapshot.at)}</time></p></header>'
        f"<main>{cards}{_report(snapshot)}</main></body></html>"
    )


def _card(number: int, card: Card) -> str:
    tiles = "".join(_tile(number, tile) for tile in card.tiles)
    lines = "".join(_line(number, line) for line in card.lines)
    button = (
        f'<p><button type="button" data-audit="{number}">Audit the services now</button></p>'
        f'<output data-told="{number}"></output>'
        if card.audits
        else ""
    )
    return (
        f'<section aria-labelledby="card-{number}" data-card="{number}" data-health="{card.health.value}">'
        f'<h2 id="card-{number}">{escape(card.name)} <small>{escape(card.kind)}</small> '
        f'<span class="health" data-state="{number}">{card.health.value}</span></h2>'
        f'<p class="note" data-note="{number}">{escape(card.note)}</p>'
        f"<dl>{tiles}</dl>{lines}{button}</section>"
    )


def _tile(number: int, tile: Tile) -> str:
    bad = ' class="bad"' if tile.bad else ""
    return (
        f"<div><dt>{escape(tile.label)}</dt>"
        f'<dd{bad} data-tile="{number}/{escape(tile.name, quote=True)}">{shown(tile.value)}</dd></div>'
    )


def shown(value: float | str | None) -> str:
    """As people write numbers."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return escape(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _line(number: int, line: Line) -> str:
    """Hidden until there is something to draw."""
    hidden = "" if len(line.points) > 1 else " hidden"
    name = f"{number}/{escape(line.name, quote=True)}"
    most = shown(max(line.points, default=0))
    return (
        f'<figure{hidden} data-figure="{name}"><figcaption>{escape(line.label)}, last hour; '
        f'most in a minute: <span data-most="{name}">{most}</span></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(line.label, quote=True)}"><polyline '
        f'data-line="{name}" points="{curve(line.points)}"/></svg></figure>'
    )


def curve(points: tuple[float, ...]) -> str:
    """The newest point at the right edge, the highest at the top."""
    top = max(chain(points, (1.0,)))
    step = _WIDTH / 59
    first = _WIDTH - step * (len(points) - 1)
    return " ".join(
        f"{first + step * number:.1f},{_HEIGHT - 2 - (_HEIGHT - 4) * value / top:.1f}"
        for number, value in enumerate(points)
    )


def _report(snapshot: Snapshot) -> str:
    if snapshot.report is None:
        return ""
    return (
        '<section aria-labelledby="report"><h2 id="report">Last report</h2>'
        '<p><a href="/report">The pipeline\'s report of <span id="made">'
        f"{escape(snapshot.report.made)}</span></a></p></section>"
    )
