"""The operator's page over real servers, in a real browser: true numbers, nothing for strangers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from blindpost.canary.book import Became
from blindpost.ops import listening
from blindpost.ops.actions import backups_of
from blindpost.ops.kinds import KINDS
from blindpost.ops.listening import bind, serving
from blindpost.ops.model import Card, Face, Health, Level, judged
from blindpost.ops.page import Page
from blindpost.ops.servers import Watched, find
from blindpost.serving.control import Answer, ControlSocket, ask
from blindpost.serving.failures import OperatorError
from blindpost.testing.apns import ApnsServer
from blindpost.wire.smp.commands import ACK
from blindpost.wire.smp.responses import MSG
from blindpost.wire.text import b64
from tests.support.canary.canaries import reached, set_up, singing
from tests.support.ds.process import ds_in_process
from tests.support.ntf.devices import verified
from tests.support.ntf.notified import notified_queues
from tests.support.ntf.process import at, configure, ntf_in_process
from tests.support.ops.browser import browser, needs_chromium
from tests.support.router.routers import a_message, new_queue, pushed
from tests.support.serving import waiting
from tests.support.serving.commands import init, run
from tests.support.serving.metrics import http
from tests.support.serving.processes import RouterInProcess, router_in_process, until

METRICS = (("only.\nenabled = false", "only.\nenabled = true"), ("port = 9464", "port = 0"))


TOKEN = "a token that nobody guesses"


def visiting() -> httpx.AsyncClient:
    """A visitor who has the token."""
    return httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"})


@contextlib.asynccontextmanager
async def shown(
    *servers: Watched, report: Path | None = None, history: Path | None = None
) -> AsyncIterator[str]:
    """A page over these servers; its address."""
    page = Page(servers, token=TOKEN, report=report, history=history, sample_s=0.2)
    opened = bind("127.0.0.1", 0)
    async with serving(page, opened):
        yield f"http://localhost:{opened.getsockname()[1]}"


async def metric(router: RouterInProcess, name: str) -> int:
    _, text = await http(int((await router.ask("status"))["metrics_port"]), "GET /metrics")
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return int(line.split()[1])


async def measured(port: int) -> dict[str, float]:
    """Every sample by its name and labels, as the endpoint writes them."""
    _, text = await http(port, "GET /metrics")
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


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


async def test_page_status_and_metrics_say_the_same(tmp_path: Path) -> None:
    """After real traffic: the JSON, the page, the control socket and the metrics."""
    async with (
        router_in_process(tmp_path / "home", *METRICS) as router,
        ds_in_process(tmp_path / "mls") as ds,
        visiting() as visitor,
    ):
        await router.start()
        await ds.start()
        client = await ds.client()
        async with shown(find(router.folder), find(ds.folder)) as url:
            before = (await visitor.get(f"{url}/snapshot")).json()["cards"][0]["tiles"]
            await traffic(router)
            await client.enqueue(bytes(32), b"a payload")
            await client.close()
            await router.emptied()
            snapshot = (await visitor.get(f"{url}/snapshot")).json()
            html = (await visitor.get(f"{url}/")).text
            status, stats = await router.ask("status"), await router.ask("stats")
            code, sentence = await http(int(status["metrics_port"]), "GET /health")
        home, mls = snapshot["cards"]
        assert (home["name"], home["health"], home["kind"]) == ("localhost:0", "running", "SMP router")
        assert code == "HTTP/1.1 200 OK"
        assert snapshot["verdict"].lower().removesuffix(".") == sentence.strip() == status["health"]
        assert before["msgSent.per_minute"] == 0
        seen, machine = home["tiles"], status["machine"]
        for name, told, metric_name in (
            ("connections", status["connections"], "simplex_smp_clients_total"),
            ("queues", status["queues"], "simplex_smp_queues_total1"),
            ("messages", status["messages"], "simplex_smp_messages_total"),
            ("subscriptions", status["subscriptions"], "simplex_smp_subscribtion_total"),
            ("congested", status["congested"], "blindpost_router_congested"),
            ("services", stats["stored"]["services"], "blindpost_router_stored_services"),
            ("msgSent.per_minute", stats["counts"]["msgSent"], "simplex_smp_messages_sent"),
            ("msgRecv.per_minute", stats["counts"]["msgRecv"], "simplex_smp_messages_received"),
            ("counts.msgExpired", stats["counts"]["msgExpired"], "simplex_smp_messages_expired"),
            ("limited.new_refused", status["limited"]["new_refused"], "blindpost_router_new_refused_total"),
        ):
            assert seen[name] == told == await metric(router, metric_name), name
            if seen[name]:
                assert f'data-tile="0/{name}">{seen[name]:,}<' in html
        for name in ("memory_limit_bytes", "disk_size_bytes", "connections_limit"):
            assert machine[name] == await metric(router, f"blindpost_router_{name}"), name
        assert f"of {machine['connections_limit']:,}<" in html
        assert abs(seen["memory_bytes"] - machine["memory_bytes"]) < 64 << 20
        assert [seen[name] for name in ("queues", "messages", "agreed", "differed")] == [3, 4, 0, 0]
        assert (mls["tiles"]["payloads"], mls["tiles"]["bytes"]) == (1, len(b"a payload"))
        assert mls["tiles"]["enqueued.per_minute"] == 1


async def test_a_notification_routers_card_is_its_ledger(tmp_path: Path) -> None:
    """A phone, a queue and a message; every number equals what the router says of itself."""
    async with (
        ApnsServer() as apple,
        router_in_process(tmp_path / "home") as router,
        ntf_in_process(tmp_path / "bell") as ntf,
    ):
        await router.start()
        metrics = ('enabled = false\naddress = "127.0.0.1"\nport = 9465', "enabled = true\nport = 0")
        configure(ntf.folder, *at(ntf.folder, apple), metrics)
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
        samples = await measured(int(told["metrics_port"]))
        named = {tile.name: tile.value for tile in card.tiles}
        assert (card.kind, card.health.value) == ("Notification router", "running")
        assert (named["tokens"], named["subscriptions"], named["ledger.accepted"]) == (1, 1, 1)
        assert {name: named[f"ledger.{name}"] for name in told["ledger"]} == told["ledger"]
        assert named["smp_routers_connected"] == told["smp_routers_connected"] == 1
        for tile, metric_name in (
            ("tokens", "simplex_ntf_tokens_total"),
            ("subscriptions", "simplex_ntf_subscriptions_approx_total"),
            ("connections", "blindpost_ntf_connections"),
            ("smp_routers", "simplex_ntf_smp_subscribers_count_other"),
            ("smp_routers_connected", "simplex_ntf_smp_sessions_count"),
            ("queues_waiting", "simplex_ntf_smp_subscription_pending_sub_count_other"),
            ("pushes_under_way", "simplex_ntf_apns_push_queue_length"),
            ("ledger_test.waiting", 'blindpost_ntf_ledger_waiting{provider="test"}'),
            *(
                (f"{ledger}.{state}", f'blindpost_ntf_ledger_total{{provider="{provider}",state="{state}"}}')
                for ledger, provider in (("ledger_apns", "apns"),)
                for state in told["ledger"]
                if state != "waiting"
            ),
        ):
            if tile in named:
                assert named[tile] == samples[metric_name], tile
        assert {"ledger_apns.accepted", "pushes_under_way", "queues_waiting"} <= set(named)
        subscribed = ("subscription_active_sub", "service_subscription_active_sub")
        there = sum(samples[f"simplex_ntf_smp_{kind}_count_other"] for kind in subscribed)
        assert named["queues_subscribed"] == there == 1
        assert named["delivered.per_minute"] == 0, "nobody looked before it was pushed"
        assert card.push_key == told["vapid_public_key"]
        assert card.face.address is not None
        assert card.face.address.shown.startswith("ntf://")
        await client.close()


async def test_a_canarys_card_is_its_status_and_its_metrics(tmp_path: Path) -> None:
    async with router_in_process(tmp_path / "home") as router:
        await router.start()
        folder = set_up(tmp_path / "canary", router)
        text = (folder / "canary.toml").read_text()
        text = text.replace('enabled = false\naddress = "127.0.0.1"\nport = 9467', "enabled = true\nport = 0")
        (folder / "canary.toml").write_text(text)
        async with singing(folder) as canary:
            await reached(canary, Became.ACKED, 4)
            (folder / "canary.toml").write_text(text.replace("interval_s = 0.05", "interval_s = 600.0"))
            await asyncio.to_thread(ask, canary.place.control, "reload")
            watched = find(folder)

            async def same() -> bool:
                """Between three looks nothing may have happened: what was sent has arrived."""
                card = await watched.look()
                told = await asyncio.to_thread(ask, canary.place.control, "status")
                samples = await measured(int(told["metrics_port"]))
                named = {tile.name: tile.value for tile in card.tiles}
                counted = ("delivered", "lost", "duplicate")
                wanted = {
                    "pairs": "directions",
                    "connected": "directions_connected",
                    "under_way": "under_way",
                    "integrity_broken": "integrity_broken_total",
                    **{name: f"messages_{name}_total" for name in counted},
                }
                latencies = {
                    "p50_ms": 'latency_seconds{quantile="0.5"}',
                    "p99_ms": 'latency_seconds{quantile="0.99"}',
                    "last_minute_median_ms": 'last_minute_latency_seconds{quantile="0.5"}',
                    "last_minute_slowest_ms": 'last_minute_latency_seconds{quantile="1"}',
                }
                assert (card.kind, named["pairs"], named["lost"], named["duplicate"]) == ("Canary", 2, 0, 0)
                return (
                    all(named[name] == told[name] for name in (*wanted, *latencies))
                    and all(
                        named[name] == samples[f"blindpost_canary_{metric}"]
                        for name, metric in wanted.items()
                    )
                    and all(
                        named[name] == pytest.approx(1000 * samples[f"blindpost_canary_{metric}"])
                        for name, metric in latencies.items()
                    )
                )

            await until(same)
            card = await watched.look()
            assert card.curve is not None
            median, slowest = card.curve.lines
            assert median.hour[-1] is not None
            assert slowest.hour[-1] is not None
            assert 0 < median.hour[-1] <= slowest.hour[-1]


async def test_the_last_day_survives_the_page(tmp_path: Path) -> None:
    history = tmp_path / "history.json"
    async with router_in_process(tmp_path / "home") as router, visiting() as visitor:
        await router.start()
        async with shown(find(router.folder), history=history) as url:
            await traffic(router)
            await visitor.get(f"{url}/snapshot")
        async with shown(find(router.folder), history=history) as url:
            html = (await visitor.get(f"{url}/")).text
            told = (await visitor.get(f"{url}/snapshot")).json()["cards"][0]["tiles"]
        assert "in <b>6</b>" in html
        assert "out <b>2</b>" in html
        assert told["msgSent.per_minute"] == 0


async def test_a_server_that_dies_stalls_or_returns_is_shown_and_the_others_continue(tmp_path: Path) -> None:
    async with (
        router_in_process(tmp_path / "home") as router,
        ds_in_process(tmp_path / "mls") as ds,
        visiting() as visitor,
    ):
        await router.start()
        await ds.start()
        async with shown(find(router.folder), find(ds.folder)) as url:

            async def look() -> tuple[list[str], str, str]:
                told = (await visitor.get(f"{url}/snapshot", timeout=30)).json()
                return [card["health"] for card in told["cards"]], told["verdict"], told["cards"][0]["note"]

            await router.end(signal.SIGTERM)
            health, verdict, note = await look()
            assert health == ["down", "running"]
            assert verdict == "localhost:0: it does not run."
            assert f"blindpost router start -c {router.folder}" in note
            await router.start()
            assert await look() == (["running", "running"], "Everything works.", "")


async def test_a_server_that_does_not_answer_in_time_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if stopped by a debugger: its socket accepts, and nobody reads."""
    init(tmp_path / "home")
    monkeypatch.setattr("blindpost.ops.servers.ASK_S_MAX", 0.2)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "home" / "control.sock"))
        deaf.listen()
        card = await find(tmp_path / "home").look()
    assert (card.health, card.face.name) == (Health.DOWN, "localhost:0")
    assert "did not answer within" in card.note


