"""Waiting for something that nobody announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Let everything run until the condition holds; the test's own time limit ends a wait in vain."""
    loop = asyncio.get_running_loop()
    while not condition():
        turned = asyncio.Event()
        loop.call_later(0.001, turned.set)
        await turned.wait()
