"""Events of a service: none about a router where it only sends, and one at the end of a renewal."""

from __future__ import annotations

import asyncio

from blindpost.agent import AgentConfig, Connected, Received, ServiceRenewed, ServiceUp
from blindpost.testing import Peer, World, virtual


async def service(world: World) -> Peer:
    return await world.agent("service", AgentConfig(service=True))


@virtual
async def test_no_service_up_for_a_router_where_nothing_is_received(world: World) -> None:
    """The peer's queue is on another router, where the service has none."""
    elsewhere = await world.add_router()
    ours = await service(world)
    theirs = await world.agent("peer", servers=[elsewhere.address])
    await ours.agent.join(str(await theirs.agent.invite()))
    conn = (await ours.expect(Connected)).conn
    await theirs.expect(Connected)
    await conn.send(b"hello")
    assert (await theirs.expect(Received)).msg.body == b"hello"
    await asyncio.sleep(60)
    world.cut()
    await ours.expect(ServiceUp, lambda event: event.service.queues.count == 1)
    await asyncio.sleep(600)
    await ours.agent.suspend()
    told = [event for event in ours.seen if isinstance(event, ServiceUp)]
    assert {event.server.hosts[0].text for event in told} == {"router1"}


@virtual
async def test_renewing_ends_with_an_event(world: World) -> None:
    ours, theirs = await service(world), await world.agent("peer")
    await theirs.agent.join(str(await ours.agent.invite()))
    await ours.expect(Connected)
    conn = (await theirs.expect(Connected)).conn
    ours.agent.renew_service()
    renewed = await ours.expect(ServiceRenewed)
    assert renewed.server.hosts[0].text == "router1"
    await conn.send(b"to the renewed one")
    assert (await ours.expect(Received)).msg.body == b"to the renewed one"