async def test_a_server_that_dies_while_it_answers_is_down(tmp_path: Path) -> None:
    init(tmp_path / "home")

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"ok": true, "result": {"version": "1')
        writer.close()

    async with await asyncio.start_unix_server(die, tmp_path / "home" / "control.sock"):
        card = await find(tmp_path / "home").look()
    assert card.health is Health.DOWN
    assert "closed its control socket" in card.note


async def test_a_server_of_another_version_is_shown_as_such(tmp_path: Path) -> None:
    init(tmp_path / "home")
    old = {"version": "0.1", "state": "running", "ready": True, "health": "everything works"}
    control = ControlSocket(
        tmp_path / "home" / "control.sock", {"status": answering(old), "stats": answering({})}
    )
    await control.listen()
    card = await find(tmp_path / "home").look()
    await control.close()
    assert "it runs version 0.1, whose numbers this page" in card.note


def answering(values: dict[str, Any]) -> Answer:
    async def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
        return values

    return answer


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
                assert answer.headers["connection"] == "close", "a stranger asks once for each connection"
            assert answer.text == (await visitor.get(f"{url}/")).text
        assert (await visitor.post(f"{url}/act/0/audit")).status_code == 401
        assert (await visitor.post(f"{url}/act/{'9' * 5000}/audit")).status_code == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await visitor.get(f"{url}/snapshot", headers=bearer)).status_code == 200
        for number in ("1", "00", "-1", "x", "9" * 5000):
            assert (await visitor.post(f"{url}/act/{number}/audit", headers=bearer)).status_code == 404
        entered = await visitor.get(f"{url}/?token={TOKEN}")
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert TOKEN not in entered.headers["set-cookie"]
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert "SameSite=strict" in entered.headers["set-cookie"]
        assert (await visitor.get(f"{url}/snapshot")).status_code == 200
        assert (await visitor.get(f"{url}/report")).text == "<p>secret"


