"""A router whose connections are in fronts: each is a process of its own, which dies and stands still."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import ClassVar

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.entropy import Entropy
from blindpost.router.config import RouterRules
from blindpost.router.fronts.fleet import Fronts
from blindpost.router.fronts.front import FrontProcess
from blindpost.router.fronts.fronted import Fronted, FrontedServer
from blindpost.transport.ends import Server
from blindpost.transport.plan import SessionLimits
from blindpost.transport.plans import smp_router_plan
from blindpost.transport.session import Session
from simulation.lines import Carried, MemoryLine
from simulation.network import Ending
from simulation.party import Surroundings
from simulation.processes import Process
from simulation.routers import PORT, CountingRouter, RouterParty

LIMITS = SessionLimits(outbox_high=32 << 10, outbox_low=8 << 10)
"""Two blocks: whoever does not read is noticed in a short run too."""
LOOK_S = 5.0
"""Rarer than a router looks at its fronts, so that a quiet hour costs little."""
STARTS_S = (0.0, 0.05, 0.5)
"""How long a front takes until it hears something."""
TASKS_MAX = 5


class CountingFronted(Fronted, CountingRouter):
    """The same, with its connections in fronts."""

    def block_received(self, session: Session, payload: bytes, keys: Sequence[bytes] = ()) -> None:
        self.counts["block with a verdict of a front"] += any(keys)
        super().block_received(session, payload, keys)


class SimulatedFront:
    """One life of a front; its engine takes it for a process of the system."""

    def __init__(self, party: FrontedParty, number: int, process: Process, line: MemoryLine) -> None:
        self._party = party
        self.pid = number
        self.name = f"front {number} of {party.name}"
        self.process = process
        self.ending = Ending.RESET
        self.room: FrontProcess | None = None
        self.stood_still = False
        self._line = line
        self._chance = random.Random(f"{party.run.seed}/{self.name}/{party.lives}")
        process.at_death.insert(0, self._dead)
        process.spawn(self._live())

    async def _live(self) -> None:
        await asyncio.sleep(self._chance.choice(STARTS_S))
        self.room = FrontProcess(
            self._line, entropy=self._chance.randbytes, now=self._party.now, set_up_logs=lambda *_: None
        )
        await self.room.over
        self.process.die()

    def _dead(self) -> None:
        run = self._party.run
        run.note(f"{self.name} is dead")
        run.network.owner_dies(self.process, self.ending)

    def dies(self, ending: Ending, steps: int) -> None:
        """Now, or when it has taken so many more steps."""
        self.ending = ending
        self.process.on_death = lambda: self._party.front_died(steps)
        if steps:
            self.process.die_after(steps)
        else:
            self.process.die()

    def stands_still(self) -> None:
        self.process.stopped = self.stood_still = True

    def goes_on(self) -> None:
        if self.process.alive and self.process.stopped:
            self.process.go_on()
            outside = self._party.run.loop.outside
            outside.call_soon(self._line.wake)
            for end in self._party.run.network.ends_of(self.process):
                outside.call_soon(end.wake)

    # What the engine calls

    def kill(self) -> None:
        if not self.process.alive:
            return
        if not self.stood_still:
            self._party.run.violated(f"{self._party.name} killed a front that was well")
        self._party.counts["front given up by its engine"] += 1
        self.process.die()

    def poll(self) -> int | None:
        return None if self.process.alive else 0

    def wait(self, timeout: float | None = None) -> int:
        """It has no connection any more: what it would still do has no effect."""
        self.process.die()
        return 0


class FrontedParty(RouterParty):
    """A router with fronts."""

    make_router: ClassVar[type[CountingRouter]] = CountingFronted

    def __init__(
        self, run: Surroundings, name: str, leaves: Sequence[Credentials], rules: RouterRules, count: int
    ) -> None:
        super().__init__(run, name, leaves, rules)
        self._count = count
        self.limits = LIMITS
        self._fleet: Fronts
        self._fronts: list[SimulatedFront] = []
        """All that may be alive, in the order of their start; those of an earlier life are about to end."""
        self._started = 0
        self._looking: asyncio.Task[None]

    async def listen(self, credentials: Credentials, entropy: Entropy) -> Server:
        router, process = self.router, self.process
        assert isinstance(router, CountingFronted)
        assert process is not None
        self._carried = Carried()
        process.at_death.append(self._engine_died)
        self._fleet = router.fronts = Fronts(
            self._count,
            credentials,
            self.limits,
            "plain",
            "info",
            router.peer_lags,
            router.unwritten,
            self.versions,
            self._start_front,
        )
        self._fleet.start()
        plan = smp_router_plan(
            credentials, versions=self.versions, limits=self.limits, now=self.now, entropy=entropy
        )
        server = FrontedServer(plan, router)
        await server.listen(self.name, PORT, self.run.network)
        self._looking = asyncio.create_task(self._look())
        return server

    def _start_front(self) -> tuple[MemoryLine, SimulatedFront]:
        engine = self.process
        assert engine is not None
        self._started += 1
        number, name = self._started, f"{self.run.seed}/{self.name}/{self.lives}/{self._started}"
        process = Process(self.run.loop, self.name)
        ends = [
            MemoryLine(whose, self._carried, random.Random(f"{name}/{way}"), self.counts)
            for way, whose in (("down", engine), ("up", process))
        ]
        ends[0].join(ends[1])
        front = SimulatedFront(self, number, process, ends[1])
        self._fronts = [*self.fronts, front]
        self.run.note(f"{front.name} is started")
        return ends[0], front

    @property
    def fronts(self) -> list[SimulatedFront]:
        return [front for front in self._fronts if front.process.alive]

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._fleet.look()

    async def end(self) -> None:
        self._fleet.stop()
        await super().end()

    async def close(self) -> None:
        self._looking.cancel()
        await self._fleet.close()

    def _engine_died(self) -> None:
        """Its fronts find out, unless the whole machine is gone."""
        for front in self.fronts:
            front.ending = self._ending
            if self._ending is Ending.SILENCE:
                front.process.die()

    # What is done to fronts

    def front_dies(self, place: int, ending: Ending, steps: int) -> None:
        fronts = self.fronts
        if fronts:
            fronts[place % len(fronts)].dies(ending, steps)

    def front_died(self, steps: int) -> None:
        self.counts[f"front dies {'after some more steps' if steps else 'between two steps'}"] += 1

    def front_stalls(self, place: int, lasts_s: float) -> None:
        fronts = self.fronts
        if fronts:
            front = fronts[place % len(fronts)]
            self.run.note(f"{front.name} stands still")
            front.stands_still()
            outside = self.run.loop.outside
            outside.call_at(self.run.loop.time() + lasts_s, front.goes_on)

    def spare(self) -> None:
        super().spare()
        for front in self.fronts:
            front.process.spare()
            front.goes_on()

    # What it looks like from outside

    def unsettled(self) -> str | None:
        """Why engine and fronts do not agree about who is connected."""
        if not self.alive:
            return "it is not alive"
        known = {front.pid: front for front in self.fronts}
        if len(self._fleet.fronts) != self._count or len(known) != self._count:
            return f"it has {len(known)} fronts"
        established = set(self.router.by_session)
        for front in self._fleet.fronts:
            process = known[front.pid]
            room = process.room
            if room is None or room._sessions.keys() != front.sessions.keys():
                return f"{process.name} has other connections than its engine knows"
            if front.channel.lags or front.channel.backlog:
                return f"{process.name} is behind"
            if len(process.process.tasks) > TASKS_MAX:
                return f"{process.name} has {len(process.process.tasks)} tasks"
            established -= set(front.sessions.values())
        if established:
            return f"it keeps {len(established)} connections of fronts that are gone"
        return super().unsettled()
