"""What the decisions of one batch share, and what they answer once it is committed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from blindpost.crypto.entropy import Entropy
from blindpost.ds.auth import Caller
from blindpost.ds.checks import Refusal, queue_of
from blindpost.ds.meters import DsMeters, Meter
from blindpost.ds.model import DsRules, Entry, is_of
from blindpost.ds.quotas import Quotas
from blindpost.ds.state import DsState, Peer, Wait
from blindpost.ds.view import View
from blindpost.engine import turn as engine
from blindpost.engine.undo import Undo
from blindpost.serving.stored import Stored
from blindpost.wire.capnp.node import Auth, Deliveries, Delivery, Enqueue, Payloads, Result
from blindpost.wire.value import Value, shape


@dataclass(frozen=True, slots=True, repr=False)
class Taken(Value):
    """What a call takes from a queue; large payloads are read when the answer leaves."""

    queue: bytes
    entries: tuple[Entry, ...]
    is_lease: bool

    @property
    def apart(self) -> tuple[Entry, ...]:
        """The payloads still to be read."""
        return tuple(entry for entry in self.entries if entry.payload is None)

    def result(self, read: Mapping[int, bytes]) -> Result:
        """The answer, once those are read, without what was acknowledged meanwhile."""
        found = [(entry.id, entry.payload or read.get(entry.number)) for entry in self.entries]
        if self.is_lease:
            return Deliveries(tuple(Delivery(id_, payload) for id_, payload in found if payload))
        return Payloads(tuple(payload for _, payload in found if payload))


@dataclass(frozen=True, slots=True, repr=False)
class Stage(Value):
    """A large payload that may be stored, and the call that brought it."""

    peer: Peer
    question: int
    request: Enqueue
    caller: Caller | None
    tag: bytes

    @property
    def queue(self) -> bytes:
        return queue_of(self.request)

    @property
    def payload(self) -> bytes:
        return self.request.payload


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Value):
    """What a call is answered; None for one that was canceled."""

    peer: Peer
    question: int
    outcome: Result | Refusal | Taken | None
    is_held: bool = False
    """Whether the decisions need the call's Finish."""


class Happened(NamedTuple):
    """Something happened in a queue of the operator's own recipient."""

    event: str
    queue: bytes
    payload: bytes
    """The payload's id; empty for a wait."""
    depth: int
    """Payloads in the queue after it."""
    waited_s: float = 0.0

    def __repr__(self) -> str:
        return shape(type(self), zip(self._fields, self, strict=True))


class Turn(engine.Turn[Meter]):
    """One batch. Everything that it sends or starts is rolled back with it."""

    def __init__(
        self,
        undo: Undo,
        state: DsState,
        rules: DsRules,
        meters: DsMeters,
        entropy: Entropy,
        now: float,
        stored: Stored,
        quotas: Quotas,
        own_keys: Collection[bytes] = (),
    ) -> None:
        super().__init__(undo, meters)
        self.state = state
        self.rules = rules
        self.meters = meters
        self.entropy = entropy
        self.now = now
        self.view = View(undo)
        self.stored = stored
        self.quotas = quotas
        self.own_keys = own_keys
        """Recipients of canaries and load tests: each event in their queues is reported."""
        self.callers: Mapping[Auth, Caller | None] = {}
        """Who is behind each call that the batch is about; None if refused."""
        self.happened: list[Happened] = []
        self.answers: list[Answer] = []
        self.begun: list[Wait] = []
        """Calls that start to wait."""
        self.to_stage: list[Stage] = []
        """Large payloads to write, in parallel with later turns."""
        self.to_drop: list[Stage] = []
        """Large payloads that were written and cannot be stored."""
        self.to_wake: list[tuple[bytes, float]] = []
        """Queues whose waiting calls are to be checked again, and in how many seconds."""

    def answer(
        self, peer: Peer, question: int, outcome: Result | Refusal | Taken | None, *, is_held: bool = False
    ) -> None:
        self.append(self.answers, Answer(peer, question, outcome, is_held))

    def delete(self, queue: bytes, entry: Entry) -> None:
        """A payload leaves its queue, and no longer counts against its sender."""
        self.view.delete(queue, entry)
        self.stored.remove((queue, entry.number), entry.size)

    def stage(self, stage: Stage) -> None:
        self.append(self.to_stage, stage)

    def drop(self, stage: Stage) -> None:
        self.append(self.to_drop, stage)

    def begin_wait(self, wait: Wait) -> None:
        self.state.add_wait(wait)
        self.append(self.begun, wait)

    def wake(self, queue: bytes, delay_s: float = 0.0) -> None:
        """Let the waiting calls of a queue look again, if there are any."""
        if queue in self.state.waiters:
            self.append(self.to_wake, (queue, delay_s))

    def tell(self, event: str, queue: bytes, *payloads: bytes) -> None:
        """Something happened to payloads: noted if their queue is the operator's own."""
        if is_of(queue, self.own_keys):
            depth = self.view.ends(queue).count
            for payload in payloads:
                self.append(self.happened, Happened(event, queue, payload, depth))

    def tell_wait(self, event: str, wait: Wait) -> None:
        """The same about a waiting call."""
        if is_of(wait.queue, self.own_keys):
            depth = self.view.ends(wait.queue).count
            waited_s = self.now - wait.started
            self.append(self.happened, Happened(event, wait.queue, b"", depth, waited_s))

    def observe_wait(self, seconds: float) -> None:
        self.observe(self.meters.wait_s, seconds)
