"""What a message costs in the engine and in a front, beside a router of one process, and what follows for N.

    python -m benchmarks.cores [--cycles N] [--rounds N] [--connections N] [--json]

A cycle is that of `benchmarks.router`: SEND with a body of 16,000 bytes, its OK, MSG, ACK and its OK. Routers
with no front, one and two take turns in the same minutes, under the same load, with their stores in memory.
CPU time is that of each process; with N fronts on N + 1 cores the engine or the fronts are the limit. The
clients are in this process and have their SENDs signed beforehand; they need a core too, and what of a run's
time each of the three had says which one it waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import floor
from benchmarks.figures.rows import Figure, as_json, single
from benchmarks.load import filling
from benchmarks.load.clients import Cycles
from benchmarks.load.process import IN_MEMORY, MeasuredRouter, cpu_ns, measured_router
from benchmarks.load.rows import queues_of, started

FRONTS = (0, 1, 2)
AIM_ENGINE_US, AIM_SUM = 200.0, 1.25


@dataclass(frozen=True, slots=True)
class Sample:
    """Microseconds of one cycle, in one round: CPU of each part, and time."""

    engine: float
    fronts: float
    clients: float
    elapsed: float


@dataclass(frozen=True)
class Cost:
    """The medians of one router."""

    fronts: int
    engine_us: float
    fronts_us: float
    clients_us: float
    cycles_per_s: float

    @property
    def sum_us(self) -> float:
        return self.engine_us + self.fronts_us

    def throughput(self, fronts: int) -> float:
        """Cycles per second with so many fronts, each with a core of its own, as the engine has."""
        return 1e6 / max(self.engine_us, self.fronts_us / fronts)


def _spent(router: MeasuredRouter) -> tuple[int, int, int, int]:
    fronts = sum(cpu_ns(pid) for pid in router.fronts)
    return router.cpu_ns(), fronts, time.process_time_ns(), time.perf_counter_ns()


async def sampled(router: MeasuredRouter, load: Cycles, cycles: int) -> Sample:
    await load.subscribe()
    load.prepare(cycles)
    before = _spent(router)
    count = await load.run()
    parts = (after - start for after, start in zip(_spent(router), before, strict=True))
    return Sample(*(part / count / 1000 for part in parts))


async def measured(cycles: int, rounds: int, connections: int) -> list[Cost]:
    samples: dict[int, list[Sample]] = {fronts: [] for fronts in FRONTS}
    async with contextlib.AsyncExitStack() as stack:
        loads: list[tuple[int, MeasuredRouter, Cycles]] = []
        for fronts in FRONTS:
            router = stack.enter_context(measured_router(IN_MEMORY, fronts))
            await filling.fill(router.store, queues_of(connections))
            await stack.enter_async_context(started(router))
            load = await Cycles.open(router, connections, range(queues_of(connections)))
            await load.warm_up()
            stack.push_async_callback(load.close)
            loads.append((fronts, router, load))
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for fronts, router, load in loads:
                samples[fronts].append(await sampled(router, load, cycles))
    return [_cost(fronts, found) for fronts, found in samples.items()]


def _cost(fronts: int, samples: Sequence[Sample]) -> Cost:
    medians = (statistics.median(getattr(one, name) for one in samples) for name in Sample.__slots__)
    engine, in_fronts, clients, elapsed = medians
    return Cost(fronts, engine, in_fronts, clients, 1e6 / elapsed)


def shown(costs: Sequence[Cost], connections: int) -> str:
    alone = costs[0]
    lines = [f"{what}: {value}" for what, value in floor.machine().items()]
    lines += ["", f"one message at {connections} connections, in microseconds of CPU:"]
    lines.append(
        f"{'fronts':>8}{'engine':>9}{'fronts':>9}{'sum':>9}{'x one process':>15}{'clients':>9}{'per s':>8}"
    )
    for cost in costs:
        times = cost.sum_us / alone.engine_us
        lines.append(
            f"{cost.fronts:>8}{cost.engine_us:>9.0f}{cost.fronts_us:>9.0f}{cost.sum_us:>9.0f}{times:>15.2f}"
            f"{cost.clients_us:>9.0f}{cost.cycles_per_s:>8.0f}"
        )
    lines += ["", "what follows, if the engine and each front have a core, in messages a second:"]
    lines.append(f"{'no front':>12}{1e6 / alone.engine_us:>8.0f}")
    last = costs[-1]
    for fronts in (1, 2, 3, 4, 7):
        bound = "the engine" if last.engine_us >= last.fronts_us / fronts else "the fronts"
        lines.append(f"{fronts:>12}{last.throughput(fronts):>8.0f}  limited by {bound}")
    lines += ["", f"aims: engine at most {AIM_ENGINE_US:.0f} us, sum at most {AIM_SUM} times one process"]
    return "\n".join(lines)


def figures(costs: Sequence[Cost], connections: int) -> list[Figure]:
    """Each part, and the sum as a multiple of what a router of one process takes."""
    alone, found = costs[0], []
    for cost in costs:
        of = f"fronts: {cost.fronts}, at {connections} connections"
        found += [
            single(f"{of}: engine", "us of CPU", cost.engine_us),
            single(f"{of}: fronts", "us of CPU", cost.fronts_us),
            single(f"{of}: together", "x one process", cost.sum_us / alone.engine_us),
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what fronts cost and bring.")
    parser.add_argument("--cycles", type=int, default=2_000, help="messages of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    costs = asyncio.run(measured(arguments.cycles, arguments.rounds, arguments.connections))
    print(
        as_json(figures(costs, arguments.connections))
        if arguments.json
        else shown(costs, arguments.connections)
    )


if __name__ == "__main__":
    main()
