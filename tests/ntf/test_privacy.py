"""What must not be learned: searched for in the store, the log, the metrics, the wire and the pushes."""

from __future__ import annotations

import logging
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable

import pytest

from blindpost.client.errors import TooLargeError
from blindpost.ntf.metrics import render
from blindpost.ntf.ports import Failed, RetryLater, ServiceMade
from blindpost.serving.prometheus import Text
from blindpost.testing.network import MemoryNetwork, MemoryTransport
from blindpost.wire.addresses import Host, Server
from blindpost.wire.ntf.commands import PING, SNEW, TCHK, TCRN, TRPL
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, Push, VerificationPush, encode_apns_body
from blindpost.wire.ntf.responses import OK
from tests.support.ntf.routers import (
    Device,
    RunningNtf,
    active_device,
    device_token,
    some_queue,
)
from tests.support.ntf.stores import TABLES, RawStore, stored_token
from tests.support.router.routers import new_key
from tests.support.router.services import new_service

MARKED = Server((Host("marked-host.example.org"),), "5223", b"MARKED-FINGERPRINT-OF-A-ROUTER!!")


def written_ways(marker: bytes) -> list[bytes]:
    """The encodings in which bytes may appear in a text or file."""
    return [
        marker,
        marker.hex().encode(),
        marker.hex().upper().encode(),
        b64encode(marker).rstrip(b"="),
        urlsafe_b64encode(marker).rstrip(b"="),
        repr(marker)[2:-1].encode(),
    ]


def found_in(haystack: bytes, markers: Iterable[bytes]) -> list[bytes]:
    return [marker for marker in markers if any(way in haystack for way in written_ways(marker))]


