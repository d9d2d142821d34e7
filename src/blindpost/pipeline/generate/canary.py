"""A canary that sends through pairs of routers, and what became of each message and notification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pyarrow as pa

from blindpost.journal.schema import (
    INTEGRITY,
    L_MESSAGES,
    L_NOTIFICATIONS,
    MESSAGE_EVENTS,
    NOTIFICATION_STATES,
    Table,
)
from blindpost.pipeline.generate.faults import Faults, Pair
from blindpost.pipeline.generate.plan import DAY_S, Plan, start_s
from blindpost.pipeline.generate.rows import build, same, words

CANARY = "canary-01"
LOST_AFTER_US = 600_000_000
PAIRS_MOST = 10_000
"""Up to this many pairs all are measured; beyond, each router with some neighbours: no canary sends through
a hundred million pairs."""
SLOW_TIMES = 120
Events = dict[str, np.ndarray]


def events(**columns: np.ndarray | int) -> Events:
    """Equally long columns; a single number stands for all rows."""
    size = max(len(values) for values in columns.values() if isinstance(values, np.ndarray))
    return {name: np.broadcast_to(np.asarray(values, np.int64), size) for name, values in columns.items()}


def together(parts: Sequence[Events]) -> Events:
    """All events in the order of time."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(joined["time_us"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


@dataclass(slots=True)
class Known:
    """A message that something happened to, as the truth file tells it."""

    from_router: str
    to_router: str
    number: int
    sent_us: int
    fault: str


