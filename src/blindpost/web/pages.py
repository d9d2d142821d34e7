"""The pages of the site as HTML: one about the server, one for links, one for what does not exist."""

from __future__ import annotations

from html import escape

import segno

from blindpost.web.information import Facts

SOURCE_PATH = "/source.tar.gz"
"""Where the source of the running program is offered, as the AGPL asks."""

LINK_KINDS = {
    "a": ("Connect with a person or a bot", "contact address"),
    "c": ("Join a channel", "channel"),
    "g": ("Join a group", "group"),
    "r": ("Use a relay", "relay"),
    "i": ("Connect with one person", "one-time invitation"),
}
"""The letters that links begin with: the page's title, and what the link is."""

_APP = "https://simplex.chat/downloads/"


def server_page(facts: Facts) -> bytes:
    """What this server is, how to use it, who runs it and by which rules."""
    host = escape(facts.host)
    information = facts.information
    about = _table("Who runs it", [(label, _linked(value)) for label, value in information.rows()])
    source = escape(information.source_code or SOURCE_PATH, quote=True)
    return _document(
        facts.host,
        f'<h1>{host}</h1><p class="quiet">A message router of the SimpleX network. It passes encrypted '
        "messages on and cannot tell who talks to whom.</p>"
        '<section aria-labelledby="address"><h2 id="address">Use this server</h2>'
        "<p>Scan the code in the app, under Network &amp; servers, or copy the address:</p>"
        '<div class="qr" role="img" aria-label="QR code of the address">'
        f"{_qr(facts.address)}</div>"
        f"<code>{escape(facts.address)}</code></section>"
        + _table("Rules", [(label, escape(value)) for label, value in facts.policies])
        + about
        + f"<footer><p>Blindpost {escape(facts.version)}, free software under the AGPL: "
        f'<a href="{source}" rel="noreferrer">source code</a>.</p></footer>',
    )


def link_page(letter: str, host: str) -> bytes:
    """A link that was opened in a browser: its QR code and the way into the app."""
    title, kind = LINK_KINDS[letter]
    return _document(
        title,
        f'<h1>{escape(title)}</h1><p class="quiet">This is a SimpleX {escape(kind)} on {escape(host)}.</p>'
        "<noscript><section><p>The code of this link can only be drawn with JavaScript. Without it, copy the "
        "whole link from your browser's address bar into the app.</p></section></noscript>"
        '<section id="incomplete" hidden><p class="bad">This link is not complete: the part behind # is '
        "missing or damaged. Ask for it again, or copy it once more.</p></section>"
        '<section id="whole" hidden><p class="actions"><a id="open" class="button first" href="simplex:/">'
        'Open in the app</a> <button id="copy" type="button">Copy the link</button> '
        '<output id="copied"></output></p><p>Or scan it with the app on your phone:</p>'
        '<div id="qr" class="qr" role="img"></div><code id="link"></code></section>'
        f'<p class="quiet">No app yet? <a href="{_APP}" rel="noreferrer">Get SimpleX Chat</a>. The key '
        "in this link stays in your browser: this server never sees it.</p>",
        letter,
    )


def missing_page() -> bytes:
    return _document("Not found", '<h1>Not found</h1><p><a href="/">About this server</a></p>')


def _document(title: str, body: str, letter: str = "") -> bytes:
    linked = f' data-link="{letter}"' if letter else ""
    script = '<script type="module" src="/assets/link.mjs"></script>' if letter else ""
    return (
        f'<!doctype html><html lang="en"{linked}><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="referrer" content="no-referrer"><title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,"><link rel="stylesheet" href="/assets/site.css">{script}</head>'
        f"<body><main>{body}</main></body></html>"
    ).encode()


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    """A section with a row for each label; nothing without rows. Values are HTML."""
    if not rows:
        return ""
    cells = "".join(f"<dt>{escape(label)}</dt><dd>{value}</dd>" for label, value in rows)
    return f"<section><h2>{escape(title)}</h2><dl>{cells}</dl></section>"


def _linked(value: str) -> str:
    text = escape(value, quote=True)
    if value.startswith(("https://", "simplex:/")):
        return f'<a href="{text}" rel="noreferrer">{text}</a>'
    return text


def _qr(text: str) -> str:
    """Its place around it has the name."""
    picture = str(segno.make(text, error="m").svg_inline(border=2, scale=4, omitsize=True))
    return picture.replace("<svg ", '<svg aria-hidden="true" ', 1)
