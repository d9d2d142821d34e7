"""The site of a real router: one port for browsers, clients and the links that an agent makes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx

from blindpost.agent import Agent
from blindpost.wire.smp.commands import PING
from blindpost.wire.smp.responses import PONG
from tests.support.ops.browser import browser, needs_chromium
from tests.support.serving.commands import StartedRouter, edit, init, started
from tests.support.web.codes import decoded
from tests.support.web.sites import write_certificate


def with_site(folder: Path) -> dict[str, str]:
    made = init(folder)
    write_certificate(folder / "web", "localhost")
    edit(folder, 'certificate = ""\nkey = ""', 'certificate = "web/web.crt"\nkey = "web/web.key"')
    edit(folder, 'plain_port = "off"', "plain_port = 0")
    edit(folder, 'operator = ""', 'operator = "Jane Doe"')
    return {name: str(value) for name, value in made.items()}


async def page(router: StartedRouter) -> str:
    async with httpx.AsyncClient(verify=False) as visitor:  # noqa: S501 - the certificate is the test's own
        answer = await visitor.get(f"https://localhost:{router.status['ports'][0]}/")
        assert answer.status_code == 200
        return answer.text


async def test_the_page_shows_the_running_settings(tmp_path: Path) -> None:
    made = with_site(tmp_path / "router")
    async with started(tmp_path / "router") as router, await router.connect() as client:
        assert isinstance(await client.send(PING(), b""), PONG)
        text = await page(router)
        for part in (made["fingerprint"], "Jane Doe", "anybody may create them", "deleted after 21 days"):
            assert part in text
        edit(tmp_path / "router", 'operator = "Jane Doe"', 'operator = "John Roe"')
        edit(tmp_path / "router", "message_ttl_s = 1814400", 'message_ttl_s = "never"')
        os.kill(int(router.status["pid"]), signal.SIGHUP)

        await router.told(b"reloaded certificates")
        text = await page(router)
        assert "John Roe" in text
        assert "kept until they are received" in text
        assert isinstance(await client.send(PING(), b""), PONG)
        stats = await router.ask("status")
        assert stats["connections"] == 1


async def test_the_password_is_not_on_the_page(tmp_path: Path) -> None:
    with_site(tmp_path / "router")
    edit(tmp_path / "router", 'password = ""', 'password = "sesame"')
    async with started(tmp_path / "router") as router:
        text = await page(router)
        assert "sesame" not in text
        assert "only with the password" in text


@needs_chromium
async def test_a_link_of_the_agent_opens_in_the_browser(tmp_path: Path) -> None:
    made = with_site(tmp_path / "router")
    async with started(tmp_path / "router") as router, browser(tmp_path) as seen:
        port = router.status["ports"][0]
        address = made["address"].replace("@localhost:0", f"@localhost:{port}")
        async with Agent.open(tmp_path / "agent.db", [address]) as agent:
            links = [str(await agent.invite(user_data=b"")), str(await agent.address(user_data=b""))]
        shown = await seen.context.new_page()
        for link in links:
            at_port = link.replace("https://localhost/", f"https://localhost:{port}/")
            assert at_port != link
            await shown.goto(at_port)
            await shown.wait_for_selector("#qr svg")
            assert await decoded(shown) == at_port
        assert seen.console == []
