"""The router at rest: one message at a time, memory of what only lies there, and the price of a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures.rows import Better
from benchmarks.load import filling
from benchmarks.load.clients import Cycles, Line, exchanged, payloads_of
from benchmarks.load.process import MeasuredRouter, measured_router, waited_ns
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
                better = Better.LOWER if what == "cycle" else Better.NEITHER
                rows.append(
                    row(
                        "one at a time",
                        f"{keeping.name}, {what}, {name}",
                        "ms",
                        [value],
                        note=note,
                        better=better,
                    )
                )
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

    Each for queues that the router has not seen lately, and then for the same queues again. How far they are
    apart is told by their shares of a round, since a processor changes its speed from one round to the next.
    """
    tell(f"refusals: {sizes.refusals} blocks of each kind, new and again")
    orders = itertools.cycle(itertools.permutations(REFUSED))
    with measured_router() as router:
        await filling.fill(router.store, (REFUSALS_WARM_UP + sizes.refusals) * len(REFUSED) * REFUSED_AT_ONCE)
        async with started(router):
            line = await Line.open(router)
            rounds = [
                await _refused_round(router, line, next(orders), number)
                for number in range(REFUSALS_WARM_UP + sizes.refusals)
            ][REFUSALS_WARM_UP:]
            await line.close()
    rows, apart = [], []
    for when in ("new", "again"):
        shares = []
        for kind in REFUSED:
            cpu = [one[when, kind].cpu_us for one in rounds]
            note = f"answered after {statistics.median(one[when, kind].taken_us for one in rounds):.0f} us"
            rows.append(row("refusal", f"{kind}, {when}, CPU", "us", cpu, note=note))
            whole = [sum(one[when, other].cpu_us for other in REFUSED) for one in rounds]
            shares.append(statistics.median(us / us_all for us, us_all in zip(cpu, whole, strict=True)))
        apart.append(
            row("refusal", f"medians apart, {when}", "%", [(max(shares) / min(shares) - 1) * 100], aim=5.0)
        )
    return [*rows, *apart]


@dataclass(frozen=True)
class Refusal:
    """One refused command among some: the router's CPU, and the time until all were answered."""

    cpu_us: float
    taken_us: float


async def _refused_round(
    router: MeasuredRouter, line: Line, order: Sequence[str], number: int
) -> dict[tuple[str, str], Refusal]:
    """Each kind once with names of its own, then once more with the same."""
    asked: list[tuple[str, str, list[bytes]]] = []
    names = {kind: [os.urandom(24) for _ in range(REFUSED_AT_ONCE)] for kind in order}
    for when in ("new", "again"):
        for kind in order:
            first = (number * len(REFUSED) + REFUSED.index(kind)) * REFUSED_AT_ONCE
            said = [_refused(line, kind, name, first + place) for place, name in enumerate(names[kind])]
            asked.append((when, kind, payloads_of(said)))
    found = {}
    for when, kind, payloads in asked:
        cpu, began = router.cpu_ns(), time.perf_counter_ns()
        await exchanged(line, payloads, ERR)
        cpu, taken = router.cpu_ns() - cpu, time.perf_counter_ns() - began
        found[when, kind] = Refusal(cpu / REFUSED_AT_ONCE / 1000, taken / 1000)
    return found


def _refused(line: Line, kind: str, unknown_id: bytes, number: int) -> Writer:
    """A SUB to be refused: of an id that nobody has, or of a queue that is there."""
    entity_id = unknown_id if kind == "unknown id" else filling.recipient_id(number)
    key = filling.recipient_key(number + (10_000_000 if kind == "wrong key" else 0))
    return line.transmission(SUB(), entity_id, key, spoiled=kind == "bad signature")
