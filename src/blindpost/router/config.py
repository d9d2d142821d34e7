"""The rules a router's operator sets, as the decisions read them."""

from __future__ import annotations

from dataclasses import dataclass

QUOTA_DEFAULT = 128
MESSAGE_TTL_S = 21 * 86_400
NOTIFICATION_TTL_S = 86_400


@dataclass(frozen=True, slots=True)
class RouterRules:
    """What only the operator decides."""

    new_queues: bool = True
    password: bytes | None = None
    quota: int = QUOTA_DEFAULT
    message_ttl_s: int | None = MESSAGE_TTL_S
    expire_on_send: bool = False
    notification_ttl_s: int = NOTIFICATION_TTL_S
    proxy: bool = True
    """Whether senders may reach other routers through this one."""
    idle_ttl_s: int = 6 * 3600
