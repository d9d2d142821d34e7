"""Acknowledging messages that come one after the other: a router answered the acknowledgement before at once,
and with the next message.

There a message costs one commit and one sync. Its acknowledgement leaves when the message itself is durable,
and the message is deleted in the commit that stores the one that came in answer. An agent that is killed in
between has a message that its router does not have any more: it is shown again (`retelling`), for `ack` had
not returned.
"""

from __future__ import annotations

import asyncio
import contextlib

from blindpost.agent.errors import ConnError
from blindpost.agent.messages.acking import acknowledge
from blindpost.agent.model import ConnId, MessageKind, RcvQueue
from blindpost.agent.notifications.reading import Reading
from blindpost.agent.routers.sessions import Session, Sessions
from blindpost.agent.store import commands, messages, queues
from blindpost.agent.store.messages import ToAcknowledge
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.suspension import Operation
from blindpost.client.calls import Call
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.smp.commands import ACK
from blindpost.wire.smp.responses import MSG, OK

PROMPT_S = 0.01
"""An answer within this time is at once, and a program waits no longer than this for one."""


class Flows:
    """Whether messages of one connection come one after the other, and their acknowledgements.

    Those of several connections share their commits anyhow, and a program that takes them in turn would wait
    for each router's answer: for them it is done as always.
    """

    def __init__(self, ground: Ground, sessions: Sessions, reading: Reading) -> None:
        self._ground = ground
        self._sessions = sessions
        self._reading = reading
        self._last: ConnId | None = None
        """The connection of the last message that the program acknowledged."""
        self._flowing: bool = False
        """Whether its router sends one message after the other."""
        ground.work.acknowledged.listen(ground.store.unsure.discard)

    def answered(self, conn_id: ConnId, response: object, taken_s: float) -> None:
        """What a router said to an acknowledgement, after so long."""
        if conn_id == self._last:
            self._flowing = isinstance(response, MSG) and taken_s <= PROMPT_S

    async def acknowledge(self, conn_id: ConnId, msg_id: int) -> bool:
        """Acknowledge a message; it is durable that the program is done with it when this returns. False:
        nothing was stored, and it is to be done as always."""
        ground = self._ground
        if conn_id != self._last:
            self._last, self._flowing = conn_id, False
        if not self._flowing:
            return False
        try:
            await ground.store.durable((conn_id, msg_id))
            if not ground.operations.is_open(Operation.SENDING):
                return False  # put to rest: nothing is sent before it goes on
            async with ground.operations.under_way(Operation.SENDING), ground.locked(conn_id):
                message = messages.to_acknowledge(ground.store.reading, conn_id, msg_id)
                place = None if message is None else self._place(conn_id, message)
                if message is None or place is None:
                    return False
                ground.store.unsure.add((conn_id, msg_id))  # until it is committed
                response = await self._told(*place, message.broker_id)
                if not isinstance(response, MSG | OK):
                    return False
                with ground.joined(sure=True) as tx:
                    tx.acknowledged(conn_id, msg_id)
                    messages.acknowledged(tx, conn_id, msg_id)
        except asyncio.CancelledError:
            ground.spawn(self._as_always(conn_id, msg_id))
            raise
        await tx.durable()
        return True

    async def _as_always(self, conn_id: ConnId, msg_id: int) -> None:
        """The program waits no longer. It has acknowledged the message all the same."""
        with contextlib.suppress(ConnError, StoreFailedError):
            async with self._ground.locked(conn_id):
                with self._ground.joined() as tx:
                    acknowledge(tx, conn_id, msg_id, None)
            await tx.durable()

    async def _told(self, queue: RcvQueue, session: Session, broker_id: bytes) -> object:
        """Tell the router; None if it says nothing at once."""
        loop, response = asyncio.get_running_loop(), None
        call, began = Call(ACK(broker_id), queue.rcv_id, queue.key), loop.time()
        with contextlib.suppress(TimeoutError):  # what it says later is taken as an event
            async with asyncio.timeout(PROMPT_S):
                (response,) = await session.client.send_many([call])
        self.answered(queue.conn_id, response, loop.time() - began)
        if isinstance(response, MSG):
            self._ground.spawn(self._sessions.hand_over(session, [(queue.rcv_id, response)]))
        if isinstance(response, MSG | OK):
            self._reading.acknowledged(queue, broker_id)
        return response

    def _place(self, conn_id: ConnId, message: ToAcknowledge) -> tuple[RcvQueue, Session] | None:
        """From where it came, if nothing else is to be done there first."""
        db = self._ground.store.reading
        queue = queues.find_rcv_number(db, conn_id, message.queue_number)
        if queue is None or queue.deleted or message.kind is not MessageKind.A_MSG:
            return None
        session = self._sessions.current(self._sessions.key(queue.user_id, queue.server, conn_id))
        if session is None or commands.next_command(db, conn_id, queue.server) is not None:
            return None
        return queue, session
