"""What the delivery service does in each step of the engine's turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blindpost.crypto.entropy import Entropy
from blindpost.ds import queues
from blindpost.ds.auth import Authority
from blindpost.ds.checks import UNAUTHENTICATED, Refusal, queue_of, refusal
from blindpost.ds.meters import DsMeters, Meter
from blindpost.ds.model import DsRules, number_and_tag
from blindpost.ds.state import Peer, State, Wait
from blindpost.ds.tables import DsStore
from blindpost.ds.turn import Answer, Turn
from blindpost.ds.view import Wanted
from blindpost.engine.loop import StoreFailedError
from blindpost.engine.undo import Undo
from blindpost.wire.capnp.node import (
    Ack,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    FetchWait,
    Lease,
    Request,
    UploadKeyPackage,
)
from blindpost.wire.capnp.rpc import ExceptionType

INTERNAL = Refusal("the delivery service failed at this call; nothing was changed")


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a connection."""

    peer: Peer
    question: int
    request: Request


@dataclass(frozen=True, slots=True)
class Finished:
    """The caller has taken the answer to a question."""

    peer: Peer
    question: int


@dataclass(frozen=True, slots=True)
class Canceled:
    """The caller does not want the answer to a question; it was not sent yet."""

    peer: Peer
    question: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A connection is over; it comes after everything that the connection sent."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Wake:
    """Something may be there for those who wait for a queue."""

    queue: bytes


@dataclass(frozen=True, slots=True)
class WaitOver:
    """The time of a waiting call has come."""

    wait: Wait


Event = Called | Finished | Canceled | Gone | Wake | WaitOver


@dataclass(frozen=True, slots=True)
class Shell:
    """What the plan asks of the world around it."""

    now: Callable[[], float]
    send: Callable[[Sequence[Answer]], None]
    begin: Callable[[Wait], None]
    """Have `WaitOver` come at the wait's time."""
    put_own: Callable[[Event], None]
    later: Callable[[float, Event], None]


RETRY_S = 1.0
"""After this time the service's own work is tried again when the store refused it."""


class DsPlan:
    """The delivery service's side of the engine."""

    def __init__(
        self, store: DsStore, rules: DsRules, authority: Authority, entropy: Entropy, shell: Shell
    ) -> None:
        self.undo = Undo()
        self.state = State(self.undo)
        self.meters = DsMeters()
        self.rules = rules
        self._store = store
        self.authority = authority
        self._entropy = entropy
        self._shell = shell
        self._refusals: dict[int, Refusal] = {}
        self._again: list[Event] = []
        self._wakes: dict[bytes, float] = {}
        self._turn = self._new_turn()

    def _new_turn(self) -> Turn:
        now = self._shell.now()
        return Turn(self.undo, self.state, self.rules, self.meters, self._entropy, now)

    async def prepare(self, batch: Sequence[Event]) -> None:
        turn = self._turn = self._new_turn()
        self._again.clear()
        self._refusals.clear()
        calls = [event for event in batch if isinstance(event, Called)]
        callers = await self.authority.identify([call.request.auth for call in calls])
        for call, caller in zip(calls, callers, strict=True):
            refused = refusal(call.request, caller)
            if refused is not None:
                self._refusals[id(call)] = refused
        wanted = Wanted()
        for event in batch:
            if id(event) not in self._refusals:
                self._want(wanted, event)
        rules = self.rules
        await self._store.load(wanted, turn.view, self._is_held, rules.response_bytes, rules.turn_bytes)

    def _is_held(self, queue: bytes, number: int) -> bool:
        hold = self.state.held.get((queue, number))
        return hold is not None and self._turn.now < hold.until

    def _want(self, wanted: Wanted, event: Event) -> None:
        match event:
            case Called(_, _, Fetch() | FetchWait() | Lease() as request):
                wanted.head(queue_of(request), queues.payloads_max(self.rules, request))
            case Called(_, _, Enqueue() | UploadKeyPackage() as request):
                wanted.queues.add(queue_of(request))
            case Called(_, _, FetchKeyPackage() as request):
                queue = queue_of(request)
                wanted.head(queue, wanted.heads.get(queue, 0) + 1)
            case Called(_, _, Ack() as request):
                queue = queue_of(request)
                wanted.queues.add(queue)
                named = map(number_and_tag, request.ids)
                wanted.entries.update((queue, found[0]) for found in named if found is not None)
            case Finished(peer, question):
                number = peer.answered.get(question)
                hold = None if number is None else peer.holds.get(number)
                if hold is not None:
                    wanted.queues.add(hold.queue)
            case Wake(queue) if queue in self.state.waiters:
                wanted.head(queue, self.rules.response_payloads)
            case WaitOver(wait):
                wanted.head(wait.queue, queues.payloads_max(self.rules, wait.request))
            case _:
                pass

    def decide(self, event: Event) -> None:
        turn, enough = self._turn, True
        match event:
            case Called():
                enough = self._call(turn, event)
            case Finished(peer, question):
                queues.finish(turn, peer, question)
            case Canceled(peer, question):
                queues.cancel(turn, peer, question)
            case Gone(peer):
                queues.disconnect(turn, peer)
            case Wake(queue):
                self._wakes.pop(queue, None)
                enough = queues.wake(turn, queue)
            case WaitOver(wait):
                enough = queues.wait_over(turn, wait)
        if not enough:
            self._again.append(event)

    def _call(self, turn: Turn, call: Called) -> bool:
        peer, question, request = call.peer, call.question, call.request
        refused = self._refusals.get(id(call))
        if refused is not None:
            turn.count(Meter.REFUSED_AUTH if refused is UNAUTHENTICATED else Meter.REFUSED)
            turn.answer(peer, question, refused)
            return True
        match request:
            case Enqueue():
                queues.enqueue(turn, peer, question, request)
            case Fetch() | FetchWait() | Lease():
                return queues.take(turn, peer, question, request)
            case Ack():
                queues.acknowledge(turn, peer, question, request)
            case UploadKeyPackage():
                queues.upload_package(turn, peer, question, request)
            case FetchKeyPackage():
                return queues.fetch_package(turn, peer, question, request)
        return True

    def failed(self, event: Event) -> None:
        self.meters.add(Meter.INTERNAL_ERRORS)
        if isinstance(event, Called):
            self._shell.send([Answer(event.peer, event.question, INTERNAL)])

    async def commit(self) -> None:
        await self._store.commit(self._turn.view.changes)

    def refuse(self, batch: Sequence[Event], error: StoreFailedError) -> None:
        """Every call of the batch is told that the store failed; the service's own events come again."""
        self.meters.add(Meter.STORE_ERRORS)
        self._again.clear()
        refused = Refusal(f"not stored: {error}", ExceptionType.OVERLOADED)
        for event in batch:
            if isinstance(event, Called):
                self._shell.send([Answer(event.peer, event.question, refused)])
            else:
                self._shell.later(RETRY_S, event)

    def release(self) -> None:
        turn, shell = self._turn, self._shell
        if turn.answers:
            shell.send(turn.answers)
        for wait in turn.begun:
            shell.begin(wait)
        for queue, delay_s in turn.to_wake:
            self._wake(queue, delay_s)
        for event in self._again:
            shell.put_own(event)

    def _wake(self, queue: bytes, delay_s: float) -> None:
        """At most one wake-up of a queue is on its way, the earliest that was asked for."""
        at = self._turn.now + max(delay_s, 0.0)
        if at < self._wakes.get(queue, at + 1):
            self._wakes[queue] = at
            if delay_s <= 0:
                self._shell.put_own(Wake(queue))
            else:
                self._shell.later(delay_s, Wake(queue))
