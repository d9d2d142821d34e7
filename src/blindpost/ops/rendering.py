"""The page as HTML: parts that change with every look, and what stands around them.

The script puts fresh parts in place of old ones; without a script the page is whole when it is loaded.
Everything that a server or its settings say is escaped here.
"""

from __future__ import annotations

import functools
import hashlib
import re
from html import escape
from urllib.parse import quote

import segno

from blindpost.ops.charts import curve_drawn, drawn
from blindpost.ops.kinds import AUDIT, BACKUP, BLOCK, WITHOUT
from blindpost.ops.model import Address, Card, Level, Snapshot, Tile, sentence_of
from blindpost.ops.wording import shown

_SIGNS = {
    "good": ("#16794a", "M9 17l5 5 9-11"),
    "look": ("#b26a00", "M16 8v10M16 22.5v1.5"),
    "bad": ("#c62f26", "M10.5 10.5l11 11M21.5 10.5l-11 11"),
    "lost": ("#67727e", "M12 12a4 4 0 1 1 4 5v2M16 23v1"),
}
_BUTTONS = {AUDIT: "Audit", BACKUP: "Back up", BLOCK: "Block a link"}


def icon(level: str) -> str:
    """The picture in the browser's tab: each level has its colour and its sign."""
    colour, sign = _SIGNS[level]
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" '
        f'fill="{colour}"/><path d="{sign}" fill="none" stroke="#fff" stroke-width="3.5" '
        'stroke-linecap="round" stroke-linejoin="round"/></svg>'
    )
    return f"data:image/svg+xml,{quote(picture)}"


def title(snapshot: Snapshot) -> str:
    """What the browser's tab says."""
    verdict = snapshot.verdict
    if verdict.level is Level.LOOK:
        return f"{verdict.more} - Blindpost"
    return f"{verdict.text} - Blindpost"


def parts(snapshot: Snapshot) -> dict[str, str]:
    """What changes, by the id of its place."""
    found = {"verdict": _verdict(snapshot), "trouble": _trouble(snapshot), "report": _report(snapshot)}
    for number, card in enumerate(snapshot.cards):
        found |= {
            f"state-{number}": _state(card),
            f"problems-{number}": _problems(card),
            f"tiles-{number}": _tiles(number, card),
            f"chart-{number}": _charts(card),
            f"facts-{number}": _facts(card),
            f"more-{number}": _more(number, card),
        }
    return found


def shape(snapshot: Snapshot) -> str:
    """Equal as long as only parts change; another shape must be loaded."""
    frame = _frame(snapshot, dict.fromkeys(parts(snapshot), ""))
    return hashlib.sha256(frame.encode()).hexdigest()[:16]


def document(snapshot: Snapshot) -> str:
    """The whole page."""
    level = snapshot.verdict.level.value
    icons = " ".join(f'data-{name}="{escape(icon(name), quote=True)}"' for name in _SIGNS)
    return (
        f'<!doctype html><html lang="en" data-shape="{shape(snapshot)}" data-level="{level}"><head>'
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title(snapshot))}</title>"
        f'<link id="icon" rel="icon" href="{escape(icon(level), quote=True)}" {icons}>'
        '<link rel="stylesheet" href="/page.css"><script src="/page.js" defer></script></head>'
        f"<body>{_frame(snapshot, parts(snapshot))}</body></html>"
    )


def _frame(snapshot: Snapshot, found: dict[str, str]) -> str:
    """Everything that stands still, with the parts in their places."""
    cards = "".join(_card(number, card, found) for number, card in enumerate(snapshot.cards))
    return (
        f'<header><div class="top"><h1>Blindpost</h1><p id="live" role="status">live</p></div>'
        f'<div id="verdict" role="status">{found["verdict"]}</div>'
        f'<div id="trouble">{found["trouble"]}</div>'
        '<fieldset class="range"><legend>Charts of</legend>'
        '<label><input type="radio" name="range" id="range-day" checked>24 hours</label>'
        '<label><input type="radio" name="range" id="range-hour">60 minutes</label></fieldset></header>'
        f'<main>{cards}</main><footer id="report">{found["report"]}</footer>'
    )


