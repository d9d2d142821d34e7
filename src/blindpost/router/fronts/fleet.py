"""The fronts of one router: started, watched, given connections, replaced when they end.

A front that ends takes its connections with it, and nothing else. One that does not answer is killed: its
clients reconnect to another.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, Protocol

from blindpost.crypto.credentials import Credentials
from blindpost.engine.containment import contained
from blindpost.router.fronts import frames
from blindpost.router.fronts.channel import Channel, GarbageError
from blindpost.router.fronts.far import FarSession
from blindpost.router.fronts.frames import Setup
from blindpost.router.fronts.line import FOR_THE_ENGINE, Line, SocketLine
from blindpost.serving.children import PYTHON
from blindpost.serving.failures import OperatorError
from blindpost.serving.logs import log
from blindpost.serving.memory import anonymous_bytes
from blindpost.serving.processes import processor_s
from blindpost.serving.prometheus import Text
from blindpost.serving.supervisor import unsupervised
from blindpost.transport.plan import SessionLimits
from blindpost.wire.errors import WireError
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.versions import VersionRange

COMMAND = (*PYTHON, "blindpost.router.fronts.front")
LOOK_S = 2.0
MISSED_MAX = 10
"""A front that left so many looks in a row unanswered is killed. Time would pass while we stood still."""
STARTING_MAX = 60
"""The same for one that has never answered: a machine that is slow or busy takes its time to start it."""
COMING_S = 5.0
"""How long after its start a front gets connections although it has never answered."""
HEARD_TIMES = 16
"""How often in a row as much is heard of a front as there is room for. It is much: whose turn it is can
only be seen here, and what one address asks must not keep outside what others ask.
"""
STEADY_S = 5.0
"""A front that ended sooner after its start is replaced only after a pause."""
PAUSE_S = 1.0
END_S = 5.0
"""How long fronts may take to end with their router."""


class Child(Protocol):
    """A front's process, as far as its engine deals with it."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def start_process() -> tuple[Line, Child]:
    """A front, and our end of what joins us."""
    own, other = socket.socketpair()
    # It inherits what is blocked: until it ignores these signals they must not end it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_ENGINE)
    try:
        with other:
            process = subprocess.Popen(  # noqa: S603 - our own command
                (*COMMAND, str(other.fileno()), str(frames.VERSION)),
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                env=unsupervised(),
                start_new_session=True,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return SocketLine(own), process


class Front:
    """One front process, as the engine knows it."""

    def __init__(self, fleet: Fronts) -> None:
        self._fleet = fleet
        self.sessions: dict[int, FarSession] = {}
        self.started = asyncio.get_running_loop().time()
        self.missed = 0
        """How many looks in a row found that it had said nothing."""
        self.is_up = False
        """Whether it has ever answered."""
        line, self.process = fleet.start_front()
        self.channel = Channel(line, self._hear, self._lost, HEARD_TIMES)
        self.channel.on_room = fleet.take_waiting
        self.channel.tell(frames.SETUP, 0, fleet.setup.written())
        self.channel.tell(frames.PING, 0)

    @property
    def pid(self) -> int:
        return self.process.pid

    def accept(self, session: FarSession, descriptor: int, held: bytes) -> None:
        self.sessions[session.number] = session
        self.channel.put(frames.ACCEPT, session.number, [held], len(held), descriptor=descriptor)

    def forget(self, session: FarSession) -> None:
        self.sessions.pop(session.number, None)
        self.channel.drop(session.lane, session.number)

    def _hear(self, kind: int, number: int, view: memoryview) -> None:
        # Whatever it says: a front that is busy may come late to the question.
        self.missed = 0
        if kind == frames.PONG:
            if not self.is_up:
                self.is_up = True
                self._fleet.came_up()
            return
        session = self.sessions.get(number)
        if session is None:
            return  # it was ended here while this was on its way
        try:
            if kind == frames.BLOCK:
                session.block(*frames.read_block(view))
            else:
                session.heard(kind, view)
        except (WireError, ValueError, IndexError) as error:
            log.error("a front said something that cannot be read: %s", type(error).__name__)
            raise GarbageError from error

    def _lost(self) -> None:
        self.process.kill()
        self._fleet.ended(self)
        for session in tuple(self.sessions.values()):
            session.connection_lost(None)

    def kill(self) -> None:
        self.channel.close()
        self._lost()


class Fronts:
    """All of them."""

    def __init__(
        self,
        count: int,
        credentials: Credentials,
        limits: SessionLimits,
        log_format: str,
        log_level: str,
        lags: Callable[[FarSession], None],
        unwritten: Callable[[], None],
        versions: VersionRange = SMP_VERSIONS,
        start_front: Callable[[], tuple[Line, Child]] = start_process,
    ) -> None:
        self.count = count
        self.start_front = start_front
        self.setup = Setup(credentials, limits, log_format, log_level, versions)
        self.lags = lags
        """Called when the peer of a session does not read."""
        self.unwritten = unwritten
        """Called when an answer could not be written."""
        self.numbers = itertools.count(1)
        self.fronts: list[Front] = []
        self.restarted = 0
        self.waiting: dict[FarSession, bytes] = {}
        """Connections that no front takes now, with what came on them."""
        self._come_up = True
        """Whether the last front that answered, or ended before it did, answered."""
        self._ending = False
        self._ended: list[Child] = []
        self._timers: set[asyncio.TimerHandle] = set()

    def start(self) -> None:
        """`OperatorError` if the system does not let us."""
        try:
            for _ in range(self.count):
                self._add()
        except OSError as error:
            raise OperatorError(
                f"a front process cannot be started: {error.strerror}. Allow more processes (TasksMax, "
                "`ulimit -u`), or set fewer router.fronts."
            ) from error

    def _add(self) -> None:
        self.fronts.append(Front(self))
        self.take_waiting()

    def take_waiting(self) -> None:
        """Give those who wait to fronts that take them; fronts that are full call again."""
        for session, held in tuple(self.waiting.items()):
            if self.least() is None:
                return
            session.hand_over(held)

    def renew(self, credentials: Credentials, limits: SessionLimits, log_format: str, log_level: str) -> None:
        """New connections see these certificates; what is logged from now on follows these settings."""
        self.setup = Setup(credentials, limits, log_format, log_level, self.setup.versions)
        for front in self.fronts:
            front.channel.tell(frames.SETUP, 0, self.setup.written())

    def least(self) -> Front | None:
        """The front with the fewest connections that takes one more; one that does not answer comes last."""
        able = [front for front in self.fronts if front.channel.takes_descriptors and self._serves(front)]
        return min(able, key=lambda front: (front.missed > 1, len(front.sessions)), default=None)

    def _serves(self, front: Front) -> bool:
        """One that starts serves in a moment, unless the last one did not come up: it would lose them all."""
        if front.is_up:
            return True
        age = asyncio.get_running_loop().time() - front.started
        return self._come_up and age < COMING_S

    def came_up(self) -> None:
        """A front has answered for the first time."""
        self._come_up = True
        self.take_waiting()

    def hold(self) -> None:
        """Until `flush` no front is sent anything."""
        for front in self.fronts:
            front.channel.hold()

    def flush(self) -> None:
        # A front that is gone is taken off the list meanwhile; the others must not wait because of it.
        for front in tuple(self.fronts):
            contained("writing to a front", front.channel.flush)

    async def look(self) -> None:
        """Ask every front whether it is there; those that ended are let go of."""
        for front in tuple(self.fronts):
            if front.missed >= (MISSED_MAX if front.is_up else STARTING_MAX):
                log.error("a front does not answer: it is replaced, and its clients reconnect")
                front.kill()
            else:
                front.missed += 1
                front.channel.tell(frames.PING, 0)
        self._ended = [process for process in self._ended if not _is_over(process)]

    async def look_on(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    def ended(self, front: Front) -> None:
        self.fronts.remove(front)
        self._ended.append(front.process)
        self._come_up = self._come_up and front.is_up
        if self._ending:
            return
        self.restarted += 1
        log.error("a front ended: %d connections with it; another one is started", len(front.sessions))
        if asyncio.get_running_loop().time() - front.started > STEADY_S:
            self._replace()
        else:
            self._replace_later()

    def _replace_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timers = {handle for handle in self._timers if handle.when() > loop.time()}
        self._timers.add(loop.call_later(PAUSE_S, self._replace))

    def _replace(self) -> None:
        if self._ending:
            return
        try:
            self._add()
        except OSError as error:
            log.error("a front could not be started: %s", error.strerror)
            self._replace_later()

    def stop(self) -> None:
        """Replace none of them any more."""
        self._ending = True
        for handle in self._timers:
            handle.cancel()

    async def close(self) -> None:
        """End all of them; their connections should be closed by now."""
        self.stop()
        for front in tuple(self.fronts):
            front.channel.flush()
            front.channel.close()
            for session in tuple(front.sessions.values()):
                session.connection_lost(None)
            self._ended.append(front.process)
        self.fronts.clear()
        await asyncio.to_thread(self._reap)

    def _reap(self) -> None:
        deadline = time.monotonic() + END_S
        for process in self._ended:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ended.clear()

    # --- for status and metrics

    def trouble(self) -> str | None:
        """At the start connections wait for the first front. Later nobody may have come up for those lost."""
        if not self.restarted or any(front.is_up for front in self.fronts):
            return None
        return "no front runs, and connections wait for one: the log says why"

    def status(self) -> dict[str, Any]:
        pids = [front.pid for front in self.fronts]
        connections = [len(front.sessions) for front in self.fronts]
        return {"pids": pids, "connections": connections, "restarted": self.restarted}

    def measure(self, text: Text) -> None:
        text.gauge("blindpost_router_fronts", "Front processes that run", len(self.fronts))
        text.counter("blindpost_router_fronts_restarted_total", "Front processes replaced", self.restarted)
        name, help_text = "blindpost_router_fronts_cpu_seconds_total", "Processor time of all of them so far"
        text.counter(name, help_text, self._processor_s())
        for place, front in enumerate(self.fronts):
            which = (("front", str(place)),)
            connections = [("", which, len(front.sessions))]
            text.metric("blindpost_router_front_connections", "gauge", "Connections of a front", connections)

    def _processor_s(self) -> float:
        """Of those that were waited for too, as of every command that was run, such as one that upgrades."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        left = (*(front.process for front in self.fronts), *self._ended)
        return ended.ru_utime + ended.ru_stime + sum(processor_s(process.pid) for process in left)

    def memory(self) -> int:
        """What all of them use."""
        return sum(anonymous_bytes(front.pid) for front in self.fronts)


def _is_over(process: Child) -> bool:
    """Whether a front that was lost has ended; the log says how."""
    code = process.poll()
    if code is None:
        return False
    how = f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"
    log.error("front %d %s", process.pid, how)
    return True
