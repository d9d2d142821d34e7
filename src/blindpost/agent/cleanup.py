"""Periodic cleanup: old hashes, sent messages, deletions that could not be finished."""

from __future__ import annotations

import asyncio

from blindpost.agent.queues.deletion import Deletion
from blindpost.agent.store import messages
from blindpost.agent.work.ground import Ground


async def keep_clean(ground: Ground, deletion: Deletion) -> None:
    """Runs as long as the agent does."""
    retention = ground.config.retention
    await asyncio.sleep(retention.cleanup_first_s)
    while True:
        await clean(ground, deletion)
        await asyncio.sleep(retention.cleanup_every_s)


async def clean(ground: Ground, deletion: Deletion) -> None:
    """One pass, bounded in what it deletes at once."""
    retention = ground.config.retention
    with ground.transaction() as tx:
        messages.forget_before(tx, tx.now - retention.remembered_s, retention.cleanup_rows)
    await deletion.resume()
