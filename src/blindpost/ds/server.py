"""The shell of the delivery service: connections in front, the engine in the middle, the store behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace

from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.ds.auth import Authority, Closed
from blindpost.ds.connection import DsConnection, Stream
from blindpost.ds.meters import Meter
from blindpost.ds.model import DsRules
from blindpost.ds.plan import AuthorityReplaced, Canceled, DsPlan, Event, Shell, Staged, WaitOver, not_stored
from blindpost.ds.state import Peer, Wait
from blindpost.ds.tables import DsStore
from blindpost.ds.turn import Answer, Stage, Taken
from blindpost.engine.beside import Beside
from blindpost.engine.containment import contained
from blindpost.engine.events import Gone
from blindpost.engine.inbox import Budget
from blindpost.engine.loop import Engine, StoreFailedError
from blindpost.serving.connections import Connections
from blindpost.serving.limits import Limits

log = logging.getLogger(__name__)

BUDGET = Budget(batch_commands=1024, batch_bytes=1 << 20, source_commands=16, source_bytes=1 << 20)
"""A batch ends with the payload that brings it above 1 MiB; large payloads are handled beside it."""


OVERDUE_LOOK_S = 5.0
"""How often connections are checked for being overdue."""
UNREAD_S = 5.0
"""How long a service that stops waits for callers who were given large payloads and have more to come."""


class DeliveryService(Connections[DsConnection]):
    """A running service, apart from where it listens."""

    def __init__(
        self,
        store: DsStore,
        rules: DsRules | None = None,
        authority: Authority | None = None,
        *,
        entropy: Entropy = system_entropy,
        budget: Budget = BUDGET,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(limits)
        self.store = store
        loop = asyncio.get_running_loop()
        shell = Shell(loop.time, self._send, self._begin, self._put_own, self._later, self._stage, self._drop)
        self.plan = DsPlan(store, rules or DsRules(), authority or Closed(), entropy, shell)
        self.beside = Beside(self.plan, self.plan.undo)
        self.engine: Engine[Event] = Engine(self.plan, self.plan.undo, budget, self.beside)
        self._timers: dict[tuple[int, int], asyncio.TimerHandle] = {}
        self._loop = loop
        self._large: set[asyncio.Task[None]] = set()
        self._unread: asyncio.TimerHandle | None = None
        self._serves_nobody = False

    async def run(self) -> None:
        """Decide until `stop`, then return when everything accepted is committed and answered."""
        try:
            await self.engine.run()
            self._unread = self._loop.call_later(UNREAD_S, self._cut_unread)
            while self._large:
                await asyncio.wait(self._large)
                await self.engine.run()
        finally:
            if self._unread is not None:
                self._unread.cancel()
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    def stop(self) -> None:
        """Answer waiting calls with what is there; accept nothing new."""
        for _, wait in tuple(self.plan.state.waiting.items()):
            self.engine.put_own(WaitOver(wait))
        self.engine.stop()

    def _cut_unread(self) -> None:
        """What these callers did not take stays in its queues."""
        for connection in tuple(self.connections.values()):
            if connection.large.locked():
                contained("closing a connection", connection.cut)

    def use(self, authority: Authority) -> None:
        """Ask another authority from now on, also about calls that wait or were handed something."""
        self.plan.authority = authority
        self.engine.put_own(AuthorityReplaced())

    def opened(self, stream: Stream) -> DsConnection:
        """A new connection over `stream`."""
        peer, account = Peer(next(self.numbers), self.plan.undo), self.limits.account(stream)
        peer.account = account
        connection = DsConnection(stream, peer, self._put, self._broken, self.weigh, self._loop.time, account)
        self.join(connection)
        if self._serves_nobody:
            self._loop.call_soon(connection.close)
        return connection

    def _put(self, connection: DsConnection, event: Event, size: int) -> None:
        self.engine.put(connection, event, 1, size)

    def lost(self, connection: DsConnection) -> None:
        """A stream has ended; what its caller held is put back in a turn."""
        connection.lost()
        connection.peer.is_gone = True
        self.leave(connection)

    def left(self, connection: DsConnection) -> None:
        self.engine.put(connection, Gone(connection.peer))

    def relieved(self, connection: DsConnection) -> None:
        connection.pump()

    def close_all(self) -> None:
        """Close every connection, also those that are just being made."""
        self._serves_nobody = True
        self.close_if(lambda connection: True)

    async def hang_up(self, seconds: float) -> None:
        """Close every connection, and cut those whose callers do not read the last of it in time."""
        self.close_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.emptied()
        for connection in tuple(self.connections.values()):
            contained("closing a connection", connection.cut)

    def close_overdue(self) -> int:
        """Close connections that ask nothing or do not finish a message; returns how many."""
        now = self._loop.time()
        return self.close_if(lambda connection: connection.is_overdue(now))

    def _broken(self) -> None:
        self.plan.meters.add(Meter.BROKEN_STREAMS)

    def _send(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            timer = self._timers.pop((answer.peer.number, answer.question), None)
            if timer is not None:
                timer.cancel()
            connection = self.connections.get(answer.peer.number)
            if connection is None:
                continue
            if isinstance(answer.outcome, Taken):
                connection.begin_large()
                self._do_beside(self._read_large(connection, answer, answer.outcome))
            else:
                self._answer(connection, answer)

    def _answer(self, connection: DsConnection, answer: Answer) -> None:
        """A stream that fails must end neither the turn nor the service; what it held is put back."""
        if not contained("answering a connection", connection.answer, answer):
            self.plan.meters.add(Meter.INTERNAL_ERRORS)
            self.lost(connection)
            with contextlib.suppress(Exception):
                connection.close()

    def _stage(self, stage: Stage) -> None:
        self._do_beside(self._write_large(stage))

    def _drop(self, stage: Stage) -> None:
        self.store.drop(stage.queue, stage.tag)

    def _do_beside(self, work: Coroutine[None, None, None]) -> None:
        """Work on a large payload in parallel with turns. A stopping service finishes it first."""
        task = self._loop.create_task(work)
        self._large.add(task)
        task.add_done_callback(self._large.discard)

    async def _write_large(self, stage: Stage) -> None:
        try:
            await self.store.stage(stage.queue, stage.tag, stage.payload)
        except StoreFailedError as error:
            log.error("the store refused a large payload: %s", error)
            self.plan.meters.add(Meter.STORE_ERRORS)
            self._send([Answer(stage.peer, stage.question, not_stored(error))])
        else:
            self.engine.put_own(Staged(stage))

    async def _read_large(self, connection: DsConnection, answer: Answer, taken: Taken) -> None:
        """Answer with large payloads, one answer of a connection after another."""
        try:
            async with connection.large:
                await connection.room()
                read = {}
                for entry in taken.apart:
                    payload = await self.store.read_large(taken.queue, entry)
                    if payload is not None:
                        read[entry.number] = payload
                self._answer(connection, replace(answer, outcome=taken.result(read)))
        except StoreFailedError as error:
            log.error("the store could not read a large payload: %s", error)
            self.plan.meters.add(Meter.STORE_ERRORS)
            self._answer(connection, replace(answer, outcome=not_stored(error), is_held=False))
            self.engine.put(connection, Canceled(answer.peer, answer.question))
        finally:
            connection.end_large()

    def _begin(self, wait: Wait) -> None:
        key = (wait.peer.number, wait.question)

        def due() -> None:
            self._timers.pop(key, None)
            self.engine.put_own(WaitOver(wait))

        self._timers[key] = self._loop.call_at(wait.deadline, due)

    def _put_own(self, event: Event) -> None:
        self.engine.put_own(event)

    def _later(self, delay_s: float, event: Event) -> None:
        self.engine.after(delay_s, event)
