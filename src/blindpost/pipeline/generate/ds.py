"""A delivery service: its meters minute by minute, and the whole events of a load test."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import numpy as np
import pyarrow as pa

from blindpost.journal.schema import DELIVERY_EVENTS, L_DELIVERY, P_COUNTERS, P_GAUGES, P_HISTOGRAMS, Table
from blindpost.pipeline.generate.faults import Faults
from blindpost.pipeline.generate.plan import DAY_S, MINUTES, Minutes, Plan, curve, start_s
from blindpost.pipeline.generate.rows import build, named, same, words
from blindpost.pipeline.generate.smp import histogram, inside

WAIT_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BEFORE = 50
"""Payloads that are there when the first day begins."""


def day(plan: Plan, faults: Faults, minutes: Minutes, when: date) -> Iterator[tuple[Table, pa.Table]]:
    """Everything is fetched in its minute, but while the backlog lasts: then all of it in the hour after."""
    rng = plan.rng("ds", minutes.server, when)
    enqueued = np.where(minutes.up, rng.poisson(300 * plan.scale * curve(0.05, when) + 4), 0)
    stuck = inside(minutes, faults.backlog)
    taken = np.where(stuck, 0, enqueued)
    held = int(enqueued[stuck].sum())
    if held:
        last = int(np.nonzero(stuck)[0][-1])
        after = np.nonzero(minutes.up & (np.arange(MINUTES) > last))[0][:60]
        np.add.at(taken, after, held // len(after))
        taken[after[-1]] += held - held // len(after) * len(after)
    depth = BEFORE + np.cumsum(enqueued - taken)
    back = rng.binomial(taken, 0.01)
    waits = np.where(minutes.up, rng.poisson(60 * plan.scale + 2, MINUTES), 0)
    woken = np.where(stuck, 0, rng.binomial(waits, 0.7))
    counts = {
        "enqueued": enqueued,
        "enqueued_bytes": enqueued * 900,
        "handed_out": taken + back,
        "acknowledged": taken,
        "put_back": back,
        "displaced": rng.binomial(back, 0.1),
        "waits": waits,
        "wakes": woken,
        "waits_expired": waits - woken,
    }
    levels = {
        "payloads": depth.astype(float),
        "bytes": depth * 900.0,
        "in_hand": np.round(taken * 0.1),
        "waiting": np.round(waits * 0.5),
        "connections": np.full(MINUTES, 40.0),
    }
    at = np.nonzero(woken)[0]
    shares = np.exp(-((np.arange(len(WAIT_BOUNDS_S) + 1) - 8) ** 2) / 6)
    waited = rng.multinomial(woken[at], shares / shares.sum())
    yield P_COUNTERS, named(P_COUNTERS, minutes, counts, zeros=False)
    yield P_GAUGES, named(P_GAUGES, minutes, levels, zeros=True)
    yield P_HISTOGRAMS, histogram(minutes, at, "wait_s", WAIT_BOUNDS_S, waited)


def load_test(plan: Plan, server: str, when: date) -> tuple[Table, pa.Table]:
    """An hour of a load test at noon: payloads come, are leased, sometimes put back, and acknowledged."""
    rng = plan.rng("load", server, when)
    payloads, queues = int(20_000 * plan.scale) + 200, 20
    came = np.sort(rng.integers(0, 3_400_000_000, payloads)) + (start_s(when) + DAY_S // 2) * 1_000_000
    queue = rng.integers(0, queues, payloads)
    leased = came + rng.lognormal(9, 1, payloads).astype(np.int64) + 50
    back = rng.random(payloads) < 0.02
    again = leased + 2_000_000
    acked = np.where(back, again + 60_000, leased) + rng.integers(500, 40_000, payloads)
    number = np.arange(payloads)
    waits = rng.integers(0, payloads, payloads // 5)
    heard = rng.random(len(waits)) < 0.8
    began = came[waits] - rng.integers(1_000, 900_000, len(waits))
    parts = [
        (came, number, "enqueued", came * 0),
        (leased, number, "leased", leased - came),
        (again[back], number[back], "put_back", (again - came)[back]),
        ((again + 50_000)[back], number[back], "leased", (again + 50_000 - came)[back]),
        (acked, number, "acked", acked - came),
        (began, waits, "waited", began * 0),
        (came[waits[heard]] + 80, waits[heard], "woken", (came[waits] + 80 - began)[heard]),
        ((began + 1_000_000)[~heard], waits[~heard], "timed_out", np.full(int((~heard).sum()), 1_000_000)),
    ]
    return L_DELIVERY, _delivery_rows(plan, server, when, parts, queue)


def _delivery_rows(
    plan: Plan,
    server: str,
    when: date,
    parts: list[tuple[np.ndarray, np.ndarray, str, np.ndarray]],
    queue: np.ndarray,
) -> pa.Table:
    rng = plan.rng("blind", server, when)
    time_us = np.concatenate([part[0] for part in parts])
    which = np.concatenate([part[1] for part in parts])
    event = np.concatenate([np.full(len(part[0]), DELIVERY_EVENTS.index(part[2])) for part in parts])
    age = np.concatenate([part[3] for part in parts])
    order = np.argsort(time_us, kind="stable")
    time_us, which, event, age = time_us[order], which[order], event[order], age[order]
    change = np.select(
        [event == DELIVERY_EVENTS.index("enqueued"), event == DELIVERY_EVENTS.index("acked")], [1, -1], 0
    )
    of_queue = queue[which]
    depth = np.zeros(len(event), np.int64)
    for one in range(int(queue.max()) + 1):
        mine = of_queue == one
        depth[mine] = np.cumsum(change[mine])
    blinded = rng.integers(1, 2**62, int(queue.max()) + 1)
    secret = rng.integers(1, 2**62, len(queue))
    waiting = np.isin(event, [DELIVERY_EVENTS.index(name) for name in ("waited", "woken", "timed_out")])
    rows = len(event)
    return build(
        L_DELIVERY,
        {
            "router": same(server, rows),
            "role": same("load", rows),
            "boot": same(plan.hex_id("load", server, when), rows),
            "seq": np.arange(rows),
            "time_us": time_us,
            "queue": blinded[of_queue],
            "payload": np.where(waiting, 0, secret[which]),
            "event": words(DELIVERY_EVENTS, event),
            "depth": depth.astype(np.int32),
            "age_us": age,
        },
    )
