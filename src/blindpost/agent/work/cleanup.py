"""What is old goes, now and then: hashes, sent messages, deletions that could not be finished."""

from __future__ import annotations

import asyncio

from blindpost.agent.store import messages
from blindpost.agent.work.runtime import Runtime


async def keep_clean(rt: Runtime) -> None:
    """Runs as long as the agent does."""
    retention = rt.config.retention
    await asyncio.sleep(retention.cleanup_first_s)
    while True:
        await clean(rt)
        await asyncio.sleep(retention.cleanup_every_s)


async def clean(rt: Runtime) -> None:
    """One pass, bounded in what it deletes at once."""
    retention = rt.config.retention
    with rt.transaction() as tx:
        messages.forget_before(tx, tx.now - retention.remembered_s, retention.cleanup_rows)
    await rt.deletion.resume()
