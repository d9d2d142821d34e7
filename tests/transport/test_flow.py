"""Many blocks: order, one write per turn, slow peers, full inboxes, bad blocks, idle memory."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from typing import cast

import pytest

from blindpost.testing.clock import run_virtual
from blindpost.testing.network import Link, MemoryNetwork
from blindpost.transport import errors
from blindpost.transport.ends import open_session
from blindpost.transport.plan import SessionLimits
from blindpost.transport.session import Session, Stage
from blindpost.wire.primitives import Writer
from blindpost.wire.versions import VersionRange
from tests.support.transport.sessions import (
    HOST,
    QUICK,
    Recorder,
    open_files,
    serving,
    smp_client,
    smp_router,
)
from tests.support.transport.streams import INBOX_BLOCKS_MAX, connect

SLOW = Link(rate=100_000, window=16 * 1024)
RECORD = 16384 + 22


class Writes(asyncio.Transport):
    """Counts the writes to the transport it wraps."""

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        self._inner = inner
        self.sizes: list[int] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sizes.append(len(data))
        self._inner.write(data)

    def __getattribute__(self, name: str) -> object:
        if name in {"_inner", "sizes", "write", "__class__"}:
            return super().__getattribute__(name)
        return getattr(self._inner, name)


@pytest.mark.parametrize("version", [6, 20])
def test_what_fits_into_a_block(version: int) -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder(echo=True)
        async with serving(smp_router(), router, network) as port:
            stream = await connect(smp_client(versions=VersionRange(version, version)), HOST, port, network)
            most = stream.session.payload_max
            assert most == (16366 if version == 20 else 16382)
            with pytest.raises(errors.LargeMessageError):
                stream.send(bytes(most), b"x")
            for size in (0, 1, most):
                stream.send(bytes(size))
                assert bytes(await stream.read_block()) == bytes(size)
            payload = Writer().raw(b"from ").raw(b"a writer")
            stream.send_payload(payload)
            assert bytes(await stream.read_block()) == b"from a writer"
            await stream.close()
            with pytest.raises(errors.ClosedHereError):
                stream.send(b"after the end")
            with pytest.raises(errors.ClosedHereError):
                await stream.read_block()

    run_virtual(main())


def test_everything_sent_in_one_turn_leaves_in_one_write() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder()
        async with serving(smp_router(), router, network) as port:
            session = await open_session(smp_client(), Recorder(), HOST, port, network)
            writes = Writes(session._transport)
            session._transport = cast(asyncio.Transport, writes)
            for number in range(5):
                session.send(b"%d" % number)
            assert writes.sizes == []
            await router.until("payloads", 5)
            session.send(b"5")
            await router.until("payloads", 6)
            assert writes.sizes == [5 * RECORD, RECORD]
            assert router.payloads == [b"0", b"1", b"2", b"3", b"4", b"5"]
            session._transport = writes._inner
            session.close()

    run_virtual(main())


def test_a_slow_reader_congests_the_session_and_drains_it_again() -> None:
    async def main() -> None:
        network, router, client = MemoryNetwork(), Recorder(), Recorder()
        network.plan(SLOW)
        limits = SessionLimits(outbox_high=100_000, outbox_low=20_000)
        async with serving(smp_router(), router, network) as port:
            session = await open_session(smp_client(limits=limits), client, HOST, port, network)
            sent = 0
            for _ in range(3):
                assert not session.congested
                while not session.congested:
                    session.send(b"%d" % sent)
                    sent += 1
                assert session.outbox_size >= limits.outbox_high
                assert session.outbox_size <= limits.outbox_high + limits.outbox_low + RECORD
                drains = client.drains
                while client.drains == drains:
                    client.changed.clear()
                    await client.changed.wait()
                assert session.outbox_size <= limits.outbox_low
            await router.until("payloads", sent)
            assert router.payloads == [b"%d" % number for number in range(sent)]
            assert client.drains == 3
            assert asyncio.get_running_loop().time() > sent * 16384 / 100_000
            session.close()

    run_virtual(main())


def test_a_peer_that_never_reads_costs_no_more_than_the_outbox() -> None:
    async def main() -> None:
        network, router, client = MemoryNetwork(), Recorder(), Recorder()
        limits = SessionLimits(outbox_high=100_000, outbox_low=20_000, outbox_max=500_000)
        async with serving(smp_router(), router, network) as port:
            session = await open_session(smp_client(limits=limits), client, HOST, port, network)
            await router.until("sessions")
            router.sessions[0].pause_reading()
            most = 0
            while session.stage is Stage.OPEN:
                session.send(b"more")
                most = max(most, session.outbox_size)
                await asyncio.sleep(0)
            with pytest.raises(errors.OutboxFullError):
                session.send(b"too much")
            assert most <= limits.outbox_max + RECORD
            await client.until("reasons")
            assert [type(reason) for reason in client.reasons] == [errors.OutboxFullError]
            router.sessions[0].resume_reading()

    run_virtual(main())


def test_a_full_network_congests_the_session_without_another_send() -> None:
    async def main() -> None:
        network, router, client = MemoryNetwork(), Recorder(), Recorder()
        network.plan(Link(window=RECORD))
        limits = SessionLimits(outbox_high=100_000, outbox_low=20_000)
        async with serving(smp_router(), router, network) as port:
            session = await open_session(smp_client(limits=limits), client, HOST, port, network)
            await router.until("sessions")
            router.sessions[0].pause_reading()
            while session.outbox_size <= limits.outbox_high:
                assert not session.congested
                session.send(b"one in a turn")
                await asyncio.sleep(0)
            assert session.congested
            router.sessions[0].resume_reading()
            await asyncio.sleep(1)
            assert not session.congested
            assert client.drains == 1
            session.close()

    run_virtual(main())


def test_a_session_that_was_paused_closes_at_once() -> None:
    async def main() -> None:
        network, router, client = MemoryNetwork(), Recorder(), Recorder()
        async with serving(smp_router(), router, network) as port:
            session = await open_session(smp_client(), client, HOST, port, network)
            session.pause_reading()
            session.close()
            await client.until("reasons")
            assert asyncio.get_running_loop().time() == 0.0

    run_virtual(main())


def test_what_comes_while_closing_is_dropped() -> None:
    async def main() -> None:
        network, router, client = MemoryNetwork(), Recorder(), Recorder()
        network.plan(Link(delay_s=(1.0, 1.0)), Link(delay_s=(1.0, 1.0)))
        async with serving(smp_router(), router, network) as port:
            session = await open_session(smp_client(), client, HOST, port, network)
            await router.until("sessions")
            for _ in range(5):
                router.sessions[0].send(b"crossing")
            session.close()
            await client.until("reasons")
            assert network.connections[0][1].bytes_delivered > 5 * RECORD
            assert client.payloads == []
            assert session._tls.release(), "nothing of it was kept"

    run_virtual(main())


def test_a_burst_in_one_turn_is_bounded_too() -> None:
    async def main() -> None:
        network, client = MemoryNetwork(), Recorder()
        limits = SessionLimits(outbox_high=100_000, outbox_low=20_000, outbox_max=500_000)
        async with serving(smp_router(), Recorder(), network) as port:
            session = await open_session(smp_client(limits=limits), client, HOST, port, network)
            count = 0
            while session.stage is Stage.OPEN:
                session.send(b"no turn between")
                count += 1
            assert count == limits.outbox_max // RECORD + 1
            await client.until("reasons")

    run_virtual(main())


def test_a_full_inbox_stops_the_peer_and_loses_nothing() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder()
        total = 8 * INBOX_BLOCKS_MAX
        async with serving(smp_router(), router, network) as port:
            stream = await connect(smp_client(), HOST, port, network)
            await router.until("sessions")
            for number in range(total):
                router.sessions[0].send(b"%d" % number)
            await asyncio.sleep(10)
            assert router.sessions[0].congested
            assert len(stream._inbox) == INBOX_BLOCKS_MAX
            blocks = [bytes(await stream.read_block()) for _ in range(total)]
            assert blocks == [b"%d" % number for number in range(total)]
            assert router.drains == 1
            await stream.close()

    run_virtual(main())


def test_pausing_inside_a_delivery_holds_back_the_blocks_behind_it() -> None:
    class Pausing(Recorder):
        def block_received(self, session: Session, payload: bytes) -> None:
            super().block_received(session, payload)
            session.pause_reading()

    async def main() -> None:
        network, router = MemoryNetwork(), Pausing()
        async with serving(smp_router(), router, network) as port:
            stream = await connect(smp_client(), HOST, port, network)
            for number in range(4):
                stream.send(b"%d" % number)
            for count in range(1, 5):
                await router.until("payloads", count)
                await asyncio.sleep(1)
                assert len(router.payloads) == count
                router.sessions[0].resume_reading()
            assert router.payloads == [b"0", b"1", b"2", b"3"]
            await stream.close()

    run_virtual(main())


def test_closing_inside_a_delivery_delivers_nothing_more() -> None:
    class Closing(Recorder):
        def block_received(self, session: Session, payload: bytes) -> None:
            super().block_received(session, payload)
            session.close()

    async def main() -> None:
        network, router = MemoryNetwork(), Closing()
        async with serving(smp_router(), router, network) as port:
            stream = await connect(smp_client(), HOST, port, network)
            for number in range(3):
                stream.send(b"%d" % number)
            with pytest.raises(errors.PeerClosedError):
                await stream.read_block()
            assert router.payloads == [b"0"]
            await router.until("reasons")
            assert type(router.reasons[0]) is errors.ClosedHereError

    run_virtual(main())


def test_what_was_sent_before_closing_arrives() -> None:
    """Also when the peer has sent data that nobody here will read."""

    async def main() -> None:
        network, router = MemoryNetwork(), Recorder()
        network.plan(SLOW, SLOW)
        async with serving(smp_router(), router, network) as port:
            stream = await connect(smp_client(limits=SessionLimits(close_timeout_s=60)), HOST, port, network)
            await router.until("sessions")
            for number in range(20):
                stream.send(b"%d" % number)
                router.sessions[0].send(b"crossing")
            await stream.close()
            await router.until("reasons")
            assert router.payloads == [b"%d" % number for number in range(20)]
            assert type(router.reasons[0]) is errors.PeerClosedError

    run_virtual(main())


def test_a_block_that_does_not_open_is_reported_and_the_session_continues() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder()
        async with serving(smp_router(), router, network) as port:
            stream = await connect(smp_client(), HOST, port, network)
            stream.send(b"good")
            # A block of the right size that the block chain of the session did not seal.
            chains = stream.session._blocks._chains
            assert chains is not None
            chains.sending.seal_block([b"lost"], 4)
            stream.session._tls.write(bytes(16384))
            stream.send(b"good again")
            await router.until("payloads", 2)
            assert router.payloads == [b"good", b"good again"]
            assert [type(failure) for failure in router.failures] == [errors.BlockError]
            await stream.close()

    run_virtual(main())


@pytest.mark.parametrize("version", [6, 20])
def test_a_plain_block_with_a_wrong_length_inside(version: int) -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder(echo=True)
        async with serving(smp_router(), router, network) as port:
            plan = smp_client(versions=VersionRange(6, version), offer_key=False)
            stream = await connect(plan, HOST, port, network)
            stream.session._tls.write(b"\xff\xff" + bytes(16382))
            stream.send(b"good")
            assert bytes(await stream.read_block()) == b"good"
            assert [type(failure) for failure in router.failures] == [errors.BlockError]
            await stream.close()

    run_virtual(main())


def test_a_reader_learns_of_a_bad_block_and_continues() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder()
        async with serving(smp_router(), router, network) as port:
            stream = await connect(smp_client(offer_key=False), HOST, port, network)
            await router.until("sessions")
            router.sessions[0]._tls.write(b"\xff\xff" + bytes(16382))
            router.sessions[0].send(b"good")
            with pytest.raises(errors.BlockError):
                await stream.read_block()
            assert bytes(await stream.read_block()) == b"good"
            await stream.close()

    run_virtual(main())


def test_last_activity_times_are_kept() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder(echo=True)
        async with serving(smp_router(), router, network) as port:
            stream = await connect(smp_client(), HOST, port, network)
            await asyncio.sleep(100)
            assert stream.session.last_received == stream.session.last_sent == 0.0
            stream.send(b"hello")
            await stream.read_block()
            assert stream.session.last_received == stream.session.last_sent == 100.0
            assert router.sessions[0].last_received == router.sessions[0].last_sent == 100.0
            await stream.close()

    run_virtual(main())


def test_idle_sessions_release_their_buffers_and_keep_working() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Recorder(echo=True)
        async with serving(smp_router(), router, network) as port:
            stream = await connect(smp_client(), HOST, port, network)
            for _turn in range(3):
                for _ in range(4):
                    stream.send(bytes(16000))
                for _ in range(4):
                    await stream.read_block()
                assert stream.session._warm
                assert router.sessions[0]._warm
                buffers = stream.session._tls._into, stream.session._tls._from
                await asyncio.sleep(10)
                assert not stream.session._warm
                assert not router.sessions[0]._warm
                assert (stream.session._tls._into, stream.session._tls._from) != buffers
            await stream.close()

    run_virtual(main())


async def test_idle_connections_are_small() -> None:
    """Counted without OpenSSL's own memory: what Python holds for one idle connection."""
    router = Recorder(echo=True)
    async with serving(smp_router(limits=QUICK), router) as port:
        warm = [await connect(smp_client(limits=QUICK), HOST, port) for _ in range(2)]
        tracemalloc.start()
        try:
            streams = [await connect(smp_client(limits=QUICK), HOST, port) for _ in range(10)]
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert held / len(streams) < 80_000
        for stream in (*warm, *streams):
            await stream.close()


async def test_a_server_that_stops_closes_its_sessions_and_its_port() -> None:
    before = open_files()
    router = Recorder()
    async with serving(smp_router(limits=QUICK), router) as port:
        streams = [await connect(smp_client(limits=QUICK), HOST, port) for _ in range(3)]
        await router.until("sessions", 3)
        assert open_files() > before
    for stream in streams:
        with pytest.raises(errors.PeerClosedError):
            await stream.read_block()
        assert stream.session.stage is Stage.CLOSED
    assert [type(reason) for reason in router.reasons] == 3 * [errors.ClosedHereError]


async def test_sockets_are_tuned() -> None:
    router = Recorder()
    async with serving(smp_router(limits=QUICK), router) as port:
        stream = await connect(smp_client(limits=QUICK), HOST, port)
        await router.until("sessions")
        for session in (stream.session, router.sessions[0]):
            sock = session._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 4
        await stream.close()
