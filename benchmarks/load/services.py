"""Services: what SUBS costs with few and with many queues, and the walk over what waits in them."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

from benchmarks.load import filling
from benchmarks.load.clients import Line, payloads_of, refuse
from benchmarks.load.process import IN_MEMORY, MeasuredRouter, measured_router
from benchmarks.load.rows import Row, Sizes, Tell, row, started
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import NO_IDS
from blindpost.wire.smp.commands import SUBS
from blindpost.wire.smp.responses import ALLS, MSG, SOKS
from blindpost.wire.smp.transmissions import Received

SERVICE_ID = bytes(range(24))


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
