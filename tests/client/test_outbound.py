"""Where a server connects when strangers name the host: public addresses, resolved once, tried rarely."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from blindpost.client.errors import NoHostError
from blindpost.client.gate import CrowdedError, Gate, GateSizes
from blindpost.client.hosts import PLACES_MAX
from blindpost.client.lookup import Lookups, LookupSizes
from blindpost.client.options import SmpOptions
from blindpost.client.outbound import Allowed, GuardedNetwork, Outbound
from blindpost.client.smp import SmpClient
from blindpost.testing.network import MemoryNetwork, P
from blindpost.transport import errors
from blindpost.transport.network import HostRefusedError
from blindpost.wire.addresses import Host, Server

PRIVATE = [
    "0.0.0.1",
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b:1::a00:1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not Allowed().has(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a01:4f8::1"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert Allowed().has(address)


def test_the_operator_allows_networks() -> None:
    allowed = Allowed(["10.0.0.0/8", "::1/128"])
    assert allowed.has("10.1.2.3")
    assert allowed.has("::1")
    assert not allowed.has("127.0.0.1")
    assert not allowed.has("::ffff:10.1.2.3")


class Noted(MemoryNetwork):
    """Records where it is asked to connect, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        self.asked.append(host)
        raise ConnectionRefusedError


async def test_the_address_checked_is_the_address_connected_to() -> None:
    answers = iter([["8.8.8.8", "127.0.0.1", "1.1.1.1"], ["127.0.0.1"]])
    through = Noted()
    network = GuardedNetwork(Allowed(), Lookups(lambda _: next(answers)), through=through)
    with pytest.raises(ConnectionRefusedError):
        await network.connect(asyncio.Protocol, "rebinding.example", 5223)
    assert through.asked == ["8.8.8.8", "1.1.1.1"]
    with pytest.raises(HostRefusedError):
        await network.connect(asyncio.Protocol, "rebinding.example", 5223)
    assert len(through.asked) == 2


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.1", "0177.0.0.1"])
async def test_other_spellings_of_localhost_are_refused(host: str) -> None:
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        with pytest.raises(OSError, match=r"."):
            await Outbound().network.connect(asyncio.Protocol, host, port)
        protocol = await Outbound(["127.0.0.0/8"]).network.connect(Kept, "127.0.0.1", port)
        await protocol.over.wait()


class Kept(asyncio.Protocol):
    def __init__(self) -> None:
        self.over = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()


def server(host: str, identity: int = 0, port: str = "") -> Server:
    return Server((Host(host),), port, identity.to_bytes(32, "big"))


async def test_a_forbidden_host_is_named_as_such_on_every_attempt() -> None:
    options = Outbound().applied(SmpOptions())
    for _ in range(3):
        with pytest.raises(errors.ForbiddenHostError):
            await SmpClient.connect(server("10.0.0.1"), options)


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..b", "a" * 64, ".".join(["ab"] * 100), "x!y"])
async def test_a_name_that_no_host_can_have_is_refused(host: str) -> None:
    for options in (SmpOptions(), Outbound().applied(SmpOptions())):
        with pytest.raises(NoHostError):
            await SmpClient.connect(server(host), options)


async def test_only_a_few_of_many_hosts_in_an_address_are_tried() -> None:
    through = Noted()
    hosts = tuple(Host(f"8.8.8.{number}") for number in range(1, 250))
    with pytest.raises(errors.ConnectError):
        await SmpClient.connect(Server(hosts, "", bytes(32)), SmpOptions(network=through))
    assert len(through.asked) == PLACES_MAX


