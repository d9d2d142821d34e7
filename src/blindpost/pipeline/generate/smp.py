"""A message router, minute by minute: counters, levels and times that fit together.

What is sent is taken, waits, or ages out, and the level of stored messages is exactly what is left. Backlog
and queues are carried from day to day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pyarrow as pa

from blindpost.journal.schema import P_COUNTERS, P_GAUGES, P_HISTOGRAMS, P_SERVICES, Table
from blindpost.pipeline.generate.faults import Faults, Span
from blindpost.pipeline.generate.plan import MINUTES, Minutes, Plan, curve
from blindpost.pipeline.generate.rows import build, named, of_writer, same, words

ACK_BOUNDS_S = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 60.0, 300.0, 3600.0)
SERVICES = 3
"""Of these the first takes part in the flapping."""
STORM_MINUTES = 6
EXPIRED_PER_SCALE = 40_000
Counts = dict[str, np.ndarray]


@dataclass(slots=True)
class Router:
    """What a router carries from one day into the next."""

    name: str
    weight: float
    phase: float
    queues: int
    notifiers: int
    messages: int
    service_queues: int
    waiting: np.ndarray = field(default_factory=lambda: np.zeros(MINUTES, np.int64))
    """Of the day before, for each minute: messages that were left waiting."""
    totals: Counts = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, name: str) -> Router:
        rng = plan.rng("router", name)
        weight = float(rng.uniform(0.4, 1.8))
        queues = int(60_000 * plan.scale * weight) + 500
        return cls(
            name,
            weight,
            float(rng.uniform(-0.1, 0.1)),
            queues,
            notifiers=queues // 4,
            messages=queues // 20 + int(EXPIRED_PER_SCALE * plan.scale) + 400,
            service_queues=queues // 3,
        )


def inside(minutes: Minutes, span: Span) -> np.ndarray:
    """Which minutes of this day a fault is in."""
    if span.server != minutes.server:
        return np.zeros(MINUTES, bool)
    return (minutes.minute_s >= span.first_s) & (minutes.minute_s < span.end_s)


def day(
    plan: Plan, faults: Faults, router: Router, minutes: Minutes, when: date
) -> Iterator[tuple[Table, pa.Table]]:
    """The rows of one day, and what the router carries into the next one."""
    rng = plan.rng("smp", router.name, when)
    rate = 1_000 * plan.scale * router.weight * curve(router.phase, when) + 3
    counts = _queues(rng, rate)
    counts.update(_messages(plan, faults, router, minutes, rng, rate, counts["qDeletedAll"]))
    counts.update(_subscriptions(faults, router, minutes, rng, rate))
    services, ends = _services(faults, minutes, rng, router.service_queues)
    counts.update(ends)
    counts = {name: np.where(minutes.up, values, 0) for name, values in counts.items()}
    levels = _levels(router, counts, rng)
    yield P_COUNTERS, named(P_COUNTERS, minutes, counts, zeros=False)
    yield P_GAUGES, named(P_GAUGES, minutes, levels, zeros=True)
    yield P_HISTOGRAMS, _times(minutes, counts["msgRecv"], rng)
    yield P_SERVICES, services


def _messages(
    plan: Plan,
    faults: Faults,
    router: Router,
    minutes: Minutes,
    rng: np.random.Generator,
    rate: np.ndarray,
    queues_deleted: np.ndarray,
) -> Counts:
    """Sent, taken at once or a day later, aged out; nobody takes anything while the quota fault lasts."""
    sent = np.where(minutes.up, rng.poisson(rate), 0)
    left = rng.binomial(sent, 0.01)
    stalled = inside(minutes, faults.quota)
    blocked = stalled & (np.cumsum(stalled) > 30)
    sent = np.where(blocked, sent // 10, sent)
    left = np.where(stalled, sent, np.minimum(left, sent))
    expired = np.where(minutes.up, router.waiting // 50, 0)
    deleted = np.where(minutes.up & (queues_deleted > 0), (router.waiting + 7) // 20, 0)
    came = np.where(minutes.up, router.waiting - expired - deleted, 0)
    markers = _markers(blocked)
    held = np.where(stalled, sent, 0)
    released = np.roll(held, 180)
    router.waiting = np.where(stalled, 0, left)
    spike = inside(minutes, faults.expiry)
    expired = expired + np.where(spike, int(EXPIRED_PER_SCALE * plan.scale * 0.5) + 200, 0)
    taken = np.where(minutes.up, sent - left + came + released, 0)
    got = rng.binomial(taken, 0.05)
    notified = rng.binomial(sent, 0.3)
    return {
        "msgSent": sent,
        "msgRecv": taken,
        "msgRecvGet": got,
        "msgGet": got,
        "msgGetNoMsg": rng.poisson(rate * 0.01),
        "msgExpired": expired,
        "msgDeleted": deleted,
        "msgMarkers": markers,
        "msgMarkersGone": np.roll(markers, 240),
        "msgSentAuth": rng.poisson(rate * 0.002),
        "msgSentQuota": np.where(blocked, rng.poisson(rate * 0.9), rng.poisson(rate * 0.0005)),
        "msgSentNtf": notified,
        "msgRecvNtf": rng.binomial(taken, 0.3),
        "msgNtfs": rng.binomial(notified, 0.97),
        "msgNtfNoSub": rng.binomial(notified, 0.02),
        "pMsgFwdsRecv": rng.binomial(sent, 0.4),
    }


def _markers(blocked: np.ndarray) -> np.ndarray:
    """A full queue gets a mark behind its last message, which goes with it."""
    found = np.zeros(MINUTES, np.int64)
    found[np.nonzero(blocked)[0][:10]] = 3
    return found


def _queues(rng: np.random.Generator, rate: np.ndarray) -> Counts:
    created = rng.poisson(rate * 0.01)
    secured = rng.binomial(created, 0.8)
    deleted = rng.binomial(created, 0.6)
    fresh = rng.binomial(deleted, 0.1)
    notifiers = rng.binomial(created, 0.3)
    return {
        "qCreated": created,
        "qSecured": secured,
        "qDeletedAll": deleted,
        "qDeletedNew": fresh,
        "qDeletedSecured": deleted - fresh,
        "ntfCreated": notifiers,
        "ntfDeleted": rng.binomial(notifiers, 0.5),
    }


def _subscriptions(
    faults: Faults, router: Router, minutes: Minutes, rng: np.random.Generator, rate: np.ndarray
) -> Counts:
    """A trickle of reconnecting clients; after a restart of the storm all of them at once."""
    subs = rng.poisson(rate * 0.05)
    after = (minutes.minute_s - faults.storm.first_s) // 60
    storm = (minutes.server == faults.storm.server) & (after >= 0) & (after < STORM_MINUTES)
    share = max(router.queues // STORM_MINUTES, 600)
    subs = np.where(storm, subs + share + rng.poisson(share * 0.05, MINUTES), subs)
    return {
        "qSub": subs,
        "qSubAllB": -(-subs // 100),
        "qSubDuplicate": rng.binomial(subs, 0.01),
        "qSubEnd": rng.binomial(subs, 0.02),
        "ntfSub": rng.poisson(rate * 0.005),
    }


def _services(
    faults: Faults, minutes: Minutes, rng: np.random.Generator, queues: int
) -> tuple[pa.Table, Counts]:
    """Each service subscribes when a boot begins and a few times a day; one of them flaps for a while."""
    times = (rng.random((MINUTES, SERVICES)) < 4 / MINUTES).astype(np.int64)
    for boot in minutes.boots:
        times[(minutes.minute_s == boot.first_s)] = 1
    flapping = inside(minutes, faults.flapping)
    times[:, 0] += np.where(flapping, rng.integers(2, 5, MINUTES), 0)
    times *= minutes.up[:, None]
    at, which = np.nonzero(times)
    times = times[at, which]
    rows = build(
        P_SERVICES,
        {
            **of_writer(minutes, at),
            "ordinal": which.astype(np.int32),
            "service_role": same("messaging", len(at)),
            "agreed": np.ones(len(at), bool),
            "times": times.astype(np.int32),
        },
    )
    subscribed = np.bincount(at, times, MINUTES).astype(np.int64)
    ends = np.where(flapping, np.bincount(at[which == 0], times[which == 0], MINUTES).astype(np.int64), 0)
    counts = {
        "rcvServices.subCount": subscribed,
        "rcvServices.subOk": subscribed,
        "rcvServices.subEnd": ends,
    }
    return rows, counts


DISK_BYTES, DISK_USED, STORED_BYTES = 100e9, 0.2, 20_000
"""The disk of a generated router: its size, what else is on it, and what a queue or a message takes."""


def _levels(router: Router, counts: Counts, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What was there at the end of each minute, from what changed it."""
    queues = router.queues + np.cumsum(counts["qCreated"] - counts["qDeletedAll"])
    notifiers = router.notifiers + np.cumsum(counts["ntfCreated"] - counts["ntfDeleted"])
    gone = counts["msgRecv"] + counts["msgExpired"] + counts["msgDeleted"] + counts["msgMarkersGone"]
    messages = router.messages + np.cumsum(counts["msgSent"] + counts["msgMarkers"] - gone)
    router.queues, router.notifiers, router.messages = int(queues[-1]), int(notifiers[-1]), int(messages[-1])
    steady = np.ones(MINUTES)
    return {
        "queues": queues.astype(float),
        "messages": messages.astype(float),
        "notifiers": notifiers.astype(float),
        "notifications": rng.poisson(20, MINUTES).astype(float),
        "services_messaging": SERVICES * steady,
        "services_notifier": 0 * steady,
        "service_queues_messaging": router.service_queues * steady,
        "service_queues_notifier": 0 * steady,
        "connections": rng.poisson(router.queues / 20, MINUTES).astype(float),
        "subscriptions": np.round(queues * 0.6),
        "disk_free_bytes": np.maximum(DISK_BYTES * (1 - DISK_USED) - STORED_BYTES * (messages + queues), 0),
        "disk_size_bytes": DISK_BYTES * steady,
    }


