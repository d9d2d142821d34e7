"""The operator's page over real servers, in a real browser: true numbers, nothing for strangers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blindpost.canary.book import Became
from blindpost.cli.page import _audited
from blindpost.ops import listening as listening_module
from blindpost.ops.listening import bind, serving
from blindpost.ops.model import Card, Health, Line, Snapshot, Tile
from blindpost.ops.page import Page
from blindpost.ops.rendering import document
from blindpost.ops.servers import KINDS, Watched, find
from blindpost.serving.failures import OperatorError
from blindpost.testing.apns import ApnsServer
from blindpost.wire.smp.commands import ACK
from blindpost.wire.smp.responses import MSG
from tests.support.canary.canaries import reached, set_up, singing
from tests.support.ds.process import ds_in_process
from tests.support.ntf.devices import verified
from tests.support.ntf.notified import notified_queues
from tests.support.ntf.process import at, configure, ntf_in_process
from tests.support.ops.browser import browser, needs_chromium
from tests.support.router.routers import a_message, new_queue, pushed
from tests.support.serving.commands import init, run
from tests.support.serving.metrics import http
from tests.support.serving.processes import RouterInProcess, router_in_process, until

METRICS = (("only.\nenabled = false", "only.\nenabled = true"), ("port = 9464", "port = 0"))


TOKEN = "a token that nobody guesses"


def visiting() -> httpx.AsyncClient:
    """A visitor who has the token."""
    return httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"})


@contextlib.asynccontextmanager
async def shown(*servers: Watched, report: Path | None = None) -> AsyncIterator[str]:
    """A page over these servers; its address. It asks them when a test does."""
    page = Page(servers, token=TOKEN, report=report, audit=_audited, sample_s=0.2)
    listening = bind("127.0.0.1", 0)
    async with serving(page, listening):
        yield f"http://localhost:{listening.getsockname()[1]}"


async def metric(router: RouterInProcess, name: str) -> int:
    _, text = await http(int((await router.ask("status"))["metrics_port"]), "GET /metrics")
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return int(line.split()[1])


async def traffic(router: RouterInProcess) -> None:
    """Three queues; six messages, of which two are acknowledged."""
    async with await router.connect() as bob, await router.connect() as alice:
        queues = [await new_queue(bob, secured=True) for _ in range(3)]
        for number in range(6):
            queue = queues[number % 3]
            await alice.send(a_message(), queue.sender_id, queue.sender_key)
        for _ in range(2):
            event = await pushed(bob)
            (queue,) = [queue for queue in queues if queue.recipient_id == event.entity_id]
            assert isinstance(event.response, MSG)
            await bob.send(ACK(event.response.msg_id), queue.recipient_id, queue.key)


def tiles(card: dict[str, Any]) -> dict[str, Any]:
    return {tile["name"]: tile["value"] for tile in card["tiles"]}


async def test_every_number_is_the_servers_own(tmp_path: Path) -> None:
    async with (
        router_in_process(tmp_path / "home", *METRICS) as router,
        ds_in_process(tmp_path / "mls") as ds,
        visiting() as visitor,
    ):
        await router.start()
        await ds.start()
        await traffic(router)
        client = await ds.client()
        await client.enqueue(bytes(32), b"a payload")
        await client.close()
        async with shown(find(router.folder), find(ds.folder)) as url:
            await router.emptied()
            seen = (await visitor.get(f"{url}/snapshot")).json()
        home, mls = seen["cards"]
        assert (home["name"], home["health"], home["kind"]) == ("home", "running", "SMP router")
        numbers = tiles(home)
        for name, metric_name in (
            ("connections", "simplex_smp_clients_total"),
            ("queues", "simplex_smp_queues_total1"),
            ("messages", "simplex_smp_messages_total"),
            ("subscriptions", "simplex_smp_subscribtion_total"),
            ("congested", "blindpost_router_congested"),
            ("services", "blindpost_router_stored_services"),
        ):
            assert numbers[name] == await metric(router, metric_name), name
        named = ("queues", "messages", "agreed", "differed")
        assert [numbers[name] for name in named] == [3, 4, 0, 0]
        assert tiles(mls)["payloads"] == 1
        assert tiles(mls)["bytes"] == len(b"a payload")


async def test_a_notification_routers_card_is_its_ledger(tmp_path: Path) -> None:
    """A phone, a queue and a message; every number equals what the router says of itself."""
    async with (
        ApnsServer() as apple,
        router_in_process(tmp_path / "home") as router,
        ntf_in_process(tmp_path / "bell") as ntf,
    ):
        await router.start()
        configure(ntf.folder, *at(ntf.folder, apple))
        await ntf.start()
        device = await verified(ntf, apple, 1)
        client = await router.connect()
        (queue,) = await notified_queues(client, router.server, 1)
        await device.subscribe(queue)
        await queue.send(client)

        async def accepted() -> bool:
            return bool((await ntf.ask("status"))["ledger"]["accepted"] == 1)

        await until(accepted)
        card, told = await find(ntf.folder).look(), await ntf.ask("status")
        named = {tile.name: tile.value for tile in card.tiles}
        assert (card.kind, card.health.value) == ("Notification router", "running")
        assert (named["tokens"], named["subscriptions"], named["ledger.accepted"]) == (1, 1, 1)
        assert {name: named[f"ledger.{name}"] for name in told["ledger"]} == told["ledger"]
        assert named["smp_routers_connected"] == told["smp_routers_connected"] == 1
        await client.close()


async def test_a_canarys_card_is_its_status(tmp_path: Path) -> None:
    async with router_in_process(tmp_path / "home") as router:
        await router.start()
        async with singing(set_up(tmp_path / "canary", router)) as canary:
            await reached(canary, Became.ACKED, 4)
            card = await find(tmp_path / "canary").look()
            named = {tile.name: tile.value for tile in card.tiles}
            assert (card.kind, named["pairs"], named["lost"], named["duplicate"]) == ("Canary", 2, 0, 0)
            assert isinstance(named["delivered"], int)
            assert 4 <= named["delivered"] <= canary.book.counts[Became.DELIVERED]
            assert named["p50_ms"] is not None


async def test_rates_follow_the_traffic(tmp_path: Path) -> None:
    async with router_in_process(tmp_path / "home") as router:
        await router.start()
        server = find(router.folder)
        await server.look(lambda: 1_000.0)
        await traffic(router)
        card = await server.look(lambda: 1_030.0)
        named = {tile.name: tile.value for tile in card.tiles}
        assert named["counts.msgSent.per_minute"] == 6
        assert named["counts.msgRecv.per_minute"] == 2
        card = await server.look(lambda: 1_090.0)
        assert [line.points for line in card.lines] == [(0.0, 6.0), (0.0, 2.0)]


async def test_a_server_that_does_not_run_is_down_with_a_remedy(tmp_path: Path) -> None:
    async with router_in_process(tmp_path / "home") as router, visiting() as visitor:
        await router.start()
        async with shown(find(router.folder)) as url:
            await router.end(signal.SIGTERM)
            (card,) = (await visitor.get(f"{url}/snapshot")).json()["cards"]
            assert card["health"] == "down"
            assert f"blindpost router start -c {router.folder}" in card["note"]
            await router.start()
            (card,) = (await visitor.get(f"{url}/snapshot")).json()["cards"]
            assert (card["health"], card["note"]) == ("running", "")


async def test_a_visitor_without_the_token_gets_nothing(tmp_path: Path) -> None:
    init(tmp_path / "home")
    report = tmp_path / "report.html"
    report.write_text("<p>secret")
    paths = ("/", "/snapshot", "/events", "/report", "/page.js", "/page.css", "/?token=wrong")
    async with (
        shown(find(tmp_path / "home"), report=report) as url,
        httpx.AsyncClient() as visitor,
    ):
        for path in paths:
            # A proxy on this machine comes from loopback, and may ask for any name.
            for host in ("localhost", "127.0.0.1", "page.example.org"):
                answer = await visitor.get(url + path, headers={"Host": host})
                assert answer.status_code == 401, path
            assert answer.text == (await visitor.get(f"{url}/")).text
        assert (await visitor.post(f"{url}/audit/0")).status_code == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await visitor.get(f"{url}/snapshot", headers=bearer)).status_code == 200
        entered = await visitor.get(f"{url}/?token={TOKEN}")
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert "SameSite=strict" in entered.headers["set-cookie"]
        assert (await visitor.get(f"{url}/snapshot")).status_code == 200
        assert (await visitor.get(f"{url}/report")).text == "<p>secret"


async def test_other_sites_in_the_same_browser_get_nothing(tmp_path: Path) -> None:
    """Not even by asking for an audit with the visitor's cookie."""
    init(tmp_path / "home")
    async with shown(find(tmp_path / "home")) as url, visiting() as visitor:
        assert (await visitor.get(f"{url}/report")).status_code == 404
        foreign = {"Origin": "http://attacker.example"}
        assert (await visitor.post(f"{url}/audit/0", headers=foreign)).status_code == 403
        assert (await visitor.post(f"{url}/audit/7")).status_code == 404
        answer = await visitor.post(f"{url}/audit/0", headers={"Origin": url})
        assert answer.json()["told"].startswith("Everything agrees: services 0")
        policy = (await visitor.get(f"{url}/")).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")


