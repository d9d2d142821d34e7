"""Which modules decide, and which tests must notice when they are wrong."""

from __future__ import annotations

ROUTER = (
    "test_batching test_containment test_displacement test_expiry test_limits test_links test_meters test_new"
    " test_notifications test_queue_life test_receiving test_records test_registry test_requests"
    " test_securing test_sending test_service_association test_service_identity test_service_sets"
    " test_service_subscription test_transcripts test_service_transcripts test_activity test_gauges"
    " test_backpressure test_stored test_decisions_subscriptions"
)
ROUTER_IN_MEMORY = (
    "test_decisions_asking test_decisions_association test_decisions_commands test_decisions_delivery"
    " test_decisions_notifications test_decisions_operator test_decisions_queues test_decisions_relaying"
    " test_decisions_sending test_decisions_services test_decisions_state test_decisions_subscriptions"
)
NTF = (
    "test_authority test_decisions_tokens test_decisions_pushes test_decisions_subscriptions"
    " test_commands test_lab test_ledger test_machines test_subscriber_decisions test_subscriber_scripted"
    " test_subscriptions test_tokens test_transcripts"
)
DS = (
    "test_checks test_decisions test_decisions_queues test_quotas"
    " test_auth test_calls test_lab test_large test_limits test_service test_taking test_waiting"
)
AGENT = (
    "test_decisions test_integrity test_hostile_peers test_machines test_push_tables test_subscription_table"
)
SYNC = "test_sync test_sync_recovery test_copies test_hostile_peers test_integrity"
ROTATION = (
    "test_rotation test_rotation_faults test_rotation_replay test_rotation_traffic test_rotation_chance"
    " test_deletion test_hostile_peers test_push_subscriptions test_sync"
)
STORE = "test_store_groups test_store_parts test_agent_store test_copies test_sealing test_flows test_intake"
ENGINE = "test_beside test_inbox test_loop test_turn test_undo"


ALIKE = "not postgres and not quic"
"""Which forms of a test are run: what decides is the same whatever stores and carries it."""


def _tests(room: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{room}/{name}.py" for name in names.split())


def _gates(room: str, modules: str, tests: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {f"blindpost.{room}.{module}": tests for module in modules.split()}


GATES: dict[str, tuple[str, ...]] = {
    **_gates(
        "router",
        "asking association authority commands decisions delivery notifications operator queues relaying"
        " services state subscriptions weights",
        _tests("router", ROUTER_IN_MEMORY),
    ),
    **_gates("router", "expiry turn", _tests("router", ROUTER)),
    **_gates(
        "ntf",
        "authority ledger outcomes pushes rates state subscriber.decisions subscriptions tokens turn view",
        _tests("ntf", NTF),
    ),
    **_gates("ds", "checks heads queues quotas state turn view", _tests("ds", DS)),
    **_gates("engine", "beside inbox loop turn undo", _tests("engine", ENGINE)),
    **_gates(
        "agent",
        "failures machines messages.verdicts notifications.tables subscriptions.replies subscriptions.table"
        " work.retries",
        _tests("agent", AGENT),
    ),
    **_gates("agent", "messages.integrity", _tests("agent", "test_integrity test_hostile_peers")),
    **_gates("agent", "sync.synchronisation sync.renewal", _tests("agent", SYNC)),
    **_gates("agent", "rotation.recipient", _tests("agent", ROTATION)),
    **_gates("agent", "rotation.sender", _tests("agent", "test_decisions_rotation")),
    **_gates("agent", "messages.outcomes", _tests("agent", "test_decisions_outcomes")),
    **_gates("agent", "messages.delivery", _tests("agent", "test_decisions_delivery")),
    **_gates("agent", "messages.receiving", _tests("agent", "test_decisions_receiving")),
    **_gates("agent", "handshake.confirming", _tests("agent", "test_decisions_confirming")),
    **_gates("agent", "messages.sending", _tests("agent", "test_decisions_sending")),
    **_gates("agent", "handshake.allowing", _tests("agent", "test_decisions_allowing")),
    **_gates("agent", "messages.acking", _tests("agent", "test_decisions_acking test_decisions_content")),
    **_gates("agent", "handshake.joining", _tests("agent", "test_decisions_joining")),
    **_gates("agent", "work.commands", _tests("agent", "test_decisions_commands")),
    **_gates("agent", "store.grouping", _tests("agent", "test_store_groups test_store_parts")),
    **_gates("agent", "store.database", _tests("agent", STORE)),
    **_gates("agent", "store.intake", _tests("agent", "test_intake")),
    **_gates("agent", "store.lives", _tests("agent", "test_copies test_flows")),
    **_gates("agent", "work.stream", _tests("agent", "test_event_stream")),
    **_gates("agent", "work.suspension", _tests("agent", "test_suspension test_operations")),
    **_gates("agent", "messages.content", _tests("agent", "test_decisions_content test_flows")),
    **_gates("agent", "messages.flows messages.retelling", _tests("agent", "test_flows")),
    **_gates("agent", "notifications.tokens", _tests("agent", "test_decisions_push_tokens")),
    **_gates("agent", "notifications.workers", _tests("agent", "test_decisions_push_workers")),
}