async def test_slow_name_servers_delay_only_new_names() -> None:
    release, started = threading.Event(), threading.Semaphore(0)

    def resolve(host: str) -> list[str]:
        if host.endswith("slow.example"):
            started.release()
            release.wait(20)
        return ["8.8.8.8"]

    lookups = Lookups(resolve, LookupSizes(strangers=6, domain=2, timeout_s=5.0))
    try:
        below_one = [
            asyncio.create_task(lookups.find(f"h{n}.slow.example", is_known=False)) for n in range(9)
        ]
        for _ in range(2):
            await asyncio.to_thread(started.acquire)
        assert await lookups.find("other.example.org", is_known=False) == ["8.8.8.8"]
        several = [
            asyncio.create_task(lookups.find(f"h.d{number}slow.example", is_known=False))
            for number in range(9)
        ]
        for _ in range(4):
            await asyncio.to_thread(started.acquire)
        assert await lookups.find("smp.example.org", is_known=True) == ["8.8.8.8"]
        assert not started.acquire(blocking=False), "no more threads than sizes allow"
    finally:
        release.set()
        await asyncio.gather(*below_one, *several)
    assert not lookups._domains
    assert not lookups._asked


async def test_lookups_of_one_name_share_one_answer() -> None:
    asked = []

    def resolve(host: str) -> list[str]:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    lookups = Lookups(resolve)
    finding = (lookups.find("none.example", is_known=False) for _ in range(5))
    found = await asyncio.gather(*finding, return_exceptions=True)
    assert all(isinstance(each, OSError) for each in found)
    assert len(asked) == 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(gate: Gate, error: errors.TransportError, identity: int = 0, host: str = "a.example") -> bool:
    """Make a failing attempt; returns whether it was let through."""
    tried = False
    try:
        with gate.attempt(host, 5223, bytes((identity,))):
            tried = True
            raise error
    except errors.TransportError:
        return tried


def test_delays_grow_and_end_with_the_first_success() -> None:
    clock = Clock()
    gate = Gate(GateSizes(), clock)
    tried = []
    for step in range(400):
        clock.now = step / 4
        if fail(gate, errors.ConnectError(), identity=step % 250):
            tried.append(clock.now)
    assert tried == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5]
    clock.now = 200
    with gate.attempt("a.example", 5223, b"right"):
        pass
    assert fail(gate, errors.ConnectError())


def test_a_wrong_identity_does_not_block_the_right_one() -> None:
    gate = Gate(GateSizes(), Clock())
    assert fail(gate, errors.HandshakeIdentityError(), identity=1)
    assert not fail(gate, errors.HandshakeIdentityError(), identity=1)
    with gate.attempt("a.example", 5223, bytes((2,))):
        pass


def test_attempts_at_strangers_are_limited_and_proven_servers_exempt() -> None:
    gate = Gate(GateSizes(strangers=3, strangers_there=2), Clock())
    with gate.attempt("known.example", 5223, b"known"):
        pass
    with gate.attempt("a.example", 1, b"1"), gate.attempt("a.example", 1, b"2"):
        with pytest.raises(CrowdedError), gate.attempt("a.example", 1, b"3"):
            pass
        with gate.attempt("b.example", 1, b"1"):
            with pytest.raises(CrowdedError), gate.attempt("c.example", 1, b"1"):
                pass
            with gate.attempt("known.example", 5223, b"known"):
                pass
    with gate.attempt("c.example", 1, b"1"):
        pass


def test_destinations_that_never_answered_leave_room_for_new_ones() -> None:
    clock = Clock()
    gate = Gate(GateSizes(strangers=4), clock)
    for number in range(3):
        fail(gate, errors.ConnectError(), host=f"dead{number}.example")
    clock.now += 60
    with gate.attempt("dead0.example", 5223, b"1"), gate.attempt("dead1.example", 5223, b"1"):
        with pytest.raises(CrowdedError), gate.attempt("dead2.example", 5223, b"1"):
            pass
        with gate.attempt("new.example", 5223, b"1"), gate.attempt("newer.example", 5223, b"1"):
            pass


def test_what_is_remembered_is_bounded() -> None:
    gate = Gate(GateSizes(remembered=10, proven=10), Clock())
    for number in range(100):
        fail(gate, errors.ConnectError(), host=f"h{number}.example")
        fail(gate, errors.TlsError(), host=f"i{number}.example")
        with gate.attempt(f"p{number}.example", 1, b""):
            pass
    assert len(gate._unreached.entries) == len(gate._unproven.entries) == len(gate._proven) == 10
    assert len(gate._known_hosts) == 10
