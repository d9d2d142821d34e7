"""The pages in a real browser: links of every kind, their codes, on a phone, in dark mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.wire.addresses import Host, Server
from blindpost.wire.links.short import (
    ContactType,
    LinkScheme,
    ShortContact,
    ShortInvitation,
    ShortLink,
    short_link_from_text,
)
from tests.support.ops.browser import browser, needs_chromium
from tests.support.web.codes import decoded
from tests.support.web.sites import shared_port

pytestmark = needs_chromium

KEY = bytes(range(32))


def links(port: int) -> list[ShortLink]:
    """One of each kind, on a router whose site is at this port."""
    host = Host("localhost")
    alone, full = Server((host,), "", b""), Server((host, Host("a" * 56 + ".onion")), str(port), bytes(32))
    contacts: list[ShortLink] = [
        ShortContact(kind, server, KEY) for kind in ContactType for server in (alone, full)
    ]
    return [*contacts, ShortInvitation(alone, bytes(24), KEY), ShortInvitation(full, bytes(24), KEY)]


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1280, False)])
async def test_every_link_opens_and_its_code_is_the_link(tmp_path: Path, width: int, dark: bool) -> None:
    async with shared_port(tmp_path) as shared, browser(tmp_path, width=width, dark=dark) as seen:
        page = await seen.context.new_page()
        for link in links(shared.port):
            at_port = link.text.replace("https://localhost/", f"https://localhost:{shared.port}/")
            await page.goto(at_port)
            await page.wait_for_selector("#qr svg")
            assert await decoded(page) == at_port
            opened = await page.get_attribute("#open", "href")
            assert opened is not None
            app_link = short_link_from_text(opened)
            assert app_link.scheme is LinkScheme.SIMPLEX
            assert replace(app_link, scheme=LinkScheme.HTTPS) == link
            assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert seen.console == []
        assert seen.hosts == {"localhost"}
        assert not [url for url in seen.requests if KEY.hex() in url]


async def test_the_fragment_never_leaves_the_browser(tmp_path: Path) -> None:
    async with shared_port(tmp_path) as shared, browser(tmp_path) as seen:
        page = await seen.context.new_page()
        await page.goto(f"https://localhost:{shared.port}/a#SECRETKEY")
        await page.wait_for_selector("#qr svg")
        assert "SECRETKEY" in await page.inner_text("#link")
        paths = [url.partition("#")[0] for url in seen.requests]
        assert not [path for path in paths if "SECRET" in path]


@pytest.mark.parametrize(
    "fragment", ["", "#", "#a<img src=x onerror=alert(1)>", '#x"onload="y', "#" + "a" * 3_000]
)
async def test_a_damaged_link_is_reported_as_damaged(tmp_path: Path, fragment: str) -> None:
    async with shared_port(tmp_path) as shared, browser(tmp_path) as seen:
        page = await seen.context.new_page()
        await page.goto(f"https://localhost:{shared.port}/g{fragment}")
        await page.wait_for_selector("#incomplete:not([hidden])")
        assert not await page.is_visible("#whole")
        assert seen.console == []


async def test_the_server_page_shows_its_address_as_a_code(tmp_path: Path) -> None:
    async with shared_port(tmp_path) as shared, browser(tmp_path, width=360) as seen:
        page = await seen.context.new_page()
        await page.goto(f"https://localhost:{shared.port}/")
        assert await decoded(page) == "smp://AAAA@localhost"
        assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert await page.title() == "localhost"
        assert seen.console == []
