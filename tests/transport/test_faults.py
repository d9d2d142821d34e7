"""Networks that stall, break, crawl and fragment: a clean, named end, or no difference at all."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from blindpost.testing.clock import run_virtual
from blindpost.testing.network import PERFECT, Link, MemoryNetwork
from blindpost.transport import errors
from blindpost.transport.ends import open_session
from blindpost.transport.handshake import Effect, Handshake
from blindpost.transport.keeper import Keeper
from blindpost.transport.listening import TcpListener
from blindpost.transport.plan import SessionLimits
from blindpost.transport.session import Handler, Session, Stage
from blindpost.wire.value import Buffer
from tests.support.transport.episodes import BLOCKS, Outcome, episode
from tests.support.transport.sessions import HOST, Recorder, serving, smp_client, smp_router

LIMITS = SessionLimits(tls_timeout_s=10, handshake_timeout_s=20, close_timeout_s=5)
P = TypeVar("P", bound=asyncio.BaseProtocol)


@functools.cache
def undisturbed() -> Outcome:
    outcome = episode(limits=LIMITS)
    assert outcome.echoes == BLOCKS
    return outcome


@functools.cache
def whole_handshake(*, service: bool) -> tuple[int, int]:
    """How many bytes each direction needs until both sides are established."""
    size = 16384 + 22
    outcome = episode(limits=LIMITS, service=service)
    close = 2 + 22
    return outcome.sent_up - 2 * size - close, outcome.sent_down - 2 * size - close


def stalled_up(count: int) -> Outcome:
    return episode(up=Link(stall_after=count), limits=LIMITS)


def stalled_down(count: int) -> Outcome:
    return episode(down=Link(stall_after=count), limits=LIMITS)


@pytest.mark.claim("SVC-08")
def test_an_undisturbed_connection() -> None:
    outcome = undisturbed()
    assert outcome.error is None
    assert [type(reason) for reason in outcome.router_reasons] == [errors.PeerClosedError]
    assert outcome.ended_at == 0.0


TLS_HELLO, BLOCK = 150, 16384


@pytest.mark.parametrize("count", [0, 1, TLS_HELLO])
def test_a_client_that_stalls_in_tls(count: int) -> None:
    outcome = stalled_up(count)
    assert type(outcome.error) is errors.TlsTimeoutError
    assert [type(reason) for reason in outcome.router_reasons] == [errors.TlsTimeoutError]
    assert outcome.ended_at == 10.0


@pytest.mark.parametrize("count", [0, 1, 500])
def test_a_router_that_stalls_in_tls(count: int) -> None:
    outcome = stalled_down(count)
    assert type(outcome.error) is errors.TlsTimeoutError
    assert [type(reason) for reason in outcome.router_reasons] == [errors.TlsTimeoutError]
    assert outcome.ended_at == 10.0


def test_a_router_that_stalls_before_its_hello_is_whole() -> None:
    _, down = whole_handshake(service=False)
    for missing in (1, BLOCK // 2, BLOCK):
        outcome = stalled_down(down - missing)
        assert type(outcome.error) is errors.HandshakeTimeoutError
        assert [type(reason) for reason in outcome.router_reasons] == [errors.HandshakeTimeoutError]
        assert outcome.ended_at == 20.0
        assert not outcome.connected


def test_a_client_that_stalls_before_its_hello_is_whole() -> None:
    up, _ = whole_handshake(service=False)
    for missing in (1, BLOCK // 2, BLOCK):
        outcome = stalled_up(up - missing)
        assert outcome.connected
        assert isinstance(outcome.error, errors.ClosedError)
        assert [type(reason) for reason in outcome.router_reasons] == [errors.HandshakeTimeoutError]


def test_a_router_that_stalls_before_its_answer_to_a_service_is_whole() -> None:
    _, down = whole_handshake(service=True)
    outcome = episode(down=Link(stall_after=down - 1), service=True, limits=LIMITS)
    assert type(outcome.error) is errors.HandshakeTimeoutError
    assert not outcome.connected


def test_a_peer_that_stalls_while_we_close() -> None:
    """The router never gets the goodbye, but the client still closes within its time limit."""
    outcome = stalled_up(undisturbed().sent_up - 1)
    assert outcome.echoes == BLOCKS
    assert outcome.error is None
    assert [type(reason) for reason in outcome.router_reasons] == [errors.ConnectionCutError]
    assert outcome.ended_at == 5.0


def test_a_host_that_does_not_answer() -> None:
    class Silent:
        async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        async def listen(
            self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
        ) -> TcpListener:
            raise AssertionError

    async def main() -> float:
        with pytest.raises(errors.ConnectTimeoutError):
            await open_session(smp_client(), Handler(), HOST, 5223, Silent())
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 45.0


def test_a_cancelled_connect_leaves_nothing() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.plan(PERFECT, Link(stall_after=100))
        router = Recorder()
        async with serving(smp_router(), router, network) as port:
            connecting = asyncio.ensure_future(open_session(smp_client(), Handler(), HOST, port, network))
            await asyncio.sleep(1)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            await router.until("reasons")
            assert asyncio.get_running_loop().time() == 1.0
        assert isinstance(router.reasons[0], errors.ClosedError)

    run_virtual(main())


def regions(total: int) -> list[int]:
    """Byte counts spread over a transfer, with each record boundary and one byte either side of it."""
    spread = {total * part // 24 for part in range(24)}
    edges = {total - back for back in (0, 1, 2, 24, 25, 16406, 16407, 16430, 16431, 2 * 16406, 2 * 16406 + 1)}
    return sorted(count for count in spread | edges | {1, 5, 6} if 0 <= count <= total)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_connection_cut_anywhere_ends_with_a_named_error_on_both_sides(direction: str) -> None:
    whole = undisturbed()
    total = whole.sent_up if direction == "up" else whole.sent_down
    for count in regions(total):
        link = Link(cut_after=count)
        outcome = episode(up=link, limits=LIMITS) if direction == "up" else episode(down=link, limits=LIMITS)
        assert outcome.error is not None or outcome.echoes == BLOCKS
        assert outcome.error is None or isinstance(outcome.error, errors.ClosedError)
        assert len(outcome.router_reasons) == 1
        assert isinstance(outcome.router_reasons[0], errors.ClosedError)
        assert outcome.ended_at == 0.0
        assert outcome.echoes == BLOCKS[: len(outcome.echoes)]


def test_an_end_without_a_goodbye_says_where_it_happened() -> None:
    """A peer that closes TCP properly and sends no TLS close notification."""

    async def main() -> None:
        for blocks, message in ((0, "without a close notification"), (1, "inside a block")):
            network, router = MemoryNetwork(), Recorder()
            async with serving(smp_router(), router, network) as port:
                session = await open_session(smp_client(), Handler(), HOST, port, network)
                await router.until("sessions")
                for _ in range(blocks):
                    session._tls.write(bytes(100))
                    session._write_out()
                session._transport.close()
                await router.until("reasons")
                assert type(router.reasons[0]) is errors.ConnectionCutError
                assert message in str(router.reasons[0])

    run_virtual(main())


@pytest.mark.parametrize(("count", "stage"), [(0, "TLS"), (10, "TLS")])
def test_a_peer_that_hangs_up_in_tls(count: int, stage: str) -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder()
        async with serving(smp_router(), router, network) as port:
            raw = await network.connect(Raw, HOST, port)
            raw.transport.write(b"\x16\x03\x01\x00\x80\x01\x00\x00\x7c\x03"[:count])
            raw.transport.close()
            await router.until("reasons")
            assert type(router.reasons[0]) is errors.ConnectionCutError
            assert f"during the {stage} handshake" in str(router.reasons[0])

    run_virtual(main())


def test_a_handshake_block_with_a_wrong_length_inside() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder()
        async with serving(smp_router(), router, network) as port:
            plan = smp_client()
            session = Session(plan, Handler(), Keeper(plan.limits.release_after_s))
            session._plan = replace(plan, handshake=lambda peer: Mute())
            await network.connect(lambda: session, HOST, port)
            await asyncio.sleep(1)
            assert session.stage is Stage.HANDSHAKE
            session._tls.write(b"\xff\xff" + bytes(16382))
            session._write_out()
            await router.until("reasons")
            assert type(router.reasons[0]) is errors.HandshakeParseError

    run_virtual(main())


class Mute(Handshake):
    """A client's handshake that says nothing."""

    def start(self) -> list[Effect]:
        return []

    def _read(self, payload: Buffer) -> list[Effect]:
        return []


