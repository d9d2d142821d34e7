"""What the router costs: CPU, time and memory of the real command, in a process of its own, over real TLS.

    python -m benchmarks.router [--quick | --full | --smallest] [--only SCENE] [--json]

The load comes from this process, signed before the clock starts where that is possible. A cycle is SEND
with a body of 16,000 bytes, its OK, MSG, ACK and its OK, on encrypted blocks of the newest version; its
cost is the CPU time of the router's process as a multiple of the floor (`benchmarks.floor`) measured in
the same minute. With one connection twenty queues are used at once, and several answers share a block,
which the floor does not know; with more of them each queue has a sender and a recipient.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import floor
from benchmarks.figures.rows import Figure, as_json
from benchmarks.load.database import database_cycles
from benchmarks.load.process import FULL as KEPT
from benchmarks.load.quiet import idle_cycles, memory, refusals
from benchmarks.load.rows import Row, Sizes, Tell
from benchmarks.load.scenes import cycles, subscribing
from benchmarks.load.services import churn, services

SCENES = (
    cycles,
    database_cycles,
    idle_cycles,
    subscribing,
    memory,
    refusals,
    services,
    churn,
)

NORMAL = Sizes(
    rounds=7,
    cycles=1_000,
    idle_cycles=1_000,
    connections=(1, 20, 200),
    subscriptions=100_000,
    at_rest=1_000_000,
    idle_connections=1_000,
    refusals=200,
    associated=(1_000, 10_000),
    subs_rounds=20,
    waiting=2_000,
    churned=20_000,
    churn_warm_up=5_000,
)
FULL = replace(NORMAL, rounds=11, associated=(1_000, 10_000, 100_000, 1_000_000), churned=1_000_000)
QUICK = replace(
    NORMAL,
    rounds=3,
    cycles=300,
    idle_cycles=200,
    subscriptions=5_000,
    at_rest=50_000,
    idle_connections=200,
    refusals=40,
    waiting=500,
    churned=4_000,
    churn_warm_up=1_000,
)
SMALLEST = Sizes(
    rounds=2,
    cycles=4,
    idle_cycles=3,
    connections=(1, 4),
    subscriptions=140,
    at_rest=100,
    idle_connections=2,
    refusals=2,
    associated=(3, 5),
    subs_rounds=2,
    waiting=20,
    churned=8,
    churn_warm_up=2,
    keepings=(KEPT,),
    release_s=0.0,
)
"""Shows that every scene works; its figures mean nothing."""
NAMES = tuple(scene.__name__ for scene in SCENES)


async def measured(sizes: Sizes, tell: Tell, only: Sequence[str] = NAMES) -> list[Row]:
    """All rows of the chosen scenes."""
    rows: list[Row] = []
    for scene in SCENES:
        if scene.__name__ in only:
            rows += await scene(sizes, tell)
    return rows


def shown(rows: Sequence[Row]) -> str:
    lines = [f"{what}: {value}" for what, value in floor.machine().items()]
    lines += ["", f"{'':<52}{'median':>10}  {'unit':<15}{'quartiles':>20}{'aim':>8}"]
    for row in rows:
        spread = "" if row.lower == row.upper else f"{row.lower:.2f} .. {row.upper:.2f}"
        aim = "" if row.aim is None else f"{row.aim:g}"
        lines.append(
            f"{row.scene + ': ' + row.what:<52}{row.median:>10.2f}  {row.unit:<15}{spread:>20}{aim:>8}  "
            f"{row.note}".rstrip()
        )
    return "\n".join(lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    return [
        Figure(f"{row.scene}: {row.what}", row.unit, row.median, row.lower, row.upper, row.better)
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the router costs.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small sizes, a few minutes")
    size.add_argument("--full", action="store_true", help="more rounds, services of up to a million queues")
    size.add_argument("--smallest", action="store_true", help="only to see that everything runs, in seconds")
    parser.add_argument("--only", action="append", choices=NAMES, help="these scenes (may be repeated)")
    parser.add_argument("--queues", type=int, nargs="+", metavar="N", help="sizes of the services of SUBS")
    parser.add_argument("--waiting", type=int, metavar="N", help="how many messages a walk hands over")
    parser.add_argument("--churned", type=int, metavar="N", help="how many queues come and go")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    chosen = {"quick": QUICK, "full": FULL, "smallest": SMALLEST}
    sizes = next((sizes for name, sizes in chosen.items() if getattr(arguments, name)), NORMAL)
    if arguments.queues:
        sizes = replace(sizes, associated=tuple(arguments.queues))
    if arguments.waiting:
        sizes = replace(sizes, waiting=arguments.waiting)
    if arguments.churned:
        sizes = replace(sizes, churned=arguments.churned)
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {what}", file=sys.stderr, flush=True)

    rows = asyncio.run(measured(sizes, tell, arguments.only or NAMES))
    print(as_json(figures(rows)) if arguments.json else shown(rows))


if __name__ == "__main__":
    main()
