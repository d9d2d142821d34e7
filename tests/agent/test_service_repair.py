"""When router and agent disagree about a service, both end with the same queues, and traffic continues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blindpost.agent import Mismatch, ServiceSub, SubscriptionOptions
from blindpost.agent.failures import is_auth_error
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.subscriptions.services import RENEWED_BEFORE
from blindpost.client.options import SmpOptions
from blindpost.crypto.credentials import VALIDITY
from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.loop import StoreFailedError
from blindpost.router.model import Domain
from blindpost.wire.smp.commands import DEL, SUB, SUBS
from tests.support.agent.network import (
    USER,
    AgentNetwork,
    World,
    agent_world,
    commands_sent,
    make_queues,
    send_to,
    until_settled,
)
from tests.support.agent.router_damage import associate, dissociate, rename_service
from tests.support.client.scripted_router import virtual
from tests.support.router.services import service_record

COUNT = 25
SMALL = SubscriptionOptions(page=10)


@asynccontextmanager
async def service_world(folder: Path) -> AsyncIterator[World]:
    """A service with all of its queues associated, and quiet."""
    async with agent_world(folder, COUNT, services=True, options=SMALL) as world:
        await world.agent.subs.subscribe_all()
        await until_settled(world.agent, world.server)
        assert (await agreed(world)).count == COUNT
        yield world


async def agreed(world: World) -> QueueSet:
    """The queues both sides count, which must be the same; and the agent knows that."""
    session = world.agent.session(world.server)
    assert session.service is not None
    record = await service_record(world.running, session.service.service_id)
    stored = world.agent.stored_set(world.server)
    assert record.members(Domain.MESSAGES) == stored
    assert stored == QueueSet.of(world.agent.associated(world.server))
    held = world.agent.work(world.server).table.active_service
    assert held == ServiceSub(session.service.service_id, stored)
    return stored


async def back_again(world: World) -> None:
    await world.agent.told.until(lambda: world.agent.told.words[-1:] != ["SERVICE_DOWN"])
    await world.agent.told.until(lambda: len(world.agent.told.of("SERVICE_UP")) >= 2)
    await until_settled(world.agent, world.server)


def error_of_last_up(world: World) -> Mismatch | None:
    error = world.agent.told.of("SERVICE_UP")[1].error
    assert error is None or isinstance(error, Mismatch)
    return error


@pytest.mark.claim("SVC-69")
@virtual
async def test_associations_that_the_router_lost_are_made_again(tmp_path: Path) -> None:
    async with service_world(tmp_path) as world:
        async with world.away():
            await dissociate(world.running, (queue.rcv_id for queue in world.made[:7]))
            await world.send(b"meanwhile")
        before = world.agent.subs.services.credentials(USER, world.server)
        with commands_sent() as calls:
            await back_again(world)
        assert error_of_last_up(world) is Mismatch.COUNT
        assert (await agreed(world)).count == COUNT
        assert world.agent.presented(world.server) == before
        assert sum(isinstance(call.command, SUB) for call in calls) == COUNT
        await world.until_received(COUNT)
        await world.send(b"later")
        await world.until_received(2 * COUNT)


@pytest.mark.claim("SVC-69")
@virtual
async def test_queues_that_the_router_does_not_know_are_dropped_and_named(tmp_path: Path) -> None:
    async with service_world(tmp_path) as world:
        async with world.away():
            for queue in world.made[:4]:
                await world.sender.send(DEL(), queue.rcv_id, queue.key)
        await back_again(world)
        assert error_of_last_up(world) is Mismatch.COUNT
        assert (await agreed(world)).count == COUNT - 4
        errors = [error for errors in world.agent.told.of("ERRS") for error in errors]
        assert {conn_id for conn_id, _ in errors} == {queue.conn_id for queue in world.refs[:4]}
        assert len(errors) == 4
        assert all(is_auth_error(failure) for _, failure in errors)
        await send_to(world.sender, world.made[4:])
        await world.until_received(COUNT - 4)


@pytest.mark.claim("SVC-69")
@virtual
async def test_one_lost_and_one_gained_is_detected_by_the_hash(tmp_path: Path) -> None:
    """The counts are equal: the router misses one queue of ours and counts one that we do not."""
    async with service_world(tmp_path) as world:
        agent = world.agent
        async with world.away():
            await dissociate(world.running, [world.made[0].rcv_id])
            with agent.store.transaction() as db:
                rows.set_associated(db, world.server, [world.made[1].rcv_id], False)
            extra = agent.insert(await make_queues(world.sender, world.server, 1))
            with agent.store.transaction() as db:
                rows.set_associated(db, world.server, [extra[0].rcv_id], True)
            await dissociate(world.running, [world.made[2].rcv_id])
            await associate(world.running, [extra[0].rcv_id], world_service(world))
        await back_again(world)
        assert (await agreed(world)).count == COUNT + 1


def world_service(world: World) -> bytes:
    row = rows.service(world.agent.store.reading, USER, world.server)
    assert row is not None
    assert row.service_id is not None
    return row.service_id


@virtual
async def test_associations_that_we_lost_are_found_again(tmp_path: Path) -> None:
    async with service_world(tmp_path) as world:
        async with world.away():
            with world.agent.store.transaction() as db:
                rows.set_associated(db, world.server, [queue.rcv_id for queue in world.made[:9]], False)
        with commands_sent() as calls:
            await back_again(world)
        assert error_of_last_up(world) is Mismatch.COUNT
        assert (await agreed(world)).count == COUNT
        assert sum(isinstance(call.command, SUB) for call in calls) == 9


@virtual
async def test_after_losing_all_associations_each_queue_is_subscribed_once(tmp_path: Path) -> None:
    async with service_world(tmp_path) as world:
        async with world.away():
            await dissociate(world.running, (queue.rcv_id for queue in world.made))
        with commands_sent() as calls:
            await back_again(world)
        assert (await agreed(world)).count == COUNT
        assert sum(isinstance(call.command, SUB) for call in calls) == COUNT
        assert set(world.agent.told.conns("UP").values()) == {2}
        await world.send()
        await world.until_received(COUNT)


@virtual
async def test_queues_that_only_the_router_has_are_left_behind_with_the_old_identity(tmp_path: Path) -> None:
    async with service_world(tmp_path) as world:
        agent, former = world.agent, world_service(world)
        before = agent.presented(world.server)
        async with world.away():
            orphans = await make_queues(world.sender, world.server, 2)
            await associate(world.running, (queue.rcv_id for queue in orphans), former)
        await back_again(world)
        assert (await agreed(world)).count == COUNT
        assert agent.presented(world.server) != before
        left = await service_record(world.running, former)
        assert left.members(Domain.MESSAGES) == QueueSet.of(queue.rcv_id for queue in orphans)
        await world.send()
        await world.until_received(COUNT)
        assert agent.told.of("ERRS") == []


@virtual
async def test_a_queue_that_is_being_deleted_is_no_reason_to_repair(tmp_path: Path) -> None:
    async with service_world(tmp_path) as world:
        agent = world.agent
        async with world.away():
            with agent.store.transaction() as db:
                db.sql.execute("UPDATE rcv_queues SET deleted = 1 WHERE rcv_id = ?", (world.made[0].rcv_id,))
        with commands_sent() as calls:
            await back_again(world)
        assert error_of_last_up(world) is None
        assert [type(call.command) for call in calls if isinstance(call.command, SUB | SUBS)] == [SUBS]


@pytest.mark.claim("SVC-72")
@virtual
async def test_a_fallback_is_bounded_and_resumes_after_a_crash(tmp_path: Path) -> None:
    async with service_world(tmp_path) as world:
        agent = world.agent
        await agent.close()
        await dissociate(world.running, (queue.rcv_id for queue in world.made))
        await rename_service(world.running, world_service_of(agent.path, world))
        agent = world.agent = AgentNetwork(agent.path, network=world.network, services=True, options=SMALL)
        under_way, most = 0, 0

        async def counted(session: object, queues: list[object], **how: bool) -> object:
            nonlocal under_way, most
            under_way += len(queues)
            most = max(most, under_way)
            try:
                return await original(session, queues, **how)  # type: ignore[arg-type]
            finally:
                under_way -= len(queues)

        work = agent.work(world.server)
        original = work.subscribe_on
        work.subscribe_on = counted  # type: ignore[assignment,method-assign]
        falling = asyncio.create_task(agent.subs.subscribe_all())
        await agent.told.until(lambda: len(agent.told.conns("UP")) >= 10)
        assert 10 <= len(agent.associated(world.server)) < COUNT
        falling.cancel()
        await agent.close()
        assert most <= 20
        done = len(agent.told.conns("UP"))
        agent = world.agent = AgentNetwork(agent.path, network=world.network, services=True, options=SMALL)
        with commands_sent() as calls:
            await agent.subs.subscribe_all()
            await until_settled(agent, world.server)
        assert sum(isinstance(call.command, SUB) for call in calls) <= COUNT - done + 10
        assert (await agreed(world)).count == COUNT
        await world.send()
        await world.until_received(COUNT)


def world_service_of(path: Path, world: World) -> bytes:
    """The service id in a closed store."""
    agent = AgentNetwork(path, network=world.network, services=True)
    row = rows.service(agent.store.reading, USER, world.server)
    agent.store.close()
    assert row is not None
    assert row.service_id is not None
    return row.service_id


@pytest.mark.claim("SVC-73")
@virtual
async def test_a_new_certificate_takes_over_queue_by_queue_while_messages_flow(tmp_path: Path) -> None:
    async with service_world(tmp_path) as world:
        agent, former = world.agent, agent_service(world)
        before, old = agent.presented(world.server), agent.session(world.server)
        sent = 0

        async def traffic() -> None:
            nonlocal sent
            while True:
                await world.send(b"message %d" % sent)
                sent += 1
                await asyncio.sleep(0.05)

        async def moved_when_closed() -> int:
            await old.client.wait_closed()
            return len(agent.associated(world.server))

        moved = asyncio.create_task(moved_when_closed())
        sending = asyncio.create_task(traffic())
        await asyncio.sleep(0.3)
        agent.subs.renew(USER, world.server)
        await until_settled(agent, world.server)
        await asyncio.sleep(1)
        sending.cancel()
        await asyncio.wait([sending])
        assert await moved == COUNT
        assert agent.presented(world.server) != before
        assert (await agreed(world)).count == COUNT
        left = await service_record(world.running, former)
        assert left.members(Domain.MESSAGES) == QueueSet()
        await world.until_received(COUNT * sent)
        assert len(set(agent.messages)) == len(agent.messages)
        assert "SERVICE_DOWN" not in agent.told.words
        assert "DOWN" not in agent.told.words
        assert set(agent.told.conns("UP").values()) == {1}


def agent_service(world: World) -> bytes:
    return world_service(world)


@pytest.mark.claim("SVC-73")
@virtual
async def test_a_certificate_is_renewed_before_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Later, if the disk is full just then."""
    started = time.time()
    late_by = 0.0

    def full() -> None:
        world.agent.store._file.rollback()
        raise StoreFailedError("the disk is full")

    def now() -> float:
        return started + late_by

    client = SmpOptions(now=now)
    async with agent_world(tmp_path, 3, services=True, client=client) as world:
        agent = world.agent
        await agent.subs.subscribe_all()
        await until_settled(agent, world.server)
        before = agent.presented(world.server)
        await asyncio.sleep(7 * 3600)
        assert agent.presented(world.server) == before
        assert not agent.subs.services.renewal_due(USER, world.server)
        late_by = (VALIDITY - RENEWED_BEFORE / 2).total_seconds()
        assert agent.subs.services.renewal_due(USER, world.server)
        late_by = 0.0
        agent.subs.services.renewal_due = lambda user_id, server: True  # type: ignore[method-assign]
        with monkeypatch.context() as patch:
            patch.setattr(agent.store._file, "commit", full)
            await asyncio.sleep(7 * 3600)
        assert agent.presented(world.server) == before
        assert "a service takes new credentials later: the disk is full" in caplog.text
        await asyncio.sleep(7 * 3600)
        agent.subs.services.renewal_due = lambda user_id, server: False  # type: ignore[method-assign]
        await until_settled(agent, world.server)
        assert agent.presented(world.server) != before
        assert (await agreed(world)).count == 3


