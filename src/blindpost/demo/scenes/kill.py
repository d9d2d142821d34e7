"""A router is killed while letters go through it."""

from __future__ import annotations

import asyncio

from blindpost.demo.figures import Row, Say
from blindpost.demo.people import Person
from blindpost.demo.scenes.letters import exchange
from blindpost.demo.stage import Router

LETTERS = 40


async def play(alice: Person, bob: Person, routers: list[Router], say: Say) -> list[Row]:
    read = len(alice.read) + len(bob.read)
    accepted = len(alice.accepted) + len(bob.accepted)
    writing = asyncio.create_task(exchange(alice, bob, LETTERS, "letter through a crash"))
    await bob.until(lambda one: len(one.read) + len(alice.read) >= read + LETTERS // 2)
    for router in routers:
        await router.kill()
    answered = len(alice.accepted) + len(bob.accepted) - accepted
    say(f"kill -9 for both routers with letters under way: {answered} were accepted, the rest was not sent")
    restarts = [await router.start() for router in routers]
    await writing
    arrived = len(alice.read) + len(bob.read) - read
    say(f"back after {max(restarts):.1f} s; all {arrived} letters arrived")
    good = arrived == 2 * LETTERS and alice.broken == bob.broken == 0
    return [Row("routers killed with kill -9", f"{arrived} of {2 * LETTERS} letters, once each", good)]
