"""Settings as values for the packages below; a separate module, so that reading a file stays quick."""

from __future__ import annotations

from dataclasses import replace

from blindpost.client.options import DEFAULT_SMP, SmpOptions
from blindpost.client.outbound import Outbound
from blindpost.engine.inbox import Budget
from blindpost.router.config import RouterRules
from blindpost.router.running.settings import LimitsSection, Settings
from blindpost.serving.cores import cores
from blindpost.serving.limits import LimitSizes
from blindpost.serving.memory import NEAR
from blindpost.store.contract import Durability
from blindpost.transport.plan import SessionLimits

LIMITS_OF_NEW_CONNECTIONS = frozenset(
    f"limits.{name}"
    for name in LimitsSection.model_fields
    if name not in ("connections", "memory_mib", "inbox_kib")
)
"""The limits that can change while a router runs; the others are the sizes of what it was made with."""


FRONTS_CORES_MIN = 3
"""With two cores a front and the engine would share what one process has already."""
FRONTS_MAX = 7
"""With more of them the engine is the limit."""
FRONT_MIB = 128
"""One front at most for so much of what a router may use."""
ENGINE_BARE_MIB, FRONT_BARE_MIB = 52, 27
"""What each takes before its first connection."""


def fronts(settings: Settings) -> int:
    """As many as were asked for, or as this machine has a use for and memory allows."""
    wanted = settings.router.fronts
    if wanted != "auto":
        return wanted
    count = cores()
    most = min(FRONTS_MAX, settings.limits.memory_mib // FRONT_MIB)
    return min(count - 1, most) if count >= FRONTS_CORES_MIN else 0


def too_little_memory(settings: Settings) -> str | None:
    """Why there would be no room for connections: they are closed as soon as they come."""
    count, memory_mib = fronts(settings), settings.limits.memory_mib
    bare_mib = ENGINE_BARE_MIB + count * FRONT_BARE_MIB
    if not count or bare_mib < memory_mib * NEAR:
        return None
    return (
        f"a router with {count} fronts takes {bare_mib} MiB before its first connection, and connections are "
        f"closed from {memory_mib * NEAR:.0f} MiB on: limits.memory_mib = {memory_mib}"
    )


def router_rules(settings: Settings) -> RouterRules:
    rules = settings.rules
    return RouterRules(
        new_queues=rules.new_queues,
        password=rules.password.encode() or None,
        quota=rules.quota,
        message_ttl_s=None if rules.message_ttl_s == "never" else rules.message_ttl_s,
        expire_on_send=rules.expire_on_send,
        notification_ttl_s=rules.notification_ttl_s,
        proxy=rules.proxy,
        idle_ttl_s=rules.idle_ttl_s,
    )


def relay_options(settings: Settings) -> SmpOptions:
    """How relays that strangers name are reached."""
    return Outbound(**settings.outbound.model_dump()).applied(DEFAULT_SMP)


def durability(settings: Settings) -> Durability:
    return Durability(settings.store.durability)


def session_limits(settings: Settings) -> SessionLimits:
    """How much one connection may have waiting to be sent; it is congested at 1/32 of the maximum."""
    outbox_max = settings.limits.outbox_kib * 1024
    high = max(outbox_max // 32, 64 * 1024)
    return SessionLimits(outbox_high=high, outbox_low=high // 4, outbox_max=outbox_max)


def budget(settings: Settings) -> Budget:
    return Budget(source_bytes=settings.limits.inbox_kib * 1024)


def limit_sizes(settings: Settings, connections: int) -> LimitSizes:
    limits = settings.limits
    return replace(
        LimitSizes.of(limits, connections),
        new_per_second=limits.new_per_second,
        new_burst=limits.new_burst,
        new_per_address_per_second=limits.new_per_address_per_second,
        new_per_address_burst=limits.new_per_address_burst,
        stored=limits.stored_mib << 20,
    )
