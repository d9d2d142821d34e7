"""Whole agents and their subscriptions: what an application sees of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blindpost.agent import (
    BrokerError,
    CommandError,
    Connected,
    ConnType,
    Down,
    Joined,
    Received,
    Sent,
    ServiceUp,
    SessionMode,
    SessionOptions,
    SubscriptionsFailed,
    Up,
)
from blindpost.agent.messages.receiving import Reception
from blindpost.agent.model import RcvQueue
from blindpost.agent.routers.sessions import Session
from blindpost.agent.store import queues
from blindpost.client.calls import Call
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import ACK, SUB, SUBS
from blindpost.wire.smp.responses import MSG
from tests.support.agent.agents import Party, connect, on_network, party, quick_config, two_parties
from tests.support.agent.network import commands_sent
from tests.support.agent.router_files import StoreFiles
from tests.support.client.scripted_router import virtual
from tests.support.router.routers import RunningRouter, new_credentials, running_router

PORT = 5223


class Lives:
    """A router that can be stopped and started, and a folder for agents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = MemoryNetwork()
        self._credentials = new_credentials()

    @asynccontextmanager
    async def router(self) -> AsyncIterator[RunningRouter]:
        async with running_router(
            self.folder / "router", network=self.network, credentials=self._credentials, port=PORT
        ) as running:
            self.server = running.server
            yield running

    @asynccontextmanager
    async def agent(self, name: str, **chosen: object) -> AsyncIterator[Party]:
        config = on_network(self.network, quick_config(**chosen))
        async with party(self.folder / f"{name}.db", self.server, config=config) as opened:
            yield opened

    @asynccontextmanager
    async def agents_apart(self, service: bool) -> AsyncIterator[tuple[Party, Party]]:
        """Two agents that keep running while routers come and go."""
        async with self.router():
            pass
        async with self.agent("alice", service=service) as alice, self.agent("bob") as bob:
            yield alice, bob


@pytest.mark.claim("SUB-30")
@virtual
async def test_connections_that_do_not_receive_are_answered_without_any_router(tmp_path: Path) -> None:
    """A new one, one that only sends so far, and one that receives; the router cannot be reached."""
    lives = Lives(tmp_path)
    async with lives.router(), lives.agent("alice") as alice, lives.agent("bob") as bob:
        await connect(alice, bob)
        link = await bob.agent.invite(auto_allow=False)
    async with lives.agent("alice") as alice:
        await alice.agent.join(str(link))
        waiting, receiving = sorted(alice.agent.connections(), key=lambda conn: conn.type is ConnType.DUPLEX)
        assert (waiting.type, receiving.type) == (ConnType.NEW, ConnType.DUPLEX)
        answers = alice.agent.subscribe([receiving, waiting])
        began = asyncio.get_running_loop().time()
        assert await anext(answers) == (waiting, None)
        assert asyncio.get_running_loop().time() == began
        conn, error = await anext(answers)
        assert conn == receiving
        assert isinstance(error, BrokerError)
        assert [answer async for answer in answers] == []
        async with lives.router():
            up = await alice.expect(Up)
            assert up.conns == (receiving,)
            assert [error async for _, error in alice.agent.subscribe([receiving])] == [None]


@pytest.mark.claim("SUB-31")
@virtual
async def test_subscribing_resumes_stored_work(tmp_path: Path) -> None:
    """A message not yet sent and a join not yet made before a restart."""
    lives = Lives(tmp_path)
    async with lives.router(), lives.agent("alice") as alice, lives.agent("bob") as bob:
        await connect(alice, bob)
        link = await bob.agent.invite()
    async with lives.agent("alice") as alice:
        (conn,) = alice.agent.connections()
        await conn.send(b"before the restart")
        await alice.agent.join(str(link))
    async with lives.router(), lives.agent("alice") as alice, lives.agent("bob") as bob:
        async for _, error in alice.agent.subscribe(alice.agent.connections()):
            assert error is None
        await alice.expect(Sent)
        await alice.expect(Joined)
        assert (await bob.message()).msg.body == b"before the restart"
        await alice.expect(Connected)


