"""The state of routers and of their subscribers, with queues that one side does not have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from hashlib import md5

import numpy as np
import pyarrow as pa

from blindpost.journal.schema import (
    S_MIGRATION,
    S_QUEUES,
    S_SERVICE_CLAIMS,
    S_SNAPSHOT,
    SERVICE_ROLES,
    Table,
)
from blindpost.pipeline.generate.faults import Faults
from blindpost.pipeline.generate.plan import DAY_S, Plan, start_s
from blindpost.pipeline.generate.rows import build, same, words
from blindpost.pipeline.generate.smp import SERVICES

ID_SIZE = 24
EXPORT_AT_S = 2 * 3_600
Rows = Iterator[tuple[Table, pa.Table]]


@dataclass(frozen=True, slots=True)
class Drift:
    """What differs between the two sides of one service."""

    router: str
    service_id: str
    role: str
    unclaimed: list[str]
    gone: list[str]
    unassociated: list[str]


def lanes(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The MD5 of each id, in two numbers."""
    raw = ids.tobytes()
    size = ids.shape[1]
    digests = b"".join(
        md5(raw[place : place + size], usedforsecurity=False).digest() for place in range(0, len(raw), size)
    )
    found = np.frombuffer(digests, ">i8").reshape(-1, 2).astype(np.int64)
    return found[:, 0], found[:, 1]


def new_ids(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.frombuffer(rng.bytes(count * ID_SIZE), np.uint8).reshape(count, ID_SIZE)


def binary(ids: np.ndarray) -> pa.Array:
    """A column of ids that all have one size."""
    count, size = ids.shape
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(ids.tobytes())]
    )


@dataclass(frozen=True, slots=True)
class Side:
    """Queues as one side has them; `service` is the place of their service, or -1."""

    name: str
    role: np.ndarray
    ids: np.ndarray
    service: np.ndarray

    def without(self, gone: np.ndarray, more: Side) -> Side:
        return Side(
            self.name,
            np.concatenate([self.role[~gone], more.role]),
            np.concatenate([self.ids[~gone], more.ids]),
            np.concatenate([self.service[~gone], more.service]),
        )


def snapshot(
    plan: Plan, faults: Faults, router: str, when: date, queues: int
) -> tuple[list[tuple[Table, pa.Table]], Drift | None]:
    """One export of each side, with queues of three services and of one that notifies."""
    rng = plan.rng("state", router, when)
    notifiers = queues // 4
    role = np.repeat([0, 1], [queues, notifiers])
    service = np.where(role == 0, rng.integers(-2 * SERVICES, SERVICES, len(role)).clip(-1), SERVICES)
    here = Side("router", role, new_ids(rng, len(role)), service)
    own = service >= 0
    there = Side("subscriber", role[own], here.ids[own], service[own])
    services = new_ids(plan.rng("services", router), SERVICES + 1)
    drift = None
    if router == faults.drift_router and when == faults.drift_day:
        there, drift = _drifted(faults, here, there, services[0], rng)
    at_s = start_s(when) + EXPORT_AT_S
    found = [
        *_export(plan, router, at_s, here, services, rng),
        *_export(plan, router, at_s, there, services, rng),
        *_import(plan, faults, router, when, here, rng),
    ]
    return found, drift


def _drifted(
    faults: Faults, here: Side, there: Side, service: np.ndarray, rng: np.random.Generator
) -> tuple[Side, Drift]:
    """The first service's subscriber lost some queues, and believes it has others."""
    lost = np.zeros(len(there.ids), bool)
    lost[np.nonzero(there.service == 0)[0][: faults.drift_unclaimed]] = True
    gone = new_ids(rng, faults.drift_gone)
    nobodys = here.ids[(here.service < 0) & (here.role == 0)][: faults.drift_unassociated]
    added = np.concatenate([gone, nobodys])
    zeros = np.zeros(len(added), np.int64)
    named = {
        name: sorted(one.tobytes().hex() for one in ids)
        for name, ids in (("unclaimed", there.ids[lost]), ("gone", gone), ("unassociated", nobodys))
    }
    drift = Drift(faults.drift_router, service.tobytes().hex(), SERVICE_ROLES[0], **named)
    return there.without(lost, Side("subscriber", zeros, added, zeros)), drift


