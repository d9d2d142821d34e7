"""What all sessions of one listener, or of one client identity, have in common."""

from __future__ import annotations

from collections.abc import Callable

from OpenSSL import SSL

from blindpost.transport.handshake import Handshake, Peer
from blindpost.transport.tls import ChainCheck
from blindpost.wire.frozen import dataclass


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How long each stage may take and how much may wait to be sent."""

    connect_timeout_s: float = 45.0
    tls_timeout_s: float = 60.0
    handshake_timeout_s: float = 120.0
    close_timeout_s: float = 5.0
    outbox_high: int = 256 * 1024
    outbox_low: int = 64 * 1024
    outbox_max: int = 8 * 1024 * 1024
    release_after_s: float = 2.0


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """How each of these sessions is made."""

    context: SSL.Context
    check: ChainCheck
    handshake: Callable[[Peer], Handshake]
    block_size: int
    server: bool
    limits: SessionLimits
