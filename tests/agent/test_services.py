"""An agent that is a service: its identity, one SUBS for all queues, and what happens on disagreement."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import (
    AgentFailed,
    Mismatch,
    QueueState,
    ServiceDown,
    ServiceEnd,
    ServiceSub,
    ServiceUp,
    SessionMode,
    SubscriptionOptions,
)
from blindpost.agent.failures import is_service_error
from blindpost.agent.model import ConnMode
from blindpost.agent.store import connections
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.store.database import AgentStore
from blindpost.agent.subscriptions.engine import ServiceModeError
from blindpost.agent.subscriptions.services import Reconciled
from blindpost.client.errors import NoServiceError, ResponseTimeoutError
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import NO_IDS, QueueSet, ids_hash
from blindpost.crypto.keys import PrivateKey
from blindpost.router.model import Domain
from blindpost.store.contract import Durability
from blindpost.testing.network import MemoryNetwork
from blindpost.transport.errors import TransportError
from blindpost.transport.handshake import ServiceSession
from blindpost.wire.addresses import Server
from blindpost.wire.smp.commands import SUB, SUBS
from blindpost.wire.smp.errors import BROKER, PROXY, STORE, BrokerCode, Code, SMPError
from blindpost.wire.smp.responses import ERR, SOK, SOKS, Response
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.versions import VersionRange
from tests.support.agent.network import (
    USER,
    AgentNetwork,
    World,
    agent_world,
    commands_sent,
    cut,
    make_queues,
    send_to,
    staged,
    until_settled,
)
from tests.support.agent.router_damage import dissociate, rename_service
from tests.support.client.scripted_router import server_at, virtual
from tests.support.router.routers import new_credentials, running_router
from tests.support.router.services import service_record
from tests.support.transport.sessions import SERVICE_ID

PORT = 5223
SMALL = SubscriptionOptions(page=10)


async def subscribed(world: World) -> ServiceSession:
    """All queues of a new service are associated, and everything is quiet."""
    agent = world.agent
    await agent.subs.subscribe_all()
    await agent.told.until(lambda: len(agent.told.conns("UP")) == len(world.made))
    await quiet(world)
    service = agent.session(world.server).service
    assert service is not None
    return service


async def quiet(world: World) -> None:
    await until_settled(world.agent, world.server)


async def both_sides_agree(world: World) -> QueueSet:
    """What router and store count for the service, which must be the same, and its queues."""
    session = world.agent.session(world.server)
    assert session.service is not None
    record = await service_record(world.running, session.service.service_id)
    stored = world.agent.stored_set(world.server)
    assert record.members(Domain.MESSAGES) == stored
    assert stored == QueueSet.of(world.agent.associated(world.server))
    held = world.agent.work(world.server).table.active_service
    assert held == ServiceSub(session.service.service_id, stored)
    return stored


def service_events(agent: AgentNetwork) -> list[Any]:
    return [event for event in agent.told.events if event.name.startswith("SERVICE")]


@pytest.mark.claim("SVC-06")
@virtual
async def test_one_permanent_identity_per_user_and_router(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 2, services=True) as world:
        agent = world.agent
        await subscribed(world)
        first = agent.subs.services.credentials(USER, world.server)
        assert first is not None
        assert agent.presented(world.server) == first
        cut(agent.session(world.server))
        await agent.told.until(lambda: agent.told.words.count("SERVICE_UP") == 2)
        assert agent.presented(world.server) == first
        with agent.store.transaction() as db:
            db.sql.execute("INSERT INTO users (user_id) VALUES (2)")
        other_user = agent.subs.services.credentials(2, world.server)
        elsewhere = Server(world.server.hosts, "9999", world.server.key_hash)
        other_router = agent.subs.services.credentials(USER, elsewhere)
        assert other_user is not None
        assert other_router is not None
        assert len({c.fingerprint for c in (first, other_user, other_router)}) == 3
        await agent.close()
        world.agent = AgentNetwork(agent.path, network=world.network, services=True)
        await world.agent.subs.subscribe_all()
        assert world.agent.presented(world.server) == first


@pytest.mark.claim("SVC-07")
@virtual
async def test_the_id_is_stored_only_after_a_successful_handshake(tmp_path: Path) -> None:
    async with staged(tmp_path, 1, services=True) as stage:
        agent, router, server = stage.agent, stage.router, stage.made[0].server
        router.service_id = None
        connecting = asyncio.create_task(agent.sessions.session(agent.key(server)))
        await router.until(lambda: bool(router.services))
        (waiting, request), *_ = router.services
        query = "SELECT service_cert, service_cert_hash, service_priv_key, service_id FROM client_services"
        certificate, fingerprint, key, service_id = agent.store.reading.sql.execute(query).fetchone()
        assert service_id is None
        assert (certificate,) == request.chain
        assert (
            fingerprint
            == request.fingerprint
            == Credentials((certificate,), PrivateKey.from_pkcs8(key)).fingerprint
        )
        waiting.abort()
        with pytest.raises(TransportError):
            await connecting
        assert agent.store.reading.sql.execute(query).fetchone()[3] is None
        router.service_id = SERVICE_ID
        await asyncio.sleep(4)
        await agent.sessions.session(agent.key(server))
        stored = agent.store.reading.sql.execute(query).fetchone()
        assert stored == (certificate, fingerprint, key, SERVICE_ID)


@virtual
async def test_services_off_means_no_identity_at_all(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 2) as world:
        await world.agent.subs.subscribe_all()
        assert world.agent.session(world.server).service is None
        assert rows.service(world.agent.store.reading, USER, world.server) is None
        assert service_events(world.agent) == []


@pytest.mark.claim("SVC-46")
@pytest.mark.claim("SVC-49")
@pytest.mark.claim("SVC-56")
@virtual
async def test_one_subs_resumes_all_queues_and_pending_messages_come_once(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 40, services=True, options=SMALL) as world:
        agent = world.agent
        await subscribed(world)
        assert (await both_sides_agree(world)).count == 40
        table = agent.work(world.server).table
        assert (table.active_count, table.pending_count) == (0, 0)
        assert not table.is_active(world.refs[0].rcv_id)
        assert agent.subs.state(world.refs[0]) is QueueState.ACTIVE
        alone = agent.insert(await make_queues(world.sender, world.server, 3))
        async with world.away():
            await world.send(b"meanwhile")
            table.ask((queue.rcv_id, queue.conn_id) for queue in alone)
        with commands_sent() as calls:
            await world.until_received(40)
            await agent.told.until(lambda: agent.told.words.count("SERVICE_ALL") == 2)
            await quiet(world)
            asked = [type(call.command) for call in calls if isinstance(call.command, SUB | SUBS)]
        assert asked == [SUBS, SUB, SUB, SUB]
        assert agent.repeated == 0
        assert (await both_sides_agree(world)).count == 43


async def another_with_its_identity(world: World, folder: Path) -> AgentNetwork:
    """A copy of the agent, which presents the same certificate and takes the service."""
    world.agent.store.backup(folder / "other.db")
    other = AgentNetwork(folder / "other.db", network=world.network, services=True)
    await other.subs.subscribe_all()
    await world.agent.told.until(lambda: world.agent.told.words[-1] == "SERVICE_END")
    return other


@pytest.mark.claim("SVC-52")
@virtual
async def test_events_of_a_service_in_their_order(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3, services=True) as world:
        agent = world.agent
        service = await subscribed(world)
        full = ServiceSub(service.service_id, QueueSet.of(queue.rcv_id for queue in world.made))
        world.cut()
        await agent.told.until(lambda: agent.told.words.count("SERVICE_ALL") == 2)
        other = await another_with_its_identity(world, tmp_path)
        named = [word for word in agent.told.words if word.startswith("SERVICE")]
        assert named == [
            "SERVICE_UP",
            "SERVICE_ALL",
            "SERVICE_DOWN",
            "SERVICE_UP",
            "SERVICE_ALL",
            "SERVICE_END",
        ]
        up, _, down, up_again, _, end = service_events(agent)
        assert (up.service.queues, up.error) == (QueueSet(), None)
        assert down == ServiceDown(world.server, full)
        assert up_again == ServiceUp(world.server, full, None)
        assert end == ServiceEnd(world.server, full)
        table = agent.work(world.server).table
        assert (table.active_service, table.pending_service) == (None, None)
        assert not any(hasattr(event, "conn") for event in service_events(agent))
        await other.close()
        cut(agent.session(world.server))
        await asyncio.sleep(10)
        assert agent.told.words[-1] == "SERVICE_END"
        await asyncio.sleep(60)
        assert agent.told.words[-2:] == ["SERVICE_UP", "SERVICE_ALL"], "nobody else wants it any more"


@pytest.mark.parametrize("makes", [False, True], ids=["waits", "makes a queue"])
@virtual
async def test_a_service_that_was_taken_comes_back_with_one_command(tmp_path: Path, makes: bool) -> None:
    """On the session that lost it the router would answer SUBS from what it remembers there: nothing. A queue
    that was made there meanwhile is subscribed, and the others are not."""
    async with agent_world(tmp_path, 40, services=True, options=SMALL) as world:
        agent = world.agent
        service = await subscribed(world)
        other = await another_with_its_identity(world, tmp_path)
        await other.close()
        if makes:
            agent.subs.created(agent.session(world.server), replace(world.refs[0], service_associated=True))
        await world.send(b"meanwhile")
        with commands_sent() as calls:
            await world.until_received(40)
            await quiet(world)
            asked = [type(call.command) for call in calls if isinstance(call.command, SUB | SUBS)]
        assert asked == [SUBS]
        assert (await both_sides_agree(world)).count == 40
        full = ServiceSub(service.service_id, agent.stored_set(world.server))
        assert ServiceUp(world.server, full, None) in service_events(agent)


@virtual
async def test_two_with_one_identity_do_not_take_it_from_each_other_for_ever(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3, services=True, options=SMALL) as world:
        agent = world.agent
        await subscribed(world)
        other = await another_with_its_identity(world, tmp_path)
        await asyncio.sleep(600)
        assert agent.told.words.count("SERVICE_END") == 2
        assert other.told.words.count("SERVICE_END") == 1
        assert agent.work(world.server).table.active_service is None
        assert other.work(world.server).table.active_service is not None
        await other.close()


@virtual
async def test_no_events_about_a_service_that_was_never_subscribed(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 1, services=True) as world:
        session = await world.agent.sessions.session(world.agent.key(world.server))
        cut(session)
        await asyncio.sleep(5)
        assert service_events(world.agent) == []


@pytest.mark.claim("SVC-47")
@virtual
async def test_the_service_is_pending_before_subs_leaves(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3, services=True) as world:
        agent = world.agent
        await subscribed(world)
        await agent.close()
        agent = world.agent = AgentNetwork(agent.path, network=world.network, services=True)
        listener = world.network._listeners.pop(("127.0.0.1", world.running.port))
        await agent.subs.subscribe_all()
        pending = agent.work(world.server).table.pending_service
        assert pending is not None
        assert pending.queues == agent.stored_set(world.server)
        assert pending.queues.count == 3
        assert agent.subs.state(world.refs[0]) is QueueState.PENDING
        assert agent.work(world.server).is_working
        world.network._listeners["127.0.0.1", world.running.port] = listener
        await agent.told.until(lambda: "SERVICE_UP" in agent.told.words)
        assert agent.work(world.server).table.active_service == pending


@pytest.mark.claim("SVC-53")
@virtual
async def test_nothing_is_written_when_the_router_still_knows_us(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3, services=True) as world:
        agent = world.agent
        await subscribed(world)
        before = agent.store.reading.sql.total_changes
        world.cut()
        await agent.told.until(lambda: agent.told.words.count("SERVICE_UP") == 2)
        await quiet(world)
        assert agent.store.reading.sql.total_changes == before


@pytest.mark.claim("SVC-54")
@virtual
async def test_a_router_that_gives_another_id_gets_every_queue_again(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 25, services=True, options=SMALL) as world:
        agent = world.agent
        service = await subscribed(world)
        async with world.away():
            await dissociate(world.running, (queue.rcv_id for queue in world.made))
            await rename_service(world.running, service.service_id)
        await agent.told.until(lambda: agent.told.words.count("SERVICE_UP") == 2)
        assert agent.told.of("SERVICE_UP")[-1].error is Mismatch.SERVICE_ID
        await quiet(world)
        row = rows.service(agent.store.reading, USER, world.server)
        assert row is not None
        assert row.service_id not in (None, service.service_id)
        assert (await both_sides_agree(world)).count == 25
        await world.send()
        await world.until_received(25)


@pytest.mark.claim("SVC-54")
@virtual
async def test_queues_counted_for_our_former_id_move_to_the_new_one(
    tmp_path: Path,
) -> None:
    async with agent_world(tmp_path, 25, services=True, options=SMALL) as world:
        agent = world.agent
        service = await subscribed(world)
        async with world.away():
            await rename_service(world.running, service.service_id)
            await world.send(b"meanwhile")
        await agent.told.until(lambda: agent.told.words.count("SERVICE_UP") == 2)
        await quiet(world)
        assert (await both_sides_agree(world)).count == 25
        former = await service_record(world.running, service.service_id)
        assert former.members(Domain.MESSAGES) == QueueSet()
        await world.until_received(25)


@virtual
async def test_another_id_clears_all_associations_at_once(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3, services=True) as world:
        agent = world.agent
        await subscribed(world)
        services, session = agent.subs.services, agent.session(world.server)
        offered = services.credentials(USER, world.server)
        assert services.reconcile(session, offered) is Reconciled.SAME
        assert len(agent.associated(world.server)) == 3
        with agent.store.transaction() as db:
            rows.set_service_id(db, USER, world.server, b"the id of another time")
        assert services.reconcile(session, offered) is Reconciled.CHANGED
        assert agent.associated(world.server) == set()
        assert agent.stored_set(world.server) == QueueSet()


@pytest.mark.claim("SVC-55")
@virtual
async def test_a_router_without_services_makes_us_forget_ours(tmp_path: Path) -> None:
    network, credentials = MemoryNetwork(), new_credentials()
    agent = AgentNetwork(tmp_path / "agent.db", network=network, services=True)

    def router(versions: VersionRange = SMP_VERSIONS) -> Any:
        return running_router(
            tmp_path / "router", network=network, credentials=credentials, port=PORT, versions=versions
        )

    async with router() as running:
        sender = await running.connect(network=network)
        made = await make_queues(sender, running.server, 5)
        agent.insert(made)
        await agent.subs.subscribe_all()
        first = agent.subs.services.credentials(USER, running.server)
        await until_settled(agent, running.server)
        assert len(agent.associated(running.server)) == 5
        await sender.close()
    async with router(VersionRange(6, 15)) as running:
        await agent.told.until(lambda: set(agent.told.conns("UP").values()) == {2})
        assert rows.service(agent.store.reading, USER, running.server) is None
        assert agent.associated(running.server) == set()
        sender = await running.connect(15, network=network)
        await send_to(sender, made)
        await agent.told.until(lambda: len(agent.messages) == 5)
        await sender.close()
    async with router() as running:
        await agent.told.until(lambda: len(agent.associated(running.server)) == 5)
        assert agent.subs.services.credentials(USER, running.server) != first
        await until_settled(agent, running.server)
    await agent.close()


@pytest.mark.claim("SVC-55")
@virtual
async def test_an_unsolicited_id_is_logged_and_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with agent_world(tmp_path, 1, services=True) as world:
        session = await world.agent.sessions.session(world.agent.key(world.server))
        world.agent.subs.services.forget(USER, world.server)
        assert world.agent.subs.services.reconcile(session, None) is Reconciled.NONE
        assert rows.service(world.agent.store.reading, USER, world.server) is None
        assert "offered none" in caplog.text


@pytest.mark.claim("SVC-51")
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (lambda queues: queues, None),
        (lambda queues: QueueSet(queues.count + 2, queues.ids_hash), Mismatch.COUNT),
        (lambda queues: QueueSet(queues.count, bytes(16)), Mismatch.IDS_HASH),
    ],
)
def test_service_up_names_the_first_difference(
    tmp_path: Path, reply: Callable[[QueueSet], QueueSet], error: Mismatch | None
) -> None:
    @virtual
    async def run() -> None:
        async with staged(tmp_path, 2, services=True) as stage:
            agent, made = stage.agent, stage.made
            queues = QueueSet.of(queue.rcv_id for queue in made)

            def answer(request: Request) -> Response:
                match request.command:
                    case SUB():
                        return SOK(SERVICE_ID)
                    case SUBS(count=0):
                        return SOKS(0, NO_IDS)
                    case _:
                        return SOKS(reply(queues).count, reply(queues).ids_hash)

            stage.router.answer = answer
            agent.insert(made)
            await agent.subs.subscribe_all()
            await until_settled(agent, made[0].server)
            cut(agent.session(made[0].server))
            await agent.told.until(lambda: len(service_events(agent)) >= 3)
            first, down, second = service_events(agent)[:3]
            assert first == ServiceUp(made[0].server, ServiceSub(SERVICE_ID, QueueSet()), None)
            assert down.service == ServiceSub(SERVICE_ID, queues)
            assert second == ServiceUp(made[0].server, ServiceSub(SERVICE_ID, reply(queues)), error)

    run()


@pytest.mark.claim("SVC-57")
@pytest.mark.claim("SVC-58")
@pytest.mark.parametrize(
    ("error", "falls_back"),
    [
        (Code.SERVICE, True),
        (PROXY(BROKER(BrokerCode.NO_SERVICE)), True),
        (Code.AUTH, False),
        (Code.INTERNAL, False),
        (STORE("full"), False),
        (PROXY(BROKER(BrokerCode.HOST)), False),
    ],
)
def test_only_errors_about_the_service_make_us_fall_back(
    tmp_path: Path, error: SMPError, falls_back: bool
) -> None:
    @virtual
    async def run() -> None:
        async with staged(tmp_path, 3, services=True) as stage:
            agent, made, router = stage.agent, stage.made, stage.router
            server = made[0].server
            agent.insert(made)
            router.answer = lambda r: SOK(SERVICE_ID) if isinstance(r.command, SUB) else SOKS(0, NO_IDS)
            await agent.subs.subscribe_all()
            await until_settled(agent, server)
            assert len(agent.associated(server)) == 3
            before = rows.service(agent.store.reading, USER, server)
            assert before is not None
            router.answer = lambda r: SOK(SERVICE_ID) if isinstance(r.command, SUB) else ERR(error)
            asked = len(router.requests)
            cut(agent.session(server))
            await asyncio.sleep(10)
            subs = {r.entity_id for r in router.requests[asked:] if isinstance(r.command, SUB)}
            assert subs == ({queue.rcv_id for queue in made} if falls_back else set())
            after = rows.service(agent.store.reading, USER, server)
            assert (after is None) is falls_back
            assert len(agent.associated(server)) == (0 if falls_back else 3)
            failed = [event for event in agent.told.events if isinstance(event, AgentFailed)]
            if not falls_back:
                assert agent.work(server).table.pending_service is not None
                assert agent.work(server).is_working
                return
            assert len(failed) == 1
            assert agent.work(server).table.active_count == 3
            assert not agent.work(server).is_working
            router.answer = lambda r: SOK(SERVICE_ID) if isinstance(r.command, SUB) else SOKS(0, NO_IDS)
            cut(agent.session(server))
            await agent.told.until(lambda: len(agent.associated(server)) == 3)
            renewed = rows.service(agent.store.reading, USER, server)
            assert renewed is not None
            assert renewed.credentials.fingerprint != before.credentials.fingerprint

    run()


def test_a_session_without_a_service_is_an_error_about_the_service() -> None:
    assert is_service_error(NoServiceError())
    assert not is_service_error(ResponseTimeoutError())


@pytest.mark.claim("SVC-59")
def test_triggers_keep_count_and_hash_of_a_service(tmp_path: Path) -> None:
    chance = random.Random(59)
    agent_store = AgentStore.open(tmp_path / "agent.db", durability=Durability.OS)
    server = server_at(1)
    service = make_service(0, system_entropy)
    with agent_store.transaction() as db:
        rows.put_credentials(db, USER, server, service)
        connections.insert(db, "conn", USER, ConnMode.INVITATION, agent_version=7, pq_support=False)
        known: list[bytes] = []
        for number in range(300):
            match chance.choice(["insert", "insert", "associate", "delete", "mark"]):
                case "insert":
                    rcv_id = chance.randbytes(24)
                    known.append(rcv_id)
                    db.sql.execute(
                        "INSERT INTO rcv_queues (host, port, rcv_id, conn_id, user_id, rcv_queue_id, status,"
                        " rcv_private_key, rcv_dh_secret, e2e_priv_key, snd_id, smp_client_version,"
                        " rcv_service_assoc, deleted)"
                        " VALUES ('localhost', '1', ?, 'conn', 1, ?, 'new', x'', x'', x'', ?, 4, ?, ?)",
                        (rcv_id, number, rcv_id, chance.randint(0, 1), chance.randint(0, 1)),
                    )
                case "associate" if known:
                    db.sql.execute(
                        "UPDATE rcv_queues SET rcv_service_assoc = ? WHERE rcv_id = ?",
                        (chance.randint(0, 1), chance.choice(known)),
                    )
                case "mark" if known:
                    db.sql.execute(
                        "UPDATE rcv_queues SET deleted = ? WHERE rcv_id = ?",
                        (chance.randint(0, 1), chance.choice(known)),
                    )
                case "delete" if known:
                    db.sql.execute("DELETE FROM rcv_queues WHERE rcv_id = ?", (known.pop(),))
            counted = "SELECT rcv_id FROM rcv_queues WHERE rcv_service_assoc = 1 AND deleted = 0"
            expected = QueueSet.of(rcv_id for (rcv_id,) in db.sql.execute(counted))
            row = rows.service(db, USER, server)
            assert row is not None
            assert row.queues == expected
            assert row.queues.ids_hash == ids_hash(rcv_id for (rcv_id,) in db.sql.execute(counted))
        db.sql.execute("UPDATE client_services SET service_queue_count = 7")
        assert not rows.audit(db, USER, server)
        assert rows.audit(db, USER, server)
        row = rows.service(db, USER, server)
        assert row is not None
        assert row.queues == expected
    agent_store.close()


@pytest.mark.claim("SVC-60")
@virtual
async def test_new_credentials_have_no_id_until_the_next_handshake(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 1, services=True) as world:
        agent = world.agent
        service = await subscribed(world)
        other = make_service(int(time.time()), system_entropy)
        with agent.store.transaction() as db:
            rows.put_credentials(db, USER, world.server, other)
        row = rows.service(agent.store.reading, USER, world.server)
        assert row is not None
        assert (row.credentials, row.service_id) == (other, None)
        world.cut()
        await agent.told.until(lambda: agent.told.words.count("SERVICE_UP") == 2)
        row = rows.service(agent.store.reading, USER, world.server)
        assert row is not None
        assert row.service_id not in (None, service.service_id)
        await quiet(world)


@virtual
async def test_queues_that_are_made_or_forgotten_are_counted(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3, services=True) as world:
        agent = world.agent
        service = await subscribed(world)
        table = agent.work(world.server).table
        (alone,) = agent.insert(await make_queues(world.sender, world.server, 1))
        agent.subs.forget(alone)
        assert table.active_service == ServiceSub(service.service_id, agent.stored_set(world.server))
        agent.subs.forget(replace(world.refs[0], service_associated=True))
        left = QueueSet.of(queue.rcv_id for queue in world.made[1:])
        assert table.active_service == ServiceSub(service.service_id, left)
        agent.subs.created(agent.session(world.server), replace(world.refs[0], service_associated=True))
        assert table.active_service == ServiceSub(service.service_id, agent.stored_set(world.server))


@virtual
async def test_a_service_cannot_use_one_session_per_connection(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 1, services=True, mode=SessionMode.ENTITY) as world:
        with pytest.raises(ServiceModeError):
            await world.agent.subs.subscribe_all()


@virtual
async def test_switching_the_service_off_gives_the_queues_back(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 5, services=True) as world:
        agent = world.agent
        service = await subscribed(world)
        await agent.close()
        agent = world.agent = AgentNetwork(agent.path, network=world.network)
        await agent.subs.subscribe_all()
        assert rows.service(agent.store.reading, USER, world.server) is None
        assert agent.work(world.server).table.active_count == 5
        former = await service_record(world.running, service.service_id)
        assert former.members(Domain.MESSAGES) == QueueSet()
        await world.send()
        await world.until_received(5)
