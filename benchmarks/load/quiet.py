"""The router at rest: one message at a time, memory of what only lies there, and the price of a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics

from benchmarks.load import filling
from benchmarks.load.clients import Cycles, Line, exchanged, payloads_of
from benchmarks.load.process import measured_router
from benchmarks.load.rows import Row, Sizes, Tell, filled_router, row, started
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.commands import SUB
from blindpost.wire.smp.responses import ERR

REFUSED_AT_ONCE = 20


async def idle_cycles(sizes: Sizes, tell: Tell) -> list[Row]:
    """One message at a time: how long a cycle takes, from SEND to both OKs."""
    rows = []
    for keeping in sizes.keepings:
        tell(f"one cycle at a time: {keeping.name}")
        async with contextlib.AsyncExitStack() as stack:
            router = await filled_router(stack, keeping, 1)
            load = await Cycles.open(router, 2, range(1))
            await load.warm_up()
            load.prepare(sizes.idle_cycles)
            began = router.cpu_ns()
            count = await load.run()
            us = (router.cpu_ns() - began) / count / 1000
            await load.close()
        taken = sorted(ns / 1e6 for ns in load.latencies_ns)
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            value = taken[int(part * (len(taken) - 1))]
            note = f"{us:.0f} us of the router's CPU each" if name == "p50" else ""
            rows.append(row("idle cycle", f"{keeping.name}, {name}", "ms", [value], note=note))
    return rows


async def memory(sizes: Sizes, tell: Tell) -> list[Row]:
    """Anonymous memory of queues that only lie there, and of connections that only are."""
    with measured_router() as router:
        async with started(router):
            await asyncio.to_thread(router.settle)
            empty = router.anonymous_memory()
        tell(f"memory: filling a store with {sizes.at_rest} queues")
        await filling.fill(router.store, sizes.at_rest, usable=False)
        async with started(router):
            await asyncio.to_thread(router.settle)
            at_rest = router.anonymous_memory() - empty
            tell(f"memory: opening {sizes.idle_connections} connections")
            before = router.anonymous_memory()
            lines = [await Line.open(router) for _ in range(sizes.idle_connections)]
            await asyncio.sleep(sizes.release_s)
            await asyncio.to_thread(router.settle)
            each = (router.anonymous_memory() - before) / sizes.idle_connections / 1024
            for line in lines:
                await line.close()
    million = at_rest * (1_000_000 / sizes.at_rest) / 2**20
    scaled = "" if sizes.at_rest == 1_000_000 else f"scaled from {sizes.at_rest}"
    note = f"{scaled}, an empty router has {empty / 2**20:.0f} MB".removeprefix(", ")
    return [
        row("memory", "of 1 M queues at rest", "MB", [million], aim=100.0, note=note),
        row("memory", f"of an idle connection, of {sizes.idle_connections}", "KB", [each], aim=30.0),
    ]


async def refusals(sizes: Sizes, tell: Tell) -> list[Row]:
    """Unknown id, wrong key, bad signature: the router's CPU for each, in turn."""
    tell(f"refusals: {sizes.refusals} blocks of each kind")
    samples: dict[str, list[float]] = {"unknown id": [], "wrong key": [], "bad signature": []}
    with measured_router() as router:
        await filling.fill(router.store, REFUSED_AT_ONCE)
        async with started(router):
            line = await Line.open(router)
            for kind in [kind for _ in range(sizes.refusals) for kind in samples]:
                payloads = payloads_of([_refused(line, kind, number) for number in range(REFUSED_AT_ONCE)])
                began = router.cpu_ns()
                await exchanged(line, payloads, ERR)
                samples[kind].append((router.cpu_ns() - began) / REFUSED_AT_ONCE / 1000)
            await line.close()
    medians = [statistics.median(values) for values in samples.values()]
    apart = (max(medians) / min(medians) - 1) * 100
    rows = [row("refusal", kind, "us", values) for kind, values in samples.items()]
    return [*rows, row("refusal", "medians apart", "%", [apart], aim=5.0)]


def _refused(line: Line, kind: str, number: int) -> Writer:
    entity_id = os.urandom(24) if kind == "unknown id" else filling.recipient_id(number)
    key = filling.recipient_key(number + 1_000_000 if kind == "wrong key" else number)
    return line.transmission(SUB(), entity_id, key, spoiled=kind == "bad signature")
