"""The part of the store that a batch touches, with the batch's own changes on top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from blindpost.ds.model import EMPTY, Ends, Entry
from blindpost.ds.state import Peer
from blindpost.engine.undo import Table, Undo
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class AddEntry(Value):
    """A new entry, with its payload; without it if the payload was staged."""

    queue: bytes
    entry: Entry


@dataclass(frozen=True, slots=True, repr=False)
class DeleteEntry(Value):
    queue: bytes
    entry: Entry


@dataclass(frozen=True, slots=True, repr=False)
class PutEnds(Value):
    """The new ends of a queue; those of an empty queue are not kept, so it starts from 0 in a later turn.

    Within a turn no number is used twice: entries that were loaded are known by their numbers.
    """

    queue: bytes
    ends: Ends


@dataclass(frozen=True, slots=True, repr=False)
class PutTotals(Value):
    payloads: int
    size: int


Change = AddEntry | DeleteEntry | PutEnds | PutTotals


@dataclass(slots=True)
class Wanted:
    """What a batch needs."""

    queues: set[bytes] = field(default_factory=set)
    """Whose ends it needs."""
    heads: dict[bytes, int] = field(default_factory=dict)
    """Queues it takes from, and how many payloads at most."""
    askers: dict[bytes, set[Peer]] = field(default_factory=dict)
    """For whom it takes from them."""
    entries: set[tuple[bytes, int]] = field(default_factory=set)
    """Single entries, without their payloads."""
    touched: set[bytes] = field(default_factory=set)
    """Queues of which it loads nothing, but may change what is handed out, or who waits."""

    def head(self, queue: bytes, payloads: int, *askers: Peer) -> None:
        self.queues.add(queue)
        self.heads[queue] = max(self.heads.get(queue, 0), payloads)
        self.askers.setdefault(queue, set()).update(askers)


class View:
    """What was loaded, and the changes that one commit makes durable."""

    def __init__(self, undo: Undo) -> None:
        self._undo = undo
        self.changes: list[Change] = []
        self._ends: Table[bytes, Ends] = Table(undo)
        self._heads: dict[bytes, list[Entry]] = {}
        self._entries: Table[tuple[bytes, int], Entry] = Table(undo)
        self._cut: set[bytes] = set()
        self._open: set[bytes] = set()
        self._totals: Table[None, tuple[int, int]] = Table(undo)

    def fill_ends(self, queue: bytes, ends: Ends) -> None:
        self._ends.fill(queue, ends)

    def fill_head(self, queue: bytes, entries: Sequence[Entry], *, cut: bool, whole: bool = False) -> None:
        """The first entries of a queue: `cut` if another turn can have more, `whole` if that is all."""
        self._heads[queue] = list(entries)
        for entry in entries:
            self._entries.fill((queue, entry.number), entry)
        if cut:
            self._cut.add(queue)
        if whole:
            self._open.add(queue)

    def fill_entry(self, queue: bytes, entry: Entry) -> None:
        if (queue, entry.number) not in self._entries:
            self._entries.fill((queue, entry.number), entry)

    def fill_totals(self, payloads: int, size: int) -> None:
        self._totals.fill(None, (payloads, size))

    @property
    def totals(self) -> tuple[int, int]:
        """Payloads and bytes in all queues."""
        return self._totals.get(None) or (0, 0)

    def ends(self, queue: bytes) -> Ends:
        return self._ends.get(queue) or EMPTY

    def head(self, queue: bytes) -> Iterator[Entry]:
        """The first entries of a queue that are still there, one by one: most calls need few of many."""
        entries = self._heads.get(queue, ())
        return (entry for entry in entries if (queue, entry.number) in self._entries)

    def is_cut(self, queue: bytes) -> bool:
        """Whether the queue has more than `head` shows, which another turn can load."""
        return queue in self._cut

    def entry(self, queue: bytes, number: int) -> Entry | None:
        return self._entries.get((queue, number))

    def add(self, queue: bytes, tag: bytes, payload: bytes) -> None:
        """Append a payload to a queue."""
        self._append(queue, Entry(self.ends(queue).tail, tag, len(payload), payload))

    def add_staged(self, queue: bytes, tag: bytes, size: int) -> None:
        """Append a large payload already staged under this tag."""
        self._append(queue, Entry(self.ends(queue).tail, tag, size))

    def _append(self, queue: bytes, entry: Entry) -> None:
        ends = self.ends(queue)
        self._entries.put((queue, entry.number), entry)
        if queue in self._open:
            self._heads[queue].append(entry)
            self._undo.add((self._heads[queue].pop,))
        self._change(AddEntry(queue, entry))
        self._count(queue, Ends(ends.tail + 1, ends.count + 1, ends.size + entry.size), 1, entry.size)

    def delete(self, queue: bytes, entry: Entry) -> None:
        ends = self.ends(queue)
        self._entries.pop((queue, entry.number))
        self._change(DeleteEntry(queue, entry))
        self._count(queue, Ends(ends.tail, ends.count - 1, ends.size - entry.size), -1, -entry.size)

    def _count(self, queue: bytes, ends: Ends, payloads: int, size: int) -> None:
        self._ends.put(queue, ends)
        self._change(PutEnds(queue, ends))
        before = self.totals
        self._totals.put(None, (before[0] + payloads, before[1] + size))
        self._change(PutTotals(*self.totals))

    def _change(self, change: Change) -> None:
        self.changes.append(change)
        self._undo.add((self.changes.pop,))
