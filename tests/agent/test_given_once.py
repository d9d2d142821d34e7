"""A message that its router delivers again before the program has come to it is given to the program once."""

from __future__ import annotations

import asyncio

from blindpost.agent import Received
from blindpost.testing import World, virtual


@virtual
async def test_copies_that_wait_go_with_the_acknowledgement(world: World) -> None:
    alice, bob = await world.pair()
    for body in (b"first", b"second"):
        await alice.conn.send(body)
    await asyncio.sleep(1)
    for _ in range(3):  # the program is busy; each time the router delivers the first one again
        async with world.router.down():
            await asyncio.sleep(1)
        await asyncio.sleep(60)
    given: list[bytes] = []
    while len(given) < 2:
        received = await bob.expect(Received)
        given.append(received.msg.body)
        await received.msg.ack()
    await asyncio.sleep(60)
    assert given == [b"first", b"second"]
    await alice.conn.send(b"third")
    assert (await bob.expect(Received)).msg.body == b"third"
