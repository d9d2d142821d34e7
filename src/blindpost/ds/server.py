"""The shell of the delivery service: connections in front, the engine in the middle, the store behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Sequence

from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.ds.auth import Authority, Closed
from blindpost.ds.connection import Connection, Stream
from blindpost.ds.meters import Meter
from blindpost.ds.model import DsRules
from blindpost.ds.plan import DsPlan, Event, Gone, Shell, WaitOver
from blindpost.ds.state import Peer, Wait
from blindpost.ds.tables import DsStore
from blindpost.ds.turn import Answer
from blindpost.engine.inbox import Budget
from blindpost.engine.loop import Engine

log = logging.getLogger(__name__)

BUDGET = Budget(batch_commands=1024, batch_bytes=4 << 20, source_commands=16, source_bytes=1 << 20)
"""A batch ends with the payload that brings it above 4 MiB: nobody waits for more than that."""


class DeliveryService:
    """A running service, apart from where it listens."""

    def __init__(
        self,
        store: DsStore,
        rules: DsRules | None = None,
        authority: Authority | None = None,
        *,
        entropy: Entropy = system_entropy,
        budget: Budget = BUDGET,
    ) -> None:
        self.store = store
        loop = asyncio.get_running_loop()
        shell = Shell(loop.time, self._send, self._begin, self._put_own, self._later)
        self.plan = DsPlan(store, rules or DsRules(), authority or Closed(), entropy, shell)
        self.engine: Engine[Event] = Engine(self.plan, self.plan.undo, budget)
        self.connections: dict[int, Connection] = {}
        self._numbers = itertools.count(1)
        self._timers: dict[tuple[int, int], asyncio.TimerHandle] = {}
        self._loop = loop

    async def run(self) -> None:
        """Decide until `stop`, then return when everything accepted is committed and answered."""
        try:
            await self.engine.run()
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    def stop(self) -> None:
        """Answer those who wait, with what is there; take part in nothing new."""
        for _, wait in tuple(self.plan.state.waiting.items()):
            self.engine.put_own(WaitOver(wait))
        self.engine.stop()

    def opened(self, stream: Stream) -> Connection:
        """A new connection over `stream`."""
        peer = Peer(next(self._numbers), self.plan.undo)
        connection = Connection(stream, peer, self.engine_put, self._broken)
        self.connections[peer.number] = connection
        return connection

    def engine_put(self, connection: Connection, event: Event, size: int) -> None:
        self.engine.put(connection, event, 1, size)

    def lost(self, connection: Connection) -> None:
        """A stream is over; what its caller held is put back in a turn."""
        connection.lost()
        connection.peer.is_gone = True
        if self.connections.pop(connection.peer.number, None) is not None:
            self.engine.put(connection, Gone(connection.peer))

    def _broken(self) -> None:
        self.plan.meters.add(Meter.BROKEN_STREAMS)

    def _send(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            timer = self._timers.pop((answer.peer.number, answer.question), None)
            if timer is not None:
                timer.cancel()
            connection = self.connections.get(answer.peer.number)
            if connection is not None:
                self._answer(connection, answer)

    def _answer(self, connection: Connection, answer: Answer) -> None:
        """A stream that fails must end neither the turn nor the service; what it held is put back."""
        try:
            connection.answer(answer)
        except Exception:
            log.exception("an answer could not be sent")
            self.plan.meters.add(Meter.INTERNAL_ERRORS)
            self.lost(connection)
            with contextlib.suppress(Exception):
                connection.close()

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
