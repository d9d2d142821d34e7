"""Deleting connections: their receive queues at the routers first, then everything that is stored of them.

A connection that is marked is gone for the application, whatever its routers say. A router that is away is
tried again, a bounded number of times; with `wait_delivery` messages that wait are delivered before.
"""

from __future__ import annotations

import asyncio
from functools import partial

from blindpost.agent.errors import AgentError
from blindpost.agent.events import ConnectionsDeleted, QueuesDeleted
from blindpost.agent.model import ConnId, RcvQueue
from blindpost.agent.store import connections, messages, queues
from blindpost.agent.store import deletion as rows
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.retries import RECONNECT, Retry
from blindpost.agent.work.transactions import Tx
from blindpost.client.calls import Call
from blindpost.wire.smp.commands import DEL

ATTEMPTS_MAX = 10
"""How often a router that is away is asked to delete a queue."""
DELIVERY_S = 2 * 86_400
"""For so long messages of a deleted connection are tried."""


class Deletion:
    """Connections that are being deleted."""

    def __init__(self, ground: Ground, subscriptions: Subscriptions) -> None:
        self._ground = ground
        self._subscriptions = subscriptions
        ground.work.deletions.listen(self._marked)

    async def delete(self, conn_id: ConnId, *, wait_delivery: bool) -> None:
        """Mark a connection; its queues and rows go in the background."""
        async with self._ground.locked(conn_id):
            with self._ground.transaction() as tx:
                connections.load(tx, conn_id)
                if wait_delivery:
                    rows.mark_waiting(tx, conn_id, tx.now)
                    tx.finish_deletion(conn_id)
                else:
                    tx.delete_connection(conn_id)

    def _marked(self, conn_id: ConnId) -> None:
        for queue in queues.rcv_queues(self._ground.store.reading, conn_id, deleted=True):
            self._subscriptions.forget(queue)
        self._ground.keep(partial(self._finish_soon, conn_id))

    async def _finish_soon(self, conn_id: ConnId) -> None:
        """Until nothing is left at routers: one that is away for a moment is not waited for until the next
        round. These attempts do not count."""
        retry = Retry.first(RECONNECT)
        while not await self._finish(conn_id, counted=False):
            await asyncio.sleep(retry.jittered_s(self._ground.config.chance))
            retry = retry.next()

    async def resume(self) -> None:
        """Try again what is left: when the agent starts, and with every cleanup."""
        for conn_id in rows.marked(self._ground.store.reading):
            await self._finish(conn_id, counted=True)

    async def _finish(self, conn_id: ConnId, *, counted: bool) -> bool:
        """Whether no queue is left to be deleted."""
        async with self._ground.locked(("deletion", conn_id)):
            for queue in queues.rcv_queues(self._ground.store.reading, conn_id, deleted=True):
                await self._delete_queue(queue, counted=counted)
            with self._ground.transaction() as tx:
                _remove(tx, conn_id)
                return not queues.rcv_queues(tx, conn_id, deleted=True)

    async def _delete_queue(self, queue: RcvQueue, *, counted: bool) -> None:
        failed: AgentError | None = None
        try:
            call = Call(DEL(), queue.rcv_id, queue.key)
            await self._subscriptions.sessions.send(queue.user_id, queue.server, call, entity=queue.conn_id)
        except AgentError as error:
            failed = error
        with self._ground.transaction() as tx:
            if failed is not None and failed.retried and not counted:
                return
            if failed is not None and failed.retried and queue.delete_errors + 1 < ATTEMPTS_MAX:
                queues.count_delete_error(tx, queue)
                return
            queues.delete(tx, queue)
            tx.emit(QueuesDeleted(((queue.conn_id, queue.server, queue.rcv_id, failed),)))


def delivered(tx: Tx, conn_id: ConnId) -> None:
    """Something was delivered: a connection that only waited for that is deleted."""
    if rows.waiting_since(tx, conn_id) is not None:
        _remove(tx, conn_id)


def _remove(tx: Tx, conn_id: ConnId) -> None:
    """Remove the connection, if nothing keeps it."""
    if connections.find(tx, conn_id, deleted=True) is None:
        return
    if queues.rcv_queues(tx, conn_id, deleted=True):
        return
    since = rows.waiting_since(tx, conn_id)
    if since is not None and tx.now - since < DELIVERY_S and messages.has_pending(tx, conn_id):
        return
    connections.delete(tx, conn_id)
    tx.emit(ConnectionsDeleted((conn_id,)))
