"""What an operator does to a running router."""

from __future__ import annotations

import asyncio

from blindpost.router.operator import Action, OperatorCommand
from blindpost.wire.smp.errors import BLOCKED
from tests.support.router.routers import RunningRouter


async def operate(
    running: RunningRouter, action: Action, entity_id: bytes, blocked: BLOCKED | None = None
) -> str:
    """The outcome of one command of the operator."""
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running.router.engine.put_own(OperatorCommand(action, entity_id, outcome.set_result, blocked))
    return await outcome


async def block(running: RunningRouter, entity_id: bytes, blocked: BLOCKED) -> str:
    return await operate(running, Action.BLOCK, entity_id, blocked)
