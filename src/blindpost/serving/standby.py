"""A server that waits for its database: it says so to operators, and nobody can connect to it.

It opens none of the server's ports, so that whatever chooses between two machines by connecting finds the
one that serves; `/health` says 503.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

import blindpost
from blindpost.serving import upgrading
from blindpost.serving.control import ControlSocket
from blindpost.serving.failures import OperatorError
from blindpost.serving.health import LOOK_S, Health
from blindpost.serving.http import MetricsListener
from blindpost.serving.logs import log
from blindpost.serving.place import WAITING, WAITING_HELP, Place
from blindpost.serving.prometheus import Text
from blindpost.serving.supervisor import Supervisor
from blindpost.serving.tasks import Tasks
from blindpost.store.ownership import Candidate, Shared
from blindpost.transport import listening

UNSAID_S = 1.0
"""A database that nobody owns is no reason to call oneself a standby."""
NOT_UPGRADED = "a standby is not upgraded while it waits: restart it"


class Standby:
    """One wait, from the start or from a hand-over until the database is free."""

    def __init__(
        self, place: Place[Any], shared: Shared, stop: asyncio.Event, *, yields_s: float, failure: str
    ) -> None:
        self._place = place
        self._stop = stop
        self._started = time.monotonic()
        self._unsaid_s = 0.0 if failure else UNSAID_S
        self._candidate = Candidate(shared, yields_s=yields_s, failure=failure)
        self._tasks = Tasks()
        self._supervisor = Supervisor()
        self._metrics = MetricsListener(self._render, lambda: Health(False, self._candidate.sentence))
        self._metrics_port: int | None = None
        self._told = False
        self._control = ControlSocket(
            place.control,
            {"status": self._status, "reload": self._reload, "upgrade": self._upgrade},
            f"this {place.title} is a standby: ask the one that serves.",
        )

    async def wait(self) -> bool:
        """Whether the database is free now; False if the server was told to stop."""
        turn = asyncio.create_task(self._candidate.wait(), name="the turn")
        waits = [turn, asyncio.create_task(self._stop.wait(), name="the stop")]
        try:
            await asyncio.wait(waits, timeout=self._unsaid_s, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.done() for task in waits):
                await self._tell()
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if turn.done():
                turn.result()
        finally:
            await self._end(waits)
        return not self._stop.is_set()

    async def _tell(self) -> None:
        listening.refuse()  # who connects must find the one that serves
        log.info("the %s waits: %s", self._place.title, self._candidate.sentence)
        self._metrics_port = await self._metrics.move(self._place.settings.metrics)
        await self._control.listen()
        self._tasks.repeat("the control socket", LOOK_S, self._control.keep)
        self._supervisor.ready(self._candidate.sentence)
        self._told = True
        if (every_s := self._supervisor.watchdog_s) is not None:
            self._tasks.repeat("the watchdog", every_s / 3, self._feed, at_start=True)

    async def _feed(self) -> None:
        self._supervisor.alive(self._candidate.sentence)

    async def _end(self, waits: list[asyncio.Task[Any]]) -> None:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await self._tasks.cancel(keep="")
        await self._metrics.close()
        await self._control.close()
        if self._told and not self._stop.is_set():
            self._supervisor.busy("taking the database over")

    async def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "version": blindpost.__version__,
            "pid": os.getpid(),
            "state": WAITING,
            "ready": False,
            "follows": self._candidate.follows,
            "health": self._candidate.sentence,
            "uptime_s": int(time.monotonic() - self._started),
            "upgrades": upgrading.count(),
            "ports": [],
            "metrics_port": self._metrics_port,
            "passed": listening.passed_at(),
            "schema": self._place.schema,
        }

    def hung_up(self) -> None:
        """SIGHUP."""
        try:
            self._read_again()
        except OperatorError as error:
            log.error("nothing was changed: %s", error)
        else:
            log.info("a standby takes its database from its settings now, and the rest when it takes over")

    def _read_again(self) -> None:
        """What it waits for may have changed, such as a password; whether it can take over is told now."""
        fresh: Shared | None = type(self._place).read(self._place.file).shared
        if fresh is not None:
            self._candidate.shared = fresh

    async def _reload(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        self._read_again()
        return {"taken": [], "after_a_restart": []}

    async def _upgrade(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        raise OperatorError(f"{NOT_UPGRADED}.")

    async def _render(self) -> str:
        text, own = Text(), f"blindpost_{self._place.word}_"
        text.gauge(own + "live", "The event loop turns", 1)
        sentence = (("reason", self._candidate.sentence),)
        text.metric(own + "ready", "gauge", "It can do its work", [("", sentence, 0)])
        text.gauge(own + WAITING, WAITING_HELP, int(self._candidate.follows))
        text.gauge(own + "uptime_seconds", "Since its start", time.monotonic() - self._started)
        return text.done()
