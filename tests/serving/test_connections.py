"""What every server's connections have in common: reasons to pause, and a bound on what waits for peers."""

from __future__ import annotations

import asyncio

from blindpost.engine.inbox import FULL
from blindpost.serving.connections import WEIGHED_BYTES, Connection, Connections
from blindpost.serving.limits import Limits, LimitSizes
from blindpost.testing.clock import run_virtual

BUFFERS = 4 * WEIGHED_BYTES


class Peer(Connection):
    """A connection with as much waiting as a test says."""

    def __init__(self, number: int, size: int = 0) -> None:
        super().__init__(number, None)
        self.size = size
        self.reading = True
        self.ended = ""

    @property
    def waiting(self) -> int:
        return self.size

    def stop_reading(self) -> None:
        self.reading = False

    def read_on(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.ended = "closed"

    def cut(self) -> None:
        self.ended = "cut"


class Room(Connections[Peer]):
    """A server that sends one more thing to a peer that reads again."""

    def __init__(self, *peers: Peer) -> None:
        super().__init__(Limits(LimitSizes(memory=4 * BUFFERS), lambda: 0.0))
        self.gone: list[Peer] = []
        self.fills_again = False
        for peer in peers:
            self.join(peer)

    def left(self, connection: Peer) -> None:
        self.gone.append(connection)

    def relieved(self, connection: Peer) -> None:
        if self.fills_again:
            self.lag(connection)


async def looked() -> None:
    await asyncio.sleep(1)


def test_connections_with_the_most_waiting_are_cut_until_the_rest_is_within_bounds() -> None:
    async def scenario() -> None:
        peers = [Peer(number, number * WEIGHED_BYTES) for number in range(1, 5)]
        room = Room(*peers)
        for peer in peers:
            room.weigh(peer)
        await looked()
        assert [peer.ended for peer in peers] == ["", "", "cut", "cut"]
        assert room.limits.meters.made_room == 2
        peers[0].size = BUFFERS
        room.weigh(peers[0])
        await looked()
        assert [peer.ended for peer in peers[:2]] == ["cut", ""]

    run_virtual(scenario())


def test_a_peer_counts_as_not_reading_from_the_first_byte_until_it_reads_again() -> None:
    async def scenario() -> None:
        slow, caught_up, large = Peer(1, 1), Peer(2, 1), Peer(3, BUFFERS)
        room = Room(slow, caught_up, large)
        room.lag(slow)
        room.lag(caught_up)
        room.relieve(caught_up)
        caught_up.size = 2 * BUFFERS
        await looked()
        room.weigh(large)
        await looked()
        assert (slow.ended, caught_up.ended, large.ended) == ("", "", "cut")

    run_virtual(scenario())


def test_a_peer_that_is_filled_again_as_soon_as_it_reads_stays_on_hold() -> None:
    async def scenario() -> None:
        peer = Peer(1)
        room = Room(peer)
        room.lag(peer)
        room.fills_again = True
        room.relieve(peer)
        assert (peer.congested, peer.reading) == (True, False)
        room.fills_again = False
        peer.hold(FULL)
        room.relieve(peer)
        assert (peer.congested, peer.reading) == (False, False)
        peer.let_go(FULL)
        assert peer.reading

    run_virtual(scenario())


def test_a_connection_leaves_once_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        peer = Peer(1, 10 * BUFFERS)
        room = Room(peer)
        empty = asyncio.create_task(room.emptied())
        room.weigh(peer)
        room.leave(peer)
        room.leave(peer)
        room.lag(peer)
        await looked()
        await empty
        assert (room.gone, room.connections, peer.ended, room.limits.meters.made_room) == ([peer], {}, "", 0)

    run_virtual(scenario())
