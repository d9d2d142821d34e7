"""The notification router's meters as Prometheus text: sums, nothing about a device or a queue.

Where the reference has a metric, ours has its name. Its per-host metrics for an operator's own message
routers are left out: no host is named.
"""

from __future__ import annotations

import threading

import blindpost
from blindpost.ntf.activity import Period
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import LedgerState
from blindpost.ntf.server import NtfRouter
from blindpost.ntf.subscriber.subscriber import LinkState, SmpSubscriber
from blindpost.ntf.tables import ledger_of
from blindpost.serving.prometheus import Text, engine_metrics

REFERENCE = "simplex_ntf_"
OURS = "blindpost_ntf_"


def render(text: Text, router: NtfRouter, subscriber: SmpSubscriber | None) -> None:
    """Everything that is measured, as text."""
    text.metric(
        REFERENCE + "info",
        "gauge",
        "The program",
        [("", (("version", f"blindpost-{blindpost.__version__}"), ("rts_options", "")), 1)],
    )
    for meter in Meter:
        name = f"{REFERENCE}{meter.value}" if meter.is_of_reference else f"{OURS}{meter.value}_total"
        text.counter(name, meter.value.replace("_", " "), router.plan.meters[meter])
    for name, activity in (
        ("tokens", router.plan.active_tokens),
        ("subscriptions", router.plan.active_queues),
    ):
        for period in Period:
            count = activity.count(period, router.now)
            text.gauge(f"{REFERENCE}{name}_count_{period.value}", "Active in this period", count)
    _stored(text, router.store.counts())
    _live(text, router)
    _subscribed(text, [] if subscriber is None else subscriber.states)
    for carrier, taken_s in router.plan.meters.push_s.items():
        help_text = "From NMSG until the provider accepted it"
        text.histogram(OURS + "push_seconds", help_text, taken_s, (("provider", carrier.value),))
    engine_metrics(text, OURS, router.engine.meters)


def _stored(text: Text, counts: dict[str, int]) -> None:
    text.gauge(REFERENCE + "tokens_total", "Stored tokens", counts["tokens"])
    text.gauge(REFERENCE + "subscriptions_approx_total", "Stored subscriptions", counts["subscriptions"])
    text.gauge(REFERENCE + "notifications_total", "Stored last notifications", counts["notifications"])
    for carrier, states in ledger_of(counts).items():
        provider = ("provider", carrier.value)
        waiting = states.pop(LedgerState.WAITING)
        text.gauge(OURS + "ledger_waiting", "Notifications without an end", waiting, (provider,))
        for state, count in states.items():
            help_text = "Notifications by how they ended, since the store was made"
            text.counter(OURS + "ledger_total", help_text, count, (provider, ("state", state.value)))


def _live(text: Text, router: NtfRouter) -> None:
    text.gauge(REFERENCE + "threads_total", "Threads", threading.active_count())
    text.gauge(REFERENCE + "apns_push_queue_length", "Pushes in line or on their way", router.pusher.waiting)
    text.gauge(OURS + "push_jobs", "Pushes under way or waiting to be repeated", len(router.plan.state.jobs))
    text.gauge(OURS + "connections", "Connections of devices", len(router.connections))
    text.gauge(OURS + "inbox", "Blocks and events that wait to be decided", router.engine.waiting)


def _subscribed(text: Text, states: list[LinkState]) -> None:
    """At all message routers together; all are counted as `other`, since none is marked as our own."""
    connected = [state for state in states if state.is_connected]
    text.gauge(REFERENCE + "smp_sessions_count", "Sessions with message routers", len(connected))
    text.gauge(REFERENCE + "smp_subscribers_count_other", "Message routers in use", len(states))
    text.gauge(REFERENCE + "smp_agent_clients_count_other", "Connected message routers", len(connected))
    text.gauge(
        REFERENCE + "smp_agent_sub_workers_count_other",
        "Message routers that are being connected to",
        len(states) - len(connected),
    )
    for prefix, counts in (
        ("smp_subscription_active_", [state.active for state in states]),
        ("smp_service_subscription_active_", [state.members for state in states]),
        ("smp_subscription_pending_", [state.waiting for state in states]),
    ):
        used = sum(count > 0 for count in counts)
        text.gauge(f"{REFERENCE}{prefix}server_count_other", "Message routers with such queues", used)
        text.gauge(f"{REFERENCE}{prefix}sub_count_other", "Queues", sum(counts))
