"""What programs run into: cancelled calls, exiting too early, unreachable routers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop

from blindpost.agent import (
    Agent,
    AgentError,
    CommandError,
    Connected,
    ContactRequested,
    Failed,
    InactiveError,
    PassphraseError,
    QueuesDeleted,
    RatchetSync,
    Received,
    Sent,
    SyncState,
)
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.queues.making import QueueMaker
from blindpost.agent.store import connections
from blindpost.agent.sync.synchronisation import Synchronisation
from blindpost.agent.work.key_pairs import KemKeyPool
from blindpost.client.socks import SocksNetwork
from blindpost.engine.loop import StoreFailedError
from blindpost.testing import World
from blindpost.testing import virtual as in_world
from blindpost.testing.clock import run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.agent.messages import AMsg
from blindpost.wire.errors import WireError
from tests.support.agent.agents import connect, on_network, party, quick_config, two_parties
from tests.support.agent.friends import friends
from tests.support.client.scripted_router import settle, virtual
from tests.support.client.socks_proxy import socks_proxy
from tests.support.router.routers import running_router


@virtual
async def test_a_cancelled_invitation_is_undone(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, _):
        inviting = asyncio.create_task(alice.agent.invite())
        asked = "SELECT count(*) FROM rcv_queue_requests"
        for _ in range(100):
            await asyncio.sleep(0)
            if alice.rt.ground.store.reading.sql.execute(asked).fetchone() == (1,):
                break
        inviting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await inviting
        deleted = await alice.expect(QueuesDeleted)
        assert [error for *_, error in deleted.queues] == [None]
        assert alice.agent.connections() == []


@virtual
async def test_an_invitation_never_returned_is_undone_by_the_next_start(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with running_router(tmp_path / "router", network=network) as router:
        config = on_network(network, quick_config())
        async with party(tmp_path / "a.db", router.server, config=config) as alice:
            link = await alice.agent.invite()
            with alice.rt.ground.transaction() as tx:
                tx.sql.execute("INSERT INTO unclaimed_connections VALUES (?)", (link.conn.id,))
        async with party(tmp_path / "a.db", router.server, config=config) as alice:
            await alice.expect(QueuesDeleted)
            assert alice.agent.connections() == []


@in_world
async def test_a_queue_created_just_before_a_crash_is_found_and_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent ends between NEW and its answer. Nobody else knows the queue: it would stay forever."""
    made = asyncio.Event()
    answered = QueueMaker._answered

    async def lost(*args: Any) -> Any:
        await answered(*args)
        made.set()
        await asyncio.Event().wait()

    alice = await world.agent("alice")
    with monkeypatch.context() as patch:
        patch.setattr(QueueMaker, "_answered", lost)
        inviting = asyncio.create_task(alice.agent.invite(user_data=b"short"))
        await made.wait()
        assert alice.agent.connections() == []
        alice.agent.backup(world.folder / "after.db")
    inviting.cancel()
    async with world.router.down():
        after = await world.agent("after")
        await asyncio.sleep(60)
        assert after.agent.connections() == []
    deleted = await after.expect(QueuesDeleted)
    assert [error for *_, error in deleted.queues] == [None], "it was there"


