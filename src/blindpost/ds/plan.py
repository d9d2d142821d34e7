"""What the delivery service does in each step of the engine's turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from blindpost.crypto.entropy import Entropy
from blindpost.ds import queues
from blindpost.ds.auth import Authority, Caller
from blindpost.ds.checks import Refusal, queue_of, refusal
from blindpost.ds.lab import DsLab
from blindpost.ds.meters import DsMeters, Meter
from blindpost.ds.model import DsRules, is_of, number_and_tag
from blindpost.ds.quotas import Quotas
from blindpost.ds.state import DsState, Hold, Peer, Reach, Wait
from blindpost.ds.tables import DsStore
from blindpost.ds.turn import Answer, Stage, Turn
from blindpost.ds.view import Wanted
from blindpost.engine.containment import contained
from blindpost.engine.events import Gone
from blindpost.engine.loop import StoreFailedError
from blindpost.engine.undo import Undo
from blindpost.serving.stored import Stored
from blindpost.wire.capnp.node import (
    Ack,
    Auth,
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


@dataclass(slots=True)
class Called:
    """A call of a connection, with the verdict on it once checked."""

    peer: Peer
    question: int
    """Its number in its connection, which no other call has."""
    request: Request
    refused: Refusal | None = field(default=None, compare=False)


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
class Wake:
    """There may be something for the calls that wait for a queue."""

    queue: bytes


@dataclass(frozen=True, slots=True)
class WaitOver:
    """A waiting call has timed out."""

    wait: Wait


@dataclass(frozen=True, slots=True)
class Staged:
    """A large payload is written and may become part of its queue."""

    stage: Stage


@dataclass(frozen=True, slots=True)
class AuthorityReplaced:
    """Whoever waits or holds something may not be allowed to any more."""


Event = Called | Finished | Canceled | Gone[Peer] | Wake | WaitOver | Staged | AuthorityReplaced


@dataclass(frozen=True, slots=True)
class Shell:
    """What the plan asks of the world around it."""

    now: Callable[[], float]
    send: Callable[[Sequence[Answer]], None]
    begin: Callable[[Wait], None]
    """Schedule `WaitOver` for the wait's deadline."""
    put_own: Callable[[Event], None]
    later: Callable[[float, Event], None]
    stage: Callable[[Stage], None]
    """Write a large payload, then put `Staged`, or tell its caller why not."""
    drop: Callable[[Stage], None]
    """Remove a written payload that is in no queue."""


def not_stored(error: StoreFailedError) -> Refusal:
    return Refusal(f"not stored: {error}", ExceptionType.OVERLOADED)


RETRY_S = 1.0
"""The pause before retrying the service's own work after the store refused it."""


