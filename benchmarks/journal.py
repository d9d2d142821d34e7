"""What the journal costs, beside the floor of one message cycle.

    python -m benchmarks.journal [--events N] [--connections N] [--rounds N] [--json]

Method: CPU time of this process, medians over the rounds, the floor of `benchmarks.floor` in the same run.
Production (tier P) is nothing on the path of a message: once a minute a router's meters are read, for which
it walks over all of its connections, and one record is written. Its cost for one message is that of a record,
spread over the cycles of a minute at a given rate. Lab (tier L) is four events for each message: sent,
accepted, delivered, acked. Sealing is done by another process; its rate is beside.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchmarks import floor
from benchmarks.figures.rows import Better, Figure, as_json, single
from blindpost.crypto.authorizers import AuthenticatorKeys
from blindpost.crypto.credentials import issue_router, make_authority
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.journal.author import Author
from blindpost.journal.frames import EventWriter
from blindpost.journal.minutes import MinuteJournal
from blindpost.journal.schema import L_MESSAGES
from blindpost.journal.seal import seal_folder
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.running.activity import Activity
from blindpost.router.running.guard import GuardedRouter
from blindpost.router.running.journaling import RouterReadings
from blindpost.router.server import RouterConnection
from blindpost.router.state import PUSH_IDLE, RouterClient
from blindpost.router.tables import LmdbTables
from blindpost.serving.blocks import LimitedServer
from blindpost.serving.limits import Limits, LimitSizes
from blindpost.transport.plans import smp_router_plan
from blindpost.transport.session import Session
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.versions import connection_layout

EVENTS_PER_MESSAGE = 4
RATES = (10, 100, 1_000)
"""Messages per second for which the share of tier P is told."""
SUBSCRIPTIONS = 10
_NEWEST = 20


@dataclass(frozen=True)
class Cost:
    """Everything that was measured. Shares are of the floor of one message cycle."""

    floor_us: float
    event_us: float
    events_per_s: float
    lab_share: float
    connections: int
    record_us: float
    record_hourly_us: float
    record_bytes: int
    production_share: dict[int, float]
    sealed_rows_per_s: float
    parquet_bytes_per_event: float
    machine: dict[str, str]


def events(root: Path, count: int) -> float:
    """Microseconds of CPU for one event, written and handed to the system."""
    writer = EventWriter(root, L_MESSAGES, Author.started("load", "load"))
    here, there = writer.word("from_router", "a"), writer.word("to_router", "b")
    accepted = writer.code("event", "accepted")
    add = writer.add
    before = time.process_time()
    for number in range(count):
        add(1_700_000_000_000_000 + number, here, there, 4_711, number, accepted, 0, 16_000)
    writer.close()
    return (time.process_time() - before) / count * 1e6


class BusyRouter:
    """A router with so many connections, each with a few subscriptions."""

    def __init__(self, folder: Path, connections: int) -> None:
        tables = LmdbTables(folder / "store")
        self._tables = tables
        router = GuardedRouter(tables, limits=Limits(LimitSizes(), time.monotonic))
        now = int(time.time())
        authority = make_authority(now, system_entropy)
        plan = smp_router_plan(issue_router(authority, "localhost", now, system_entropy))
        server = LimitedServer(plan, router)
        layout = connection_layout(_NEWEST, bytes(32))
        secrets = AuthenticatorKeys(PrivateKey.generate(Algorithm.X25519, system_entropy))
        for number in range(connections):
            client = RouterClient(number, _NEWEST, layout, secrets, router.plan.undo)
            for place in range(SUBSCRIPTIONS):
                client.subs.put(b"%d %d" % (number, place), PUSH_IDLE)
            router.connections[number] = RouterConnection(number, None, cast("Session", None), client)
        router.plan.undo.forget()
        activity = Activity(folder / "activity.json")
        activity.note([(system_entropy(24), True) for _ in range(5_000)], now)
        self.readings = RouterReadings(router, server, LmdbBulk(tables), activity)

    def close(self) -> None:
        self._tables.close()


async def records(folder: Path, connections: int, rounds: int) -> tuple[float, float, int]:
    """Microseconds of CPU for a record, for one with sketches, and the bytes of one."""
    router = BusyRouter(folder, connections)
    now = time.time()
    first = await router.readings.read(int(now), False)
    journal = MinuteJournal(folder / "journal", Author.started("r", "smp"), first)
    taken: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for with_sketches, sample in taken.items():
            before = time.process_time()
            journal.record(await router.readings.read(int(now), with_sketches), int(now) + 60 * number)
            sample.append((time.process_time() - before) * 1e6)
    journal.close()
    router.close()
    size = sum(path.stat().st_size for path in (folder / "journal").rglob("*.seg"))
    return statistics.median(taken[False]), statistics.median(taken[True]), size // (2 * rounds)


def seal(root: Path) -> tuple[float, float]:
    """Rows sealed in a second of CPU, and bytes of Parquet for one."""
    before = time.process_time()
    report = seal_folder(root, now=1_700_000_000.0)
    taken = time.process_time() - before
    assert report is not None
    size = sum(path.stat().st_size for path in root.rglob("*.parquet"))
    return report.rows / taken, size / report.rows


def repeated(rounds: int, call: Callable[[], float]) -> float:
    return statistics.median(call() for _ in range(rounds))


def measure(event_count: int, connections: int, rounds: int) -> Cost:
    least = floor.measure(max(rounds, 2)).total.median_us
    with tempfile.TemporaryDirectory(prefix="blindpost-journal-") as name:
        folder = Path(name)
        event_us = repeated(rounds, lambda: events(folder / "lab", event_count))
        rows_per_s, row_bytes = seal(folder / "lab")
        record_us, hourly_us, size = asyncio.run(records(folder, connections, rounds))
    shares = {rate: record_us / (60 * rate * least) for rate in RATES}
    return Cost(
        least,
        event_us,
        1e6 / event_us,
        EVENTS_PER_MESSAGE * event_us / least,
        connections,
        record_us,
        hourly_us,
        size,
        shares,
        rows_per_s,
        row_bytes,
        floor.machine(),
    )


def shown(cost: Cost) -> str:
    lines = [f"{what}: {value}" for what, value in cost.machine.items()]
    lines += [
        "",
        f"the floor of one message cycle: {cost.floor_us:.0f} us of CPU",
        f"lab: {cost.event_us:.2f} us an event, {cost.events_per_s:,.0f} events a second; "
        f"{EVENTS_PER_MESSAGE} events are {cost.lab_share:.2%} of the floor",
        f"production, {cost.connections:,} connections: {cost.record_us:,.0f} us and {cost.record_bytes:,} "
        f"bytes a minute, {cost.record_hourly_us:,.0f} us once an hour",
    ]
    for rate, share in cost.production_share.items():
        lines.append(f"  at {rate:,} messages a second: {share:.3%} of the floor for each")
    lines.append(
        f"sealing, in another process: {cost.sealed_rows_per_s:,.0f} rows for a second of CPU, "
        f"{cost.parquet_bytes_per_event:.1f} bytes of Parquet a row"
    )
    return "\n".join(lines)


def figures(cost: Cost) -> list[Figure]:
    minute = f"a minute's record of {cost.connections:,} connections"
    return [
        single("an event", "us of CPU", cost.event_us),
        single(f"{EVENTS_PER_MESSAGE} events of a message", "% of the floor", 100 * cost.lab_share),
        single(minute, "us of CPU", cost.record_us),
        single(f"{minute}, with sketches", "us of CPU", cost.record_hourly_us),
        single(f"{minute}, size", "bytes", cost.record_bytes),
        single("sealed rows", "per CPU s", cost.sealed_rows_per_s, Better.HIGHER),
        single("Parquet of a row", "bytes", cost.parquet_bytes_per_event),
        single("the floor", "us of CPU", cost.floor_us, Better.NEITHER),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the journal costs.")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    cost = measure(given.events, given.connections, given.rounds)
    print(as_json(figures(cost)) if given.json else shown(cost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
