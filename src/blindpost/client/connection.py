"""One connection to one router: many callers, one stream of blocks, each response to its caller.

Nothing here is a task. Commands wait, not yet encoded, until the window has room; a block is filled with
as many as are there, and the next one only when the network has taken it. Whatever arrives goes to the
caller that waits for it or, as an event, into a queue; when that is full, nothing more is read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Generic, Self

from blindpost.client.calls import C, Call, Event, Failure, Garbled, Late, Push, R, Unexpected
from blindpost.client.dialects import Dialect
from blindpost.client.errors import (
    ClientError,
    CorrelationIdError,
    EncodingError,
    GarbledResponseError,
    RefusedError,
    RouterSilentError,
    TalkativeRouterError,
    TooLargeError,
    UnexpectedResponseError,
)
from blindpost.client.events import EventQueue
from blindpost.client.inflight import Awaited, InFlight
from blindpost.client.options import Options
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.errors import BlockError, TransportError
from blindpost.transport.handshake import Agreement, ServiceSession
from blindpost.transport.session import Handler, Session, Stage
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.errors import Code

CORR_ID_SIZE = 24
"""Correlation ids are nonces: random, and never used twice."""

_CLOSE_ENOUGH_S = 0.01


class AnyClient(Handler, Generic[C, R]):
    """What `SmpClient` and `NtfClient` have in common."""

    def __init__(self, dialect: Callable[[Agreement, int], Dialect[C, R]], options: Options) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_dialect = dialect
        self._options = options
        self._dialect: Dialect[C, R]
        self._session: Session
        self._unsent: OrderedDict[Awaited[C, R], None] = OrderedDict()
        self._in_flight: InFlight[C, R] = InFlight(options.bounds.late, self._timed_out)
        self._events: EventQueue[Event[R, C]] = EventQueue()
        self._over: asyncio.Future[TransportError] = self._loop.create_future()
        self._pump_planned = False
        self._reading = True
        self._kept_alive = False
        self._timeouts = 0
        self._unasked = 0
        self._pinged_at = 0.0
        self._watch_timer: asyncio.TimerHandle | None = None

    # What callers use

    @property
    def agreement(self) -> Agreement:
        """What the handshake agreed on: version, session id, keys, service."""
        return self._session.agreed

    @property
    def version(self) -> int:
        return self._session.agreed.version

    @property
    def service(self) -> ServiceSession | None:
        """The service that this connection belongs to, if the router accepted one."""
        return self._session.agreed.service

    @property
    def options(self) -> Options:
        return self._options

    @property
    def commands_waiting(self) -> int:
        """How many commands wait for room in the window."""
        return len(self._unsent)

    @property
    def events_waiting(self) -> int:
        """How many events wait to be taken."""
        return len(self._events)

    @property
    def closed_because(self) -> TransportError | None:
        """Why the connection ended; None while it is open."""
        return self._over.result() if self._over.done() else None

    async def send(
        self,
        command: C,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        corr_id: bytes | None = None,
        timeout_s: float | None = None,
    ) -> R:
        """The response to one command; ERR and everything else that can go wrong is raised, by name."""
        (result,) = await self.send_many([Call(command, entity_id, key, corr_id, timeout_s)])
        if isinstance(result, ClientError | TransportError):
            raise result
        return result

    async def send_many(self, calls: Iterable[Call[C]]) -> list[R | Failure]:
        """One result for each call, in their order: the response, or why there is none.

        All travel in the fewest blocks, in this order, together with what other callers send. A caller that
        is cancelled takes back what was not sent; responses to the rest, also those that have just arrived,
        come as `Late` events.
        """
        return await self._results([self._submit(call) for call in calls])

    def ready(self, call: Call[C]) -> Awaited[C, R]:
        """A command that is encoded and authorized ahead, for `send_ready` and `answer`; raises
        `ClientError`."""
        awaited = self._awaited(call)
        self._prepared(awaited)
        return awaited

    def send_ready(self, awaited: Awaited[C, R]) -> None:
        """Let it leave before this returns, without waiting for the company of others."""
        self._enqueue(awaited)
        self._pump(at_once=True)

    async def answer(self, awaited: Awaited[C, R]) -> R | Failure:
        """What `send_many` would return of a command that was sent."""
        (result,) = await self._results([awaited])
        return result

    async def _results(self, all_awaited: list[Awaited[C, R]]) -> list[R | Failure]:
        try:
            return [await awaited.result for awaited in all_awaited]
        except asyncio.CancelledError:
            for awaited in all_awaited:
                awaited.result.cancel()
                self._unsent.pop(awaited, None)
                if awaited.response is not None:
                    self._events.put(Late(awaited.call.command, awaited.entity_id, awaited.response))
            raise

    async def next_event(self) -> Event[R, C]:
        """What the router sent that no caller waits for; a `TransportError` once the connection has ended."""
        event = await self._events.take()
        self._regulate_reading()
        return event

    async def wait_closed(self) -> TransportError:
        """Wait for the end of the connection; its reason."""
        return await asyncio.shield(self._over)

    async def close(self) -> None:
        """Say goodbye and wait until the socket is gone. Callers that still wait get an error."""
        self._session.close()
        await self.wait_closed()

    def leave(self) -> None:
        """Say goodbye; what the router says until it has heard of it still comes as events."""
        self._session.leave()

    def cut(self) -> None:
        """End the connection now, whoever still reads or writes."""
        self._session.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What the session calls

    def established(self, session: Session) -> None:
        self._session = session
        self._dialect = self._make_dialect(session.agreed, self._options.bounds.secrets)
        self._watch()

    def block_received(self, session: Session, payload: bytes) -> None:
        self._timeouts = 0
        for corr_id, entity_id, content in self._dialect.answers(payload):
            self._dispatch(corr_id, entity_id, content)
        self._regulate_reading()
        self._plan_pump()
        self._leave_if_talkative()

    def block_failed(self, session: Session, error: BlockError) -> None:
        self._put_unasked(Unexpected(b"", Garbled(Code.BLOCK)))
        self._regulate_reading()
        self._leave_if_talkative()

    def drained(self, session: Session) -> None:
        self._in_flight.written()
        self._pump()

    def closed(self, session: Session, reason: TransportError) -> None:
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        self._in_flight.end(reason.again)
        for awaited in self._unsent:
            awaited.settle(reason.again())
        self._unsent.clear()
        self._events.end(reason)
        self._over.set_result(reason)

    # Out

    def _submit(self, call: Call[C]) -> Awaited[C, R]:
        awaited = self._awaited(call)
        self._enqueue(awaited)
        self._plan_pump()
        return awaited

    def _awaited(self, call: Call[C]) -> Awaited[C, R]:
        timeout_s = self._options.timing.response_s if call.timeout_s is None else call.timeout_s
        result: asyncio.Future[R | Failure] = self._loop.create_future()
        return Awaited(call, self._dialect.entity_of(call), timeout_s, result)

    def _enqueue(self, awaited: Awaited[C, R]) -> None:
        reason = self.closed_because
        if reason is not None:
            awaited.settle(reason.again())
        else:
            self._unsent[awaited] = None

    def _plan_pump(self) -> None:
        """Blocks are filled at the end of this turn of the loop, when all of its callers have submitted."""
        if self._unsent and not self._pump_planned:
            self._pump_planned = True
            self._loop.call_soon(self._run_planned)

    def _run_planned(self) -> None:
        self._pump_planned = False
        self._pump()

    def _pump(self, *, at_once: bool = False) -> None:
        """Send what the window and the network allow: never more than one block ahead of the network."""
        session = self._session
        window = self._options.bounds.window_blocks
        while self._unsent and self._in_flight.blocks < window:
            if session.congested or session.stage is not Stage.OPEN:
                return
            batch = self._next_batch()
            if batch:
                payload = self._dialect.framing.payload([transmission for _, transmission in batch])
                self._in_flight.sent(awaited for awaited, _ in batch)
                if at_once:
                    session.send_now([payload])
                else:
                    session.send_payload(payload)
                self._regulate_reading()

    def _next_batch(self) -> list[tuple[Awaited[C, R], Writer]]:
        """As many of those that wait, from the first on, as fit into one block."""
        framing = self._dialect.framing
        batch: list[tuple[Awaited[C, R], Writer]] = []
        corr_ids: set[bytes] = set()
        used = 0
        while self._unsent:
            awaited = next(iter(self._unsent))
            try:
                transmission = self._prepared(awaited)
                if awaited.corr_id in corr_ids or awaited.corr_id in self._in_flight:
                    raise CorrelationIdError
            except ClientError as error:
                del self._unsent[awaited]
                awaited.settle(error)
                continue
            if not framing.room(len(batch), used, transmission.size):
                break
            del self._unsent[awaited]
            batch.append((awaited, transmission))
            corr_ids.add(awaited.corr_id)
            used += framing.taken(transmission.size)
            self._kept_alive = self._kept_alive or self._dialect.keeps_alive(awaited.call.command)
        return batch

    def _prepared(self, awaited: Awaited[C, R]) -> Writer:
        """The transmission of a call, encoded and authorized once."""
        if awaited.transmission is None:
            given = awaited.call.corr_id
            awaited.corr_id = self._options.entropy(CORR_ID_SIZE) if given is None else given
            try:
                transmission = self._dialect.transmission(awaited.call, awaited.corr_id)
            except WireError as error:
                raise EncodingError(f"the command cannot be written: {error}") from error
            if not self._dialect.framing.possible(transmission.size):
                raise TooLargeError
            awaited.transmission = transmission
        return awaited.transmission

    # In

    def _dispatch(self, corr_id: bytes, entity_id: bytes, content: R | Garbled) -> None:
        """Give a response to the one caller it belongs to, or make it an event."""
        if not corr_id:
            self._put_unasked(
                Unexpected(entity_id, content) if isinstance(content, Garbled) else Push(entity_id, content)
            )
            return
        awaited = self._in_flight.answered(corr_id)
        if awaited is not None and awaited.settle(self._result(awaited, entity_id, content)):
            if entity_id == awaited.entity_id and not isinstance(content, Garbled):
                awaited.response = content
            return
        awaited = awaited or self._in_flight.late(corr_id)
        if awaited is None or entity_id != awaited.entity_id or isinstance(content, Garbled):
            self._put_unasked(Unexpected(entity_id, content))
        else:
            self._events.put(Late(awaited.call.command, entity_id, content))

    def _put_unasked(self, event: Event[R, C]) -> None:
        self._unasked += 1
        self._events.put(event)

    def _leave_if_talkative(self) -> None:
        most = self._options.bounds.unasked
        if most is not None and self._unasked > most:
            self._session.abort(TalkativeRouterError())

    def _result(self, awaited: Awaited[C, R], entity_id: bytes, content: R | Garbled) -> R | Failure:
        if isinstance(content, Garbled):
            return GarbledResponseError(content.error)
        if entity_id != awaited.entity_id:
            return UnexpectedResponseError(content)
        error = self._dialect.refusal(content)
        return content if error is None else RefusedError(error)

    def _regulate_reading(self) -> None:
        """Read as long as events are taken, and somewhat longer while callers wait for responses."""
        bounds = self._options.bounds
        bound = bounds.events_while_calling if self._in_flight.blocks else bounds.events
        self._reading = len(self._events) < bound
        if self._reading:
            self._session.resume_reading()
        else:
            self._session.pause_reading()

    # Whether anybody is there

    def _watch(self) -> None:
        """Ping a silent router, if the connection is to be kept."""
        timing, now = self._options.timing, self._loop.time()
        if not self._reading:
            due = now + timing.ping_after_s
        else:
            due = max(self._session.last_received, self._pinged_at) + timing.ping_after_s
            if due - now < _CLOSE_ENOUGH_S:
                self._pinged_at = now
                due = now + timing.ping_after_s
                if self._session.congested:
                    self._timeouts += 1  # the network has not taken what was said before
                elif self._kept_alive:
                    self._submit(Call(self._dialect.ping))
                self._give_up_if_silent()
        self._watch_timer = self._loop.call_at(due, self._watch)

    def _timed_out(self) -> None:
        self._timeouts += 1
        self._give_up_if_silent()
        self._regulate_reading()
        self._plan_pump()

    def _give_up_if_silent(self) -> None:
        timing = self._options.timing
        silence_s = self._loop.time() - self._session.last_received
        if self._reading and self._timeouts >= timing.timeouts_max and silence_s >= timing.silence_max_s:
            self._session.abort(RouterSilentError())
