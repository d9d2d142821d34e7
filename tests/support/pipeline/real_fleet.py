"""A fleet of real processes over midnight: what its parties did, told by themselves, and where they wrote it.

Two routers, a canary, a notification router and a delivery service. Their clocks are set by a file: from ten
minutes before midnight to after it, then two hours ahead. The canary is restarted, a router is killed with
messages under way, and the disk under the delivery service's journal is full when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blindpost.canary.settings import CONFIG_NAME, config_text
from blindpost.client.smp import SmpClient
from blindpost.journal.seal import seal_folder
from blindpost.serving.children import COMMAND
from blindpost.serving.control import ask
from blindpost.wire.addresses import RouterAddress, Scheme
from tests.support.pipeline.real_servers import Told, delivered, notified
from tests.support.serving.commands import ENVIRONMENT
from tests.support.serving.processes import RouterInProcess, router_in_process, until

SET_CLOCK = Path(__file__).with_name("set_clock")
ON = ("'blindpost[pipeline]').\nenabled = false", "'blindpost[pipeline]').\nenabled = true")
DAY_S, SINGING = 86_400, b"the canary is measuring"
Counts = dict[str, Any]


class SetClock:
    """The clock of all processes of the fleet."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._real = time.time
        self.midnight_s = int(time.time()) // DAY_S * DAY_S
        self.set_to(self.midnight_s - 600)

    def set_to(self, seconds: float) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(str(int(seconds - self._real())))
        fresh.replace(self.file)

    def now(self) -> float:
        return self._real() + int(self.file.read_text())

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(SET_CLOCK), os.environ.get("PYTHONPATH", ""))))
        return {"PYTHONPATH": path, "BLINDPOST_TEST_CLOCK": str(self.file)}


@dataclass
class Done:
    """What really happened."""

    journals: list[Path]
    canary: list[Counts] = field(default_factory=list)
    """The last status of each of its lives."""
    routers: dict[str, Counts] = field(default_factory=dict)
    told: dict[str, Told] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def singing(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "canary", "start", "-c", str(folder), stderr=asyncio.subprocess.PIPE, env=ENVIRONMENT
    )
    assert process.stderr is not None
    log, line = b"", b""
    async with asyncio.timeout(60):
        while SINGING not in line:
            line = await process.stderr.readline()
            assert line, log.decode()
            log += line
    reading = asyncio.create_task(process.stderr.read())
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await reading


async def _status(folder: Path) -> Counts:
    return await asyncio.to_thread(ask, folder / "control.sock", "status")


async def _reached(folder: Path, name: str, least: int) -> Counts:
    async def enough() -> bool:
        return bool((await _status(folder))[name] >= least)

    await until(enough)
    return await _status(folder)


def _set_up(folder: Path, routers: list[RouterInProcess]) -> Path:
    addresses = {
        router.folder.name: RouterAddress(Scheme.SMP, router.server, None).text for router in routers
    }
    folder.mkdir()
    text = config_text(addresses).replace("interval_s = 10.0", "interval_s = 0.2")
    (folder / CONFIG_NAME).write_text(text)
    return folder


@dataclass(frozen=True)
class Serving:
    """A router as those want it who only send to it."""

    router: RouterInProcess
    status: Counts

    async def connect(self) -> SmpClient:
        return await self.router.connect()


async def live(folder: Path, disk: Path, clock: SetClock) -> Done:
    """Everything that happens; `disk` is where the delivery service's journal is."""
    done = Done([folder / name / "journal" for name in ("one", "two", "canary")])
    names = {name: (ON, ('name = ""', f'name = "{name}"')) for name in ("one", "two")}
    async with (
        router_in_process(folder / "one", *names["one"]) as one,
        router_in_process(folder / "two", *names["two"]) as two,
    ):
        await asyncio.gather(one.start(), two.start())
        place = _set_up(folder / "canary", [one, two])
        async with singing(place):
            await _reached(place, "acked", 6)
            await two.end()
            sent = (await _status(place))["sent"]
            await _reached(place, "sent", sent + 4)
            done.canary.append(await _status(place))
        clock.set_to(clock.midnight_s + 600)
        await two.start()
        async with singing(place):
            await _reached(place, "acked", 12)
            clock.set_to(clock.midnight_s + 3 * 3_600)
            done.canary.append(await _reached(place, "acked", 24))
        clock.set_to(clock.midnight_s - 600)
        serving = Serving(one, await one.ask("status"))
        after = clock.midnight_s + 60
        done.told["ntf"] = await notified(folder / "ntf", serving, lambda: clock.set_to(after))
        clock.set_to(clock.midnight_s + 4 * 3_600)
        for router in (one, two):
            assert await router.end(signal.SIGTERM) == 0
            counters = json.loads((router.folder / "counters.json").read_text())["counts"]
            done.routers[router.folder.name] = counters
    clock.set_to(clock.midnight_s - 600)

    filler = disk / "filler"

    def fill() -> None:
        filler.write_bytes(bytes(shutil.disk_usage(disk).free))

    def make_room() -> None:
        filler.unlink()
        clock.set_to(after)

    done.told["ds"] = await delivered(folder / "ds", fill, make_room, disk / "journal")
    done.journals += [told.journal for told in done.told.values()]
    clock.set_to(clock.midnight_s + 5 * 3_600)
    return done


def sealed(done: Done, target: Path, now_s: float) -> Path:
    """All journals in one folder, as they would be copied together."""
    for journal in done.journals:
        seal_folder(journal, now=now_s)
        for path in journal.glob("[PL]/*/date=*/*.parquet"):
            place = target / path.relative_to(journal)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    return target