@dataclass(slots=True)
class Canary:
    """One process that runs through all days; answers to the last messages of a day come on the next."""

    plan: Plan
    faults: Faults
    seq: int = 0
    carried: Events | None = None
    known: list[Known] = field(default_factory=list)
    sent: int = 0
    pairs: list[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        names, routers = self.plan.smp, self.plan.routers
        if routers**2 <= PAIRS_MOST:
            self.pairs = [(one, other) for one in names for other in names]
            return
        reach = max(PAIRS_MOST // routers, 1)
        near = [
            (one, names[(place + step) % routers])
            for place, one in enumerate(names)
            for step in range(1, reach + 1)
        ]
        faulty = (self.faults.slow, self.faults.lost, self.faults.duplicate)
        self.pairs = list(dict.fromkeys([*near, *((one.from_router, one.to_router) for one in faulty)]))

    @property
    def per_day(self) -> int:
        """Messages of each pair in a day."""
        return max(96, int(1_440 * self.plan.scale))

    def day(self, number: int, when: date) -> tuple[Table, pa.Table]:
        """The events that were written on this day."""
        parts = self._messages(number, when)
        if self.carried is not None:
            parts.append(self.carried)
        found = together(parts)
        today = found["time_us"] < (start_s(when) + DAY_S) * 1_000_000
        self.carried = {name: values[~today] for name, values in found.items()}
        return L_MESSAGES, self._rows({name: values[today] for name, values in found.items()})

    def _messages(self, number: int, when: date) -> list[Events]:
        rng = self.plan.rng("canary", when)
        pairs, per_day = len(self.pairs), self.per_day
        count = pairs * per_day
        pair = np.repeat(np.arange(pairs), per_day)
        place = np.tile(np.arange(per_day), pairs)
        step = DAY_S * 1_000_000 // per_day
        sent = start_s(when) * 1_000_000 + place * step + rng.integers(0, step // 2, count)
        base = self.plan.rng("distances").uniform(0.5, 2.0, pairs)[pair]
        accepted = sent + (12_000 * base * rng.lognormal(0, 0.3, count)).astype(np.int64)
        trip = 20_000 * base * rng.lognormal(0, 0.4, count)
        slow = self._inside(self.faults.slow, pair, sent)
        delivered = accepted + (trip * np.where(slow, SLOW_TIMES, 1)).astype(np.int64)
        acked = delivered + (6_000 * base * rng.lognormal(0, 0.3, count)).astype(np.int64)
        message = {
            "pair": pair,
            "connection": rng.integers(1, 2**62, pairs)[pair],
            "number": number * per_day + place,
            "size": rng.choice([200, 2_000, 15_000], count),
        }
        lost, again = (
            self._first(self.faults.lost, pair, sent),
            self._first(self.faults.duplicate, pair, sent),
        )
        skipped = [one + 1 for one in lost if place[one] + 1 < per_day]
        self._note(lost, "lost", message, sent)
        self._note(again, "duplicate", message, sent)
        self._note(skipped, "skipped", message, sent)
        self.sent += count
        came = np.ones(count, bool)
        came[lost] = False
        integrity = np.full(count, INTEGRITY.index("ok"))
        integrity[skipped] = INTEGRITY.index("skipped")

        def part(
            event: str, time_us: np.ndarray, where: np.ndarray | list[int], judged: np.ndarray | int = 0
        ) -> Events:
            chosen = {name: values[where] for name, values in message.items()}
            return events(
                time_us=time_us[where], event=MESSAGE_EVENTS.index(event), integrity=judged, **chosen
            )

        everything = np.ones(count, bool)
        return [
            part("sent", sent, everything),
            part("accepted", accepted, everything),
            part("delivered", delivered, came, integrity[came]),
            part("acked", acked, came),
            part("lost", sent + LOST_AFTER_US, lost),
            part("duplicate", delivered + 1_500_000, again, INTEGRITY.index("duplicate")),
        ]

    def _inside(self, fault: Pair, pair: np.ndarray, sent_us: np.ndarray) -> np.ndarray:
        which = self.pairs.index((fault.from_router, fault.to_router))
        first_us, end_us = fault.first_s * 1_000_000, fault.end_s * 1_000_000
        return np.asarray((pair == which) & (sent_us >= first_us) & (sent_us < end_us))

    def _first(self, fault: Pair, pair: np.ndarray, sent_us: np.ndarray) -> list[int]:
        """The first message of the pair in the time of the fault, if it is on this day."""
        return [int(place) for place in np.nonzero(self._inside(fault, pair, sent_us))[0][:1]]

    def _note(self, places: list[int], fault: str, message: Events, sent: np.ndarray) -> None:
        for place in places:
            one, other = self.pairs[int(message["pair"][place])]
            self.known.append(Known(one, other, int(message["number"][place]), int(sent[place]), fault))

    def _rows(self, found: Events) -> pa.Table:
        rows = len(found["time_us"])
        first, self.seq = self.seq, self.seq + rows
        names = self.plan.smp
        place = {name: number for number, name in enumerate(names)}
        one, other = np.array([[place[name] for name in pair] for pair in self.pairs]).T
        return build(
            L_MESSAGES,
            {
                "router": same(CANARY, rows),
                "role": same("canary", rows),
                "boot": same(self.plan.hex_id(CANARY), rows),
                "seq": np.arange(first, first + rows),
                "time_us": found["time_us"],
                "from_router": words(names, one[found["pair"]]),
                "to_router": words(names, other[found["pair"]]),
                "connection": found["connection"],
                "number": found["number"],
                "event": words(MESSAGE_EVENTS, found["event"]),
                "integrity": words(INTEGRITY, found["integrity"]),
                "size": found["size"].astype(np.int32),
            },
        )


@dataclass(slots=True)
class NotificationCanary:
    """The notifications of canaries at one notification router."""

    plan: Plan
    faults: Faults
    server: str
    seq: int = 0
    carried: Events | None = None

    def day(self, when: date) -> tuple[Table, pa.Table]:
        """The events of a day; the planted ones stop after they were pushed."""
        rng = self.plan.rng("notifications", self.server, when)
        count = int(8_000 * self.plan.scale) + 300
        received = start_s(when) * 1_000_000 + np.sort(rng.integers(0, DAY_S * 1_000_000, count))
        fault = self.faults.unfinished
        inside = (received >= fault.first_s * 1_000_000) & (received < fault.end_s * 1_000_000)
        stops = np.zeros(count, bool)
        if fault.server == self.server and when == self.faults.day:
            stops[np.nonzero(inside)[0][: self.faults.unfinished_count]] = True
        stored = received + rng.integers(200, 2_000, count)
        pushed = stored + rng.integers(1_000, 30_000, count)
        ended = pushed + (60_000 * rng.lognormal(0, 0.5, count)).astype(np.int64)
        end = np.where(rng.random(count) < 0.97, _state("accepted"), _state("token_invalid"))
        token, notification = rng.integers(1, 2**62, 40), rng.integers(1, 2**62, count)
        whose = token[rng.integers(0, 40, count)]
        every, finished = np.ones(count, bool), ~stops
        parts = [
            events(time_us=time[where], token=whose[where], notification=notification[where], state=state)
            for time, where, state in (
                (received, every, _state("received")),
                (stored, every, _state("stored")),
                (pushed, every, _state("pushed")),
                (ended, finished, end[finished]),
            )
        ]
        if self.carried is not None:
            parts.append(self.carried)
        found = together(parts)
        today = found["time_us"] < (start_s(when) + DAY_S) * 1_000_000
        self.carried = {name: values[~today] for name, values in found.items()}
        return L_NOTIFICATIONS, self._rows({name: values[today] for name, values in found.items()})

    def _rows(self, found: Events) -> pa.Table:
        rows = len(found["time_us"])
        first, self.seq = self.seq, self.seq + rows
        return build(
            L_NOTIFICATIONS,
            {
                "router": same(self.server, rows),
                "role": same("canary", rows),
                "boot": same(self.plan.hex_id("canary", self.server), rows),
                "seq": np.arange(first, first + rows),
                "time_us": found["time_us"],
                "token": found["token"],
                "notification": found["notification"],
                "state": words(NOTIFICATION_STATES, found["state"]),
            },
        )


def _state(name: str) -> int:
    return NOTIFICATION_STATES.index(name)
