"""No event names a connection that the caller has not been given, however fast the peer answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.agent import Connected, ConnEvent, ContactRequested, Down, Up
from blindpost.agent.store import commands
from blindpost.testing.clock import run_virtual
from blindpost.testing.network import Link, MemoryNetwork
from tests.support.agent.agents import Party, on_network, party, quick_config, two_parties
from tests.support.client.scripted_router import virtual
from tests.support.router.routers import running_router


class Application:
    """Many tasks that call the agent, and one that takes events as fast as they come."""

    def __init__(self, party: Party) -> None:
        self.party = party
        self.given: set[str] = set()
        self.connected: set[str] = set()
        self.all_connected = asyncio.Event()

    async def watch(self, wanted: int) -> None:
        while len(self.connected) < wanted:
            event = await self.party.next()
            match event:
                case ContactRequested(conn, request):
                    assert conn.id in self.given
                    if request.accepted is not None:
                        self.given.add(request.accepted.id)
                    else:
                        self.given.add((await request.accept()).id)
                case ConnEvent(conn):
                    assert conn.id in self.given, event
                case Up(_, conns) | Down(_, conns):
                    assert {conn.id for conn in conns} <= self.given
            if isinstance(event, Connected):
                self.connected.add(event.conn.id)

    async def join(self, link: str) -> None:
        self.given.add((await self.party.agent.join(link)).id)

    async def invite(self, short: bool) -> str:
        link = await self.party.agent.invite(user_data=b"" if short else None)
        self.given.add(link.conn.id)
        return str(link)

    async def address(self, auto_accept: bool) -> str:
        link = await self.party.agent.address(auto_accept=auto_accept)
        self.given.add(link.conn.id)
        return str(link)


async def scenario(folder: Path, seed: int, up: float, down: float, piece: int | None, auto: bool) -> None:
    network = MemoryNetwork(seed)
    pieces = None if piece is None else (piece, piece * 2)
    network.to_listener = Link(delay_s=(0.0, up), piece=pieces)
    network.to_caller = Link(delay_s=(0.0, down), piece=pieces)
    config = on_network(network, quick_config(pq=False))
    async with (
        running_router(folder / "router", network=network) as router,
        party(folder / "a.db", router.server, config=config) as first,
        party(folder / "b.db", router.server, config=config) as second,
    ):
        alice, bob = Application(first), Application(second)
        watching = asyncio.gather(alice.watch(3), bob.watch(3))

        async def by_invitation(short: bool) -> None:
            await asyncio.create_task(bob.join(await asyncio.create_task(alice.invite(short))))

        async def by_address() -> None:
            await asyncio.create_task(bob.join(await asyncio.create_task(alice.address(auto))))

        await asyncio.gather(by_invitation(False), by_invitation(True), by_address(), watching)
        assert alice.connected <= alice.given
        assert bob.connected <= bob.given


@pytest.mark.claim("CON-05")
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    up=st.sampled_from([0.0, 0.001, 0.05, 2.0]),
    down=st.sampled_from([0.0, 0.001, 0.05, 2.0]),
    piece=st.sampled_from([None, 700, 9000]),
    auto=st.booleans(),
)
def test_events_name_only_connections_already_returned(
    seed: int, up: float, down: float, piece: int | None, auto: bool
) -> None:
    with TemporaryDirectory() as folder:
        run_virtual(scenario(Path(folder), seed, up, down, piece, auto))


@virtual
async def test_events_wait_until_the_call_that_makes_the_connection_returns(tmp_path: Path) -> None:
    """The stream itself: events about a connection not yet returned are held until it is."""
    async with two_parties(tmp_path) as (alice, _):
        stream, conn = alice.rt.ground.stream, alice.rt.ground.handle("new")
        stream.hold("new")
        stream.put(Connected(conn, True))
        taking = asyncio.ensure_future(stream.take())
        await asyncio.sleep(1)
        assert not taking.done()
        stream.give("new")
        assert (await taking) == Connected(conn, True)
        stream.hold("other")
        stream.put(Connected(alice.rt.ground.handle("other"), True))
        stream.forget("other")
        stream.put(Connected(conn, False))
        assert (await stream.take()) == Connected(conn, False)


@pytest.mark.claim("CON-18")
@virtual
async def test_joining_an_address_returns_before_any_network_traffic(tmp_path: Path) -> None:
    network = MemoryNetwork()
    config = on_network(network)
    async with running_router(tmp_path / "router", network=network) as router:
        async with party(tmp_path / "a.db", router.server, config=config) as alice:
            address = str(await alice.agent.address())
        server = router.server
    async with party(tmp_path / "b.db", server, config=config) as bob:
        before = len(network.connections)
        conn = await bob.agent.join(address)
        assert conn.type.value == "new"
        assert commands.has_command(bob.rt.ground.store.reading, conn.id, "JOIN")
        assert len(network.connections) == before
