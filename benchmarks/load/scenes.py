"""The router under load: message cycles, and subscriptions in full blocks."""

from __future__ import annotations

import asyncio
import contextlib
import statistics

from benchmarks.load import filling
from benchmarks.load.clients import Cycles, Line, exchanged, subscriptions
from benchmarks.load.process import MeasuredRouter, measured_router
from benchmarks.load.rows import (
    PIECES,
    Row,
    Sizes,
    Tell,
    filled_router,
    floor_us,
    pieces_of,
    queues_of,
    row,
    started,
    verification_us,
)
from blindpost.wire.smp.responses import SOK


async def cycles(sizes: Sizes, tell: Tell) -> list[Row]:
    """SEND + MSG + ACK under load, in three stores, all in turn."""
    samples: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        loads: list[tuple[str, int, MeasuredRouter, Cycles]] = []
        for keeping in sizes.keepings:
            tell(f"cycles: a router that keeps its store: {keeping.name}")
            router = await filled_router(stack, keeping, max(map(queues_of, sizes.connections)))
            for connections in sizes.connections:
                load = await Cycles.open(router, connections, range(queues_of(connections)))
                await load.warm_up()
                stack.push_async_callback(load.close)
                loads.append((keeping.name, connections, router, load))
        for number in range(sizes.rounds):
            tell(f"cycles: round {number + 1} of {sizes.rounds}")
            for name, connections, router, load in loads:
                await load.subscribe()
                blocks, count, spent, floors = load.blocks, 0, 0, [floor_us(router)]
                pieces = pieces_of(sizes.cycles, connections)
                for _ in range(pieces):
                    load.prepare(-(-sizes.cycles // pieces))
                    began = router.cpu_ns()
                    count += await load.run()
                    spent += router.cpu_ns() - began
                    floors.append(floor_us(router))
                us, blocks = spent / count / 1000, load.blocks - blocks
                ratio = us / statistics.mean(floors)
                samples.setdefault((name, connections), []).append((us, ratio, blocks / count))
    rows = []
    for (name, connections), measured in samples.items():
        each_us, blocks_each = (statistics.median(sample[place] for sample in measured) for place in (0, 2))
        what = f"{name}, {connections} connections"
        note = f"{each_us:.0f} us of CPU, {blocks_each:.1f} blocks"
        aim = 1.8 if name == "full" else None
        rows.append(row("cycle", what, "x floor", [ratio for _, ratio, _ in measured], aim=aim, note=note))
    return rows


async def subscribing(sizes: Sizes, tell: Tell) -> list[Row]:
    """SUBs in full blocks: the first of the day marks each queue as used, the next ones only read."""
    rows = []
    count = sizes.subscriptions
    with measured_router() as router:
        tell(f"subscribing: {count} queues")
        await filling.fill(router.store, count, used_today=False)
        async with started(router):
            memory = 0
            results: dict[str, list[tuple[float, float]]] = {"first of the day": [], "again": []}
            for number in range(sizes.rounds):
                line = await Line.open(router)
                payloads = subscriptions(line, range(count))
                tell(f"subscribing: round {number + 1} of {sizes.rounds}")
                at_first = router.anonymous_memory()
                spent, floors = 0, [verification_us(router)]
                step = -(-len(payloads) // PIECES)
                for start in range(0, len(payloads), step):
                    began = router.cpu_ns()
                    await exchanged(line, payloads[start : start + step], SOK)
                    spent += router.cpu_ns() - began
                    floors.append(verification_us(router))
                us = spent / count / 1000
                each = us / statistics.mean(floors)
                results["again" if number else "first of the day"].append((us, each))
                if not number:
                    memory = router.anonymous_memory() - at_first
                await line.close()
                await asyncio.to_thread(router.settle)
    for what, measured in results.items():
        if measured:
            note = f"{1e6 / statistics.median(us for us, _ in measured):.0f} per CPU second"
            aim = 1.3 if what == "again" else None
            ratios = [ratio for _, ratio in measured]
            rows.append(row("SUB", f"{count} queues, {what}", "x verification", ratios, aim=aim, note=note))
    rows.append(row("memory", "of one subscription", "bytes", [memory / count]))
    return rows