@needs_chromium
async def test_the_page_lives_in_a_browser(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("<!doctype html><title>r</title><p id=r>all is well")
    async with router_in_process(tmp_path / "home") as router, browser(tmp_path) as seen:
        await router.start()
        async with shown(find(router.folder), report=report) as url:
            page = await seen.context.new_page()
            await page.goto(f"{url}/?token={TOKEN}")
            assert await page.inner_text('[data-tile="0/queues"]') == "0"
            await traffic(router)
            await page.locator('[data-tile="0/queues"]').filter(has_text="3").wait_for()
            await page.keyboard.press("Tab")
            assert await page.evaluate("document.activeElement.dataset.audit") == "0"
            await page.keyboard.press("Enter")
            told = page.locator('[data-told="0"]')
            await told.filter(has_text="Everything agrees: services 0, queues 3").wait_for()
            await router.end(signal.SIGTERM)
            await page.locator('[data-health="down"]').wait_for()
            assert "blindpost router start" in await page.inner_text('[data-note="0"]')
            await page.keyboard.press("Tab")
            await page.keyboard.press("Enter")
            await page.locator("#r").wait_for()
        assert seen.hosts == {"localhost"}
        assert seen.console == []


def test_the_remedy_of_every_kind_is_a_command(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind.name).mkdir()
        (tmp_path / kind.name / kind.config).touch()
        note = asyncio.run(find(tmp_path / kind.name).look()).note
        (command,) = re.findall(r"`blindpost (\w+ start) -c ", note)
        assert run(*command.split(), "--help").stdout


def test_what_needs_a_look_stands_out_and_what_has_no_curve_yet_does_not() -> None:
    """Also before the script runs."""
    tiles = (Tile("lost", "lost", 3, bad=True), Tile("delivered", "delivered", 9))
    lines = (Line("new", "new", (1.0,)), Line("old", "old", (1.0, 2_500.0, 0.0)))
    html = document(Snapshot("now", (Card("Canary", "c", Health.RUNNING, "", tiles, lines),)))
    assert '<dd class="bad" data-tile="0/lost">3</dd>' in html
    assert '<dd data-tile="0/delivered">9</dd>' in html
    assert '<figure hidden data-figure="0/new">' in html
    assert '<figure data-figure="0/old">' in html
    assert '<span data-most="0/old">2,500</span>' in html


@needs_chromium
async def test_the_page_fits_a_phone_and_the_night(tmp_path: Path) -> None:
    init(tmp_path / "home")
    async with shown(find(tmp_path / "home")) as url, browser(tmp_path, width=360, dark=True) as seen:
        page = await seen.context.new_page()
        await page.goto(f"{url}/?token={TOKEN}")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) < 3 * 64
        assert seen.console == []


