"""A message cycle on PostgreSQL: what it costs the router, and what it costs the database.

The database is a server of our own with the settings it comes with, on a Unix socket. Its backend is the
process that serves the router's one connection; the rest (log writer, checkpoints, vacuum) is told beside it.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.clients import Cycles
from benchmarks.load.process import Keeping, cpu_ns
from benchmarks.load.rows import Row, Sizes, Tell, filled_router, floors_us, queues_of, row
from tests.support.store.postgres import AS_IT_COMES, PostgresServer, postgres_server


@dataclass(frozen=True)
class Spent:
    """CPU time in nanoseconds."""

    router: int
    backend: int
    rest: int

    def since(self, before: Spent) -> Spent:
        return Spent(self.router - before.router, self.backend - before.backend, self.rest - before.rest)


def spent(router_pid: int, server: PostgresServer) -> Spent:
    backend, rest = 0, cpu_ns(server.pid)
    for child in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # a worker that ended meanwhile
            title = Path(f"/proc/{child}/cmdline").read_bytes()
            used = cpu_ns(int(child))
            backend, rest = (backend + used, rest) if b"[local]" in title else (backend, rest + used)
    return Spent(cpu_ns(router_pid), backend, rest)


async def database_cycles(sizes: Sizes, tell: Tell) -> list[Row]:
    """SEND + MSG + ACK under load with the store in a database, all numbers of connections in turn."""
    samples: dict[int, list[tuple[float, Spent, int]]] = {count: [] for count in sizes.connections}
    async with contextlib.AsyncExitStack() as stack:
        tell("cycles on PostgreSQL: starting a server")
        server = stack.enter_context(postgres_server(AS_IT_COMES))
        keeping = Keeping("PostgreSQL", "full", None, server.new_database())
        router = await filled_router(stack, keeping, max(map(queues_of, sizes.connections)))
        loads: dict[int, Cycles] = {}
        for connections in sizes.connections:
            loads[connections] = await Cycles.open(router, connections, range(queues_of(connections)))
            await loads[connections].warm_up()
            stack.push_async_callback(loads[connections].close)
        for number in range(sizes.rounds):
            tell(f"cycles on PostgreSQL: round {number + 1} of {sizes.rounds}")
            for connections, load in loads.items():
                await load.subscribe()
                load.prepare(sizes.cycles)
                before_us, before = floors_us(router).unit, spent(router.pid, server)
                count = await load.run()
                cost = spent(router.pid, server).since(before)
                samples[connections].append(((before_us + floors_us(router).unit) / 2, cost, count))
    return [one for connections, measured in samples.items() for one in _rows(connections, measured)]


def _rows(connections: int, measured: list[tuple[float, Spent, int]]) -> list[Row]:
    rows = []
    for what, costs in (
        ("router", [cost.router for _, cost, _ in measured]),
        ("its backend", [cost.backend for _, cost, _ in measured]),
        ("rest of the database", [cost.rest for _, cost, _ in measured]),
    ):
        each_us = [cost / count / 1000 for cost, (_, _, count) in zip(costs, measured, strict=True)]
        ratios = [us / floor for us, (floor, _, _) in zip(each_us, measured, strict=True)]
        note = f"{statistics.median(each_us):.0f} us of CPU"
        rows.append(row("PostgreSQL", f"{what}, {connections} connections", "x floor", ratios, note=note))
    return rows