async def test_other_sites_in_the_same_browser_can_start_nothing(tmp_path: Path) -> None:
    """Not even one on another port of the same host, to which browsers send the same cookies."""
    init(tmp_path / "home")
    async with shown(find(tmp_path / "home")) as url, httpx.AsyncClient() as visitor:
        await visitor.get(f"{url}/?token={TOKEN}")
        audit = f"{url}/act/0/audit"
        origins = ("http://attacker.example", "http://localhost:1", "null", "http://localhost", "http://[")
        for headers in ({}, *({"Origin": origin} for origin in origins)):
            assert (await visitor.post(audit, headers=headers)).status_code == 403, headers
        rebound = {"Origin": "http://attacker.example", "Host": "attacker.example"}
        assert (await visitor.get(f"{url}/report")).status_code == 404
        ours = {"Origin": url}
        assert (await visitor.get(audit)).status_code == 405
        for path in ("/act/7/audit", "/act/0/restore"):
            assert (await visitor.post(url + path, headers=ours)).status_code == 404
        assert (await visitor.post(audit, headers=ours, content=b"x" * 5_000)).status_code == 413
        for content in (b"[", b"[]", b"[" * 4_000):
            assert (await visitor.post(audit, headers=ours, content=content)).status_code == 400
        answer = await visitor.post(audit, headers=ours)
        assert answer.json()["told"].startswith("Everything agrees: services 0")
        visitor.cookies.clear()
        assert (await visitor.post(audit, headers=rebound)).status_code == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await visitor.post(audit, headers=bearer)).status_code == 200
        policy = (await visitor.get(f"{url}/", headers=bearer)).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")


