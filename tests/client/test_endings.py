"""How connections begin and end: every caller gets a named error, and nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blindpost.client.calls import Call
from blindpost.client.errors import NoHostError, ResponseTimeoutError, RouterSilentError
from blindpost.client.options import BACKGROUND, INTERACTIVE, Bounds, SmpOptions, Timing
from blindpost.client.smp import SmpClient
from blindpost.testing.network import Link, MemoryNetwork
from blindpost.transport.errors import (
    ClosedHereError,
    ConnectError,
    ConnectionCutError,
    HandshakeTimeoutError,
    HandshakeVersionError,
    PeerClosedError,
    TlsTimeoutError,
    TransportError,
    UnknownCaError,
)
from blindpost.transport.plan import SessionLimits
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import NEW, PING, SEND, SUB, SUBS, Command
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import OK, PONG, SOK, SOKS, Response
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.values import SubMode
from blindpost.wire.versions import VersionRange
from tests.support.client.scripted_router import (
    ScriptedRouter,
    listening,
    queue_id,
    queue_key,
    server_at,
    settle,
    smp_pair,
    virtual,
)
from tests.support.transport.sessions import HOST, at_now, router_credentials, service_credentials, smp_router

KEY = queue_key(0)


def sends(count: int) -> list[Call[Command]]:
    return [Call(SEND(True, bytes(16_000)), queue_id(number)) for number in range(count)]


def subscribed(request: Request) -> Response | None:
    return SOK(None) if isinstance(request.command, SUB) else None


@pytest.mark.parametrize(
    ("end", "reason"),
    [("close", PeerClosedError), ("abort", ConnectionCutError), ("cut", ConnectionCutError)],
)
def test_when_the_router_disconnects_every_caller_gets_the_reason(
    end: str, reason: type[TransportError]
) -> None:
    @virtual
    async def run() -> None:
        network = MemoryNetwork()
        async with smp_pair(network=network, bounds=Bounds(window_blocks=2)) as (client, router):
            waiting = asyncio.create_task(client.send_many(sends(5)))
            event = asyncio.create_task(client.next_event())
            await router.until_requests(2)
            match end:
                case "close":
                    router.session.close()
                case "abort":
                    router.session.abort()
                case _:
                    network.connections[0][1].cut()
            results = await waiting
            assert [type(result) for result in results] == [reason] * 5
            assert len({id(result) for result in results}) == 5
            with pytest.raises(reason):
                await event
            assert isinstance(await client.wait_closed(), reason)
            assert isinstance(client.closed_because, reason)
            with pytest.raises(reason):
                await client.send(PING())
            assert len(router.requests) == 2

    run()


@virtual
async def test_closing_ends_every_wait_with_a_named_error() -> None:
    async with smp_pair(bounds=Bounds(window_blocks=1)) as (client, router):
        waiting = asyncio.create_task(client.send_many(sends(3)))
        await router.until_requests(1)
        assert client.closed_because is None
        await client.close()
        assert [type(result) for result in await waiting] == [ClosedHereError] * 3
        await client.close()
        with pytest.raises(ClosedHereError):
            await client.send(PING())
        assert [type(reason) for reason in router.reasons] == [PeerClosedError]


@virtual
async def test_leaving_the_block_closes_the_connection() -> None:
    network = MemoryNetwork()
    async with listening(ScriptedRouter(), smp_router(), network) as port:
        async with await SmpClient.connect(server_at(port), options(network)) as client:
            assert client.closed_because is None
        assert isinstance(client.closed_because, ClosedHereError)


@virtual
async def test_what_was_sent_just_before_closing_arrives() -> None:
    async with smp_pair() as (client, router):
        waiting = asyncio.create_task(client.send_many(sends(1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await client.close()
        await settle()
        assert len(router.requests) == 1
        assert [type(result) for result in await waiting] == [ClosedHereError]


@virtual
async def test_waiting_for_the_end_may_be_cancelled() -> None:
    async with smp_pair() as (client, _):
        waiting = asyncio.create_task(client.wait_closed())
        await settle()
        waiting.cancel()
        await settle()
        assert client.closed_because is None
        await client.close()
        assert isinstance(client.closed_because, ClosedHereError)


def options(network: MemoryNetwork, **more: Any) -> SmpOptions:
    return SmpOptions(network=network, now=at_now, **more)


@virtual
async def test_a_router_with_another_identity_is_refused() -> None:
    network = MemoryNetwork()
    async with listening(ScriptedRouter(), smp_router(), network) as port:
        with pytest.raises(UnknownCaError):
            await SmpClient.connect(server_at(port, bytes(32)), options(network))


@virtual
async def test_no_common_version_is_named() -> None:
    network = MemoryNetwork()
    async with listening(ScriptedRouter(), smp_router(versions=VersionRange(6, 9)), network) as port:
        with pytest.raises(HandshakeVersionError):
            await SmpClient.connect(server_at(port), options(network, versions=VersionRange(10, 20)))


@virtual
async def test_only_the_chosen_versions_are_offered() -> None:
    async with smp_pair() as (client, _):
        assert client.version == 20
    network = MemoryNetwork()
    async with listening(ScriptedRouter(), smp_router(), network) as port:
        chosen = options(network, versions=VersionRange(6, 12))
        async with await SmpClient.connect(server_at(port), chosen) as older:
            assert older.version == 12


@virtual
async def test_hosts_are_tried_in_their_order_until_one_answers() -> None:
    network = MemoryNetwork()
    router = ScriptedRouter(lambda request: PONG())
    async with listening(router, smp_router(), network) as port:
        server = server_at(port, None, "nobody.example", "192.0.2.1", HOST)
        async with await SmpClient.connect(server, options(network)) as client:
            assert await client.send(PING()) == PONG()
        nowhere = server_at(port, None, "nobody.example", "192.0.2.1")
        with pytest.raises(ConnectError, match=r"192\.0\.2\.1") as failed:
            await SmpClient.connect(nowhere, options(network))
        assert len(failed.value.__notes__) == 1
        assert "host 1 of 2" in failed.value.__notes__[0]
    assert len(network.connections) == 1


@pytest.mark.parametrize(
    ("timing", "stage_s"),
    [(BACKGROUND, 45.0), (INTERACTIVE, 15.0), (Timing(limits=SessionLimits(tls_timeout_s=3)), 3.0)],
)
def test_a_silent_router_is_given_up_on_in_time(timing: Timing, stage_s: float) -> None:
    @virtual
    async def run() -> None:
        network = MemoryNetwork()
        network.plan(to_caller=Link(stall_after=0))
        async with listening(ScriptedRouter(), smp_router(), network) as port:
            loop = asyncio.get_running_loop()
            with pytest.raises(TlsTimeoutError):
                await SmpClient.connect(server_at(port), options(network, timing=timing))
            assert loop.time() == pytest.approx(stage_s)

    run()


@virtual
async def test_connecting_can_be_cancelled() -> None:
    network = MemoryNetwork()
    network.plan(to_caller=Link(stall_after=0))
    async with listening(ScriptedRouter(), smp_router(), network) as port:
        connecting = asyncio.create_task(SmpClient.connect(server_at(port), options(network)))
        await asyncio.sleep(5)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting


@virtual
async def test_a_silent_handshake_times_out() -> None:
    network = MemoryNetwork()
    async with listening(_Undecided(), smp_router(), network) as port:
        chosen = options(network, service=(ServiceRole.MESSAGING, service_credentials()))
        with pytest.raises(HandshakeTimeoutError):
            await SmpClient.connect(server_at(port), chosen)


class _Undecided(ScriptedRouter):
    def __init__(self) -> None:
        super().__init__()
        self.service_id = None


def test_default_timing_is_that_of_the_network() -> None:
    assert (BACKGROUND.response_s, INTERACTIVE.response_s) == (30.0, 10.0)
    assert (BACKGROUND.limits.connect_timeout_s, INTERACTIVE.limits.connect_timeout_s) == (45.0, 15.0)
    assert (BACKGROUND.proxy_session_s, INTERACTIVE.proxy_session_s) == (75.0, 25.0)
    assert (BACKGROUND.forwarded_s, INTERACTIVE.forwarded_s) == (60.0, 20.0)
    assert (BACKGROUND.ping_after_s, BACKGROUND.timeouts_max, BACKGROUND.silence_max_s) == (600.0, 3, 900.0)


def answering_pings(request: Request) -> Response:
    return PONG() if isinstance(request.command, PING) else SOK(None)


@virtual
async def test_a_subscribed_client_pings_after_a_silence_and_only_then() -> None:
    async with smp_pair(answering_pings) as (client, router):
        await client.send(SUB(), queue_id(1), KEY)
        await asyncio.sleep(599)
        assert router.tags == [b"SUB"]
        router.push(queue_id(1), OK())
        await asyncio.sleep(599)
        assert router.tags == [b"SUB"]
        await asyncio.sleep(2)
        assert router.tags == [b"SUB", b"PING"]
        await asyncio.sleep(600)
        assert router.tags == [b"SUB", b"PING", b"PING"]
        await asyncio.sleep(100_000)
        assert client.closed_because is None


@pytest.mark.parametrize(
    ("command", "entity_id", "pinged"),
    [
        (NEW(KEY.public, queue_key(1, Algorithm.X25519).public), b"", True),
        (NEW(KEY.public, queue_key(1, Algorithm.X25519).public, sub_mode=SubMode.ONLY_CREATE), b"", False),
        (SUBS(0), b"", True),
        (SEND(False, b""), queue_id(1), False),
    ],
)
def test_pings_begin_with_a_subscription(command: Command, entity_id: bytes, pinged: bool) -> None:
    @virtual
    async def run() -> None:
        async with smp_pair(service=ServiceRole.MESSAGING) as (client, router):
            router.answer = lambda request: PONG() if isinstance(request.command, PING) else SOKS(0)
            key = None if isinstance(command, SEND | SUBS) else KEY
            await client.send_many([Call(command, entity_id, key)])
            await asyncio.sleep(1300)
            assert (b"PING" in router.tags) is pinged

    run()


@virtual
async def test_a_router_silent_for_three_timeouts_and_a_quarter_of_an_hour_is_dropped() -> None:
    async with smp_pair(subscribed) as (client, router):
        await client.send(SUB(), queue_id(1), KEY)
        loop = asyncio.get_running_loop()
        start = loop.time()
        reason = await client.wait_closed()
        assert isinstance(reason, RouterSilentError)
        assert loop.time() - start == pytest.approx(3 * 600 + 30)
        assert router.tags == [b"SUB", b"PING", b"PING", b"PING"]
        with pytest.raises(RouterSilentError):
            await client.send(PING())


@virtual
async def test_timeouts_alone_do_not_end_a_connection_and_any_traffic_resets_them() -> None:
    async with smp_pair(subscribed) as (client, router):
        for _ in range(5):
            await client.send_many([Call(PING())])
        assert client.closed_because is None
        await asyncio.sleep(700)
        router.push(queue_id(1), OK())
        await settle()
        for _ in range(2):
            await client.send_many([Call(PING(), timeout_s=500)])
        assert client.closed_because is None
        await client.send_many([Call(PING())])
        await settle()
        assert isinstance(client.closed_because, RouterSilentError)


@pytest.mark.parametrize("subscribes", [True, False])
def test_a_router_that_takes_nothing_any_more_is_dropped(subscribes: bool) -> None:
    @virtual
    async def run() -> None:
        network = MemoryNetwork()
        network.to_listener = Link(window=20 << 10)
        async with smp_pair(subscribed, network=network) as (client, _):
            if subscribes:
                await client.send(SUB(), queue_id(1), KEY)
            network.connections[-1][1].pause_reading()
            calls = [Call(SEND(False, bytes(16_000)), queue_id(number)) for number in range(4)]
            waiting = asyncio.create_task(client.send_many(calls))
            assert isinstance(await client.wait_closed(), RouterSilentError)
            assert asyncio.get_running_loop().time() == pytest.approx(1200)
            first, *others = await waiting
            assert isinstance(first, ResponseTimeoutError)
            assert all(isinstance(other, RouterSilentError) for other in others)

    run()


@virtual
async def test_without_a_subscription_a_dead_connection_is_noticed_too() -> None:
    async with smp_pair() as (client, _):
        for _ in range(3):
            await client.send_many([Call(PING())])
        assert isinstance(await client.wait_closed(), RouterSilentError)
        assert asyncio.get_running_loop().time() == pytest.approx(1200)


@virtual
async def test_an_address_without_a_usable_host_is_refused_without_a_connection() -> None:
    network = MemoryNetwork()
    onion = Server((Host("abc234.onion"),), "5223", router_credentials().fingerprint)
    with pytest.raises(NoHostError):
        await SmpClient.connect(onion, options(network))
    assert network.connections == []
