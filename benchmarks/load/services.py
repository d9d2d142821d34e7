"""Services: SUBS with few and with many queues, the walk over what waits, queues that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from dataclasses import dataclass

from benchmarks import floor
from benchmarks.load import filling
from benchmarks.load.clients import Line, conversed, exchanged, payloads_of, refuse
from benchmarks.load.process import IN_MEMORY, MeasuredRouter, measured_router
from benchmarks.load.rows import Row, Sizes, Tell, row, started
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import NO_IDS
from blindpost.wire.smp.commands import DEL, NEW, SUBS
from blindpost.wire.smp.responses import ALLS, IDS, MSG, OK, SOKS
from blindpost.wire.smp.transmissions import Received
from blindpost.wire.smp.values import QueueMode, QueueRequest

SERVICE_ID = bytes(range(24))
CHURNED_AT_ONCE = 500
CHURN_TOLD = 10_000
SAMPLES = 4
"""In how many parts queues come and go; memory is looked at after each."""


def new_service() -> Credentials:
    return make_service(int(time.time()), system_entropy)


async def services(sizes: Sizes, tell: Tell) -> list[Row]:
    """SUBS of services of different sizes, all in turn, and the walk over queues in which a message waits."""
    who, counts = new_service(), sizes.associated
    answers: dict[int, list[Walked]] = {count: [] for count in counts}
    async with contextlib.AsyncExitStack() as stack:
        routers = {}
        for count in counts:
            tell(f"services: one with {count} queues")
            routers[count] = stack.enter_context(measured_router(IN_MEMORY))
            await filling.fill_service(routers[count].store, SERVICE_ID, who, count, 0)
            await stack.enter_async_context(started(routers[count]))
        for number in range(sizes.subs_rounds):
            tell(f"services: round {number + 1} of {sizes.subs_rounds}")
            for count, router in routers.items():
                answers[count].append(await _subscribed(router, who, count))
    rows = []
    for count, heard in answers.items():
        cpu = [walked.cpu_us for walked in heard]
        note = f"answered after {statistics.median(walked.soks_ms for walked in heard):.2f} ms"
        rows.append(row("SUBS", f"with {count} queues, CPU", "us", cpu, note=note))
    return [*rows, await _walk(sizes, tell, who)]


async def _walk(sizes: Sizes, tell: Tell, who: Credentials) -> Row:
    tell(f"services: walks over {sizes.waiting} messages")
    with measured_router(IN_MEMORY) as router:
        await filling.fill_service(router.store, SERVICE_ID, who, sizes.waiting, sizes.waiting)
        async with started(router):
            walks = [await _subscribed(router, who, sizes.waiting) for _ in range(sizes.rounds)]
    assert all(walk.messages == sizes.waiting for walk in walks), "a walk missed messages"
    each = [walk.cpu_us / sizes.waiting for walk in walks]
    us, floor_us = statistics.median(each), msg_floor_us()
    note = f"{1e6 / us:.0f} messages per CPU second, {us / floor_us:.2f} x the cryptography of MSG"
    return row("SUBS", f"walk over {sizes.waiting} messages, each", "us", each, note=note)


def msg_floor_us() -> float:
    """What one MSG costs in calls of C: its own box, the key and the box of its block, a record of TLS."""
    once = ("TLS record sealed", "block key: HKDF-SHA512", "block key: HSalsa20", "block box sealed")
    items = floor.measure(5).items
    return sum(item.median_us for item in items if item.name in (*once, "message box sealed"))


@dataclass(frozen=True)
class Walked:
    """One SUBS: when it was answered, and what it cost with all that followed."""

    soks_ms: float
    cpu_us: float
    messages: int


async def _subscribed(router: MeasuredRouter, who: Credentials, count: int) -> Walked:
    line = await Line.open(router, who)
    service = line.service
    assert service.private is not None
    payloads = payloads_of([line.transmission(SUBS(0, NO_IDS), service.service_id, service.private)])
    loop = asyncio.get_running_loop()
    answered, walked = loop.create_future(), loop.create_future()
    messages = 0

    def hear(received: Received) -> None:
        nonlocal messages
        match received.response:
            case SOKS() as soks if soks.count == count:
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


async def churn(sizes: Sizes, tell: Tell) -> list[Row]:
    """Anonymous memory of a router while the queues of one connection of a service come and go."""
    part, rows = sizes.churned // SAMPLES, []
    with measured_router(IN_MEMORY) as router:
        async with started(router):
            line = await Line.open(router, new_service())
            await _come_and_go(line, sizes.churn_warm_up)
            await asyncio.to_thread(router.settle)
            first, cpu = router.anonymous_memory(), router.cpu_ns()
            for number in range(SAMPLES):
                for done in range(0, part, CHURN_TOLD):
                    here = min(CHURN_TOLD, part - done)
                    await _come_and_go(line, here)
                    grown = (router.anonymous_memory() - first) / 2**20
                    tell(f"churn: {number * part + done + here} queues came and went, {grown:+.2f} MB")
                await asyncio.to_thread(router.settle)
                grown = (router.anonymous_memory() - first) / 2**20
                rows.append(row("churn", f"memory after {(number + 1) * part} queues", "MB more", [grown]))
            each_us = (router.cpu_ns() - cpu) / (SAMPLES * part) / 1000
            await line.close()
    note = f"{1e6 / each_us:.0f} per CPU second; before them the router had {first / 2**20:.0f} MB"
    return [*rows, row("churn", "NEW and DEL of one queue", "us", [each_us], note=note)]


async def _come_and_go(line: Line, count: int) -> None:
    """Create queues, as the service's own, and delete them, some hundred at a time."""
    key, dh_key = filling.recipient_key(0), filling.some_dh_key()
    new = NEW(key.public, dh_key, request=QueueRequest(QueueMode.MESSAGING))
    for start in range(0, count, CHURNED_AT_ONCE):
        here = range(min(CHURNED_AT_ONCE, count - start))
        made = await conversed(line, payloads_of([line.vouched(new, b"", key) for _ in here]), IDS)
        gone = [line.transmission(DEL(), ids.recipient_id, key) for ids in made]
        await exchanged(line, payloads_of(gone), OK)