async def test_crowds_and_slow_visitors_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More connections than allowed, half of them in the middle of a head; then an operator connects."""
    monkeypatch.setattr(listening, "VISITORS_MAX", 8)
    init(tmp_path / "home")
    async with shown(find(tmp_path / "home")) as url, visiting() as visitor:
        port = int(url.rpartition(":")[2])
        following = await visitor.send(visitor.build_request("GET", f"{url}/events"), stream=True)
        lines = following.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        for _, writer in crowd[::2]:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert (await visitor.get(f"{url}/snapshot")).status_code == 200
        assert (await anext(lines)) == "", "the stream of an operator is not idle"
        assert (await anext(lines)).startswith("data: ")
        reading = [asyncio.create_task(reader.read()) for reader, _ in crowd]
        await waiting.until(lambda: sum(task.done() for task in reading) >= 32)
        for task, (_, writer) in zip(reading, crowd, strict=True):
            task.cancel()
            writer.close()
        await asyncio.gather(*reading, return_exceptions=True)
        await following.aclose()
        raw, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /" + b"x" * 100_000)
        assert (await raw.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


@needs_chromium
async def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    """Numbers, actions with a confirmation, trouble in the tab, and the keyboard alone."""
    report = tmp_path / "report.html"
    report.write_text("<!doctype html><title>r</title><p id=r>all is well")
    async with router_in_process(tmp_path / "home") as router, browser(tmp_path) as seen:
        await router.start()
        async with shown(find(router.folder), report=report) as url:
            page = await seen.context.new_page()
            await page.goto(f"{url}/?token={TOKEN}")
            assert await page.evaluate("location.search + document.referrer") == ""
            assert await page.title() == "Everything works. - Blindpost"
            assert await page.inner_text('[data-tile="0/queues"]') == "0"
            await traffic(router)
            await page.locator('[data-tile="0/queues"]').filter(has_text="3").wait_for()
            await page.locator("figure.day path.in[d^=M]").wait_for(state="attached")
            told = page.locator("#told-0")
            await page.get_by_role("button", name="Audit").focus()
            await page.keyboard.press("Enter")
            dialog = page.get_by_role("dialog", name="Audit localhost:0?")
            await dialog.wait_for()
            await page.keyboard.press("Escape")
            await dialog.wait_for(state="hidden")
            assert await told.inner_text() == ""
            await page.keyboard.press("Enter")
            await dialog.get_by_role("button", name="Audit").press("Enter")
            await told.filter(has_text="Everything agrees: services 0, queues 3").wait_for()
            await page.get_by_role("button", name="Back up").click()
            await page.get_by_role("dialog").get_by_role("button", name="Back up").click()
            await told.filter(has_text="Backed up").wait_for()
            (made,) = backups_of(router.folder).iterdir()
            assert (made / "backup.json").exists()
            async with await router.connect() as bob:
                queue = await new_queue(bob, secured=True)
                await page.get_by_role("button", name="Block a link").click()
                await page.get_by_label("Link or id").fill(b64(queue.sender_id))
                await page.get_by_label("spam").check()
                await page.get_by_role("dialog").get_by_role("button", name="Block a link").click()
                await told.filter(has_text="Blocked").wait_for()
            assert (
                ask(router.folder / "control.sock", "queue", id=b64(queue.sender_id))["outcome"]
                == "blocked, reason spam"
            )
            good = await page.get_attribute("#icon", "href")
            await router.end(signal.SIGTERM)
            await page.locator("[data-note]").filter(has_text="blindpost router start").wait_for()
            assert await page.locator('[data-verdict="bad"]').is_visible()
            assert await page.title() == "localhost:0: it does not run. - Blindpost"
            assert await page.get_attribute("#icon", "href") != good
            await router.start()
            await page.locator('[data-verdict="good"]').wait_for()
            assert await page.get_attribute("#icon", "href") == good
            await page.get_by_role("link", name="report").press("Enter")
            await page.locator("#r").wait_for()
            await page.go_back()
            await page.locator("#live").filter(has_text="live").wait_for()
        await page.locator("#live").filter(has_text="not live").wait_for()
        assert await page.title() == "Not live - Blindpost"
        assert seen.hosts == {"localhost"}
        assert [line for line in seen.console if "ERR_CONNECTION_REFUSED" not in line] == []


def test_a_server_that_runs_and_needs_attention_is_named_first() -> None:
    well = Card("SMP router", "router", "/srv", Face("elm"), Health.RUNNING, "everything works", "")
    noted = replace(well, face=Face("oak"), sentence="the web certificate could not be renewed: no answer")
    assert (well.level, well.note) == (Level.GOOD, "")
    assert (noted.level, noted.note) == (Level.LOOK, noted.sentence)
    verdict = judged((well, noted))
    assert (verdict.level, verdict.more) == (Level.LOOK, "1 thing needs a look.")
    assert verdict.text == "The web certificate could not be renewed: no answer."


def test_the_suggested_command_exists_for_every_kind(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind.word).mkdir()
        (tmp_path / kind.word / kind.config).touch()
        note = asyncio.run(find(tmp_path / kind.word).look()).note
        (command,) = re.findall(r"`blindpost (\w+ start) -c ", note)
        assert run(*command.split(), "--help").stdout


@needs_chromium
async def test_the_page_suits_a_phone_and_dark_mode(tmp_path: Path) -> None:
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
            assert (await anext(lines)).startswith("data: {")
            following = asyncio.ensure_future(_rest(lines))
        assert await following >= 1
        await stream.aclose()


async def test_visitors_who_do_not_finish_a_request_are_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "REQUEST_S", 0.5)
    init(tmp_path / "home")
    async with shown(find(tmp_path / "home")) as url, visiting() as visitor:
        port = int(url.rpartition(":")[2])
        for said in (b"", b"GET / HT", b"GET /none HTTP/1.1\r\nHost: h\r\n\r\nGET / HT"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            async with asyncio.timeout(30):
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


async def test_a_port_in_use_is_reported_with_a_remedy() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(OperatorError, match="Choose another with --page-port"):
        bind("127.0.0.1", taken.getsockname()[1])
