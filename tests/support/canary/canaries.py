"""Canaries in the process of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from blindpost.canary.book import Became
from blindpost.canary.process import CanaryService, Microseconds, clock_us
from blindpost.canary.settings import CONFIG_NAME, CanaryPlace, config_text
from blindpost.serving.process import Process
from blindpost.wire.addresses import RouterAddress, Scheme
from tests.support.serving.processes import RouterInProcess, until


def set_up(folder: Path, *routers: RouterInProcess, lost_after_s: float = 600.0) -> Path:
    addresses = {
        router.folder.name: RouterAddress(Scheme.SMP, router.server, None).text for router in routers
    }
    folder.mkdir()
    text = config_text(addresses).replace("interval_s = 10.0", "interval_s = 0.05")
    text = text.replace("lost_after_s = 600.0", f"lost_after_s = {lost_after_s}")
    (folder / CONFIG_NAME).write_text(text)
    return folder


@contextlib.asynccontextmanager
async def singing(folder: Path, now_us: Microseconds = clock_us) -> AsyncIterator[CanaryService]:
    """A canary all of whose pairs are connected."""

    class Clocked(CanaryService):
        def __init__(self, place: CanaryPlace) -> None:
            super().__init__(place, now_us)

    process = await Process.open(Clocked, CanaryPlace.read(folder))
    running = asyncio.create_task(process.run(lambda: None))
    try:
        waiting = asyncio.create_task(process.service.fleet.wait_ready())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        yield process.service
    finally:
        process.stop()
        await running


async def reached(canary: CanaryService, became: Became, count: int) -> None:
    async def enough() -> bool:
        return canary.book.counts[became] >= count

    await until(enough)
