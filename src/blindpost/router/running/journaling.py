"""What the router records about itself once a minute: sums, nothing about anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blindpost.journal.folder import DAY_S
from blindpost.journal.minutes import Agreement, Reading, Sketch
from blindpost.router.bulk import BulkStore
from blindpost.router.meters import Meter
from blindpost.router.model import Domain
from blindpost.router.running.guard import GuardedRouter
from blindpost.router.running.metrics import Gauges, Services, look, look_at_services
from blindpost.serving.blocks import LimitedServer
from blindpost.wire.smp.handshake import ServiceRole

if TYPE_CHECKING:
    from blindpost.router.running.activity import Activity

SERVICE_ROLES = {Domain.MESSAGES: "messaging", Domain.NOTIFICATIONS: "notifier"}
_SERVICES_MAX = 65_536
"""How many services get their own ordinal; all later ones share the next."""


class RouterReadings:
    """Reads the meters of a running router for its journal."""

    def __init__(
        self, router: GuardedRouter, server: LimitedServer, bulk: BulkStore, activity: Activity
    ) -> None:
        self._router = router
        self._server = server
        self._bulk = bulk
        self._activity = activity
        self._ordinals: dict[bytes, int] = {}
        """Which service is which, for the life of this process."""
        self._compared: dict[tuple[int, Domain], tuple[bool, int]] = {}

    def compared(self, service_id: bytes, domain: Domain, agreed: bool) -> None:
        """A service subscribed; both sides agreed about its queues, or did not."""
        ordinal = self._ordinals.get(service_id)
        if ordinal is None:
            ordinal = len(self._ordinals)
            if ordinal < _SERVICES_MAX:
                self._ordinals[service_id] = ordinal
        always, times = self._compared.get((ordinal, domain), (True, 0))
        self._compared[ordinal, domain] = always and agreed, times + 1

    async def read(self, minute_s: int, with_sketches: bool) -> Reading:
        services = await look_at_services(self._bulk)
        gauges = await look(self._router, self._server)
        await self._router.engine.settled()
        # No await from here on: counters and levels must be of one moment.
        stored = self._router.store.counts()
        compared, self._compared = self._compared, {}
        return Reading(
            counters=self._counters(),
            gauges=_levels(gauges, services, stored, self._router.store.loaded),
            histograms={
                "ack_s": self._router.plan.meters.ack_s,
                "turn_s": self._router.engine.meters.turn_s,
                "commit_s": self._router.engine.meters.commit_s,
            },
            services=[
                Agreement(ordinal, SERVICE_ROLES[domain], agreed, times)
                for (ordinal, domain), (agreed, times) in compared.items()
            ],
            sketches=self._sketches(minute_s) if with_sketches else (),
        )

    def _counters(self) -> dict[str, int]:
        meters, engine, guard = self._router.plan.meters, self._router.engine.meters, self._router.guard
        sockets = guard.sockets.values()
        return {
            **{meter.value: meters[meter] for meter in Meter},
            "engine.turns": engine.turns,
            "engine.events": engine.events,
            "engine.eventsFailed": engine.events_failed,
            "engine.turnsRefused": engine.turns_refused,
            "sockets.accepted": sum(counted.accepted for counted in sockets),
            "sockets.closed": sum(counted.closed for counted in sockets),
            "sockets.refused": guard.refused_total + guard.refused_address + guard.refused_handshakes,
            "sockets.handshakesFailed": guard.handshakes_failed,
            "newRefused": guard.new_refused,
        }

    def _sketches(self, minute_s: int) -> list[Sketch]:
        day = minute_s // DAY_S
        return [Sketch(kind, day * DAY_S, content) for kind, content in self._activity.sketches(day).items()]


def _levels(gauges: Gauges, services: Services, stored: dict[str, int], loaded: int) -> dict[str, float]:
    return {
        **{name: stored[name] for name in ("queues", "messages", "notifiers", "notifications", "links")},
        "services_messaging": services.known[ServiceRole.MESSAGING],
        "services_notifier": services.known[ServiceRole.NOTIFIER],
        "service_queues_messaging": services.queues[Domain.MESSAGES],
        "service_queues_notifier": services.queues[Domain.NOTIFICATIONS],
        "connections": gauges.connections,
        "handshakes": gauges.handshakes,
        "congested": gauges.congested,
        "subscriptions": gauges.subscriptions,
        "subscriptions_notifier": gauges.notifier_subscriptions,
        "services_subscribed_messaging": gauges.services[Domain.MESSAGES],
        "services_subscribed_notifier": gauges.services[Domain.NOTIFICATIONS],
        "service_subscriptions_messaging": gauges.service_queues[Domain.MESSAGES],
        "service_subscriptions_notifier": gauges.service_queues[Domain.NOTIFICATIONS],
        "in_flight": gauges.in_flight,
        "in_flight_oldest_s": gauges.in_flight_oldest_s,
        "inbox": gauges.inbox,
        "loaded": loaded,
    }
