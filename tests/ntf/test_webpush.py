"""Web Push over HTTP/2 and HTTP/1.1, to a push service that checks everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.client.outbound import Outbound
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.webpush import new_private_key
from blindpost.ntf.model import NtfRules
from blindpost.ntf.ports import Accepted, Failed, PushOutcome, RetryLater, TokenInvalid
from blindpost.ntf.push.outcome import retry_after_s
from blindpost.ntf.push.vapid import VapidKey, VapidTokens
from blindpost.ntf.push.webpush import Way, WebPush, web_tls
from blindpost.testing.network import MemoryNetwork
from blindpost.testing.webpush import Browser, PushService, WebAnswer
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.commands import TNEW, TVFY
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, VerificationPush
from blindpost.wire.ntf.responses import ERR, OK
from blindpost.wire.ntf.status import InvalidReason
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.ntf.webpush import Subscription
from blindpost.wire.smp.errors import CMD, Code, CommandError
from tests.support.ntf.routers import (
    START,
    Clock,
    Device,
    NotifiedQueue,
    RunningNtf,
    derived_nonce,
    running_ntf,
    some_queue,
)

PUSH = MessagePush(bytes(24), bytes(2928))


@asynccontextmanager
async def pushing(
    service: PushService, allow: tuple[str, ...] = ("127.0.0.0/8",), response_s: float = 20.0
) -> AsyncIterator[WebPush]:
    outbound = Outbound(allow)
    tokens = VapidTokens([VapidKey(new_private_key(system_entropy))], "mailto:a@example.org", time.time)
    way = Way(outbound.network, outbound.gate, service.tls(web_tls()), response_timeout_s=response_s)
    provider = WebPush(way, tokens)
    try:
        yield provider
    finally:
        await provider.close()


def token_of(browser: Browser) -> DeviceToken:
    return DeviceToken.web(browser.subscription)


BOTH = pytest.mark.parametrize("http2", [True, False], ids=["HTTP/2", "HTTP/1.1"])


@BOTH
async def test_pushes_arrive_in_order_and_over_one_connection(http2: bool) -> None:
    async with PushService(http2=http2) as service, pushing(service) as provider:
        devices = [service.subscribe() for _ in range(3)]
        for push in (PUSH, VerificationPush(bytes(24), b"code"), CheckPush()):
            for device in devices:
                assert await provider.push(token_of(device), push) == Accepted(), service.refused
                assert device.opened(service.arrived[-1].body) == push
        assert service.connections == 1
        headers = service.arrived[0].headers
        assert (headers["ttl"], headers["urgency"], headers["topic"]) == ("2592000", "high", "messages")
        assert headers["authorization"] == service.arrived[-1].headers["authorization"], (
            "tokens are used again"
        )


@BOTH
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (WebAnswer(201), Accepted()),
        (WebAnswer(202), Accepted()),
        (WebAnswer(404), TokenInvalid(InvalidReason.UNREGISTERED)),
        (WebAnswer(410), TokenInvalid(InvalidReason.UNREGISTERED)),
        (WebAnswer(413), Failed("the push service answered 413")),
        (WebAnswer(301, location="https://127.0.0.1/"), Failed("the push service answered 301")),
        (WebAnswer(429, retry_after="120"), RetryLater("429", 120.0)),
        (WebAnswer(503, retry_after="999999999"), RetryLater("503", 3600.0)),
        (WebAnswer(500), RetryLater("500")),
    ],
)
async def test_the_meaning_of_answers(http2: bool, answer: WebAnswer, outcome: PushOutcome) -> None:
    async with PushService(http2=http2) as service, pushing(service) as provider:
        device = service.subscribe()
        service.answer = lambda _path: answer
        assert await provider.push(token_of(device), PUSH) == outcome
        service.answer = lambda _path: WebAnswer()
        assert await provider.push(token_of(device), PUSH) == Accepted()
        assert service.connections == 1


async def test_a_device_that_is_gone_is_reported() -> None:
    async with PushService() as service, pushing(service) as provider:
        device = service.subscribe()
        service.expire(device)
        assert await provider.push(token_of(device), PUSH) == TokenInvalid(InvalidReason.UNREGISTERED)


async def test_private_addresses_are_not_pushed_to() -> None:
    async with PushService() as service, pushing(service, allow=()) as provider:
        outcome = await provider.push(token_of(service.subscribe()), PUSH)
        assert isinstance(outcome, Failed)
        assert service.connections == 0


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "64:ff9b::7f00:1", "0.0.0.0", "::"),  # noqa: S104
        *("169.254.169.254", "10.0.0.1", "fe80::1", "2130706433", "0x7f.1", "127.1", "localhost"),
    ],
)
async def test_no_form_of_a_private_address_is_pushed_to(host: str) -> None:
    async with PushService() as service, pushing(service, allow=()) as provider:
        good = service.subscribe().subscription
        try:
            device = DeviceToken.web(Subscription(host, good.port, good.path, good.auth, good.p256dh))
        except WireError:
            return  # it cannot even be registered
        assert not isinstance(await provider.push(device, PUSH), Accepted)
        assert service.connections == 0


@pytest.mark.parametrize(
    "endpoint",
    [
        *(
            "https://user@push.example.org/x",
            "https://user:word@push.example.org/x",
            "http://push.example.org/x",
        ),
        *(
            "https://push.example.org:0/x",
            "https://push.example.org:070/x",
            "https://push.example.org:65536/x",
        ),
        *(
            "https://push.example.org",
            "https://push.example.org/a\r\nb",
            "https://push.example.org /x",
            "https:///x",
        ),
        *("https://push.example.org:x/x", "https://[::1/x", "https://ex\u00e4mple.org/x"),
    ],
)
def test_odd_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(WireError):
        Subscription.of(endpoint, bytes(16), b"\x04" + bytes(64))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *((b"0", 0.0), (b"7", 7.0), (b"31536000", 3600.0), (b"9" * 400, 3600.0), (b" 5 ", 5.0)),
        *((b"-5", None), (b"1.5", None), (b"soon", None), (b"", None), (b"\xff", None)),
        ("\u0665".encode(), None),
        *((b"Fri, 31 Dec 1999 23:59:59 GMT", 0.0), (b"Fri, 31 Dec 9999 23:59:59 GMT", 3600.0)),
        *((b"Tue, 14 Nov 2023 22:14:20 GMT", 60.0), (b"Tue, 99 Nov 2023 22:14:20 GMT", None)),
        (b"Tue, 14 Nov 2023 22:14:20 +9999", None),
    ],
)
def test_absurd_retry_after(header: bytes, seconds: float | None) -> None:
    found = retry_after_s(header, START)
    assert found is None or 0.0 <= found <= 3600.0
    if seconds is not None or b"9999" not in header:
        assert found == seconds


async def test_a_phone_that_was_off_gets_one_wake_up_with_the_newest(tmp_path: Path) -> None:
    async with PushService() as service, pushing(service) as provider:
        rules, providers = NtfRules(web_push=True), {PushProvider.WEB_PUSH: provider}
        async with running_ntf(tmp_path, rules, network=MemoryNetwork(), providers=providers) as ntf:
            browser = service.subscribe()
            device = Device(await ntf.connect(), token_of(browser))
            await device.register()
            await ntf.settled()
            assert await device.ask(TVFY(device.code(browser.opened(service.arrived[0].body)))) == OK()
            queues = [some_queue(number) for number in range(3)]
            for queue in queues:
                await device.subscribe(queue)
            for number in range(100):
                await ntf.nmsg(queues[number % 3])
                await ntf.settled()
            assert len(service.arrived) == 101
            _, wake_up = service.waiting(browser)
            items = device.items(browser.opened(wake_up.body))
            newest = (queues[1], queues[2], queues[0])
            assert [item.notifier_id for item in items] == [queue.notifier_id for queue in newest]
            assert [item.nonce for item in items] == [derived_nonce(queue) for queue in newest]


def spelled(subscription: Subscription, host: str) -> DeviceToken:
    return DeviceToken.web(replace(subscription, host=host))


async def test_a_push_service_is_one_however_its_host_is_spelled() -> None:
    """Pushes to it wait in one line and share a connection, which is told the name that the service has."""
    hosts = ("localhost", "LOCALHOST", "localhost.", "LocalHost")
    async with PushService() as service, pushing(service) as provider:
        device = service.subscribe()
        devices = [spelled(device.subscription, host) for host in hosts]
        assert len({provider.lane(each) for each in devices}) == 1
        for each in devices:
            assert await provider.push(each, PUSH) == Accepted(), service.refused
        assert service.connections == 1
        assert {arrived.headers[":authority"] for arrived in service.arrived} == {f"localhost:{service.port}"}


async def test_a_push_service_that_failed_rests_however_its_host_is_spelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blindpost.ntf.push.rests._now", lambda: 0.0)  # no rest ends while this runs
    async with PushService() as service, pushing(service, response_s=0.1) as provider:
        device = service.subscribe()
        service.answer = lambda _path: WebAnswer(None)
        for host in ("localhost", "LOCALHOST", "localhost."):
            assert isinstance(await provider.push(spelled(device.subscription, host), PUSH), RetryLater)
        assert service.connections == 1


async def test_codes_to_one_push_service_are_limited(tmp_path: Path) -> None:
    """Otherwise a stranger could make us post to any host without limit."""
    async with PushService() as service, PushService() as other, pushing(service) as provider:
        provider._way.tls.load_verify_locations(cadata=other.certificate.decode("ascii"))
        rules = NtfRules(web_push=True, service_code_pushes=3)
        providers = {PushProvider.WEB_PUSH: provider}
        async with running_ntf(tmp_path, rules, network=MemoryNetwork(), providers=providers) as ntf:
            client = await ntf.connect()
            for _ in range(3):
                await Device(client, token_of(service.subscribe())).register()
            late = Device(client, token_of(other.subscribe()))
            command = TNEW(late.name, late.key.public, late.dh_key.public)
            assert await late.ask(command, b"") == ERR(Code.QUOTA), "one host, whatever its port"


async def test_an_invalid_key_makes_the_token_invalid() -> None:
    async with PushService() as service, pushing(service) as provider:
        good = service.subscribe().subscription
        bad = Subscription(good.host, good.port, good.path, good.auth, b"\x04" + bytes(64))
        assert await provider.push(DeviceToken.web(bad), PUSH) == TokenInvalid(InvalidReason.BAD)
        assert service.connections == 0


@BOTH
async def test_a_service_that_does_not_answer_is_tried_later(
    http2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.ntf.push.rests.FIRST_S", 0.0)
    async with PushService(http2=http2) as service, pushing(service, response_s=1.5) as provider:
        device = service.subscribe()
        service.answer = lambda _path: WebAnswer(None)
        assert isinstance(await provider.push(token_of(device), PUSH), RetryLater)
        service.answer = lambda _path: WebAnswer()
        assert await provider.push(token_of(device), PUSH) == Accepted()


async def test_a_peer_that_does_not_speak_http_is_tried_later() -> None:
    async with PushService() as service, pushing(service) as provider:
        nobody = service.subscribe().subscription
        closed = Subscription(nobody.host, "1", nobody.path, nobody.auth, nobody.p256dh)
        outcomes = [await provider.push(DeviceToken.web(closed), PUSH) for _ in range(2)]
        assert all(isinstance(outcome, RetryLater) for outcome in outcomes)


async def test_a_device_registers_and_is_notified(tmp_path: Path) -> None:
    """End to end through the notification router, with a slow push service in parallel."""
    async with PushService() as service, PushService() as slow, pushing(service) as provider:
        slow.answer = lambda _path: WebAnswer(None)
        provider._way.tls.load_verify_locations(cadata=slow.certificate.decode("ascii"))
        rules, providers = NtfRules(web_push=True), {PushProvider.WEB_PUSH: provider}
        async with running_ntf(tmp_path, rules, network=MemoryNetwork(), providers=providers) as ntf:
            client = await ntf.connect()
            for _ in range(20):
                await Device(client, token_of(slow.subscribe())).register()
            browser = service.subscribe()
            device = Device(client, token_of(browser))
            async with asyncio.timeout(20):
                await device.register()
                await service.until(lambda: len(service.arrived) == 1)
                code = device.code(browser.opened(service.arrived[0].body))
                assert await device.ask(TVFY(code)) == OK()
                await device.subscribe(queue := some_queue())
                await ntf.nmsg(queue)
                await service.until(lambda: len(service.arrived) == 2)
            assert isinstance(browser.opened(service.arrived[1].body), MessagePush)
            assert service.arrived[1].path == browser.subscription.path.decode()


async def test_devices_of_a_former_key_are_served_until_its_end(tmp_path: Path) -> None:
    """Across restarts; a device that learns of the new key late is served, and its key is remembered."""
    now, keys = Clock(time.time()), [VapidKey(new_private_key(system_entropy)) for _ in range(2)]
    old, new = VapidKey(keys[0].private, now() + 100), keys[1]
    async with PushService() as service, pushing(service) as provider:
        subscribed_to = {"old": old, "late": old, "new": new}
        phones = {name: service.subscribe(key.public) for name, key in subscribed_to.items()}
        tokens = provider._tokens = VapidTokens([keys[0]], "mailto:a@example.org", now)
        providers = {PushProvider.WEB_PUSH: provider}
        devices: dict[str, Device] = {}

        async def pushed(ntf: RunningNtf, name: str, queue: NotifiedQueue) -> bool:
            """Whether the device gets a push at the first try."""
            before, refused = len(service.arrived), len(service.refused)
            await ntf.nmsg(queue)
            await ntf.settled()
            return (len(service.arrived), len(service.refused)) == (before + 1, refused)

        async def active(ntf: RunningNtf, name: str, queue: NotifiedQueue) -> None:
            device = devices[name] = Device(await ntf.connect(), token_of(phones[name]))
            await device.register()
            await ntf.settled()
            assert await device.ask(TVFY(device.code(phones[name].opened(service.arrived[-1].body)))) == OK()
            await device.subscribe(queue)

        queues = {name: some_queue(number) for number, name in enumerate(phones)}
        rules = NtfRules(web_push=True)  # as before rotations: tokens remember no key
        async with running_ntf(tmp_path, rules, network=MemoryNetwork(), providers=providers) as ntf:
            await active(ntf, "old", queues["old"])
        rules, tokens.keys = NtfRules(web_push=True, web_key=new.name), (new, old)
        async with running_ntf(tmp_path, rules, network=MemoryNetwork(), providers=providers) as ntf:
            assert await pushed(ntf, "old", queues["old"])
            await active(ntf, "new", queues["new"])
            assert not service.refused
            await active(ntf, "late", queues["late"])
            assert service.refused == ["the subscription is to another key"]
        async with running_ntf(tmp_path, rules, network=MemoryNetwork(), providers=providers) as ntf:
            for name, queue in queues.items():
                assert await pushed(ntf, name, queue), name
            now.now += 100
            assert await pushed(ntf, "new", queues["new"])
            assert not await pushed(ntf, "late", queues["late"])
            devices["late"].client = await ntf.connect()
            assert await devices["late"].status() == "INVALID,EXPIRED"
            assert ntf.ledger()["waiting"] == 0


async def test_without_a_key_web_push_devices_are_refused(tmp_path: Path) -> None:
    async with PushService() as service, running_ntf(tmp_path, network=MemoryNetwork()) as ntf:
        device = Device(await ntf.connect(), token_of(service.subscribe()))
        command = TNEW(device.name, device.key.public, device.dh_key.public)
        assert await device.ask(command, b"") == ERR(CMD(CommandError.PROHIBITED))
