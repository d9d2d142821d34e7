"""Joins that fail: reported with the reason, retried only where that can help, and gone afterwards."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.agent import Agent, Connected, Failed, JoinDelayed, Joined, NetworkError
from blindpost.agent.store import connections
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Server
from blindpost.wire.links.full import InvitationLink
from blindpost.wire.queue_addresses import QueueUri
from tests.support.agent.agents import Party, on_network, party, quick_config, two_parties
from tests.support.client.scripted_router import virtual
from tests.support.router.routers import new_credentials, running_router


def elsewhere(link: object, server: Server) -> str:
    """The same link, to another router."""
    assert isinstance(link, InvitationLink)
    (queue,) = link.queues
    moved = QueueUri(queue.versions, replace(queue.address, server=server))
    return replace(link, queues=(moved,)).text


def rows(who: Party) -> int:
    count = "SELECT count(*) FROM connections"
    found: tuple[int] = who.rt.ground.store.reading.sql.execute(count).fetchone()
    return found[0]


@virtual
async def test_a_wrong_fingerprint_fails_at_once(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.invite()
        (right,) = alice.rt.ground.servers
        wrong = replace(right.server, key_hash=b"x" * 32)
        conn = await bob.agent.join(elsewhere(link.full, wrong))
        failed = await bob.next_of(Failed)
        assert failed.conn == conn
        assert isinstance(failed.error, NetworkError)
        assert failed.error.is_impostor
        assert conn not in bob.agent.connections()
        await asyncio.sleep(10)
        assert rows(bob) == 0
        assert not any(isinstance(event, JoinDelayed) for event in bob.seen)


@virtual
async def test_a_dead_router_is_reported_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, credentials = MemoryNetwork(), new_credentials()
    async with running_router(tmp_path / "bobs", network=network, port=7000) as own:
        config = on_network(network, quick_config())
        async with party(tmp_path / "b.db", own.server, config=config) as bob:
            theirs = running_router(tmp_path / "alices", network=network, port=7001, credentials=credentials)
            async with theirs as router:
                config = on_network(network, quick_config())
                async with party(tmp_path / "a.db", router.server, config=config) as alice:
                    link = await alice.agent.invite()
            with caplog.at_level(logging.WARNING, "blindpost.agent"):
                conn = await bob.agent.join(str(link))
                delayed = await bob.expect(JoinDelayed)
                await asyncio.sleep(300)
            assert delayed.conn == conn
            assert delayed.error.retried
            assert delayed.error.word == "BROKER NETWORK"
            assert [record.getMessage()[:4] for record in caplog.records] == ["JOIN"], "told once"
            theirs = running_router(tmp_path / "alices", network=network, port=7001, credentials=credentials)
            async with theirs as router:
                config = on_network(network, quick_config())
                async with party(tmp_path / "a.db", router.server, config=config) as alice:
                    await bob.expect(Joined)
                    await bob.expect(Connected)
                    await alice.expect(Connected)


async def test_a_host_name_that_cannot_exist(tmp_path: Path) -> None:
    """A 70-character label cannot resolve: the agent reports it, closes, and releases its store."""
    async with (
        running_router(tmp_path / "router") as router,
        party(tmp_path / "a.db", router.server) as alice,
    ):
        link = await alice.agent.invite()
        text = str(link).replace(router.server.hosts[0].text, "x" * 70 + ".example")
        for _ in range(2):
            async with party(tmp_path / "b.db", router.server) as bob:
                if not bob.agent.connections():
                    await bob.agent.join(text)
                event = await bob.next()
                while not isinstance(event, JoinDelayed | Failed):
                    event = await bob.next()
                await asyncio.sleep(0.1)
        async with Agent.open(tmp_path / "b.db") as agent:
            assert list(connections.conn_ids(agent._core.ground.store.reading)) is not None
