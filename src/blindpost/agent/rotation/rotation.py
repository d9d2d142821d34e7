"""Queue rotation: what the application asks, what the peer sends, and what was delivered.

Nothing here waits for a router: what a router must do is a command (`rotation_commands`).
"""

from __future__ import annotations

import asyncio

from blindpost.agent.errors import OutOfStepError, ProtocolCode, ProtocolError, prohibited
from blindpost.agent.model import ConnId, ConnType, MessageKind, SndQueue, Whole
from blindpost.agent.rotation import recipient, sender
from blindpost.agent.rotation.tables import RecipientEvent
from blindpost.agent.store import connections
from blindpost.agent.store import rotation as rows
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.transactions import Tx
from blindpost.wire.agent.messages import QAdd, QKey, QTest, QUse
from blindpost.wire.frozen import dataclass

REPEAT_CHECK_S = 15.0
REPEAT_FIRST_S = 60.0
REPEAT_MAX_S = 6 * 3600.0
"""How long a step of a rotation may wait for its answer before it is repeated."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A step that the peer has not answered since then."""

    since: int | None
    due_at: float
    pause_s: float


class Rotation:
    """What the application asks, and what continues after a start."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    async def switch(self, conn_id: ConnId) -> None:
        """Begin to move the receive queue to another router; the rest happens in the background."""
        await self._ask(conn_id, RecipientEvent.ASKED)

    async def abort(self, conn_id: ConnId) -> None:
        """Stay with the old queue; possible until the sender may have left it."""
        await self._ask(conn_id, RecipientEvent.ABORTED)

    async def _ask(self, conn_id: ConnId, event: RecipientEvent) -> None:
        async with self._ground.locked(conn_id):
            with self._ground.transaction() as tx:
                whole = connections.load_whole(tx, conn_id)
                if whole.type is not ConnType.DUPLEX:
                    raise prohibited("only a connection that works both ways can rotate its queue")
                if whole.record.sync_state.send_prohibited:
                    raise OutOfStepError
                recipient.ask(tx, whole, event, prohibited)

    async def keep_going(self) -> None:
        """Continue the rotations left when the agent ended. Then repeat, less and less often,
        what the peer has not answered: a router may have lost it, or the queue it was in may be gone."""
        waiting: dict[ConnId, _Waiting] = {}
        for conn_id, _ in rows.switching(self._ground.store.reading):
            await self._resume(conn_id)
        while True:
            await asyncio.sleep(REPEAT_CHECK_S)
            now = self._ground.now()
            found = rows.switching(self._ground.store.reading)
            waiting = {conn_id: waiting[conn_id] for conn_id, _ in found if conn_id in waiting}
            for conn_id, since in found:
                step = waiting.get(conn_id)
                if step is None or step.since != since:
                    waiting[conn_id] = _Waiting(since, now + REPEAT_FIRST_S, REPEAT_FIRST_S)
                elif now >= step.due_at:
                    pause_s = min(2 * step.pause_s, REPEAT_MAX_S)
                    waiting[conn_id] = _Waiting(since, now + pause_s, pause_s)
                    await self._resume(conn_id)

    async def _resume(self, conn_id: ConnId) -> None:
        async with self._ground.locked(conn_id):
            with self._ground.transaction() as tx:
                if connections.find(tx, conn_id) is not None:
                    in_step(tx, conn_id)


def in_step(tx: Tx, conn_id: ConnId) -> None:
    """Messages can be sent again: continue a rotation that waited for that."""
    with tx.attempt(conn_id):
        recipient.resume(tx, conn_id)


def received(tx: Tx, whole: Whole, message: QAdd | QKey | QUse | QTest) -> None:
    """A message about queues came. An `AgentError` is reported; the message is acknowledged."""
    if whole.type is not ConnType.DUPLEX:
        raise _queue_error("a message about queues for a connection that is not duplex")
    if isinstance(message, QTest):
        return
    if connections.load(tx, whole.conn_id).sync_state.send_prohibited:
        raise _queue_error("ratchet is not synchronized")
    match message:
        case QAdd():
            sender.added(tx, whole, message.queues[0])
        case QKey():
            if message.queues[0].queue.version not in tx.config.versions.client:
                raise ProtocolError(ProtocolCode.A_VERSION)
            recipient.keyed(tx, whole, message.queues[0])
        case QUse():
            sender.used(tx, whole, message.queues[0])


def delivered(tx: Tx, whole: Whole, queue: SndQueue, kind: MessageKind) -> None:
    """QADD, QKEY, QUSE or QTEST was delivered to `queue`."""
    if kind is MessageKind.QKEY:
        sender.qkey_delivered(tx, connections.load_whole(tx, whole.conn_id))
    elif kind is MessageKind.QTEST:
        sender.qtest_delivered(tx, connections.load_whole(tx, whole.conn_id), queue.sender_address)


def _queue_error(message: str) -> ProtocolError:
    return ProtocolError(ProtocolCode.A_QUEUE, message)
