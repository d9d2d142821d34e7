"""Subscribing, losing connections and resuming, over real routers."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from blindpost.agent import QueueState, SessionMode, SubscriptionOptions
from blindpost.agent.failures import is_auth_error
from blindpost.agent.work.retries import RECONNECT, SECOND_US, Retry
from blindpost.client.calls import Call
from blindpost.client.errors import CredentialsError
from blindpost.testing.network import Link, MemoryNetwork
from blindpost.transport.errors import ConnectError
from blindpost.wire.smp.commands import DEL, GET, SUB
from tests.support.agent.network import (
    AgentNetwork,
    agent_world,
    commands_sent,
    cut,
    make_queues,
    send_to,
)
from tests.support.client.scripted_router import settle, virtual
from tests.support.router.routers import new_credentials, running_router

SMALL = SubscriptionOptions(page=10)
PORT = 5223


@pytest.mark.claim("SUB-44")
@pytest.mark.claim("SUB-48")
async def test_up_and_down_name_each_connection_once(tmp_path: Path) -> None:
    """Over TCP: several ways to subscribe at once, a cut, and a reconnection."""
    async with running_router(tmp_path / "router") as running:
        sender = await running.connect()
        made = await make_queues(sender, running.server, 25)
        agent = AgentNetwork(tmp_path / "agent.db", options=SMALL)
        refs = agent.insert(made)
        await asyncio.gather(
            agent.subs.subscribe_all(), agent.subs.subscribe(refs[:7]), agent.subs.subscribe_all()
        )
        conn_ids = {queue.conn_id for queue in refs}
        assert agent.told.conns("UP") == dict.fromkeys(conn_ids, 1)
        assert set((await agent.subs.subscribe(refs)).values()) == {None}
        assert agent.told.conns("UP") == dict.fromkeys(conn_ids, 1)
        await send_to(sender, made)
        await agent.told.until(lambda: len(agent.messages) == 25)
        agent.session(running.server).client._session.abort()
        await agent.told.until(lambda: agent.told.conns("UP") == dict.fromkeys(conn_ids, 2))
        assert agent.told.conns("DOWN") == dict.fromkeys(conn_ids, 1)
        assert len(agent.told.of("DOWN")) == 1
        await send_to(sender, made, b"again")
        await agent.told.until(lambda: len(agent.messages) == 50)
        await agent.close()
        await sender.close()


@pytest.mark.claim("SUB-48")
@virtual
async def test_down_is_about_the_lost_session_only(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with (
        running_router(tmp_path / "one", network=network) as one,
        running_router(tmp_path / "two", network=network) as two,
    ):
        agent = AgentNetwork(tmp_path / "agent.db", network=network)
        conn_ids = []
        for running in (one, two):
            sender = await running.connect(network=network)
            refs = agent.insert(await make_queues(sender, running.server, 3))
            conn_ids.append({queue.conn_id for queue in refs})
            await sender.close()
        await agent.subs.subscribe_all()
        assert set(agent.told.conns("UP")) == conn_ids[0] | conn_ids[1]
        cut(agent.session(one.server))
        await agent.told.until(lambda: bool(agent.told.of("DOWN")))
        (down,) = agent.told.of("DOWN")
        assert set(down) == conn_ids[0]
        assert agent.work(two.server).table.active_count == 3
        await agent.close()


@virtual
async def test_every_queue_costs_one_command_and_pages_are_bounded(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 95, options=SMALL) as world:
        agent = world.agent
        session = await agent.sessions.session(agent.key(world.server))
        in_flight: list[int] = []
        with commands_sent() as calls:
            asked: list[int] = []
            answered = 0
            original = session.client.send_many

            async def send_many(batch: list[Call[SUB]]) -> object:
                nonlocal answered
                asked.append(len(batch))
                in_flight.append(sum(asked) - answered)
                results = await original(batch)
                answered += len(batch)
                return results

            session.client.send_many = send_many
            await agent.subs.subscribe_all()
            subs = [call.entity_id for call in calls if isinstance(call.command, SUB)]
        assert sorted(subs) == sorted(queue.rcv_id for queue in world.made)
        assert max(asked) == 10
        assert max(in_flight) == 20
        assert agent.work(world.server).table.active_count == 95


@virtual
async def test_no_page_is_asked_for_while_messages_wait_to_be_taken(tmp_path: Path) -> None:
    """While the application takes nothing, only the pages under way deliver anything."""
    options = SubscriptionOptions(page=100)
    async with agent_world(tmp_path, 600, options=options) as world:
        agent = world.agent
        await world.send()
        agent.hold = asyncio.Event()
        with commands_sent() as calls:
            subscribing = asyncio.create_task(agent.subs.subscribe_all())
            await asyncio.sleep(5)
            assert not subscribing.done()
            assert agent.processing_max == 64
            assert len(calls) <= 200
            agent.hold.set()
            await subscribing
            assert len([call for call in calls if isinstance(call.command, SUB)]) == 600
        await world.until_received(600)
        assert agent.processing_max == 64
        assert agent.repeated == 0


@pytest.mark.claim("SUB-35")
@virtual
async def test_queues_are_pending_before_anything_is_sent(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 25, options=SMALL) as world:
        agent = world.agent
        await world.network._listeners["127.0.0.1", world.running.port].close()
        results = await agent.subs.subscribe(world.refs[:5])
        assert all(isinstance(failure, ConnectError) for failure in results.values())
        assert [agent.subs.state(queue) for queue in world.refs[:5]] == [QueueState.PENDING] * 5
        await agent.subs.subscribe_all()
        assert [agent.subs.state(queue) for queue in world.refs] == [QueueState.PENDING] * 25
        assert agent.work(world.server).table.active_count == 0
        assert agent.told.words == []


@pytest.mark.claim("SUB-50")
@pytest.mark.claim("SUB-57")
@pytest.mark.parametrize("mode", [SessionMode.SESSION, SessionMode.ENTITY])
def test_a_router_that_is_down_is_retried_with_growing_delays(tmp_path: Path, mode: SessionMode) -> None:
    @virtual
    async def run() -> None:
        network, credentials = MemoryNetwork(), new_credentials()
        agent = AgentNetwork(tmp_path / "agent.db", network=network, mode=mode)
        attempts: list[float] = []
        loop = asyncio.get_running_loop()

        original = network.connect

        async def connect(*args: object) -> object:
            attempts.append(loop.time())
            return await original(*args)  # type: ignore[arg-type]

        async with running_router(
            tmp_path / "router", network=network, credentials=credentials, port=PORT
        ) as running:
            sender = await running.connect(network=network)
            made = await make_queues(sender, running.server, 3)
            refs = agent.insert(made, conn_ids=["same"] * 3)
            await sender.send(DEL(), made[0].rcv_id, made[0].key)
            await sender.close()
        network.connect = connect  # type: ignore[method-assign,assignment]
        await agent.subs.subscribe_all()
        await asyncio.sleep(600)
        assert agent.told.words == []
        work = agent.work(refs[0].server, "same")
        assert work.is_working
        waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
        assert max(waits[:4]) < 10
        assert 45 < max(waits[-3:]) <= 180
        async with running_router(
            tmp_path / "router", network=network, credentials=credentials, port=PORT
        ) as running:
            await agent.told.until(lambda: set(agent.told.words) == {"UP", "ERRS"})
            await settle()
            assert agent.told.of("UP") == [("same",)]
            ((conn_id, failure),) = agent.told.of("ERRS")[0]
            assert conn_id == "same"
            assert is_auth_error(failure)
            assert not work.is_working
            assert (work.table.active_count, work.table.pending_count) == (2, 0)
            cut(agent.session(refs[0].server, "same"))
            await agent.told.until(lambda: agent.told.words.count("UP") == 2)
            await settle()
            assert agent.told.words.count("ERRS") == 1
            assert not work.is_working
        await agent.close()

    run()


def test_delays_follow_the_schedule_of_the_protocol() -> None:
    retry = Retry.first(RECONNECT)
    delays = []
    for _ in range(20):
        delays.append(retry.delay_us)
        retry = retry.next()
    assert delays[:8] == [2_000_000] * 5 + [3_000_000, 4_500_000, 6_750_000]
    assert delays[-1] == 180 * SECOND_US
    resumed = Retry.resumed(RECONNECT, 4_500_000)
    assert (resumed.delay_us, resumed.next().delay_us) == (4_500_000, 6_750_000)


@pytest.mark.claim("SUB-32")
@virtual
async def test_queues_read_with_get_are_left_out(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3) as world:
        agent, locked = world.agent, world.refs[1]
        session = await agent.sessions.session(agent.key(world.server))
        await session.client.send(GET(), locked.rcv_id, locked.key)
        agent.subs.lock_get(locked)
        with commands_sent() as calls:
            await agent.subs.subscribe_all()
            (refused,) = (await agent.subs.subscribe([locked])).values()
            assert isinstance(refused, CredentialsError)
            assert locked.rcv_id not in {call.entity_id for call in calls}
        assert agent.work(world.server).table.active_count == 2
        assert not agent.work(world.server).is_working
        agent.subs.release_get(locked)
        assert agent.told.of("ERRS") == []


@virtual
async def test_a_lost_session_releases_its_get_locks(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 2) as world:
        agent = world.agent
        await agent.subs.subscribe(world.refs[:1])
        agent.subs.lock_get(world.refs[1])
        world.cut()
        await agent.told.until(lambda: agent.told.words == ["UP", "DOWN", "UP"])
        assert set((await agent.subs.subscribe(world.refs)).values()) == {None}


@pytest.mark.claim("SUB-33")
@pytest.mark.parametrize(("mode", "sessions"), [(SessionMode.SESSION, 2), (SessionMode.ENTITY, 5)])
def test_who_shares_a_session(tmp_path: Path, mode: SessionMode, sessions: int) -> None:
    """One user has four queues in three connections, another two in two; the mode decides how many share."""

    @virtual
    async def run() -> None:
        async with agent_world(tmp_path, 0, mode=mode) as world:
            agent = world.agent
            with agent.store.transaction() as db:
                db.sql.execute("INSERT INTO users (user_id) VALUES (2)")
            made = await make_queues(world.sender, world.server, 4)
            agent.insert(made, conn_ids=["a", "a", "b", "c"])
            agent.insert(await make_queues(world.sender, world.server, 2), conn_ids=["d", "e"], user_id=2)
            before = len(world.network.connections)
            await agent.subs.subscribe_all(active_user=2)
            assert len(world.network.connections) - before == sessions
            assert agent.told.conns("UP") == dict.fromkeys("abcde", 1)

    run()


@pytest.mark.claim("SUB-34")
@virtual
async def test_a_stalled_router_delays_no_other(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with (
        running_router(tmp_path / "one", network=network) as one,
        running_router(tmp_path / "two", network=network) as two,
    ):
        agent = AgentNetwork(tmp_path / "agent.db", network=network)
        for running in (one, two):
            sender = await running.connect(network=network)
            agent.insert(await make_queues(sender, running.server, 3))
            await sender.close()
        first = min((one, two), key=lambda running: running.server.port)
        network.plan(Link(stall_after=0), Link(stall_after=0))
        subscribing = asyncio.create_task(agent.subs.subscribe_all())
        await asyncio.sleep(1)
        assert not subscribing.done()
        (up,) = agent.told.of("UP")
        assert len(up) == 3
        assert agent.sessions.current(agent.key(first.server)) is None
        await subscribing
        await agent.told.until(lambda: len(agent.told.conns("UP")) == 6)
        await agent.close()


@pytest.mark.claim("SUB-42")
@virtual
async def test_end_and_deld_end_the_subscription(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3) as world:
        agent = world.agent
        await agent.subs.subscribe_all()
        await world.sender.send(SUB(), world.made[0].rcv_id, world.made[0].key)
        await agent.told.until(lambda: agent.told.of("END") == [world.refs[0].conn_id])
        await world.sender.send(DEL(), world.made[1].rcv_id, world.made[1].key)
        await agent.told.until(lambda: agent.told.of("DELD") == [world.refs[1].conn_id])
        states = [agent.subs.state(queue) for queue in world.refs]
        assert states == [None, None, QueueState.ACTIVE]
        world.cut()
        await agent.told.until(lambda: len(agent.told.of("UP")) == 2)
        assert agent.told.of("DOWN") == agent.told.of("UP")[1:] == [(world.refs[2].conn_id,)]


@pytest.mark.claim("SUB-43")
@virtual
async def test_a_suspended_agent_takes_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3) as world:
        agent = world.agent
        await agent.subs.subscribe_all()
        agent.sessions.pause_receiving("suspended")
        await world.send()
        await world.sender.send(DEL(), world.made[0].rcv_id, world.made[0].key)
        await asyncio.sleep(3600)
        assert agent.messages == []
        assert agent.told.of("DELD") == []
        agent.sessions.resume_receiving("another reason")
        await asyncio.sleep(1)
        assert agent.messages == []
        agent.sessions.resume_receiving("suspended")
        await world.until_received(3)
        await agent.told.until(lambda: bool(agent.told.of("DELD")))


@pytest.mark.claim("SUB-49")
@pytest.mark.claim("SUB-57")
@pytest.mark.parametrize("mode", [SessionMode.SESSION, SessionMode.ENTITY])
def test_each_session_has_one_worker_while_something_is_pending(tmp_path: Path, mode: SessionMode) -> None:
    """In both modes: the worker described for entity sessions serves shared ones too."""

    @virtual
    async def run() -> None:
        async with agent_world(tmp_path, 3, mode=mode) as world:
            agent = world.agent
            await agent.subs.subscribe_all()
            await agent.told.until(lambda: len(agent.told.conns("UP")) == 3)
            works = {id(agent.work(world.server, queue.conn_id)): queue for queue in world.refs}
            assert len(works) == (1 if mode is SessionMode.SESSION else 3)
            listener = world.network._listeners.pop(("127.0.0.1", world.running.port))
            for queue in works.values():
                world.cut(queue.conn_id)
            await asyncio.sleep(20)
            assert len(agent.told.conns("DOWN")) == 3
            workers = [task for task in asyncio.all_tasks() if "SessionWork._work" in repr(task)]
            assert len(workers) == len(works)
            world.network._listeners["127.0.0.1", world.running.port] = listener
            await agent.told.until(lambda: set(agent.told.conns("UP").values()) == {2})
            await settle()
            assert not any(agent.work(world.server, queue.conn_id).is_working for queue in world.refs)

    run()


@pytest.mark.claim("SUB-47")
@virtual
async def test_late_events_of_an_old_session_leave_its_successor_alone(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3) as world:
        agent = world.agent
        await agent.subs.subscribe_all()
        old = agent.session(world.server)
        world.cut()
        await agent.told.until(lambda: len(agent.told.of("UP")) == 2)
        new = agent.session(world.server)
        assert new.number > old.number
        agent.subs._connected_at[old.number] = 0.0
        agent.sessions._forget(old.key, old.number)
        agent.subs.disconnected(old, ConnectError())
        assert agent.session(world.server) is new
        assert agent.work(world.server).table.active_count == 3
        assert len(agent.told.of("DOWN")) == 1
        await world.send()
        await world.until_received(3)


@virtual
async def test_being_offline_stops_attempts_and_being_online_starts_them(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3) as world:
        agent = world.agent
        agent.subs.set_online(False)
        listener = world.network._listeners.pop(("127.0.0.1", world.running.port))
        await agent.subs.subscribe_all()
        await asyncio.sleep(100)
        world.network._listeners["127.0.0.1", world.running.port] = listener
        await asyncio.sleep(1000)
        assert agent.told.words == []
        agent.subs.set_online(True)
        await asyncio.sleep(1)
        assert agent.told.words == ["UP"]


@virtual
async def test_a_queue_made_while_its_session_is_replaced_is_subscribed_again(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 2) as world:
        agent = world.agent
        await agent.subs.subscribe(world.refs[:1])
        old = agent.session(world.server)
        agent.subs.created(old, world.refs[1])
        assert agent.subs.state(world.refs[1]) is QueueState.ACTIVE
        agent.subs.forget(world.refs[1])
        assert agent.subs.state(world.refs[1]) is None
        world.cut()
        await agent.told.until(lambda: len(agent.told.of("UP")) == 2)
        agent.subs.created(old, world.refs[1])
        assert agent.subs.state(world.refs[1]) is QueueState.PENDING
        await agent.told.until(lambda: agent.told.of("UP")[-1] == (world.refs[1].conn_id,))
        await world.send()
        await world.until_received(2)
