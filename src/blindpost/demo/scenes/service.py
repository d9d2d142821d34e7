"""A program with ten thousand queues reconnects by one command, and repairs what drifted apart."""

from __future__ import annotations

import time
from pathlib import Path

from blindpost.agent import Agent, AgentConfig, QueueStatus, ServiceUp, SubscriptionsFailed, Up
from blindpost.agent.agent import DEFAULT_USER
from blindpost.agent.model import ConnMode, RcvQueue
from blindpost.agent.store import connections, queues
from blindpost.agent.store.database import AgentStore
from blindpost.client.calls import Call
from blindpost.client.smp import SmpClient
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.demo.figures import Row, Say
from blindpost.demo.stage import Router
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import DEL, NEW
from blindpost.wire.smp.responses import IDS
from blindpost.wire.smp.values import QueueMode, QueueRequest, SubMode

BATCH = 1_000
FORGOTTEN = 7
"""Queues that the router loses behind the service's back."""


async def play(router: Router, store: Path, count: int, say: Say) -> list[Row]:
    address = RouterAddress.from_text(router.address)
    async with await SmpClient.connect(address.server) as client:
        batches = range(0, count, BATCH)
        made = [q for start in batches for q in await _make(client, address, min(BATCH, count - start))]
        _keep(store, made)
        say(f"a service has {count:,} queues on one router")
        async with _service(store, router) as agent:
            await _up(agent)
            await _told(agent, Up, count)
        say("it has told the router once that they belong together; now it reconnects")
        started = time.monotonic()
        async with _service(store, router) as agent:
            found = await _up(agent)
            reconnect_s = time.monotonic() - started
        say(f"one command brought {found.service.queues.count:,} queues back in {reconnect_s:.2f} s")
        lost = made[:FORGOTTEN]
        await client.send_many([Call(DEL(), queue.rcv_id, queue.key) for queue in lost])
    async with _service(store, router) as agent:
        drifted = await _up(agent)
        await _told(agent, SubscriptionsFailed, FORGOTTEN)
    async with _service(store, router) as agent:
        again = await _up(agent)
    say(f"{FORGOTTEN} queues vanished from the router: the drift was seen, and repaired while it ran")
    whole = found.error is None and found.service.queues.count == count
    repaired = (
        drifted.error is not None and again.error is None and again.service.queues.count == count - FORGOTTEN
    )
    return [
        Row(f"service with {count:,} queues reconnects", f"one SUBS, {reconnect_s:.2f} s", whole),
        Row("drift injected and repaired", f"{FORGOTTEN} queues", repaired),
    ]


def _service(store: Path, router: Router) -> Agent:
    return Agent.open(store, [router.address], config=AgentConfig(service=True, key_pairs=1))


async def _up(agent: Agent) -> ServiceUp:
    async for event in agent.events():
        if isinstance(event, ServiceUp):
            return event
    raise AssertionError("the agent was closed")


async def _told(agent: Agent, kind: type[Up | SubscriptionsFailed], count: int) -> None:
    """Wait until this many queues were subscribed one by one, and so joined the service, or were refused."""
    async for event in agent.events():
        match event:
            case Up(_, named) | SubscriptionsFailed(named) if isinstance(event, kind):
                count -= len(named)
        if count <= 0:
            return


async def _make(client: SmpClient, address: RouterAddress, count: int) -> list[RcvQueue]:
    """Queues as an application would have collected them over the years."""
    keys = [
        (
            PrivateKey.generate(Algorithm.ED25519, system_entropy),
            PrivateKey.generate(Algorithm.X25519, system_entropy),
        )
        for _ in range(count)
    ]
    request = QueueRequest(QueueMode.MESSAGING)
    answers = await client.send_many(
        Call(NEW(key.public, dh.public, address.password, SubMode.ONLY_CREATE, request), b"", key)
        for key, dh in keys
    )
    made = []
    for (key, dh), answer in zip(keys, answers, strict=True):
        assert isinstance(answer, IDS), answer
        made.append(
            RcvQueue(
                conn_id=answer.recipient_id.hex(),
                user_id=DEFAULT_USER,
                number=1,
                server=address.server,
                rcv_id=answer.recipient_id,
                snd_id=answer.sender_id,
                mode=QueueMode.MESSAGING,
                key=key,
                dh_secret=dh.agree(answer.dh_key),
                e2e_key=dh,
                e2e_secret=None,
                client_version=4,
                status=QueueStatus.ACTIVE,
            )
        )
    return made


def _keep(path: Path, made: list[RcvQueue]) -> None:
    store = AgentStore.open(path, None)
    with store.transaction() as db:
        for queue in made:
            connections.insert(
                db, queue.conn_id, DEFAULT_USER, ConnMode.INVITATION, agent_version=7, pq_support=False
            )
            queues.insert_rcv(db, queue)
    store.close()