async def test_a_page_that_stops_ends_its_streams(tmp_path: Path) -> None:
    init(tmp_path / "home")
    async with visiting() as visitor:
        async with shown(find(tmp_path / "home")) as url:
            stream = await visitor.send(visitor.build_request("GET", f"{url}/events"), stream=True)
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith('data: {"at": ')
            following = asyncio.ensure_future(_rest(lines))
        assert await following >= 1
        await stream.aclose()


async def test_visitors_who_do_not_finish_a_request_are_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening_module, "REQUEST_S", 0.05)
    init(tmp_path / "home")
    async with shown(find(tmp_path / "home")) as url, visiting() as visitor:
        port = int(url.rpartition(":")[2])
        for said in (b"", b"GET / HT", b"GET /none HTTP/1.1\r\nHost: h\r\n\r\nGET / HT"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
        stream = await visitor.send(visitor.build_request("GET", f"{url}/events"), stream=True)
        lines = stream.aiter_lines()
        for _ in range(6):
            await anext(lines)
        await stream.aclose()


async def _rest(lines: AsyncIterator[str]) -> int:
    return len([line async for line in lines])


def test_a_folder_without_a_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"no server is set up here \(none of router\.toml"):
        find(tmp_path)


async def test_a_port_in_use_is_told_with_a_remedy() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(OperatorError, match="Choose another with --page-port"):
        bind("127.0.0.1", taken.getsockname()[1])