def _verdict(snapshot: Snapshot) -> str:
    verdict, level = snapshot.verdict, snapshot.verdict.level.value
    more = f"<small>{escape(verdict.more)}</small>" if verdict.more else ""
    return f'<p data-verdict="{level}">{_sign(level)}<span>{_prose(verdict.text)}</span>{more}</p>'


def _sign(level: str) -> str:
    return (
        f'<svg class="sign" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8"/>'
        f'<path d="{_SIGNS[level][1]}"/></svg>'
    )


def _trouble(snapshot: Snapshot) -> str:
    return f"<p>{escape(snapshot.trouble)}</p>" if snapshot.trouble else ""


def _report(snapshot: Snapshot) -> str:
    if not snapshot.report:
        return ""
    return f'<p><a href="/report">The pipeline\'s report of {escape(snapshot.report)}</a></p>'


def _card(number: int, card: Card, found: dict[str, str]) -> str:
    def place(name: str, kind: str = "div") -> str:
        return f'<{kind} id="{name}-{number}">{found[f"{name}-{number}"]}</{kind}>'

    return (
        f'<section aria-labelledby="card-{number}" data-card="{number}">'
        f'<div class="head"><h2 id="card-{number}">{escape(card.face.name)}</h2>'
        f'<p class="kind">{escape(card.kind)}</p>{place("state")}</div>'
        f"{place('problems')}{place('tiles')}"
        f"{place('chart')}{_address(number, card.face.address)}{_push_key(number, card)}"
        f"<details><summary>More numbers</summary>{place('more')}</details>"
        f'<dl class="facts" id="facts-{number}">{found[f"facts-{number}"]}</dl>'
        f"{_actions(number, card)}</section>"
    )


def _charts(card: Card) -> str:
    chart = "" if card.chart is None else drawn(card.chart)
    return chart + ("" if card.curve is None else curve_drawn(card.curve))


def _state(card: Card) -> str:
    return (
        f'<p class="state" data-state="{card.level.value}">{_sign(card.level.value)}{card.health.value}</p>'
    )


def _problems(card: Card) -> str:
    note = f'<p class="note" data-note>{_prose(sentence_of(card.note))}</p>' if card.note else ""
    rows = "".join(
        f'<li data-problem="{escape(problem.name, quote=True)}"><p>'
        + (f"<b>{problem.count:,}</b> in 24 h. " if problem.count else "")
        + f"{escape(problem.text)}</p>"
        + (f"<code>{escape(problem.help)}</code>" if problem.help else "")
        + "</li>"
        for problem in card.problems
    )
    return note + (f'<ul class="problems">{rows}</ul>' if rows else "")


def _tiles(number: int, card: Card) -> str:
    """What matters most, large; below it what has a limit, with how much of it is in use."""
    main = [tile for tile in card.tiles if tile.is_main]
    large = "".join(_tile(number, tile) for tile in main if not tile.is_meter)
    meters = "".join(_tile(number, tile) for tile in main if tile.is_meter)
    return f'<dl class="tiles">{large}</dl><dl class="meters">{meters}</dl>' if main else ""


def _tile(number: int, tile: Tile) -> str:
    value, bar = shown(tile.value, tile.unit), ""
    of = f"<small> of {shown(tile.limit, tile.unit)}</small>" if tile.limit else ""
    if tile.limit and tile.value is not None:
        full = min(100.0, 100 * tile.value / tile.limit)
        bar = (
            '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="room" width="100" height="4"/><rect width="{full:.1f}" height="4"/></svg>'
        )
    look = ' class="bad"' if tile.bad else "" if tile.value else ' class="zero"'
    name = f"{number}/{escape(tile.name, quote=True)}"
    return (
        f"<div><dt>{escape(tile.label)}</dt>"
        f'<dd{look}><span data-tile="{name}">{value}</span>{of}{bar}</dd></div>'
    )