def test_a_connection_that_comes_while_the_server_stops_is_refused() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder()
        async with serving(smp_router(), router, network) as port:
            places = dict(network._listeners)
        network._listeners.update(places)
        with pytest.raises(errors.ClosedError):
            await open_session(smp_client(), Handler(), HOST, port, network)
        assert type(router.reasons[0]) is errors.RefusedError

    run_virtual(main())


class Raw(asyncio.Protocol):
    """Bytes without TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport


@pytest.mark.parametrize("seed", range(6))
def test_delays_pieces_and_rates_change_nothing_but_time(seed: int) -> None:
    rough = Link(delay_s=(0.01, 0.4), piece=(1, 3000), rate=40_000)
    outcome = episode(up=rough, down=rough, seed=seed, limits=LIMITS)
    assert outcome.echoes == BLOCKS
    assert outcome.error is None
    assert (outcome.sent_up, outcome.sent_down) == (undisturbed().sent_up, undisturbed().sent_down)
    assert outcome.ended_at > 1.0


def test_byte_by_byte_is_the_same_as_whole() -> None:
    single = Link(piece=(1, 1))
    outcome = episode(up=single, down=single, limits=LIMITS)
    assert outcome.echoes == BLOCKS
    assert (outcome.sent_up, outcome.sent_down) == (undisturbed().sent_up, undisturbed().sent_down)


def test_one_seed_gives_one_schedule() -> None:
    rough = Link(delay_s=(0.01, 0.4), piece=(1, 3000), rate=40_000)
    runs = [episode(up=rough, down=rough, seed=seed, limits=LIMITS).steps for seed in ("a", "a", "b")]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
