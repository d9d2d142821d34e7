"""Waiting for something that nobody announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Let everything run until the condition holds; the test's own time limit ends a wait in vain."""
    while not condition():
        await a_moment()


async def a_moment() -> None:
    """Let everything run, and a little time pass."""
    turned = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, turned.set)
    await turned.wait()
