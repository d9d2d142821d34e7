"""Many queues on one router, over real TLS: how many commands, how much memory, and that all resume."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import SubscriptionOptions
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.store.database import AgentStore
from blindpost.client.calls import Call
from blindpost.store.contract import Durability
from blindpost.wire.smp.commands import SUB, SUBS
from tests.support.agent.network import AgentNetwork, agent_world, commands_sent, make_queues, send_to
from tests.support.client.scripted_router import server_at, virtual
from tests.support.router.routers import running_router
from tests.support.serving.waiting import until

QUEUES = int(os.environ.get("BLINDPOST_AGENT_QUEUES", "3000"))
WITH_MESSAGES = min(QUEUES, 300)
PATIENCE_S = 300 + QUEUES / 50


def asked(calls: list[Call[Any]]) -> tuple[int, int]:
    """The numbers of SUB and of SUBS."""
    kinds = [type(call.command) for call in calls]
    return kinds.count(SUB), kinds.count(SUBS)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.claim("SVC-56")
async def test_one_command_per_queue_and_after_a_cut_one_for_all(tmp_path: Path) -> None:
    async with running_router(tmp_path / "router") as running:
        sender = await running.connect()
        made = [
            queue for _ in range(0, QUEUES, 1000) for queue in await make_queues(sender, running.server, 1000)
        ]
        agent = AgentNetwork(tmp_path / "agent.db", services=True, options=SubscriptionOptions(gentle_s=0))
        agent.insert(made)
        with commands_sent() as calls:
            await agent.subs.subscribe_all()
            assert asked(calls) == (len(made), 1)
        assert agent.stored_set(running.server).count == len(made)
        assert len(agent.told.conns("UP")) == len(made)
        agent.session(running.server).client._session.abort()
        await agent.told.until(lambda: bool(agent.told.of("SERVICE_DOWN")))
        with commands_sent() as calls:
            meanwhile = made[:: len(made) // WITH_MESSAGES][:WITH_MESSAGES]
            await send_to(sender, meanwhile, b"meanwhile")
            await agent.told.until(lambda: len(agent.messages) >= WITH_MESSAGES)
            await agent.told.until(lambda: len(agent.told.of("SERVICE_ALL")) == 2)
            assert asked(calls) == (0, 1)
        await until(lambda: not agent._acks)
        assert sorted(agent.messages) == sorted((queue.rcv_id, b"meanwhile") for queue in meanwhile)
        assert agent.repeated == 0
        assert agent.work(running.server).table.active_count == 0
        await agent.close()
        await sender.close()


def test_memory_while_paging_depends_on_page_size_not_queue_count(tmp_path: Path) -> None:
    """Peak memory beyond what stays is that of the pages under way, whatever the number of queues."""

    def most(count: int) -> int:
        peak = 0

        @virtual
        async def run() -> None:
            nonlocal peak
            options = SubscriptionOptions(page=100)
            async with agent_world(tmp_path / str(count), count, options=options) as world:
                await world.agent.sessions.session(world.agent.key(world.server))
                await asyncio.sleep(1)
                tracemalloc.start()
                await world.agent.subs.subscribe_all()
                stays, at_most = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                peak = at_most - stays

        run()
        return peak

    few, many = most(300), most(900)
    assert many < few * 1.5 + 200_000


def test_pages_are_found_by_an_index_however_many_queues_there_are(tmp_path: Path) -> None:
    """Neither paging nor resuming may scan queues that it does not need."""
    store = AgentStore.open(tmp_path / "agent.db", durability=Durability.OS)
    statements: list[str] = []
    store.reading.sql.set_trace_callback(statements.append)
    for associated in (False, True):
        rows.page(store.reading, 1, server_at(1), b"", 10, associated=associated)
    store.reading.sql.set_trace_callback(None)
    for statement in statements:
        plan = store.reading.sql.execute("EXPLAIN QUERY PLAN " + statement).fetchall()
        walked = "(user_id=? AND host=? AND port=? AND rcv_service_assoc=? AND rcv_id>?)"
        assert any(walked in step[3] for step in plan), plan
    assert len(statements) == 2
    store.close()
