"""How a connection stands: its queues, what is under way with them and since when, and its ratchets."""

from __future__ import annotations

from blindpost.agent.model import QueueStatus, RcvSwitch, SndSwitch, SyncState
from blindpost.agent.subscriptions.table import QueueState
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Switch:
    """A rotation under way: how far it is, and for how many seconds it has been there."""

    status: RcvSwitch | SndSwitch
    age_s: int
    can_abort: bool


@dataclass(frozen=True, slots=True)
class RcvQueueStats:
    server: Server
    status: QueueStatus
    switch: Switch | None
    subscription: QueueState | None


@dataclass(frozen=True, slots=True)
class SndQueueStats:
    server: Server
    status: QueueStatus
    switch: Switch | None


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    agent_version: int
    pq_support: bool
    rcv: tuple[RcvQueueStats, ...]
    snd: tuple[SndQueueStats, ...]
    sync_state: SyncState
    sync_supported: bool
