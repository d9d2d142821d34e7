"""The delivery service's decisions on queues in memory: no store, no sockets, no time but the test's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar

from blindpost.ds.auth import Caller
from blindpost.ds.meters import DsMeters, Meter
from blindpost.ds.model import DsRules, Ends, Entry, delivery_queue, package_queue
from blindpost.ds.quotas import Quotas
from blindpost.ds.state import DsState, Peer, Reach
from blindpost.ds.turn import Answer, Turn
from blindpost.ds.view import AddEntry, Change, DeleteEntry, PutEnds, PutTotals
from blindpost.engine.undo import Table, Undo
from blindpost.serving.stored import Stored
from blindpost.wire.capnp.node import Auth, Fetch
from tests.support.ds.delivery import ALICE

T = TypeVar("T")
FETCH = Fetch(ALICE, b"", 1, Auth())
QUEUE, PACKAGES = delivery_queue(ALICE, b""), package_queue(ALICE)


def entry(number: int, size: int = 1, *, loaded: bool = True) -> Entry:
    """An entry whose payload is its number."""
    payload = (b"%d" % number).ljust(size, b".")
    return Entry(number, b"t%7d" % number, len(payload), payload if loaded else None)


def reach(own: Collection[int] = (), others: Collection[int] = ()) -> Reach:
    """That of one connection, where it and another one hold some payloads of the queue."""
    undo = Undo()
    state, peers = DsState(undo), (Peer(1, undo), Peer(2, undo))
    for peer, numbers in zip(peers, (own, others), strict=True):
        state.hold(peer, 1, QUEUE, [entry(number) for number in numbers], 1.0, FETCH)
    return Reach(state, QUEUE, {peers[0]}, 0.0)


class InMemory:
    """Queues, and one turn after another. What is decided is first rolled back, and must leave no trace."""

    def __init__(self, rules: DsRules | None = None, own: Collection[bytes] = ()) -> None:
        self.rules, self.own = rules or DsRules(), own
        self.undo, self.meters, self.now = Undo(), DsMeters(), 100.0
        self.state = DsState(self.undo)
        self.stored = Stored(self.rules.total_bytes, self.undo)
        self.quotas = Quotas(self.undo, lambda: self.now)
        self.callers: dict[Auth, Caller | None] = {}
        self.one, self.other = Peer(1, self.undo), Peer(2, self.undo)
        self.queues: dict[bytes, list[Entry]] = {}
        self.tails: dict[bytes, int] = {}
        self.cut: set[bytes] = set()
        """Queues of which a turn does not load all."""
        self.counted: dict[Meter, int] = {}
        """What the last turn added to the meters."""
        self.turn = self._begun()
        """The one that was decided last."""
        self._drawn = itertools.count(1)

    def have(self, queue: bytes, *entries: Entry) -> InMemory:
        self.queues[queue] = list(entries)
        self.tails[queue] = max((one.number for one in entries), default=-1) + 1
        return self

    def decide(self, decision: Callable[[Turn], T]) -> T:
        """Decide, roll back, see that nothing is left of it, and decide again for good."""
        turn = self._begun()
        before = self._traces(turn)
        decision(turn)
        self.undo.rollback()
        assert self._traces(turn) == before
        counts = self.meters.counts
        self.turn = turn = self._begun()
        answer = decision(turn)
        self.undo.forget()
        self.counted = {meter: by for meter, n in counts.items() if (by := self.meters[meter] - n)}
        for change in turn.view.changes:
            self._keep(change)
        if turn.view.changes:
            *_, ends, totals = turn.view.changes
            assert isinstance(ends, PutEnds)
            assert isinstance(totals, PutTotals)
        for queue, found in self._ends().items():
            assert turn.view.ends(queue) == found
            if not found.count:
                self.tails[queue] = 0
        return answer

    def answered(self, peer: Peer, question: int, *, is_held: bool = False) -> Any:
        """The only answer of the last turn."""
        (answer,) = self.turn.answers
        assert answer == Answer(peer, question, answer.outcome, is_held)
        return answer.outcome

    @property
    def told(self) -> list[tuple[Any, ...]]:
        """What was reported about own queues: event, number of the payload, depth, seconds waited."""
        return [
            (one.event, int.from_bytes(one.payload[:8], "big") if one.payload else None, *one[3:])
            for one in self.turn.happened
        ]

    @property
    def held(self) -> list[int]:
        """The numbers of what is handed out."""
        return sorted(number for _, number in self.state.held)

    def numbers(self, queue: bytes = QUEUE) -> list[int]:
        return [one.number for one in self.queues.get(queue, [])]

    def _begun(self) -> Turn:
        turn = Turn(
            self.undo,
            self.state,
            self.rules,
            self.meters,
            self._entropy,
            self.now,
            self.stored,
            self.quotas,
            self.own,
        )
        turn.callers = self.callers
        ends = self._ends()
        for queue, entries in self.queues.items():
            is_cut = queue in self.cut
            turn.view.fill_ends(queue, ends[queue])
            loaded = [replace(one, payload=None) if one.is_large else one for one in entries]
            turn.view.fill_head(queue, loaded, cut=is_cut, whole=not is_cut)
        total = sum(one.size for one in ends.values())
        turn.view.fill_totals(sum(one.count for one in ends.values()), total)
        self.stored.look(total)
        return turn

    def _ends(self) -> dict[bytes, Ends]:
        return {
            queue: Ends(self.tails[queue], len(entries), sum(one.size for one in entries))
            for queue, entries in self.queues.items()
        }

    def _entropy(self, size: int) -> bytes:
        return next(self._drawn).to_bytes(size, "big")

    def _keep(self, change: Change) -> None:
        """What a commit makes durable; counts are compared with the rows."""
        match change:
            case AddEntry(queue, added):
                assert added.number == self.tails.get(queue, 0)
                self.queues.setdefault(queue, []).append(added)
                self.tails[queue] = added.number + 1
            case DeleteEntry(queue, gone):
                assert gone.number in self.numbers(queue)
                self.queues[queue] = [one for one in self.queues[queue] if one.number != gone.number]
            case PutEnds(queue, ends):
                assert ends == self._ends()[queue]
            case PutTotals(payloads, size):
                rows = [one for entries in self.queues.values() for one in entries]
                assert (payloads, size) == (len(rows), sum(one.size for one in rows))

    def _traces(self, turn: Turn) -> list[Any]:
        """Everything that a decision can change."""
        peers = [getattr(peer, name) for peer in (self.one, self.other) for name in Peer.__slots__]
        parts = [*vars(turn).values(), *vars(turn.view).values(), *vars(self.state).values(), *peers]
        return [
            [dict(part.items()) for part in parts if isinstance(part, Table)],
            [list(part) for part in (*parts, *turn.view._heads.values()) if isinstance(part, list)],
            self.meters.counts,
            self.meters.wait_s.count,
            dict(self.stored._held),
            dict(self.quotas._counted),
        ]