def _times(minutes: Minutes, taken: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """From delivery to ACK: most at once, few after a minute."""
    at = np.nonzero(minutes.up & (taken > 0))[0]
    shares = np.array(
        [0.7, 0.15, 0.05, 0.03, 0.02, 0.01, 0.01, 0.008, 0.006, 0.005, 0.004, 0.003, 0.002, 0.0015, 0.0005]
    )
    counts = rng.multinomial(taken[at], shares / shares.sum())
    return histogram(minutes, at, "ack_s", ACK_BOUNDS_S, counts)


def histogram(
    minutes: Minutes, at: np.ndarray, name: str, bounds: tuple[float, ...], counts: np.ndarray
) -> pa.Table:
    """Rows of a histogram: the sum is as if each observation were its bucket's bound."""
    size = len(bounds)
    places = np.append(np.array(bounds), 2 * bounds[-1])
    offsets = np.arange(len(at) + 1, dtype=np.int32)
    highest = np.where(counts > 0, places, 0.0).max(axis=1, initial=0.0)
    return build(
        P_HISTOGRAMS,
        {
            **of_writer(minutes, at),
            "name": words([name], np.zeros(len(at), np.int32)),
            "bounds": pa.ListArray.from_arrays(offsets * size, pa.array(np.tile(bounds, len(at)))),
            "counts": pa.ListArray.from_arrays(
                offsets * (size + 1), pa.array(counts.reshape(-1).astype(np.int64))
            ),
            "total": counts @ places,
            "maximum": np.maximum.accumulate(highest) if len(at) else highest,
        },
    )
