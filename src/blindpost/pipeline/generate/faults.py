"""What goes wrong in the generated fleet, chosen by the seed and listed in the truth file.

All of it happens on one day, the last but one, so that what becomes of a message in the first hours of the
next day is known as well. With few routers one of them has several faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from blindpost.pipeline.generate.plan import DAY_S, Plan, start_s

HOUR_S = 3_600


@dataclass(frozen=True, slots=True)
class Span:
    """A server, and from when until when."""

    server: str
    first_s: int
    end_s: int


@dataclass(frozen=True, slots=True)
class Pair:
    """From one router to another, and from when until when."""

    from_router: str
    to_router: str
    first_s: int
    end_s: int


@dataclass(frozen=True, slots=True)
class Faults:
    """Every planted fault; the numbers say how bad it is."""

    day: date
    storm: Span
    """After this restart all subscribers come back at once."""
    quota: Span
    """Recipients are away: nothing is taken, queues fill up, senders get QUOTA."""
    expiry: Span
    """Many messages age out in one minute."""
    flapping: Span
    """Two programs with one service's certificate displace each other all the time."""
    slow: Pair
    """Delivery takes many times as long."""
    lost: Pair
    """A message that was accepted never comes."""
    duplicate: Pair
    """A message comes twice."""
    unfinished: Span
    """Notifications that reach no terminal state."""
    unfinished_count: int
    invalid: Span
    """Many device tokens become invalid."""
    invalid_reasons: tuple[tuple[str, int], ...]
    backlog: Span
    """Nobody fetches from the delivery service."""
    drift_day: date
    drift_router: str
    drift_unclaimed: int
    """Queues of the service that the router has and the subscriber lost."""
    drift_gone: int
    """Queues that the subscriber believes it has and the router does not have."""
    drift_unassociated: int
    """Queues that the subscriber believes it has and the router has for no service."""
    migration_good: str
    """A router whose import is proven."""
    migration_bad: str
    """A router whose import lost a message."""

    @property
    def restarts_s(self) -> dict[str, tuple[int, ...]]:
        return {self.storm.server: (self.storm.first_s,)}


def choose(plan: Plan) -> Faults:
    """The faults of this plan."""
    rng = plan.rng("faults")
    day = plan.dates[max(plan.days - 2, 0)]
    day_s = start_s(day)

    def router(place: int) -> str:
        return plan.smp[place % plan.routers]

    def span(server: str, hour: float, hours: float) -> Span:
        first = day_s + int(hour * 60 + rng.integers(0, 20)) * 60
        return Span(server, first, min(first + int(hours * 60) * 60, day_s + DAY_S))

    def pair(one: int, other: int, hour: float, hours: float) -> Pair:
        found = span(router(other), hour, hours)
        return Pair(router(one), router(other), found.first_s, found.end_s)

    return Faults(
        day=day,
        storm=span(router(0), 9, 0.1),
        quota=span(router(1), 13, 2),
        expiry=span(router(2), 3, 1 / 60),
        flapping=span(router(3), 16, 2),
        slow=pair(0, 1, 10, 6),
        lost=pair(1, 0, 11, 1),
        duplicate=pair(2, 1, 7, 1),
        unfinished=span(plan.ntf[0], 14, 1),
        unfinished_count=int(rng.integers(2, 6)),
        invalid=span(plan.ntf[0], 12, 0.5),
        invalid_reasons=tuple(
            (reason, int(rng.integers(20, 60))) for reason in ("BAD", "TOPIC", "EXPIRED", "UNREGISTERED")
        ),
        backlog=span(plan.ds[0], 18, 2),
        drift_day=plan.dates[-1],
        drift_router=router(1),
        drift_unclaimed=int(rng.integers(3, 9)),
        drift_gone=int(rng.integers(3, 9)),
        drift_unassociated=int(rng.integers(3, 9)),
        migration_good=router(0),
        migration_bad=router(1),
    )
