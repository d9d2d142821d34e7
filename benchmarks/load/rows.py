"""What the scenes share: how much they measure, the rows of figures they give, and the floors they divide by.

CPU time is that of the router's process alone. Whatever is given as a multiple is divided by what is
measured in this process in between, again and again: the machine's mood moves within a second, and a floor
that was measured only before and after ten of them says little about what was in between. It is measured on
the processor on which the router ran last, since the mood of another is another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import statistics
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks import floor
from benchmarks.figures.rows import Better
from benchmarks.load import filling
from benchmarks.load.process import KEEPINGS, Keeping, MeasuredRouter, measured_router

Tell = Callable[[str], None]

PIECES = 10
"""Into so many a round is cut, with the floor measured between them."""
VERIFICATIONS = 200
STEADY_CYCLES = 5
"""So many each queue has in a piece at least: at its beginning all of them send at once."""


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
    subs_rounds: int
    waiting: int
    churned: int
    churn_warm_up: int
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
    better: Better = Better.LOWER


def row(
    scene: str,
    what: str,
    unit: str,
    values: list[float],
    *,
    aim: float | None = None,
    note: str = "",
    better: Better = Better.LOWER,
) -> Row:
    if len(values) == 1:
        return Row(scene, what, unit, values[0], values[0], values[0], aim, note, better)
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Row(scene, what, unit, median, lower, upper, aim, note, better)


@asynccontextmanager
async def started(router: MeasuredRouter) -> AsyncIterator[MeasuredRouter]:
    await asyncio.to_thread(router.start)
    try:
        yield router
    finally:
        await asyncio.to_thread(router.stop)


class Floors(NamedTuple):
    """What a router is measured by, in microseconds: the floor, and the least that it could be here."""

    unit: float
    least: float


def floors_us(router: MeasuredRouter) -> Floors:
    """The floor of a message cycle."""
    with _beside(router):
        measured = floor.measure(2)
    return Floors(measured.total.median_us, measured.least.median_us)


@functools.cache
def _verifications() -> tuple[floor.Call, floor.Call]:
    return floor.by_libsodium(floor.ACK_AUTHORIZED_SIZE), floor.by_the_router(floor.ACK_AUTHORIZED_SIZE)


def verifications_us(router: MeasuredRouter) -> Floors:
    """One Ed25519 verification of a short command: a mean, as what the router spends on many is one."""
    with _beside(router):
        unit, least = (floor.cpu_ns(call, VERIFICATIONS) / VERIFICATIONS / 1000 for call in _verifications())
    return Floors(unit, least)


def multiples(us: float, floors: Sequence[Floors]) -> Floors:
    """`us` as a multiple of the means of what was measured in between."""
    return Floors(*(us / statistics.mean(values) for values in zip(*floors, strict=True)))


@contextlib.contextmanager
def _beside(router: MeasuredRouter) -> Iterator[None]:
    """Be on the processor of a router that has nothing to do."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {router.processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


async def filled_router(stack: contextlib.AsyncExitStack, keeping: Keeping, queues: int) -> MeasuredRouter:
    router = stack.enter_context(measured_router(keeping))
    await filling.fill(router.store, queues)
    return await stack.enter_async_context(started(router))


def pieces_of(cycles: int, connections: int) -> int:
    return max(1, min(PIECES, cycles // (STEADY_CYCLES * queues_of(connections))))


def queues_of(connections: int) -> int:
    """One for each pair of connections; a single connection has twenty at once."""
    return 20 if connections == 1 else connections // 2
