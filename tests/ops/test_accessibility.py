"""axe-core checks our pages in Chromium, light and dark: the operator's and those of a router's site.

`tests/vendor/axe-core/axe.min.js` is axe-core 4.10.3 (MPL-2.0), as in its npm package.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page as Tab
from playwright.async_api import Route

from blindpost.ops.kinds import KINDS
from blindpost.ops.listening import bind, serving
from blindpost.ops.model import Address, Card, Chart, Face, Fact, Health, Problem, Tile, Unit
from blindpost.ops.page import Page
from blindpost.ops.servers import Watched
from blindpost.web.site import Site
from tests.support.ops.browser import browser, needs_chromium
from tests.support.web.sites import FACTS

AXE = (Path(__file__).parents[1] / "vendor" / "axe-core" / "axe.min.js").read_text()
TOKEN = "a token that nobody guesses"
NAMED = r"- (button|img|link|radio|textbox|dialog|region|figure)(:|$| \[)"
BARS = (None, 0, 3, 100)

ROUTER = Card(
    *("SMP router", "router", "/srv/home", Face("smp.example.org", Address("smp://A@h", "smp://A:p@h"))),
    *(Health.RUNNING, "everything works", ""),
    (
        Tile("queues", "queues", 1_234, is_main=True),
        Tile("messages", "messages waiting", 0, is_main=True),
        Tile("memory_bytes", "memory", 1 << 28, Unit.BYTES, 1 << 31, is_main=True),
        Tile("lost", "lost", 3, bad=True),
        Tile("subscriptions", "subscribed queues", 12),
    ),
    (Fact("version", "1.2.3"), Fact("up for", "3 d 4 h")),
    (Problem("disk", "The disk is nearly full.", "df -h /srv"), Problem("refused", "Refused.", "x", 12)),
    Chart("messages", "in", "out", (BARS, BARS), (BARS, BARS)),
    "BAjQ1c8Y",
    ("audit", "backup", "block"),
)
DOWN = replace(
    ROUTER, face=Face("elm"), health=Health.DOWN, sentence="it does not run", tiles=(), actions=(), chart=None
)


@dataclass
class Canned(Watched):
    """A server that is always as the test says."""

    card: Card = ROUTER

    async def look(self, now_s: Callable[[], float] = lambda: 0.0) -> Card:
        return self.card


async def judge(tab: Tab, where: str) -> None:
    await tab.evaluate(AXE)
    for scheme in ("light", "dark"):
        await tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found: dict[str, Any] = await tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
        told = [f"{rule['id']}: {node['html']}" for rule in found["violations"] for node in rule["nodes"]]
        assert told == [], (where, scheme)
        assert len(found["passes"]) > 10
    assert not re.findall(NAMED, await tab.locator("body").aria_snapshot(), re.MULTILINE), where


@needs_chromium
@pytest.mark.parametrize("width", [360, 1280])
async def test_the_operators_page(tmp_path: Path, width: int) -> None:
    kind = KINDS[0]
    page = Page([Canned(kind, tmp_path), Canned(kind, tmp_path, card=DOWN)], token=TOKEN)
    opened = bind("127.0.0.1", 0)
    async with serving(page, opened), browser(tmp_path, width=width) as seen:
        tab = await seen.context.new_page()
        await tab.goto(f"http://localhost:{opened.getsockname()[1]}/?token={TOKEN}")
        await tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await judge(tab, "page")
        moving = "(all) => all.filter((one) => getComputedStyle(one).transitionDuration !== '0s').length"
        assert not await tab.eval_on_selector_all("*", moving), "somebody asked for less motion"
        for action in ("Audit", "Back up", "Block a link"):
            await tab.get_by_role("button", name=action).click()
            await judge(tab, action)
            await tab.keyboard.press("Escape")
        assert seen.console == []


@needs_chromium
async def test_the_pages_of_a_routers_site(tmp_path: Path) -> None:
    site = Site(lambda: FACTS)

    async def answer(route: Route) -> None:
        reply = site.answer("GET", route.request.url.removeprefix("https://site.test").partition("#")[0])
        headers = {**dict(reply.headers), "content-type": reply.content_type}
        await route.fulfill(status=reply.status, headers=headers, body=reply.body)

    async with browser(tmp_path) as seen:
        tab = await seen.context.new_page()
        await tab.route("https://site.test/**", answer)
        key = "A" * 43
        for path in ("/", f"/a#{key}", f"/i#{'A' * 32}/{key}", "/g#damaged", "/nothing"):
            await tab.goto("about:blank")
            await tab.goto(f"https://site.test{path}")
            await judge(tab, path)
