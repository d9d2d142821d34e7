"""The memory network: bytes arrive complete, in order, as late and as slowly as configured, or not at all."""

from __future__ import annotations

import asyncio
import random

import pytest

from blindpost.testing.clock import run_virtual
from blindpost.testing.network import PERFECT, Link, MemoryNetwork, MemoryTransport


class End(asyncio.Protocol):
    """Records what arrives, with the time."""

    def __init__(self) -> None:
        self.transport: MemoryTransport
        self.received = bytearray()
        self.pieces: list[tuple[float, int]] = []
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces.append((asyncio.get_running_loop().time(), len(data)))

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


async def joined(up: Link = PERFECT, down: Link = PERFECT, seed: int = 0) -> tuple[End, End]:
    network, accepted = MemoryNetwork(seed), []

    def accept() -> End:
        accepted.append(End())
        return accepted[-1]

    listener = await network.listen(accept, "host", 1)
    network.plan(up, down)
    caller = await network.connect(End, "host", 1)
    await listener.close()
    return caller, accepted[0]


DATA = random.Random("data").randbytes(100_000)


@pytest.mark.parametrize(
    "link",
    [
        PERFECT,
        Link(delay_s=(0.0, 2.0), piece=(1, 5000)),
        Link(rate=1000.0),
        Link(window=700, piece=(300, 900)),
    ],
    ids=["perfect", "jitter", "rate", "window"],
)
def test_everything_arrives_in_order_and_then_the_end(link: Link) -> None:
    async def main() -> None:
        caller, called = await joined(link)
        for start in range(0, len(DATA), 9999):
            caller.transport.write(DATA[start : start + 9999])
        caller.transport.close()
        caller.transport.write(b"after the end")
        assert await caller.lost is None
        assert await called.lost is None
        assert called.received == DATA
        assert called.events == ["eof"]
        assert caller.transport.bytes_delivered == len(DATA)

    run_virtual(main())


def test_rate_delay_and_pieces() -> None:
    async def main() -> None:
        caller, called = await joined(Link(delay_s=(2.0, 2.0), rate=100.0, piece=(50, 50)))
        caller.transport.write(bytes(200))
        await asyncio.sleep(60)
        assert called.pieces == [(2.5, 50), (3.0, 50), (3.5, 50), (4.0, 50)]
        caller.transport.abort()
        await called.lost

    run_virtual(main())


def test_one_seed_one_schedule() -> None:
    async def main(seed: int) -> list[tuple[float, int]]:
        caller, called = await joined(Link(delay_s=(0.0, 2.0), piece=(1, 5000)), seed=seed)
        caller.transport.write(DATA)
        await asyncio.sleep(60)
        caller.transport.abort()
        await called.lost
        return called.pieces

    assert run_virtual(main(1)) == run_virtual(main(1))
    assert run_virtual(main(1)) != run_virtual(main(2))


def test_a_full_window_pauses_the_writer_until_the_reader_reads() -> None:
    async def main() -> None:
        caller, called = await joined(Link(window=1000))
        caller.transport.set_write_buffer_limits(5000, 1000)
        called.transport.pause_reading()
        caller.transport.write(bytes(4000))
        assert caller.events == []
        caller.transport.write(bytes(4000))
        assert caller.events == ["pause"]
        assert caller.transport.get_write_buffer_size() == 7000
        await asyncio.sleep(10)
        assert called.received == b""
        called.transport.resume_reading()
        await asyncio.sleep(10)
        assert len(called.received) == 8000
        assert caller.events == ["pause", "resume"]
        caller.transport.abort()
        await called.lost

    run_virtual(main())


@pytest.mark.parametrize("count", [0, 1, 99, 100])
def test_a_cut_comes_after_exactly_the_given_number_of_bytes(count: int) -> None:
    async def main() -> None:
        caller, called = await joined(Link(cut_after=count))
        caller.transport.write(bytes(100))
        assert isinstance(await caller.lost, ConnectionResetError)
        assert isinstance(await called.lost, ConnectionResetError)
        assert len(called.received) == caller.transport.bytes_delivered == count

    run_virtual(main())


def test_a_stalled_link_delivers_nothing_more_not_even_the_end() -> None:
    async def main() -> None:
        caller, called = await joined(Link(stall_after=60))
        caller.transport.write(bytes(100))
        caller.transport.close()
        await asyncio.sleep(1000)
        assert len(called.received) == 60
        assert called.events == []
        called.transport.abort()
        await called.lost

    run_virtual(main())


def test_writing_to_a_closed_end_resets() -> None:
    async def main() -> None:
        caller, called = await joined(Link(delay_s=(1.0, 1.0)))
        called.transport.abort()
        caller.transport.write(b"too late")
        assert isinstance(await caller.lost, ConnectionResetError)
        assert called.received == b""

    run_virtual(main())


def test_ports_are_taken_and_freed() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(End, "host", 1)
        listener = await network.listen(End, "host", 1)
        with pytest.raises(OSError, match="in use"):
            await network.listen(End, "host", 1)
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(End, "host", 1)
        first, second = [await network.listen(End, None, 0) for _ in range(2)]
        assert first.ports != second.ports

    run_virtual(main())