def _more(number: int, card: Card) -> str:
    rows = "".join(_tile(number, tile) for tile in card.tiles if not tile.is_main and tile.value)
    return f'<dl class="more">{rows}</dl>' if rows else ""


def _facts(card: Card) -> str:
    facts = [(fact.label, fact.text) for fact in card.facts] + [("folder", card.folder)]
    return "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(text)}</dd></div>" for label, text in facts)


def _address(number: int, address: Address | None) -> str:
    if address is None:
        return ""
    label = "Copy with the password" if address.is_secret else "Copy"
    whole = f'<code id="address-{number}">{escape(address.whole)}</code>' if address.is_secret else ""
    own = "" if address.is_secret else f' id="address-{number}"'
    inside = "QR code, with the password" if address.is_secret else "QR code"
    return (
        f'<div class="address"><p class="label">address</p><div class="copied">'
        f"<code{own}>{escape(address.shown)}</code>"
        f'<button type="button" data-copy="address-{number}">{label}</button></div>'
        f'<details><summary>{inside}</summary>{whole}<div class="qr" role="img" '
        f'aria-label="QR code of the address">{_qr(address.whole)}</div></details></div>'
    )


def _push_key(number: int, card: Card) -> str:
    if not card.push_key:
        return ""
    return (
        '<div class="address"><p class="label">Web Push public key (VAPID)</p><div class="copied">'
        f'<code id="push-{number}">{escape(card.push_key)}</code>'
        f'<button type="button" data-copy="push-{number}">Copy</button></div></div>'
    )


def _actions(number: int, card: Card) -> str:
    """Buttons, each with a dialog that says what will happen and asks."""
    if not card.actions:
        return ""
    name = escape(card.face.name)
    buttons = "".join(
        f'<button type="button" data-open="dialog-{number}-{action}">{_BUTTONS[action]}</button>'
        for action in card.actions
    )
    dialogs = "".join(_dialog(number, action, name, card.word) for action in card.actions)
    told = f'<output id="told-{number}" aria-live="polite"></output>'
    return f'<div class="actions">{buttons}{told}</div>{dialogs}'


def _dialog(number: int, action: str, name: str, word: str) -> str:
    heading, text, fields = {
        AUDIT: (
            f"Audit {name}?",
            "Every queue is compared with the sums of the services, on a copy of the store. "
            "Nothing is changed.",
            "",
        ),
        BACKUP: (
            f"Back up {name}?",
            "Store, settings and keys are copied to a new folder beside the server's, while it runs"
            f"{WITHOUT.get(word, '')}.",
            "",
        ),
        BLOCK: (
            f"Block a link on {name}?",
            "Nothing more is sent to its queue or received from it, and its users are told the reason. "
            "`blindpost router queues unblock` takes it back.",
            '<label class="field">Link or id<input name="link" required maxlength="2000" autocomplete="off" '
            'spellcheck="false" placeholder="https://…/a#…"></label><fieldset><legend>Reason</legend>'
            '<label><input type="radio" name="reason" value="spam" required>spam</label>'
            '<label><input type="radio" name="reason" value="content" required>content</label></fieldset>',
        ),
    }[action]
    key = f"dialog-{number}-{action}"
    return (
        f'<dialog id="{key}" aria-labelledby="{key}-name"><form method="dialog" data-act="{number}/{action}" '
        f'data-told="told-{number}"><h3 id="{key}-name">{heading}</h3><p>{_prose(text)}</p>{fields}'
        '<p class="choice"><button type="button" data-close>Cancel</button>'
        f'<button type="submit" class="first">{_BUTTONS[action]}</button></p></form></dialog>'
    )


def _prose(text: str) -> str:
    """Escaped, with `commands` as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


@functools.lru_cache(maxsize=64)
def _qr(text: str) -> str:
    picture = str(segno.make(text, error="m").svg_inline(border=2, scale=4, omitsize=True))
    return picture.replace("<svg ", '<svg aria-hidden="true" ', 1)
