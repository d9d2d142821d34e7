"""Connections through a SOCKS5 proxy, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from blindpost.client.options import HostChoice, SmpOptions, Timing
from blindpost.client.smp import SmpClient
from blindpost.client.socks import SocksError, SocksNetwork, connect_request
from blindpost.transport.errors import ConnectError, ConnectTimeoutError, TransportError
from blindpost.transport.network import TCP
from blindpost.transport.plan import SessionLimits
from blindpost.wire.addresses import Host, Server
from blindpost.wire.smp.commands import PING, SEND
from blindpost.wire.smp.responses import OK, PONG, Response
from blindpost.wire.smp.transmissions import Request
from tests.support.client.scripted_router import ScriptedRouter, listening, queue_id
from tests.support.client.socks_proxy import socks_proxy
from tests.support.transport.sessions import all_is_left, at_now, open_files, router_credentials, smp_router

IPV4, DOMAIN, IPV6 = 1, 3, 4
ONION = "abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrstuvwx.onion"


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    before = open_files()
    yield
    await all_is_left(before)


def done(request: Request) -> Response:
    return PONG() if isinstance(request.command, PING) else OK()


def server(*hosts: str, port: str = "5223") -> Server:
    return Server(tuple(map(Host, hosts)), port, router_credentials().fingerprint)


def through(network: SocksNetwork, connect_timeout_s: float = 20.0) -> SmpOptions:
    timing = Timing(limits=SessionLimits(connect_timeout_s=connect_timeout_s))
    return SmpOptions(network=network, onion_network=network, now=at_now, timing=timing)


@pytest.mark.parametrize(
    ("host", "kind"),
    [("smp.example", DOMAIN), (ONION, DOMAIN), ("192.0.2.7", IPV4), ("2001:db8::7", IPV6)],
)
async def test_a_session_runs_through_the_proxy_which_resolves_the_names(host: str, kind: int) -> None:
    router = ScriptedRouter(done)
    async with listening(router, smp_router(), TCP) as port, socks_proxy() as (proxy, proxy_port):
        proxy.destinations[host, 5223] = port
        options = through(SocksNetwork("127.0.0.1", proxy_port))
        async with await SmpClient.connect(server(host), options) as client:
            assert await client.send(PING()) == PONG()
            bodies = [SEND(True, bytes(16_000)) for _ in range(20)]
            results = await asyncio.gather(*(client.send(body, queue_id(1)) for body in bodies))
            assert results == [OK()] * 20
        assert proxy.requests == [(kind, host, 5223)]
        assert proxy.greetings == [b"\x05\x01\x00"]


@pytest.mark.parametrize(
    "bound", [b"\x01\x7f\0\0\x01\0\x50", b"\x04" + bytes(18), b"\x03\x09localhost\0\x50", b"\x03\x00\0\0"]
)
async def test_every_form_of_bound_address_is_read_completely(bound: bytes) -> None:
    router = ScriptedRouter(done)
    async with listening(router, smp_router(), TCP) as port, socks_proxy() as (proxy, proxy_port):
        proxy.destinations["smp.example", 5223] = port
        proxy.bound = bound
        options = through(SocksNetwork("127.0.0.1", proxy_port))
        async with await SmpClient.connect(server("smp.example"), options) as client:
            assert await client.send(PING()) == PONG()


async def test_user_names_keep_connections_apart() -> None:
    router = ScriptedRouter(done)
    async with listening(router, smp_router(), TCP) as port, socks_proxy() as (proxy, proxy_port):
        proxy.destinations["smp.example", 5223] = port
        proxy.credentials = (b"circuit 1", b"pass word")
        network = SocksNetwork("127.0.0.1", proxy_port)
        isolated = network.isolated("circuit 1", "pass word")
        async with await SmpClient.connect(server("smp.example"), through(isolated)) as client:
            assert await client.send(PING()) == PONG()
        assert proxy.logins == [(b"circuit 1", b"pass word")]
        assert proxy.greetings == [b"\x05\x02\x00\x02"]
        with pytest.raises(ConnectError, match="refused user name"):
            await SmpClient.connect(server("smp.example"), through(network.isolated("circuit 1", "wrong")))
        with pytest.raises(ConnectError, match="way to authenticate"):
            await SmpClient.connect(server("smp.example"), through(network))
        assert len(proxy.requests) == 1


async def test_circuits_are_named_where_the_proxy_takes_names() -> None:
    """A proxy without authentication works too, and the proxy's own credentials are not replaced."""
    async with socks_proxy() as (proxy, proxy_port):
        network = SocksNetwork("127.0.0.1", proxy_port).isolated("circuit 1", "")
        with contextlib.suppress(TransportError):
            await SmpClient.connect(server("smp.example"), through(network))
        assert len(proxy.requests) == 1
    own = SocksNetwork("127.0.0.1", 1080, "me", "secret")
    assert own.isolated("circuit 1", "") == own


