"""The router's meters as Prometheus text: sums and distributions, nothing about a queue or a user."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import blindpost
from blindpost.engine.histogram import Histogram
from blindpost.router.bulk import CHUNK_ITEMS, BulkStore, chunks
from blindpost.router.model import Domain
from blindpost.router.running.guard import GuardedRouter
from blindpost.router.running.names import OURS, REFERENCE, all_counters
from blindpost.serving.blocks import LimitedServer
from blindpost.serving.prometheus import Labels, Text, engine_metrics
from blindpost.wire.smp.handshake import ServiceRole

PERIODS = ((60, "0-60"), (300, "60-300"), (1200, "300-1200"), (3600, "1200-3600"))
LAST_PERIOD = "3600+"

_WALK_STEP = 256
"""A walk over all connections yields to other tasks after this many."""


@dataclass(slots=True)
class Gauges:
    """Current values."""

    connections: int = 0
    handshakes: int = 0
    congested: int = 0
    subscriptions: int = 0
    subscribed: int = 0
    notifier_subscriptions: int = 0
    notifier_subscribed: int = 0
    services: dict[Domain, int] = field(default_factory=dict)
    service_queues: dict[Domain, int] = field(default_factory=dict)
    in_flight: int = 0
    in_flight_connections: int = 0
    in_flight_periods: dict[str, int] = field(default_factory=dict)
    in_flight_oldest_s: int = 0
    inbox: int = 0
    stored: dict[str, int] = field(default_factory=dict)
    sockets: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)


def period_of(seconds: int) -> str:
    return next((name for bound, name in PERIODS if seconds <= bound), LAST_PERIOD)


@dataclass(slots=True)
class Services:
    """All services that are known, connected or not."""

    known: Counter[ServiceRole] = field(default_factory=Counter)
    queues: Counter[Domain] = field(default_factory=Counter)


async def look_at_services(bulk: BulkStore) -> Services:
    found = Services()
    async for chunk in chunks(bulk.services, CHUNK_ITEMS):
        for service in chunk.items:
            found.known[service.role] += 1
            for domain in Domain:
                found.queues[domain] += service.members(domain).count
    return found


async def look(router: GuardedRouter, server: LimitedServer) -> Gauges:
    """Walk over all connections, in steps."""
    gauges = Gauges(
        handshakes=router.limits.handshakes, inbox=router.engine.waiting, stored=router.store.counts()
    )
    gauges.subscriptions = len(router.plan.state.queues)
    gauges.notifier_subscriptions = len(router.plan.state.notifiers)
    for domain in Domain:
        gauges.services[domain] = len(router.plan.state.services(domain))
        gauges.service_queues[domain] = 0
    gauges.in_flight_periods = dict.fromkeys([*(name for _, name in PERIODS), LAST_PERIOD], 0)
    now = int(time.time())
    versions: Counter[int] = Counter()
    for number, connection in enumerate(tuple(router.connections.values()), start=1):
        client = connection.client
        versions[client.version] += 1
        if client.congested:
            gauges.congested += 1
        if len(client.notifier_ids):
            gauges.notifier_subscribed += 1
        if client.service is not None:
            for domain in Domain:
                gauges.service_queues[domain] += client.service_sub(domain).members.count
        if len(client.subs):
            gauges.subscribed += 1
            in_flight = [sub.delivered for _, sub in client.subs.items() if sub.delivered is not None]
            if in_flight:
                _note(gauges, [max(0, now - delivered.seconds) for delivered in in_flight])
        if number % _WALK_STEP == 0:
            await asyncio.sleep(0)
    gauges.connections, gauges.versions = versions.total(), dict(versions)
    # Last, with nothing in between: it is compared with what was accepted and closed.
    gauges.sockets = Counter(session.own_port for session in server.sessions)
    return gauges


def _note(gauges: Gauges, ages: Sequence[int]) -> None:
    """Note the age of the messages that a connection has not acknowledged."""
    gauges.in_flight += len(ages)
    gauges.in_flight_connections += 1
    gauges.in_flight_oldest_s = max(gauges.in_flight_oldest_s, *ages)
    for age in ages:
        gauges.in_flight_periods[period_of(age)] += 1


def render(
    text: Text, router: GuardedRouter, gauges: Gauges, services: Services, active: Mapping[str, int]
) -> None:
    """Everything that is measured, as text."""
    text.metric(
        REFERENCE + "info",
        "gauge",
        "The program",
        [("", (("version", f"blindpost-{blindpost.__version__}"), ("rts_options", "")), 1)],
    )
    for meter, name, labels in all_counters():
        text.counter(name.text, name.help, router.plan.meters[meter], labels)
    _stored(text, gauges)
    for period, count in active.items():
        text.gauge(REFERENCE + period, "Queues in which messages came or went: an estimate", count)
    _live(text, gauges)
    _services(text, services)
    _loaded(text, router.store.loaded)
    _acknowledged(text, router.plan.meters.ack_s, gauges)
    engine_metrics(text, OURS + "router_", router.engine.meters)
    _sockets(text, router, gauges)
    _guard(text, router)


def _stored(text: Text, gauges: Gauges) -> None:
    stored = gauges.stored
    for number in (1, 2):
        text.gauge(f"{REFERENCE}queues_total{number}", "Stored queues", stored["queues"])
        text.gauge(f"{REFERENCE}queues_notify_total{number}", "Stored notifiers", stored["notifiers"])
    text.gauge(REFERENCE + "messages_total", "Stored messages", stored["messages"])
    text.gauge(OURS + "router_stored_notifications", "Stored notifications", stored["notifications"])
    text.gauge(OURS + "router_stored_links", "Stored short links", stored["links"])
    text.gauge(OURS + "router_stored_services", "Known services", stored.get("services", 0))


def _live(text: Text, gauges: Gauges) -> None:
    text.gauge(REFERENCE + "threads_total", "Threads", threading.active_count())
    text.gauge(REFERENCE + "clients_total", "Connections", gauges.connections)
    text.gauge(REFERENCE + "subscribtion_total", "Subscribed queues", gauges.subscriptions)
    text.gauge(
        REFERENCE + "subscribtion_clients_total", "Connections with subscribed queues", gauges.subscribed
    )
    text.gauge(REFERENCE + "subscription_ntf_total", "Subscribed notifiers", gauges.notifier_subscriptions)
    text.gauge(
        REFERENCE + "subscription_ntf_clients_total",
        "Connections with subscribed notifiers",
        gauges.notifier_subscribed,
    )
    for domain, services, queues in (
        (Domain.MESSAGES, "subscribtion_services_total", "subscribtion_service_subs_total"),
        (Domain.NOTIFICATIONS, "subscribtion_nts_services_total", "subscription_ntf_service_subs_total"),
    ):
        text.gauge(REFERENCE + services, "Services that are subscribed", gauges.services[domain])
        text.gauge(REFERENCE + queues, "Queues subscribed through services", gauges.service_queues[domain])
    text.gauge(OURS + "router_handshakes", "Connections that shake hands", gauges.handshakes)
    text.gauge(OURS + "router_congested", "Connections that do not read their answers", gauges.congested)
    text.gauge(OURS + "router_inbox", "Blocks and events that wait to be decided", gauges.inbox)


def _services(text: Text, services: Services) -> None:
    for role, domain, prefix in (
        (ServiceRole.MESSAGING, Domain.MESSAGES, "rcv"),
        (ServiceRole.NOTIFIER, Domain.NOTIFICATIONS, "ntf"),
    ):
        name, queues = f"{REFERENCE}{prefix}_services", services.queues[domain]
        text.gauge(f"{name}_count", "Known services", services.known[role])
        text.gauge(f"{name}_queues_count", "Queues that belong to services", queues)


def _loaded(text: Text, loaded: int) -> None:
    """What of the store is in memory: records of queues that were used last, without their messages."""
    name = REFERENCE + "loaded_queues_{}_count"
    text.gauge(name.format("queue"), "Queues whose records are kept in memory", loaded)
    for part in ("ntf", "open_journal", "queue_lock", "ntf_lock"):
        text.gauge(name.format(part), "Always none: this router has no such thing", 0)


def _acknowledged(text: Text, ack_s: Histogram, gauges: Gauges) -> None:
    text.gauge(REFERENCE + "delivered_total", "Messages that wait for their ACK", gauges.in_flight)
    text.gauge(
        REFERENCE + "delivered_clients_total",
        "Connections with a message that waits for its ACK",
        gauges.in_flight_connections,
    )
    text.histogram(REFERENCE + "delivery_ack_confirmed_time", "Seconds from delivery to ACK", ack_s)
    below, confirmed = 0, dict(ack_s.cumulative())
    samples: list[tuple[str, Labels, float]] = []
    for bound, name in PERIODS:
        samples.append(("", (("period", name),), confirmed[bound] - below))
        below = confirmed[bound]
    samples.append(("", (("period", LAST_PERIOD),), ack_s.count - below))
    text.metric(
        REFERENCE + "delivery_ack_confirmed_count", "counter", "ACKs by seconds since delivery", samples
    )
    text.metric(
        REFERENCE + "delivery_ack_pending_count",
        "gauge",
        "Messages that wait for their ACK, by seconds since delivery",
        [("", (("period", name),), count) for name, count in gauges.in_flight_periods.items()],
    )
    longest = max(ack_s.maximum, gauges.in_flight_oldest_s)
    text.gauge(REFERENCE + "delivery_ack_time_max", "The longest time from delivery to ACK", longest)


def _sockets(text: Text, router: GuardedRouter, gauges: Gauges) -> None:
    """A socket that is neither open nor was seen to close has leaked: there must be none."""
    for port, counted in sorted(router.guard.sockets.items()):
        labels, active = (("port", str(port)),), gauges.sockets.get(port, 0)
        leaked = counted.accepted - counted.closed - active
        for name, kind, help_text, count in (
            ("accepted", "counter", "Connections accepted", counted.accepted),
            ("closed", "counter", "Connections closed", counted.closed),
            ("active", "gauge", "Connections that are open", active),
            ("leaked", "gauge", "Connections that were lost track of", leaked),
        ):
            text.metric(f"{REFERENCE}sockets_{name}", kind, help_text, [("", labels, count)])


def _guard(text: Text, router: GuardedRouter) -> None:
    guard = router.guard
    for reason, count in (
        ("total", guard.refused_total),
        ("address", guard.refused_address),
        ("handshakes", guard.refused_handshakes),
    ):
        name = OURS + "router_connections_refused_total"
        text.counter(name, "Connections above a limit", count, (("limit", reason),))
    text.counter(
        OURS + "router_handshakes_failed_total",
        "Connections closed before agreement",
        guard.handshakes_failed,
    )
    text.counter(OURS + "router_new_refused_total", "NEW above the rate", guard.new_refused)
    stored = router.plan.stored
    text.gauge(OURS + "router_stored_bytes", "Weight of all queues, messages and links", stored.total)
    text.gauge(OURS + "router_stored_bytes_max", "How much may be stored", stored.limit)
    text.counter(OURS + "router_stored_refused_total", "Refused because the store fills", stored.refused)
