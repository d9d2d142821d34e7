"""What is measured, one scene after another; each gives rows of figures, their spread and their aim.

CPU time is that of the router's process alone. Whatever is given as a multiple is divided by what was
measured in this process right before and after, since the machine's mood moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks import floor
from benchmarks.load import filling
from benchmarks.load.clients import Cycles, Line, exchanged, payloads_of, refuse, subscriptions
from benchmarks.load.process import IN_MEMORY, KEEPINGS, Keeping, MeasuredRouter, measured_router
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import NO_IDS
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.commands import SUB, SUBS
from blindpost.wire.smp.responses import ALLS, ERR, MSG, SOK, SOKS
from blindpost.wire.smp.transmissions import Received

SERVICE_ID = bytes(range(24))
REFUSED_AT_ONCE = 20

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """How much of everything is measured."""

    rounds: int
    cycles: int
    idle_cycles: int
    connections: tuple[int, ...]
    subscriptions: int
    at_rest: int
    idle_connections: int
    refusals: int
    associated: tuple[int, ...]
    waiting: int
    keepings: tuple[Keeping, ...] = KEEPINGS
    release_s: float = 5.0
    """After this time a router has given back the buffers of idle connections."""


@dataclass(frozen=True)
class Row:
    """One figure: median and quartiles, or a single value where there is one only."""

    scene: str
    what: str
    unit: str
    median: float
    lower: float
    upper: float
    aim: float | None = None
    note: str = ""


def row(
    scene: str, what: str, unit: str, values: list[float], *, aim: float | None = None, note: str = ""
) -> Row:
    if len(values) == 1:
        return Row(scene, what, unit, values[0], values[0], values[0], aim, note)
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Row(scene, what, unit, median, lower, upper, aim, note)


@asynccontextmanager
async def started(router: MeasuredRouter) -> AsyncIterator[MeasuredRouter]:
    await asyncio.to_thread(router.start)
    try:
        yield router
    finally:
        await asyncio.to_thread(router.stop)


def floor_us() -> float:
    return floor.measure(2).total.median_us


@functools.cache
def _verification() -> floor.Item:
    return floor.signature_items()[1]


def verification_us() -> float:
    """One Ed25519 verification of a short command."""
    return statistics.median(floor.cpu_ns(_verification().call, 40) / 40_000 for _ in range(5))


async def cycles(sizes: Sizes, tell: Tell) -> list[Row]:
    """SEND + MSG + ACK under load, in three stores, all in turn."""
    samples: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        loads: list[tuple[str, int, MeasuredRouter, Cycles]] = []
        for keeping in sizes.keepings:
            tell(f"cycles: a router that keeps its store: {keeping.name}")
            router = await _filled_router(stack, keeping, max(map(_queues, sizes.connections)))
            for connections in sizes.connections:
                load = await Cycles.open(router, connections, range(_queues(connections)))
                await load.warm_up()
                stack.push_async_callback(load.close)
                loads.append((keeping.name, connections, router, load))
        for number in range(sizes.rounds):
            tell(f"cycles: round {number + 1} of {sizes.rounds}")
            for name, connections, router, load in loads:
                await load.subscribe()
                load.prepare(sizes.cycles)
                before_us, blocks, began = floor_us(), load.blocks, router.cpu_ns()
                count = await load.run()
                us, blocks = (router.cpu_ns() - began) / count / 1000, load.blocks - blocks
                floor_now = (before_us + floor_us()) / 2
                samples.setdefault((name, connections), []).append((us, us / floor_now, blocks / count))
    rows = []
    for (name, connections), measured in samples.items():
        each_us, blocks_each = (statistics.median(sample[place] for sample in measured) for place in (0, 2))
        what = f"{name}, {connections} connections"
        note = f"{each_us:.0f} us of CPU, {blocks_each:.1f} blocks"
        aim = 1.8 if name == "full" else None
        rows.append(row("cycle", what, "x floor", [ratio for _, ratio, _ in measured], aim=aim, note=note))
    return rows


async def _filled_router(stack: contextlib.AsyncExitStack, keeping: Keeping, queues: int) -> MeasuredRouter:
    router = stack.enter_context(measured_router(keeping))
    await filling.fill(router.store, queues)
    return await stack.enter_async_context(started(router))


def _queues(connections: int) -> int:
    """One for each pair of connections; a single connection has twenty at once."""
    return 20 if connections == 1 else connections // 2


async def idle_cycles(sizes: Sizes, tell: Tell) -> list[Row]:
    """One message at a time: how long a cycle takes, from SEND to both OKs."""
    rows = []
    for keeping in sizes.keepings:
        tell(f"one cycle at a time: {keeping.name}")
        async with contextlib.AsyncExitStack() as stack:
            router = await _filled_router(stack, keeping, 1)
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
                before_us, began = verification_us(), router.cpu_ns()
                at_first = router.anonymous_memory()
                await exchanged(line, payloads, SOK)
                us = (router.cpu_ns() - began) / count / 1000
                each = us / ((before_us + verification_us()) / 2)
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


async def services(sizes: Sizes, tell: Tell) -> list[Row]:
    """SUBS of services of different sizes, and the walk over the queues in which a message waits."""
    rows = []
    who = make_service(int(time.time()), system_entropy)
    for count in sizes.associated:
        tell(f"services: SUBS with {count} queues")
        with measured_router(IN_MEMORY) as router:
            await filling.fill_service(router.store, SERVICE_ID, who, count, 0)
            async with started(router):
                answers = [await _service_subscribed(router, who) for _ in range(sizes.rounds + 3)]
        note = f"{statistics.median(answer.cpu_us for answer in answers):.0f} us of CPU"
        times = [answer.soks_ms for answer in answers]
        rows.append(row("SUBS", f"answer with {count} queues", "ms", times, note=note))
    tell(f"services: walks over {sizes.waiting} messages")
    with measured_router(IN_MEMORY) as router:
        await filling.fill_service(router.store, SERVICE_ID, who, sizes.waiting, sizes.waiting)
        async with started(router):
            walks = [await _service_subscribed(router, who) for _ in range(sizes.rounds)]
    assert all(walk.messages == sizes.waiting for walk in walks), "a walk missed messages"
    each = [walk.cpu_us / sizes.waiting for walk in walks]
    note = f"{1e6 / statistics.median(each):.0f} messages per CPU second"
    return [*rows, row("SUBS", f"walk over {sizes.waiting} messages, each", "us", each, note=note)]


@dataclass(frozen=True)
class Walked:
    """One SUBS: when it was answered, and what it cost with all that followed."""

    soks_ms: float
    cpu_us: float
    messages: int


async def _service_subscribed(router: MeasuredRouter, who: Credentials) -> Walked:
    line = await Line.open(router, who)
    service = line.session.agreed.service
    assert service is not None
    assert service.private is not None
    payloads = payloads_of([line.transmission(SUBS(0, NO_IDS), service.service_id, service.private)])
    loop = asyncio.get_running_loop()
    answered, walked = loop.create_future(), loop.create_future()
    messages = 0

    def hear(received: Received) -> None:
        nonlocal messages
        match received.response:
            case SOKS():
                answered.set_result(time.perf_counter())
            case ALLS():
                walked.set_result(None)
            case MSG():
                messages += 1
            case other:
                refuse(walked, other)

    line.hear = hear
    began, cpu = time.perf_counter(), router.cpu_ns()
    line.send(payloads[0])
    await walked
    soks_s = answered.result() - began
    cpu_us = (router.cpu_ns() - cpu) / 1000
    await line.close()
    return Walked(soks_s * 1000, cpu_us, messages)


SCENES = (cycles, idle_cycles, subscribing, memory, refusals, services)