async def test_a_proxy_that_would_not_isolate_is_not_used() -> None:
    async with socks_proxy() as (proxy, proxy_port):
        network = SocksNetwork("127.0.0.1", proxy_port, "circuit", "secret")
        with pytest.raises(ConnectError, match="way to authenticate"):
            await SmpClient.connect(server("smp.example"), through(network))
        assert proxy.requests == []


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (1, "general failure"),
        (2, "not allowed"),
        (3, "network unreachable"),
        (4, "host unreachable"),
        (5, "connection refused"),
        (6, "time to live"),
        (7, "command not supported"),
        (8, "address type"),
        (99, "reply 99"),
    ],
)
async def test_the_reason_why_the_proxy_did_not_connect_is_reported(reply: int, text: str) -> None:
    async with socks_proxy() as (proxy, proxy_port):
        proxy.reply = reply
        with pytest.raises(ConnectError, match=text):
            await SmpClient.connect(server("smp.example"), through(SocksNetwork("127.0.0.1", proxy_port)))


async def test_the_next_host_is_tried_when_the_proxy_cannot_reach_one() -> None:
    router = ScriptedRouter(done)
    async with listening(router, smp_router(), TCP) as port, socks_proxy() as (proxy, proxy_port):
        proxy.destinations["smp.example", 5223] = port
        network = SocksNetwork("127.0.0.1", proxy_port)
        options = SmpOptions(network=network, onion_network=network, now=at_now, hosts=HostChoice.ONION_FIRST)
        async with await SmpClient.connect(server("smp.example", ONION), options) as client:
            assert await client.send(PING()) == PONG()
        assert [host for _, host, _ in proxy.requests] == [ONION, "smp.example"]


async def test_a_peer_that_is_no_socks5_proxy_is_named() -> None:
    async with socks_proxy() as (proxy, proxy_port):
        proxy.version = 4
        with pytest.raises(ConnectError, match="does not speak SOCKS5"):
            await SmpClient.connect(server("smp.example"), through(SocksNetwork("127.0.0.1", proxy_port)))


@pytest.mark.parametrize(
    ("bound", "after_reply", "text"),
    [(b"\x09\0\0\0\0\0\0", b"", "unknown kind"), (b"\x01" + bytes(6), b"more", "did not leave")],
)
async def test_a_proxy_that_answers_nonsense_is_dropped(bound: bytes, after_reply: bytes, text: str) -> None:
    router = ScriptedRouter(done)
    async with listening(router, smp_router(), TCP) as port, socks_proxy() as (proxy, proxy_port):
        proxy.destinations["smp.example", 5223] = port
        proxy.bound, proxy.after_reply = bound, after_reply
        with pytest.raises(ConnectError, match=text):
            await SmpClient.connect(server("smp.example"), through(SocksNetwork("127.0.0.1", proxy_port)))


async def test_a_proxy_that_hangs_up_or_stalls_is_dropped_in_time() -> None:
    async with socks_proxy() as (proxy, proxy_port):
        network = SocksNetwork("127.0.0.1", proxy_port)
        proxy.stop_before_reply = True
        with pytest.raises(ConnectTimeoutError):
            await SmpClient.connect(server("smp.example"), through(network, connect_timeout_s=0.2))
        await proxy.left.wait()
        connecting = asyncio.create_task(SmpClient.connect(server("smp.example"), through(network)))
        proxy.asked.clear()
        await proxy.asked.wait()
        await proxy.stop()
        with pytest.raises(ConnectError, match="closed the connection"):
            await connecting


async def test_no_proxy_listening_is_an_ordinary_failure() -> None:
    async with socks_proxy() as (_, proxy_port):
        pass
    with pytest.raises(ConnectError):
        await SmpClient.connect(server("smp.example"), through(SocksNetwork("127.0.0.1", proxy_port)))


def test_requests_are_written_as_in_the_document() -> None:
    assert connect_request("192.0.2.7", 5223) == bytes.fromhex("05010001c00002071467")
    assert connect_request("2001:db8::1", 443) == bytes.fromhex(
        "0501000420010db800000000000000000000000101bb"
    )
    assert connect_request("a.onion", 1) == b"\x05\x01\x00\x03\x07a.onion\x00\x01"
    assert connect_request("h" * 255, 65535) == b"\x05\x01\x00\x03\xff" + b"h" * 255 + b"\xff\xff"
    for host in ("", "h" * 256, "straße.example"):
        with pytest.raises(SocksError):
            connect_request(host, 1)


@pytest.mark.parametrize(("user", "password"), [("u" * 256, "p"), ("u", "p" * 256), ("ü" * 128, "")])
def test_credentials_that_do_not_fit_are_refused(user: str, password: str) -> None:
    with pytest.raises(ValueError, match="255 bytes"):
        SocksNetwork("127.0.0.1", 9050, user, password)


def test_the_longest_credentials_fit() -> None:
    assert SocksNetwork("127.0.0.1", 9050, "u" * 255, "p" * 255).password == "p" * 255
    assert SocksNetwork("127.0.0.1", 9050).isolated("ü" * 127, "").password == ""


async def test_listening_through_a_proxy_is_refused() -> None:
    with pytest.raises(SocksError):
        await SocksNetwork("127.0.0.1", 9050).listen(asyncio.Protocol, None, 0)
