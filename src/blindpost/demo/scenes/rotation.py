"""Alice moves what she receives to another router while letters go both ways."""

from __future__ import annotations

import asyncio

from blindpost.agent import Direction, Switched, SwitchPhase
from blindpost.demo.figures import Row, Say
from blindpost.demo.people import Person
from blindpost.demo.scenes.letters import exchange
from blindpost.wire.addresses import Server

LETTERS = 30


def moved(somebody: Person) -> bool:
    return any(
        isinstance(event, Switched)
        and event.direction is Direction.RCV
        and event.phase is SwitchPhase.COMPLETED
        for event in somebody.events
    )


async def play(alice: Person, bob: Person, say: Say) -> list[Row]:
    assert alice.peer is not None
    before, read = _routers(alice), len(alice.read) + len(bob.read)
    writing = asyncio.create_task(exchange(alice, bob, LETTERS, "letter on the move"))
    await alice.peer.switch()
    await writing
    await alice.until(moved)
    after = _routers(alice)
    arrived = len(alice.read) + len(bob.read) - read
    say("Alice's queue has moved to the other router; Bob noticed nothing but a new address")
    good = alice.broken == bob.broken == 0 and arrived == 2 * LETTERS
    return [
        Row("queue rotated under traffic", "to another router" if before != after else "no", before != after),
        Row("letters during the rotation, none lost or twice", f"{arrived}", good),
    ]


def _routers(somebody: Person) -> set[Server]:
    """Where somebody's queues are."""
    assert somebody.peer is not None
    return {queue.server for queue in somebody.peer.stats.rcv}