@virtual
async def test_a_wrong_count_in_our_own_store_is_found_and_corrected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with service_world(tmp_path) as world:
        async with world.away():
            with world.agent.store.transaction() as db:
                db.sql.execute("UPDATE client_services SET service_queue_count = 7")
        with commands_sent() as calls:
            await back_again(world)
        assert error_of_last_up(world) is Mismatch.COUNT
        assert "counted anew" in caplog.text
        assert not any(isinstance(call.command, SUB) for call in calls)
        assert (await agreed(world)).count == COUNT


@virtual
async def test_a_router_that_never_agrees_costs_one_new_identity_a_day(tmp_path: Path) -> None:
    async with service_world(tmp_path) as world:
        agent, seen = world.agent, set()
        orphans = await make_queues(world.sender, world.server, 3)
        for orphan in orphans:
            async with world.away():
                await associate(world.running, [orphan.rcv_id], world_service(world))
            ups = len(agent.told.of("SERVICE_UP"))
            await agent.told.until(lambda had=ups: len(agent.told.of("SERVICE_UP")) > had)  # type: ignore[misc]
            await until_settled(agent, world.server)
            seen.add(world_service(world))
            if orphan is orphans[1]:
                await asyncio.sleep(86_400)
        assert len(seen) == 2
        await world.send()
        await world.until_received(COUNT)


@virtual
async def test_a_connection_with_a_former_identity_is_dropped_at_once(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3, services=True) as world:
        agent = world.agent
        connecting = asyncio.create_task(agent.sessions.session(agent.key(world.server)))
        await asyncio.sleep(0)
        renewed = agent.subs.services.renew(USER, world.server)
        assert (await connecting).service is not None
        await agent.subs.subscribe_all()
        await until_settled(agent, world.server)
        assert agent.presented(world.server) == renewed
        assert (await agreed(world)).count == 3