@virtual
async def test_open_send_close_delivers(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with running_router(tmp_path / "router", network=network) as router:
        config = on_network(network, quick_config())
        async with party(tmp_path / "b.db", router.server, config=config) as bob:
            async with party(tmp_path / "a.db", router.server, config=config) as alice:
                ours, _ = await connect(alice, bob)
            agent = Agent.open(tmp_path / "a.db", config=config)
            await agent.__aenter__()
            await agent.connection(ours.id).send(b"in passing")
            await agent.close(drain_s=10)
            assert (await bob.expect(Received)).msg.body == b"in passing"
            async with party(tmp_path / "a.db", router.server, config=config) as alice:
                await alice.agent.connection(ours.id).send(b"once more")
                assert await alice.agent.flush()
                await alice.expect(Sent, lambda event: event.msg_id > 0)


@virtual
async def test_what_was_left_is_waited_for_from_the_first_moment(tmp_path: Path) -> None:
    """A program that is started only to get rid of what waits."""
    network = MemoryNetwork()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await settle()
        with alice.rt.ground.transaction() as tx:
            enqueue(tx, connections.load_whole(tx, ours.id), AMsg(b"left"))
            tx._after.clear()
        await alice.agent.close()
        config = on_network(network, quick_config(subscribe=False))
        async with Agent.open(tmp_path / "a.db", config=config) as again:
            assert again.connection(ours.id).waiting == 1
            assert await again.flush(30)
            assert again.connection(ours.id).waiting == 0
        assert (await bob.message()).msg.body == b"left"


@virtual
async def test_who_closes_second_waits_for_the_first(tmp_path: Path) -> None:
    agent = Agent.open(tmp_path / "a.db", config=quick_config())
    await agent.close()
    async with agent:
        first = asyncio.create_task(agent.close())
        await asyncio.sleep(0)
        assert not first.done()
        await agent.close()
        async with agent:
            assert agent.connections() == []
        await first


def test_flush_reports_an_unreachable_router(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            for place in pair.places:
                await place.stop()
            await pair.alice.conn.send(b"later")
            assert not await pair.alice.agent.flush(30)
            for place in pair.places:
                await place.start()
            assert await pair.alice.agent.flush(600)
            await pair.bob.got(b"later")

    run_virtual(main())


@pytest.mark.parametrize("auto_accept", [True, False])
@virtual
async def test_an_address_without_post_quantum_secrets(tmp_path: Path, auto_accept: bool) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.address(pq=False, auto_accept=auto_accept)
        await bob.agent.join(str(link))
        if not auto_accept:
            await (await alice.expect(ContactRequested)).request.accept()
        assert not (await alice.expect(Connected)).pq
        assert not (await bob.expect(Connected)).pq


def test_an_aborted_rotation_is_no_error(tmp_path: Path) -> None:
    """The peer answers when the queue in question is already gone."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("QKEY")
            await alice.conn.switch()
            await bob.until(lambda: wire.words("QKEY"))
            await alice.conn.abort_switch()
            await alice.until(lambda: wire.words("DEL"))
            await pair.quiet()
            wire.let("QKEY")
            await pair.quiet()
            await pair.talk("after")
            assert not alice.of(Failed)
            await alice.conn.switch()
            await alice.until(lambda: len(alice.whole.rcv) == 1 and not alice.whole.rcv[0].switch)

    run_virtual(main())


def test_a_deletion_does_not_wait_for_the_next_cleanup(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path, routers=1) as pair:
            (place,) = pair.places
            await place.stop()
            await pair.alice.conn.delete()
            await pair.quiet(20)
            assert not pair.alice.of(QueuesDeleted)
            await place.start()
            await pair.quiet(20)
            (deleted,) = pair.alice.of(QueuesDeleted)
            assert [error for *_, error in deleted.queues] == [None]

    run_virtual(main())


@virtual
async def test_nothing_sent_from_a_restored_backup_is_lost(tmp_path: Path) -> None:
    """The copy synchronises before it sends; until then `send` says so instead of losing a message."""
    network = MemoryNetwork()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        alice.agent.backup(tmp_path / "copy.db")
        for number in range(5):
            await ours.send(b"after the copy %d" % number)
            await bob.message()
            await theirs.send(b"answer %d" % number)
            await alice.message()
        server = alice.rt.ground.servers[0].server
        await alice.agent.close()
        config = on_network(network, quick_config())
        async with party(tmp_path / "copy.db", server, config=config) as restored:
            with pytest.raises(CommandError, match="synchronised"):
                await restored.agent.connection(ours.id).send(b"too early")
        async with party(tmp_path / "copy.db", server, config=config) as restored:
            await restored.expect(RatchetSync, lambda event: event.state is SyncState.OK)
            conn = restored.agent.connection(ours.id)
            for number in range(5):
                await conn.send(b"from the copy %d" % number)
                received = await bob.message()
                assert received.msg.body == b"from the copy %d" % number
        async with party(tmp_path / "copy.db", server, config=config) as restored:
            await restored.agent.connection(ours.id).send(b"a copy no more")
            assert (await bob.message()).msg.body == b"a copy no more"


async def test_mistakes_are_reported_where_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="32 bytes"):
        Agent.open(tmp_path / "a.db", ["smp://abc@host"])
    with pytest.raises(TypeError, match="list of addresses"):
        Agent.open(tmp_path / "a.db", "smp://abc@host")
    async with Agent.open(tmp_path / "a.db", config=quick_config()) as agent:
        conn = agent._ground.handle("some id")
        with pytest.raises(TypeError, match="encode"):
            await conn.send("text")  # type: ignore[arg-type]  # the mistake
    for call in (conn.send(b"late"), conn.ack(1), conn.switch(), conn.delete()):
        with pytest.raises(InactiveError, match="closed"):
            await call
    with pytest.raises(InactiveError, match="closed"):
        conn.stats  # noqa: B018 (it is the mistake)


def test_an_agent_belongs_to_the_event_loop_that_opened_it(tmp_path: Path) -> None:
    """In another one nothing would ever come."""
    agent = Agent.open(tmp_path / "a.db", config=quick_config())
    asyncio.run(agent.__aenter__())  # all that runs in this loop ends with it
    with pytest.raises(CommandError, match="the event loop that opened it"):
        asyncio.run(agent.next_event())
    assert agent.connections() == []
    asyncio.run(agent.close())

    async def main() -> None:
        async with agent:
            conn = (await agent.invite_later()).id
            for use in (agent.invite_later, agent.connection(conn).delete, agent.close):
                with pytest.raises(CommandError, match="from other threads with"):
                    await asyncio.to_thread(asyncio.run, use())
            home, deletion = asyncio.get_running_loop(), agent.connection(conn).delete()
            await asyncio.to_thread(asyncio.run_coroutine_threadsafe(deletion, home).result)
            assert agent.connections() == []

    asyncio.run(main())


def test_every_error_has_a_remedy() -> None:
    left, seen = [AgentError], set()
    while left:
        kind = left.pop()
        seen.add(kind)
        left += kind.__subclasses__()
        assert kind.remedy.endswith(".")
    assert PassphraseError in seen


def test_a_store_is_free_again_when_the_rest_of_an_agent_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: KemKeyPool) -> KemKeyPool:
        raise OSError("no more processes")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(KemKeyPool, "__aenter__", broken)
            with pytest.raises(OSError, match="no more processes"):
                await Agent.open(tmp_path / "a.db").__aenter__()
        async with Agent.open(tmp_path / "a.db") as agent:
            assert agent.connections() == []

    asyncio.run(main())


@virtual
async def test_a_copy_that_cannot_be_opened_for_lack_of_room_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Synchronisation) -> None:
        raise StoreFailedError("the disk is full")

    copy = tmp_path / "copy.db"
    async with party(tmp_path / "a.db") as alice:
        alice.agent.backup(copy)
    with monkeypatch.context() as patch:
        patch.setattr(Synchronisation, "begin_as_copy", full)
        with pytest.raises(StoreFailedError, match="the disk is full"):
            await Agent.open(copy, config=quick_config()).__aenter__()
    async with party(copy) as again:
        assert again.rt.ground.store.is_copy


def test_a_program_may_run_on_uvloop(tmp_path: Path) -> None:
    """Its transports do not inherit from asyncio's. One agent reaches the router through a proxy."""

    async def talk() -> None:
        async with running_router(tmp_path / "router") as router, socks_proxy() as (proxy, port):
            proxy.destinations[router.server.hosts[0].text, int(router.server.port)] = int(router.server.port)
            through = on_network(SocksNetwork("127.0.0.1", port))
            async with (
                party(tmp_path / "a.db", router.server, config=quick_config()) as alice,
                party(tmp_path / "b.db", router.server, config=through) as bob,
            ):
                to_bob, to_alice = await connect(alice, bob)
                await asyncio.gather(to_bob.send(b"to bob"), to_alice.send(b"to alice"))
                assert [(await one.message()).msg.body for one in (alice, bob)] == [b"to alice", b"to bob"]
            assert proxy.requests

    uvloop.run(talk())
