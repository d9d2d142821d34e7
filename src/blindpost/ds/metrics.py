"""The delivery service's meters as Prometheus text: sums, nothing about a queue or a caller."""

from __future__ import annotations

from blindpost.ds.server import DeliveryService
from blindpost.serving.prometheus import Text, engine_metrics

OURS = "blindpost_ds_"


def render(text: Text, service: DeliveryService) -> None:
    """Everything that is measured."""
    plan, (payloads, size) = service.plan, service.store.totals()
    for name, count in plan.meters.values().items():
        text.counter(f"{OURS}{name}_total", name.replace("_", " "), count)
    text.gauge(OURS + "stored_payloads", "Payloads that wait to be fetched", payloads)
    text.gauge(OURS + "stored_bytes", "Their size", size)
    text.gauge(OURS + "connections", "Connections", len(service.connections))
    text.gauge(OURS + "waiting", "Calls that wait for a payload", len(plan.state.waiting))
    text.gauge(OURS + "in_hand", "Payloads handed out and not acknowledged", len(plan.state.held))
    text.histogram(OURS + "wait_seconds", "How long calls waited", plan.meters.wait_s)
    engine_metrics(text, OURS, service.engine.meters)