def _import(
    plan: Plan, faults: Faults, router: str, when: date, side: Side, rng: np.random.Generator
) -> Rows:
    """The certificate of an import half an hour before the export, on two routers on one day."""
    if router not in (faults.migration_good, faults.migration_bad) or when != faults.drift_day:
        return
    high, low = lanes(side.ids[side.role == 0])
    number = (int(np.bitwise_xor.reduce(high)) % 2**64 << 64) | int(np.bitwise_xor.reduce(low)) % 2**64
    messages, contents = int(rng.integers(500, 900)), [rng.bytes(32).hex() for _ in range(2)]
    bad = router == faults.migration_bad
    lines = [
        ("source", "queues", len(high), f"{number:032x}", None),
        ("result", "queues", len(high), f"{number:032x}", None),
        ("source", "messages", messages, None, contents[0]),
        ("result", "messages", messages - bad, None, contents[bad]),
    ]
    columns = list(zip(*lines, strict=True))
    count = len(lines)
    yield (
        S_MIGRATION,
        build(
            S_MIGRATION,
            {
                "migration": same(plan.hex_id("migration", router), count),
                "router": same(router, count),
                "side": pa.array(columns[0], pa.string()),
                "at_s": np.full(count, start_s(when) + EXPORT_AT_S - 1_800),
                "name": pa.array(columns[1], pa.string()),
                "count": pa.array(columns[2], pa.int64()),
                "ids_hash": pa.array(columns[3], pa.string()),
                "content_hash": pa.array(columns[4], pa.string()),
            },
        ),
    )


def _export(
    plan: Plan, router: str, at_s: int, side: Side, services: np.ndarray, rng: np.random.Generator
) -> Rows:
    name = plan.hex_id("snapshot", router, side.name, at_s)
    claims = _claims(side, services)
    rows = {"s_queues": len(side.ids), "s_service_claims": len(claims["count"])}

    def first(count: int) -> dict[str, pa.Array | np.ndarray]:
        return {
            "snapshot": same(name, count),
            "router": same(router, count),
            "side": same(side.name, count),
            "at_s": np.full(count, at_s),
        }

    yield S_QUEUES, build(S_QUEUES, {**first(len(side.ids)), **queue_columns(side, services, rng, at_s)})
    yield S_SERVICE_CLAIMS, build(S_SERVICE_CLAIMS, {**first(rows["s_service_claims"]), **claims})
    yield (
        S_SNAPSHOT,
        build(
            S_SNAPSHOT,
            {
                **first(2),
                "table": pa.array(list(rows)),
                "rows": np.array(list(rows.values())),
                "finished_s": np.full(2, at_s + 30),
                "online": np.zeros(2, bool),
            },
        ),
    )


def queue_columns(
    side: Side, services: np.ndarray, rng: np.random.Generator, at_s: int
) -> dict[str, pa.Array | np.ndarray]:
    """What a side knows about its queues; a subscriber knows ids and services only."""
    count = len(side.ids)
    high, low = lanes(side.ids)
    known = side.service >= 0
    service_id = pa.DictionaryArray.from_arrays(
        pa.array(side.service.clip(0).astype(np.int32), mask=~known), binary(services)
    ).cast(pa.binary())
    columns: dict[str, pa.Array | np.ndarray] = {
        "role": words(SERVICE_ROLES, side.role),
        "queue_id": binary(side.ids),
        "h_hi": high,
        "h_lo": low,
        "service_id": service_id,
    }
    if side.name == "router":
        waiting = np.where(rng.random(count) < 0.05, rng.integers(1, 128, count), 0)
        columns.update(
            status=words(("active", "off", "blocked"), rng.choice(3, count, p=(0.98, 0.015, 0.005))),
            mode=words(("messaging", "contact"), rng.choice(2, count, p=(0.9, 0.1))),
            secured=rng.random(count) < 0.8,
            waiting=waiting.astype(np.int32),
            oldest_s=pa.array(rng.integers(60, DAY_S, count), mask=waiting == 0),
            full=waiting == 127,
            updated_day_s=at_s - at_s % DAY_S - DAY_S * rng.integers(0, 20, count),
        )
    return columns


def _claims(side: Side, services: np.ndarray) -> dict[str, pa.Array | np.ndarray]:
    """Count and XOR of each service and role that has queues."""
    high, low = lanes(side.ids)
    found = [
        (int(service), int(role), side.service == service)
        for service in np.unique(side.service[side.service >= 0])
        for role in np.unique(side.role[side.service == service])
    ]
    return {
        "service_id": binary(services[[service for service, _, _ in found]]),
        "role": words(SERVICE_ROLES, np.array([role for _, role, _ in found])),
        "count": np.array([int(mine.sum()) for _, _, mine in found]),
        "h_hi": np.array([np.bitwise_xor.reduce(high[mine]) for _, _, mine in found]),
        "h_lo": np.array([np.bitwise_xor.reduce(low[mine]) for _, _, mine in found]),
    }
