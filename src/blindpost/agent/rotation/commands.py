"""What rotation asks of routers, as commands: stored when they are decided, repeated until they are done."""

from __future__ import annotations

from blindpost.agent.errors import AgentError, InternalError
from blindpost.agent.failures import Kind
from blindpost.agent.model import QueueStatus, RcvQueue, RcvSwitch, Whole
from blindpost.agent.queues.making import QueueMaker
from blindpost.agent.rotation import recipient
from blindpost.agent.rotation.draining import Draining
from blindpost.agent.rotation.recipient import DELETE_NEW, DELETE_OLD, SECURE, SWITCH, read_secure_queue
from blindpost.agent.store import connections, queues
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.agent.work.commands import CommandHandler
from blindpost.agent.work.ground import Ground
from blindpost.client.calls import Call
from blindpost.wire.addresses import Server
from blindpost.wire.primitives import decode_whole
from blindpost.wire.smp.commands import DEL, KEY
from blindpost.wire.smp.values import QueueMode


class _NotEmptyError(AgentError):
    """Messages in the old queue of a rotation would be lost with it; a queue that nobody empties is deleted
    when its messages are old."""

    family = "INTERNAL"
    kind = Kind.TEMPORARY


class RotationCommands:
    """The handlers, each under the lock of its connection. Any of them may run a second time."""

    def __init__(
        self, ground: Ground, subscriptions: Subscriptions, maker: QueueMaker, draining: Draining
    ) -> None:
        self._ground = ground
        self._subscriptions = subscriptions
        self._maker = maker
        self._draining = draining

    @property
    def handlers(self) -> dict[str, CommandHandler]:
        return {
            SWITCH: self._make_queue,
            SECURE: self._secure,
            DELETE_OLD: self._delete_old,
            DELETE_NEW: self._delete_new,
        }

    async def _make_queue(self, command: StoredCommand) -> None:
        """Make the new queue, on a router that the connection does not use yet if there is one. One that was
        made before stays: while nothing can be sent the rotation waits, and this may run again."""
        conn_id = command.conn_id
        whole = connections.load_whole(self._ground.store.reading, conn_id)
        old = recipient.switching(whole)
        if old is None or old.switch is not RcvSwitch.SWITCH_STARTED or recipient.replacing(whole, old):
            return
        await self._maker.make(
            conn_id,
            old.user_id,
            QueueMode.MESSAGING,
            avoiding=self._avoided(whole, old),
            replaces=old.number,
            then=lambda tx, new: recipient.queue_made(tx, conn_id, new),
        )

    def _avoided(self, whole: Whole, old: RcvQueue) -> list[Server]:
        """The routers that the connection uses; where nothing else is left, only the one it is to leave."""
        used = [queue.server for queue in whole.rcv] + [queue.server for queue in whole.snd]
        others = any(address.server not in used for address in self._ground.servers)
        return used if others else [old.server]

    async def _secure(self, command: StoredCommand) -> None:
        """Give the new queue its sender's key; QUSE is sent when the router has it."""
        content = decode_whole(command.content, read_secure_queue)
        new = self._queue(command, content.rcv_id)
        if new is None or new.deleted or new.status is not QueueStatus.CONFIRMED:
            return
        await self._send(new, KEY(content.sender_key))
        with self._ground.transaction() as tx:
            recipient.secured(tx, command.conn_id, new)

    async def _delete_old(self, command: StoredCommand) -> None:
        old = self._queue(command, command.content)
        if old is None:
            return
        if old.primary:
            raise InternalError("the primary queue of a connection is not deleted by a rotation")
        age_s = self._ground.now() - command.created_at
        if await self._draining.waiting(old) and age_s < self._ground.config.retention.undelivered_s:
            raise _NotEmptyError("the old queue still has messages, or its router is away")
        await self._delete(old)
        with self._ground.transaction() as tx:
            recipient.old_deleted(tx, command.conn_id, old)
        self._subscriptions.forget(old)

    async def _delete_new(self, command: StoredCommand) -> None:
        """The queue of a rotation that was taken back."""
        new = self._queue(command, command.content)
        if new is None:
            return
        await self._delete(new)
        with self._ground.transaction() as tx:
            queues.delete(tx, new)
        self._subscriptions.forget(new)

    def _queue(self, command: StoredCommand, rcv_id: bytes) -> RcvQueue | None:
        found = queues.rcv_queues(self._ground.store.reading, command.conn_id, deleted=True)
        return next((queue for queue in found if queue.rcv_id == rcv_id), None)

    async def _delete(self, queue: RcvQueue) -> None:
        """Delete at the router; a queue that the router refuses to delete is left there."""
        try:
            await self._send(queue, DEL())
        except AgentError as error:
            if error.retried:
                raise

    async def _send(self, queue: RcvQueue, command: KEY | DEL) -> None:
        call = Call(command, queue.rcv_id, queue.key)
        await self._subscriptions.sessions.send(queue.user_id, queue.server, call, entity=queue.conn_id)