@pytest.mark.claim("SUB-41")
@virtual
async def test_messages_of_one_connection_keep_their_order_whichever_batch_is_first(tmp_path: Path) -> None:
    """Several batches at once wait for the connection; they are processed in the router's order."""
    async with two_parties(tmp_path) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        held: list[tuple[Session, bytes, MSG]] = []

        async def hold(self: Reception, session: Session, rcv_id: bytes, msg: MSG) -> None:
            held.append((session, rcv_id, msg))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reception, "received", hold)
            for number in range(5):
                await theirs.send(b"%d" % number)
            await asyncio.sleep(5)
            while len(held) < 5:
                session, rcv_id, msg = held[-1]
                queue = next(q for q in _queues(alice) if q.rcv_id == rcv_id)
                answer = await session.client.send_many([Call(ACK(msg.msg_id), rcv_id, queue.key)])
                assert isinstance(answer[0], MSG)
                held.append((session, rcv_id, answer[0]))
        reception = alice.rt.reception
        async with alice.rt.ground.locked(ours.id):
            batches = [asyncio.create_task(reception.received(*message)) for message in held]
            await asyncio.sleep(1)
            assert not any(batch.done() for batch in batches)
        await asyncio.wait(batches)
        assert [(await alice.expect(Received)).msg.body for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def _queues(alice: Party) -> list[RcvQueue]:
    (conn,) = alice.agent.connections()
    return list(queues.rcv_queues(alice.rt.ground.store.reading, conn.id))


@virtual
async def test_an_agent_that_is_a_service_comes_back_by_one_command(tmp_path: Path) -> None:
    lives = Lives(tmp_path)
    async with lives.router(), lives.agent("alice", service=True) as alice, lives.agent("bob") as bob:
        for _ in range(3):
            await connect(alice, bob)
    async with lives.router(), lives.agent("bob") as bob:
        await bob.expect(Up)
        for conn in bob.agent.connections():
            await conn.send(b"meanwhile")
            await bob.expect(Sent)
        with commands_sent() as calls:
            async with lives.agent("alice", service=True) as alice:
                up = await alice.expect(ServiceUp)
                assert (up.service.queues.count, up.error) == (3, None)
                received = [(await alice.message()).msg.body for _ in range(3)]
                assert received == [b"meanwhile"] * 3
                before = alice.rt.subscriptions.services.credentials(1, lives.server)
                alice.agent.renew_service()
                await asyncio.sleep(60)
                assert alice.rt.subscriptions.services.credentials(1, lives.server) != before
                await alice.agent.connections()[0].send(b"still here")
                assert (await bob.message()).msg.body == b"still here"
                for conn in bob.agent.connections():
                    await conn.send(b"again")
                assert [(await alice.message()).msg.body for _ in range(3)] == [b"again"] * 3
        kinds = [type(call.command) for call in calls]
        assert (kinds.count(SUBS), kinds.count(SUB)) == (2, 3)


@virtual
@pytest.mark.parametrize("service", [False, True], ids=["plain", "service"])
async def test_application_learns_which_connections_were_lost_with_a_routers_store(
    tmp_path: Path, service: bool
) -> None:
    lives = Lives(tmp_path)
    async with lives.agents_apart(service) as (alice, bob):
        async with lives.router():
            conns = {(await connect(alice, bob))[0].id for _ in range(3)}
            await asyncio.sleep(60)
        StoreFiles(tmp_path / "router").wipe()
        async with lives.router():
            gone: list[str] = []
            while len(gone) < len(conns):
                failed = await alice.next_of(SubscriptionsFailed)
                gone += [conn.id for conn, _ in failed.errors]
                assert {error.word for _, error in failed.errors} == {"SMP AUTH"}
            assert sorted(gone) == sorted(conns), "each once"
            theirs = await bob.next_of(SubscriptionsFailed)
            assert len(theirs.errors) == len(conns)
            for conn in alice.agent.connections():
                await conn.delete()
            await connect(alice, bob)
            await alice.agent.connections()[0].send(b"to a new queue")
            assert (await bob.next_of(Received)).msg.body == b"to a new queue"
            await asyncio.sleep(60)
            with commands_sent() as calls:
                await asyncio.sleep(7200)
            assert not [call for call in calls if isinstance(call.command, SUB | SUBS)]


@virtual
async def test_a_network_outage_raises_one_down_and_one_up(tmp_path: Path) -> None:
    lives = Lives(tmp_path)
    async with lives.router(), lives.agent("alice") as alice, lives.agent("bob") as bob:
        await connect(alice, bob)
    async with lives.router(), lives.agent("alice") as alice:
        await alice.expect(Up)
        alice.agent.set_online(False)
        lives.network.connections[-1][0].cut()
        await alice.expect(Down)
        await asyncio.sleep(900)
        alice.agent.set_online(True)
        await alice.expect(Up)
        assert [name for name in alice.names() if name in ("UP", "DOWN")] == ["UP", "DOWN", "UP"]


def test_a_service_cannot_use_one_session_per_connection() -> None:
    with pytest.raises(CommandError, match="CMD PROHIBITED"):
        quick_config(service=True, sessions=SessionOptions(mode=SessionMode.ENTITY))
