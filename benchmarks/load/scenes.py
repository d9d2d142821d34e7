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
    Floors,
    Row,
    Sizes,
    Tell,
    filled_router,
    floors_us,
    multiples,
    pieces_of,
    queues_of,
    row,
    started,
    verifications_us,
)
from blindpost.wire.smp.responses import SOK


async def cycles(sizes: Sizes, tell: Tell) -> list[Row]:
    """SEND + MSG + ACK under load, in three stores, all in turn."""
    samples: dict[tuple[str, int], list[tuple[float, Floors, float]]] = {}
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
                blocks, count, spent, floors = load.blocks, 0, 0, [floors_us(router)]
                pieces = pieces_of(sizes.cycles, connections)
                for _ in range(pieces):
                    load.prepare(-(-sizes.cycles // pieces))
                    began = router.cpu_ns()
                    count += await load.run()
                    spent += router.cpu_ns() - began
                    floors.append(floors_us(router))
                us, blocks = spent / count / 1000, load.blocks - blocks
                samples.setdefault((name, connections), []).append(
                    (us, multiples(us, floors), blocks / count)
                )
    rows = []
    for (name, connections), measured in samples.items():
        all_us, ratios, all_blocks = zip(*measured, strict=True)
        what = f"{name}, {connections} connections"
        note = (
            f"{statistics.median(all_us):.0f} us of CPU, {statistics.median(all_blocks):.1f} blocks; "
            f"{statistics.median(ratio.least for ratio in ratios):.2f} x the least floor"
        )
        aim = 1.8 if name == "full" else None
        rows.append(row("cycle", what, "x floor", [ratio.unit for ratio in ratios], aim=aim, note=note))
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
            results: dict[str, list[tuple[float, Floors]]] = {"first of the day": [], "again": []}
            for number in range(sizes.rounds):
                line = await Line.open(router)
                payloads = subscriptions(line, range(count))
                tell(f"subscribing: round {number + 1} of {sizes.rounds}")
                at_first = router.anonymous_memory()
                spent, floors = 0, [verifications_us(router)]
                step = -(-len(payloads) // PIECES)
                for start in range(0, len(payloads), step):
                    began = router.cpu_ns()
                    await exchanged(line, payloads[start : start + step], SOK)
                    spent += router.cpu_ns() - began
                    floors.append(verifications_us(router))
                us = spent / count / 1000
                results["again" if number else "first of the day"].append((us, multiples(us, floors)))
                if not number:
                    memory = router.anonymous_memory() - at_first
                await line.close()
                await asyncio.to_thread(router.settle)
    for what, measured in results.items():
        if measured:
            each_us, ratios = zip(*measured, strict=True)
            note = (
                f"{1e6 / statistics.median(each_us):.0f} per CPU second; "
                f"{statistics.median(ratio.least for ratio in ratios):.2f} x the router's own verification"
            )
            aim = 1.3 if what == "again" else None
            rows.append(
                row(
                    "SUB",
                    f"{count} queues, {what}",
                    "x verification",
                    [ratio.unit for ratio in ratios],
                    aim=aim,
                    note=note,
                )
            )
    rows.append(row("memory", "of one subscription", "bytes", [memory / count]))
    return rows
