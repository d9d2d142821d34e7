"""A notification router, minute by minute: the funnel of its notifications and the states of its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import numpy as np
import pyarrow as pa

from blindpost.journal.schema import P_COUNTERS, P_FUNNEL, P_GAUGES, P_TOKEN_TRANSITIONS, Table
from blindpost.pipeline.generate.faults import Faults
from blindpost.pipeline.generate.plan import MINUTES, Minutes, Plan, curve
from blindpost.pipeline.generate.rows import build, named, of_writer, words
from blindpost.pipeline.generate.smp import inside

Key = tuple[str, ...]
_ENDS = (
    ("accepted", "", 0.93),
    ("replaced", "", 0.03),
    ("token_inactive", "", 0.015),
    ("no_token", "", 0.01),
    ("expired", "", 0.005),
    ("refused", "PayloadTooLarge", 0.002),
    ("failed", "timeout", 0.003),
    ("dropped", "", 0.001),
    ("token_invalid", "Unregistered", 0.004),
)
_PROVIDERS = (("apns", 0.8), ("webpush", 0.2))


def day(plan: Plan, faults: Faults, minutes: Minutes, when: date) -> Iterator[tuple[Table, pa.Table]]:
    """The rows of one day. A notification ends in the minute in which it came, but for the planted ones."""
    rng = plan.rng("ntf", minutes.server, when)
    rate = 600 * plan.scale * curve(0.0, when) + 4
    lost = _spread(inside(minutes, faults.unfinished), faults.unfinished_count)
    funnel: dict[Key, np.ndarray] = {}
    for provider, share in _PROVIDERS:
        received = np.where(minutes.up, rng.poisson(rate * share), 0)
        funnel |= _funnel(provider, received, lost if provider == "apns" else 0 * lost, rng)
    invalid = _of_all(funnel, "token_invalid")
    transitions = _transitions(faults, minutes, rng, invalid)
    tokens = 5_000 * plan.scale + 200 + np.zeros(MINUTES)
    yield P_FUNNEL, keyed(P_FUNNEL, minutes, ("state", "reason", "provider"), funnel)
    yield (
        P_TOKEN_TRANSITIONS,
        keyed(P_TOKEN_TRANSITIONS, minutes, ("from_state", "to_state", "reason"), transitions),
    )
    yield (
        P_COUNTERS,
        named(
            P_COUNTERS,
            minutes,
            {"ntfReceived": _of_all(funnel, "received"), "ntfDelivered": _of_all(funnel, "accepted")},
            zeros=False,
        ),
    )
    yield P_GAUGES, named(P_GAUGES, minutes, {"tokens": tokens, "subscriptions": tokens * 20}, zeros=True)


def _funnel(
    provider: str, received: np.ndarray, lost: np.ndarray, rng: np.random.Generator
) -> dict[Key, np.ndarray]:
    shares = np.array([share for _, _, share in _ENDS])
    ends = rng.multinomial(received, shares / shares.sum())
    retried = rng.binomial(ends[:, 0], 0.01)
    tries = sum(ends[:, place] for place in (0, 5, 6, 8))
    return {
        ("received", "", provider): received + lost,
        ("stored", "", provider): received + lost - ends[:, 3],
        ("pushed", "", provider): np.asarray(tries) + retried + lost,
        ("retried", "", provider): retried,
        **{(state, reason, provider): ends[:, place] for place, (state, reason, _) in enumerate(_ENDS)},
    }


def _of_all(funnel: dict[Key, np.ndarray], state: str) -> np.ndarray:
    """How many entered a state, by any provider."""
    return np.asarray(sum(found for key, found in funnel.items() if key[0] == state))


def _transitions(
    faults: Faults, minutes: Minutes, rng: np.random.Generator, invalid: np.ndarray
) -> dict[Key, np.ndarray]:
    """New tokens become active in three steps; some are deleted; some turn out to be invalid."""
    created = np.where(minutes.up, rng.poisson(0.5, MINUTES), 0)
    found: dict[Key, np.ndarray] = {
        ("", "REGISTERED", ""): created,
        ("REGISTERED", "CONFIRMED", ""): created,
        ("CONFIRMED", "ACTIVE", ""): rng.binomial(created, 0.9),
        ("ACTIVE", "", ""): rng.binomial(created, 0.5),
        ("ACTIVE", "INVALID", "UNREGISTERED"): invalid.copy(),
        ("INVALID", "REGISTERED", ""): rng.binomial(invalid, 0.3),
    }
    for reason, count in faults.invalid_reasons:
        key = ("ACTIVE", "INVALID", reason)
        more = _spread(inside(minutes, faults.invalid), count)
        found[key] = found.get(key, np.zeros(MINUTES, np.int64)) + more
    return found


def _spread(where: np.ndarray, count: int) -> np.ndarray:
    """So many, one after another over these minutes."""
    found = np.zeros(MINUTES, np.int64)
    places = np.nonzero(where)[0]
    if len(places):
        np.add.at(found, places[np.arange(count) % len(places)], 1)
    return found


def keyed(table: Table, minutes: Minutes, names: Key, values: dict[Key, np.ndarray]) -> pa.Table:
    """A table whose rows are known by several words; without zeros."""
    keys = list(values)
    grid = np.stack([values[key] for key in keys], axis=1) * minutes.up[:, None]
    at, which = np.nonzero(grid)
    columns = {name: words([key[place] for key in keys], which) for place, name in enumerate(names)}
    return build(table, {**of_writer(minutes, at), **columns, "value": grid[at, which]})
