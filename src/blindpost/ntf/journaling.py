"""What the notification router records about itself once a minute: sums, nothing about a device or queue."""

from __future__ import annotations

from blindpost.journal.minutes import Reading
from blindpost.ntf.model import LedgerState
from blindpost.ntf.server import NtfRouter
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.ntf.tables import ledger_total


async def read_meters(router: NtfRouter, subscriber: SmpSubscriber) -> Reading:
    """Counters and levels of one moment."""
    await router.engine.settled()
    meters, engine, counts = router.plan.meters, router.engine.meters, router.store.counts()
    states = subscriber.states
    return Reading(
        counters={
            **meters.values(),
            "engine.turns": engine.turns,
            "engine.events": engine.events,
            "engine.eventsFailed": engine.events_failed,
            "engine.turnsRefused": engine.turns_refused,
        },
        gauges={
            "tokens": counts["tokens"],
            "subscriptions": counts["subscriptions"],
            "notifications": counts["notifications"],
            "waiting": ledger_total(counts, LedgerState.WAITING),
            "connections": len(router.connections),
            "pushes": router.pusher.waiting,
            "smp_routers": len(states),
            "smp_routers_connected": sum(state.is_connected for state in states),
            "queues_subscribed": sum(state.active + state.members for state in states),
            "inbox": router.engine.waiting,
        },
        histograms={
            **{f"push_{carrier.value}_s": taken_s for carrier, taken_s in meters.push_s.items()},
            "turn_s": engine.turn_s,
            "commit_s": engine.commit_s,
        },
        token_transitions=dict(meters.transitions),
        funnel=dict(meters.funnel),
    )
