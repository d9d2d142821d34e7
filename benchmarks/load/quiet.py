"""The router at rest: one message at a time, memory of what only lies there, and the price of a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import filling
from benchmarks.load.clients import Cycles, Line, exchanged, payloads_of
from benchmarks.load.process import measured_router, waited_ns
from benchmarks.load.rows import Row, Sizes, Tell, filled_router, row, started
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.commands import SUB
from blindpost.wire.smp.responses import ERR

REFUSED = ("unknown id", "wrong key", "bad signature")
REFUSED_AT_ONCE = 20
REFUSALS_WARM_UP = 5


async def idle_cycles(sizes: Sizes, tell: Tell) -> list[Row]:
    """One message at a time: how long a cycle takes, from SEND to both OKs.

    After each cycle the disk is asked for what nobody can avoid, one write of a message and fdatasync, in the
    same folder; and the kernel, how long the router and this process were ready and had no processor. Where
    p99 is far above p50, one of the two says why.
    """
    rows = []
    for keeping in sizes.keepings:
        tell(f"one cycle at a time: {keeping.name}")
        taken: list[float] = []
        synced: list[float] = []
        waited: list[float] = []
        async with contextlib.AsyncExitStack() as stack:
            router = await filled_router(stack, keeping, 1)
            load = await Cycles.open(router, 2, range(1))
            await load.warm_up()
            disk = stack.enter_context(_synced_file(router.folder))
            began = router.cpu_ns()
            for _ in range(sizes.idle_cycles):
                load.prepare(1)
                before = router.waited_ns() + waited_ns(os.getpid())
                await load.run()
                waited.append((router.waited_ns() + waited_ns(os.getpid()) - before) / 1e6)
                taken += [ns / 1e6 for ns in load.latencies_ns]
                synced.append(_write_ns(disk) / 1e6)
            us = (router.cpu_ns() - began) / sizes.idle_cycles / 1000
            await load.close()
        for what, values in (
            ("cycle", taken),
            ("wait for a processor", waited),
            ("write, fdatasync", synced),
        ):
            for name, part in (("p50", 0.5), ("p99", 0.99)):
                value = sorted(values)[int(part * (len(values) - 1))]
                note = f"{us:.0f} us of the router's CPU each" if (what, name) == ("cycle", "p50") else ""
                rows.append(row("one at a time", f"{keeping.name}, {what}, {name}", "ms", [value], note=note))
    return rows


@contextlib.contextmanager
def _synced_file(folder: Path) -> Iterator[int]:
    """A file of one message, as large from the start as it will be."""
    descriptor = os.open(folder / "synced", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        _write_ns(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _write_ns(descriptor: int) -> int:
    began = time.perf_counter_ns()
    os.pwrite(descriptor, filling.BODY, 0)
    os.fdatasync(descriptor)
    return time.perf_counter_ns() - began


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
    """Unknown id, wrong key, bad signature: the router's CPU for each, in turn, and the time of the answer.

    Each for queues that the router has not seen lately, and then at once for the same queues again.
    """
    tell(f"refusals: {sizes.refusals} blocks of each kind, new and again")
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {
        (when, kind): [] for when in ("new", "again") for kind in REFUSED
    }
    orders, ids = itertools.cycle(itertools.permutations(REFUSED)), itertools.count()
    with measured_router() as router:
        await filling.fill(router.store, sizes.refusals * REFUSED_AT_ONCE * len(REFUSED))
        async with started(router):
            line = await Line.open(router)
            for number in range(-REFUSALS_WARM_UP, sizes.refusals):
                for kind in next(orders):
                    names = [
                        _Name(os.urandom(24), next(ids) if number >= 0 else 0) for _ in range(REFUSED_AT_ONCE)
                    ]
                    for when in ("new", "again"):
                        payloads = payloads_of([_refused(line, kind, name) for name in names])
                        cpu, began = router.cpu_ns(), time.perf_counter_ns()
                        await exchanged(line, payloads, ERR)
                        us = (router.cpu_ns() - cpu) / REFUSED_AT_ONCE / 1000
                        taken_us = (time.perf_counter_ns() - began) / 1000
                        if number >= 0:
                            samples[when, kind].append((us, taken_us))
            await line.close()
    rows = []
    for (when, kind), measured in samples.items():
        note = f"{REFUSED_AT_ONCE} answered after {statistics.median(taken for _, taken in measured):.0f} us"
        rows.append(row("refusal", f"{kind}, {when}, CPU", "us", [us for us, _ in measured], note=note))
    for when in ("new", "again"):
        medians = [statistics.median(us for us, _ in samples[when, kind]) for kind in REFUSED]
        apart = (max(medians) / min(medians) - 1) * 100
        rows.append(row("refusal", f"medians apart, {when}", "%", [apart], aim=5.0))
    return rows


@dataclass(frozen=True)
class _Name:
    """An id that nobody has, and a queue that is there."""

    unknown_id: bytes
    number: int


def _refused(line: Line, kind: str, name: _Name) -> Writer:
    entity_id = name.unknown_id if kind == "unknown id" else filling.recipient_id(name.number)
    key = filling.recipient_key(name.number + (10_000_000 if kind == "wrong key" else 0))
    return line.transmission(SUB(), entity_id, key, spoiled=kind == "bad signature")