class DsPlan:
    """The delivery service's side of the engine."""

    def __init__(
        self, store: DsStore, rules: DsRules, authority: Authority, entropy: Entropy, shell: Shell
    ) -> None:
        self.undo = Undo()
        self.quotas = Quotas(self.undo)
        self.stored = Stored(rules.total_bytes, self.undo)
        self.state = DsState(self.undo)
        self.meters = DsMeters()
        self.lab: DsLab | None = None
        """Hears what happens in the queues of the operator's own recipients."""
        self.rules = rules
        self._store = store
        self.authority = authority
        self._entropy = entropy
        self._shell = shell
        self.busy: set[bytes] = set()
        """The queues used by the turn being committed."""
        self._again: list[Event] = []
        self._wakes: dict[bytes, float] = {}
        self._turn = self._new_turn()

    def _new_turn(self) -> Turn:
        now = self._shell.now()
        own_keys = () if self.lab is None else self.lab.keys
        return Turn(
            self.undo,
            self.state,
            self.rules,
            self.meters,
            self._entropy,
            now,
            self.stored,
            self.quotas,
            own_keys,
        )

    async def prepare(self, batch: Sequence[Event]) -> None:
        turn = self._turn = self._new_turn()
        self._again.clear()
        wanted = await self._load(turn, batch)
        self.busy = wanted.queues | wanted.touched
        self.stored.limit = self.rules.total_bytes
        self.stored.look(turn.view.totals[1])

    async def _load(self, turn: Turn, batch: Sequence[Event]) -> Wanted:
        calls = [event for event in batch if isinstance(event, Called)]
        turn.callers = await self._identified(batch)
        for call in calls:
            call.refused = refusal(call.request, turn.callers[call.request.auth])
        wanted = Wanted()
        for event in batch:
            self._want(wanted, event)
        if self.lab is not None:  # it reports queue depths
            wanted.queues.update(queue for queue in wanted.touched if is_of(queue, self.lab.keys))

        def reach(queue: bytes) -> Reach:
            return Reach(self.state, queue, wanted.askers[queue], turn.now)

        await self._store.load(wanted, turn.view, reach, self.rules)
        return wanted

    async def _identified(self, batch: Sequence[Event]) -> dict[Auth, Caller | None]:
        auths = [event.request.auth for event in batch if isinstance(event, Called)]
        if AuthorityReplaced() in batch:
            auths += [one.request.auth for one in self._open_calls()]
        asked = tuple(dict.fromkeys(auths))
        return dict(zip(asked, await self.authority.identify(asked), strict=True))

    def _open_calls(self) -> Iterator[Wait | Hold]:
        """The calls that wait, and those that were handed something."""
        for _, wait in self.state.waiting.items():
            yield wait
        for _, hold in self.state.held.items():
            yield hold

    # --- beside a commit

    def subject(self, event: Event) -> bytes | None:
        """The queue of a call: others about the same queue must not overtake it."""
        return queue_of(event.request) if isinstance(event, Called) else None

    def takes(self, event: Event) -> bytes | None:
        """The queue of a call that only takes, or of one that timed out."""
        match event:
            case Called(_, _, Fetch() | FetchWait() | Lease() as request):
                return queue_of(request)
            case WaitOver(wait):
                return wait.queue
            case _:
                return None

    async def prepare_beside(self, events: Sequence[Event]) -> Turn:
        turn = self._new_turn()
        await self._load(turn, events)
        return turn

    def take(self, prepared: Turn, event: Event) -> bool:
        if isinstance(event, Called):
            return self._call(prepared, event)
        assert isinstance(event, WaitOver), "an event that does not only take"
        return queues.wait_over(prepared, event.wait)

    def release_beside(self, prepared: Turn) -> None:
        self._release(prepared)

    def _want(self, wanted: Wanted, event: Event) -> None:
        match event:
            case Called(refused=Refusal()):
                pass
            case Called(peer, _, Fetch() | FetchWait() | Lease() as request):
                wanted.head(queue_of(request), queues.payloads_max(self.rules, request), peer)
            case Called(_, _, Enqueue() | UploadKeyPackage() as request):
                wanted.queues.add(queue_of(request))
            case Called(peer, _, FetchKeyPackage() as request):
                queue = queue_of(request)
                wanted.head(queue, wanted.heads.get(queue, 0) + 1, peer)
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
            case Canceled(peer) | Gone(peer):
                wanted.touched.update(hold.queue for _, hold in peer.holds.items())
                wanted.touched.update(wait.queue for _, wait in peer.waits.items())
            case AuthorityReplaced():
                wanted.touched.update(one.queue for one in self._open_calls())
            case Wake(queue) if queue in self.state.waiters:
                waiters = self.state.waiters.get(queue) or ()
                wanted.head(queue, self.rules.response_payloads, *(wait.peer for wait in waiters))
            case Staged(stage):
                wanted.queues.add(stage.queue)
            case WaitOver(wait):
                wanted.head(wait.queue, queues.payloads_max(self.rules, wait.request), wait.peer)
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
            case Staged(stage):
                queues.staged(turn, stage)
            case AuthorityReplaced():
                queues.recheck(turn)
            case WaitOver(wait):
                enough = queues.wait_over(turn, wait)
        if not enough:
            self._again.append(event)

    def _call(self, turn: Turn, call: Called) -> bool:
        peer, question, request, refused = call.peer, call.question, call.request, call.refused
        if refused is not None:
            queues.refuse(turn, peer, question, refused)
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
        self._turn_away(event, INTERNAL)

    async def commit(self) -> None:
        await self._store.commit(self._turn.view.changes)

    def refuse(self, batch: Sequence[Event], error: StoreFailedError) -> None:
        """Answer every call of the batch that the store failed; the service's own events are retried."""
        self.meters.add(Meter.STORE_ERRORS)
        self._again.clear()
        for event in batch:
            if not self._turn_away(event, not_stored(error)):
                self._shell.later(RETRY_S, event)

    def _turn_away(self, event: Event, refused: Refusal) -> bool:
        """Tell the caller, if one waits for this event's answer."""
        match event:
            case Called(peer, question):
                self._shell.send([Answer(peer, question, refused)])
            case Staged(stage):
                self._shell.send([Answer(stage.peer, stage.question, refused)])
                self._shell.drop(stage)
            case _:
                return False
        return True

    def release(self) -> None:
        self._release(self._turn)
        for event in self._again:
            self._shell.put_own(event)

    def _release(self, turn: Turn) -> None:
        shell = self._shell
        if turn.happened and self.lab is not None:
            contained("noting what happened", self.lab.note, turn.now, turn.happened)
        if turn.answers:
            shell.send(turn.answers)
        for wait in turn.begun:
            contained("beginning a wait", shell.begin, wait)
        for stage in turn.to_stage:
            contained("writing a large payload", shell.stage, stage)
        for stage in turn.to_drop:
            contained("dropping a large payload", shell.drop, stage)
        for queue, delay_s in turn.to_wake:
            self._wake(queue, turn.now + max(delay_s, 0.0), delay_s)

    def _wake(self, queue: bytes, at: float, delay_s: float) -> None:
        """At most one wake-up of a queue is pending, the earliest requested."""
        if at < self._wakes.get(queue, at + 1):
            self._wakes[queue] = at
            if delay_s <= 0:
                self._shell.put_own(Wake(queue))
            else:
                self._shell.later(delay_s, Wake(queue))