@pytest.mark.both_stores
@pytest.mark.claim("NTF-61")
async def test_secrets_are_sealed_at_rest_and_never_logged(
    ntf: RunningNtf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    device = await active_device(ntf)
    code = device.code(ntf.apple.pushed[-1][1])
    queue = some_queue(1, MARKED)
    subscription_id = await device.subscribe(queue)
    service = new_service()
    await ntf.router.submit([ServiceMade(MARKED, service)])
    ntf.apple.answer = lambda *_: RetryLater("503 Unavailable")
    await ntf.nmsg(queue)
    await ntf.settled()
    ntf.apple.answer = lambda *_: Failed("400 BadPath")
    assert await device.ask(TRPL(device_token("cd"))) == OK()
    await ntf.settled()
    hosts = tuple(Host(f"{'a' * 50}{number}.example.org") for number in range(10))
    too_long = SNEW(device.token_id, Server(hosts, "5223", bytes(32)), b"n" * 24, new_key().encoded)
    with pytest.raises(TooLargeError, match="block"):
        await device.client.send(too_long, b"", device.key)
    token = await stored_token(ntf, device.token_id)
    secrets = [
        queue.key.raw,
        queue.key.pkcs8,
        code,
        token.code.raw,
        token.secret.raw,
        token.dh_key.raw,
        service.key.raw,
        service.key.pkcs8,
    ]
    names = [
        device.name.token,
        device_token("cd").token,
        queue.notifier_id,
        MARKED.hosts[0].text.encode(),
        MARKED.key_hash,
    ]
    raw = RawStore(ntf.router.store)
    assert found_in(await raw.dump(), [*secrets, *names]) == []
    log = caplog.text.encode()
    assert b"did not accept a push" in log
    assert found_in(log, [*secrets, *names, device.token_id, subscription_id]) == []
    text = Text()
    render(text, ntf.router, None)
    metrics = text.done().encode()
    assert b"simplex_ntf_tokens_total 1" in metrics
    assert found_in(metrics, [*secrets, *names, device.token_id, subscription_id]) == []


@pytest.mark.both_stores
@pytest.mark.claim("NTF-47")
async def test_periodic_notifications_alone_tell_nothing_about_queues(
    ntf: RunningNtf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    device = await active_device(ntf)
    assert await device.ask(TCRN(20)) == OK()
    elsewhere = some_queue(1, MARKED)
    for _ in range(3):
        ntf.clock.now += 20 * 60
        await ntf.nmsg(elsewhere)
        await ntf.look()
    assert len(ntf.apple.of_kind(CheckPush)) == 3
    raw = RawStore(ntf.router.store)
    rows = {table: await raw.fetch(f"SELECT * FROM {table}") for table in TABLES}  # noqa: S608 (our names)
    assert {table: len(found) for table, found in rows.items()} == {
        "meta": 1,
        "tokens": 1,
        "smp_servers": 0,
        "subscriptions": 0,
        "notifications": 0,
    }
    markers = [elsewhere.notifier_id, MARKED.hosts[0].text.encode(), MARKED.key_hash]
    assert found_in(await raw.dump() + caplog.text.encode(), markers) == []


@pytest.mark.both_stores
@pytest.mark.claim("NTF-40")
async def test_an_observer_of_the_device_learns_no_message_router(
    ntf: RunningNtf, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    write = MemoryTransport.write

    def tapped(transport: MemoryTransport, data: bytes | bytearray | memoryview) -> None:
        sent.append(bytes(data))
        write(transport, data)

    device = await active_device(ntf)
    await device.status()
    network = ntf.network
    assert isinstance(network, MemoryNetwork)
    before = len(network.connections)
    monkeypatch.setattr(MemoryTransport, "write", tapped)
    sizes = []
    queue = some_queue(1, MARKED)
    snew = SNEW(device.token_id, MARKED, queue.notifier_id, queue.key.encoded)
    for command, entity_id, key in (
        (PING(), b"", None),
        (TCHK(), device.token_id, device.key),
        (snew, b"", device.key),
    ):
        sent.clear()
        await device.client.send(command, entity_id, key)
        sizes.append([len(data) for data in sent])
        assert found_in(b"".join(sent), [MARKED.hosts[0].text.encode(), queue.notifier_id]) == []
    assert sizes[0] == sizes[1] == sizes[2] == [512 + 22, 512 + 22]
    assert len(network.connections) == before, "the device connects to nobody else"


@pytest.mark.both_stores
@pytest.mark.claim("NTF-60")
async def test_pushes_of_a_kind_have_one_size_and_periods_their_own_moments(ntf: RunningNtf) -> None:
    client = await ntf.connect()
    devices = [await active_device(ntf, device_token(f"{number:02x}"), client) for number in range(24)]
    queues = [some_queue(number, MARKED if number % 2 else some_queue().server) for number in range(6)]
    for queue in queues:
        await devices[0].subscribe(queue)
    await ntf.nmsg(queues[0], meta=b"m" * 144)
    await ntf.settled()
    await ntf.nmsg(*queues, meta=b"m" * 144)
    await ntf.settled()
    for device in devices:
        assert await device.ask(TCRN(20)) == OK()
    moments = []
    for minute in range(20):
        ntf.clock.now += 60
        seen = len(ntf.apple.of_kind(CheckPush))
        await ntf.look()
        moments += [minute] * (len(ntf.apple.of_kind(CheckPush)) - seen)
    assert len(moments) == 24
    assert len(set(moments)) >= 8, "spread over the interval"
    assert len(ntf.apple.of_kind(MessagePush)) == 2
    kinds: list[type[Push]] = [VerificationPush, MessagePush, CheckPush]
    for kind in kinds:
        bodies = [encode_apns_body(push) for push in ntf.apple.of_kind(kind)]
        assert len({len(body) for body in bodies}) == 1
        assert len(bodies[0]) <= 4096


async def test_the_repr_of_a_token_contains_no_secret(ntf: RunningNtf) -> None:
    device: Device = await active_device(ntf)
    token = await stored_token(ntf, device.token_id)
    shown = repr(token).encode()
    assert found_in(shown, [device.name.token, token.code.raw, token.secret.raw, token.dh_key.raw]) == []
