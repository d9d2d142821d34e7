"""What the delivery service records about itself once a minute: sums, nothing about a queue."""

from __future__ import annotations

import asyncio

from blindpost.ds.server import DeliveryService
from blindpost.journal.minutes import Reading


async def read_meters(service: DeliveryService) -> Reading:
    """Counters and levels of one moment."""
    await service.engine.settled()
    plan, engine = service.plan, service.engine.meters
    payloads, size = service.store.totals()
    now = asyncio.get_running_loop().time()
    return Reading(
        counters={
            **plan.meters.values(),
            "engine.turns": engine.turns,
            "engine.events": engine.events,
            "engine.eventsFailed": engine.events_failed,
            "engine.turnsRefused": engine.turns_refused,
        },
        gauges={
            "payloads": payloads,
            "bytes": size,
            "connections": len(service.connections),
            "waiting": len(plan.state.waiting),
            "waiting_oldest_s": max(
                (now - wait.started for _, wait in plan.state.waiting.items()), default=0.0
            ),
            "in_hand": len(plan.state.held),
            "leased": sum(hold.is_lease for _, hold in plan.state.held.items()),
        },
        histograms={"wait_s": plan.meters.wait_s, "turn_s": engine.turn_s, "commit_s": engine.commit_s},
    )
