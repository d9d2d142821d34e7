"""How a connection stands: its queues, what is under way with them and since when, and its ratchets."""

from __future__ import annotations

from dataclasses import dataclass

from blindpost.agent.machines import Move
from blindpost.agent.model import ConnId, ConnType, QueueStatus, RcvQueue, RcvSwitch, SndSwitch, SyncState
from blindpost.agent.rotation.tables import RECIPIENT, RecipientEvent
from blindpost.agent.store import connections
from blindpost.agent.subscriptions.table import QueueState
from blindpost.agent.sync.synchronisation import SYNC_AGENT_VERSION
from blindpost.agent.work.runtime import Runtime
from blindpost.wire.addresses import Server


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


def connection_stats(rt: Runtime, conn_id: ConnId) -> ConnectionStats:
    whole = connections.load_whole(rt.store.reading, conn_id)
    record, now = whole.record, int(rt.now())

    def age(since: int | None) -> int:
        return 0 if since is None else max(0, now - since)

    def switch(queue: RcvQueue) -> Switch | None:
        if queue.switch is None:
            return None
        can_abort = isinstance(RECIPIENT.cells[queue.switch, RecipientEvent.ABORTED], Move)
        return Switch(queue.switch, age(queue.switch_at), can_abort)

    return ConnectionStats(
        agent_version=record.agent_version,
        pq_support=record.pq_support,
        rcv=tuple(
            RcvQueueStats(queue.server, queue.status, switch(queue), rt.subscriptions.state(queue))
            for queue in whole.rcv
        ),
        snd=tuple(
            SndQueueStats(
                queue.server,
                queue.status,
                None if queue.switch is None else Switch(queue.switch, age(queue.switch_at), False),
            )
            for queue in whole.snd
        ),
        sync_state=record.sync_state,
        sync_supported=whole.type is ConnType.DUPLEX and record.agent_version >= SYNC_AGENT_VERSION,
    )
