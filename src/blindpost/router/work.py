"""How much work a batch asks for, and which part of it one turn does.

The unit is one verification of Ed25519. Most commands ask for one; those signed with Ed448, and those on
queues with several owners, ask for many, and their senders must not make others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blindpost.crypto.authorizers import ED448_WORK
from blindpost.engine.events import Gone
from blindpost.engine.loop import Cut
from blindpost.router.asking import Asked
from blindpost.router.events import Commands, Event
from blindpost.router.model import OWNERS_MAX, QueueRecord
from blindpost.wire.smp.commands import RKEY
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.transmission import ED448_SIGNATURE_SIZE
from blindpost.wire.transmissions import Refused

TURN_WORK = 2048
"""The work of one turn: about 70 ms on the machine it was measured on."""
HEAVY_WORK = TURN_WORK // 8
"""The least that heavy clients get in each turn."""


def inner_of(one: Asked | Refused) -> Asked | Refused:
    """What is verified: the command that another carries, or the command itself."""
    return one.inner if isinstance(one, Asked) and one.inner is not None else one


class Work:
    """What the verification of each request of a batch costs."""

    __slots__ = ("_owners", "_record_of", "total")

    def __init__(self, record_of: Callable[[bytes], QueueRecord | None], verifiable: Sequence[Asked]) -> None:
        self._record_of = record_of
        self._owners: dict[bytes, int] = {}
        total = 0
        for one in verifiable:
            request = one.request
            if type(request.command) is RKEY:
                # What follows in the batch is verified again, against the new keys.
                self._owners[request.entity_id] = len(request.command.keys)
            total += self._of(request)
        self.total = total

    def of(self, one: Asked | Refused) -> int:
        inner = inner_of(one)
        return self._of(inner.request) if isinstance(inner, Asked) else 1

    def _of(self, request: Request) -> int:
        work = ED448_WORK if len(request.authorization) == ED448_SIGNATURE_SIZE else 1
        record = self._record_of(request.entity_id)
        if record is not None:
            owners = len(record.recipient_keys)
            if self._owners:
                owners = max(owners, self._owners.get(request.entity_id, 0))
            if owners > 1:
                work *= max(OWNERS_MAX, owners)
        return work


def cut(batch: Sequence[Event], work: Work) -> Cut[Event]:
    """Small requesters first; of the others as much as time allows, the rest later.

    What one connection sent stays in order: nothing overtakes a deferred command.
    """
    works = {
        place: [work.of(one) for one in event.asked]
        for place, event in enumerate(batch)
        if isinstance(event, Commands)
    }
    left = TURN_WORK
    shares: dict[int, int] = {}
    for place in sorted(works, key=lambda place: sum(works[place])):
        asked = sum(works[place])
        shares[place] = min(asked, max(left, 0))
        left -= asked
    if works and left < 0:
        last = max(works, key=lambda place: (shares[place] > 0, sum(works[place]), -place))
        shares[last] = max(shares[last], HEAVY_WORK)
    now: list[Event] = []
    later: list[tuple[int, Event]] = []
    put_off = set()
    for place, event in enumerate(batch):
        if isinstance(event, Commands):
            count = 0 if event.client in put_off else _within(works[place], shares[place])
            if count < len(event.items):
                later.append((place, Commands(event.client, event.items[count:], event.keys[count:])))
                put_off.add(event.client)
            if count:
                event.items, event.asked = event.items[:count], event.asked[:count]
                event.keys = event.keys[:count]
                now.append(event)
        elif isinstance(event, Gone) and event.client in put_off:
            later.append((place, event))
        else:
            now.append(event)
    debts = [(place, sum(asked) - len(asked)) for place, asked in works.items() if sum(asked) > len(asked)]
    return Cut(now, later, debts)


def _within(works: Sequence[int], share: int) -> int:
    """How many commands this much work covers, including the one that exceeds it."""
    count = 0
    while count < len(works) and share > 0:
        share -= works[count]
        count += 1
    return count
