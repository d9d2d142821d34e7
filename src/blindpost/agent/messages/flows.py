"""Acknowledging messages that come one after the other: a router answered the acknowledgement before at once,
and with the next message.

There a message costs one commit and one sync, and nothing waits but for the disk and for the router. What
is synced is the message as it came (`store.intake`); it is opened, committed and given to the program
meanwhile. What the program is done with is noted with the next message, and deleted in the commit that
stores that one. Its acknowledgement is made ready, and leaves when the disk has the message. An agent that
is killed before that has a message which its router may not have any more: it is shown again (`retelling`),
for `ack` had not returned. Or its router has what is deleted here, and brings it again: then it is a copy
of what was read, and is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from blindpost.agent.errors import ConnError
from blindpost.agent.messages.acking import ack_later, acknowledge
from blindpost.agent.model import ConnId, MessageKind, RcvQueue
from blindpost.agent.notifications.reading import Reading
from blindpost.agent.routers.sessions import Session, Sessions
from blindpost.agent.store import commands, messages, queues
from blindpost.agent.store.intake import Came
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.suspension import Operation
from blindpost.agent.work.transactions import Tx
from blindpost.client.calls import Call
from blindpost.client.errors import ClientError
from blindpost.client.inflight import Awaited
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.frozen import dataclass
from blindpost.wire.smp.commands import ACK, Command
from blindpost.wire.smp.responses import MSG, OK, Response

SEEN_MIN = 2
"""So many messages in a row are a flow."""
PROMPT_S = 0.01
"""An answer within this time is at once, and a program waits no longer than this for one."""


class Flow:
    """Whether messages of one connection come one after the other.

    Those of several connections share their commits anyhow, and a program that takes them in turn would wait
    for each router's answer: for them it is done as always.
    """

    def __init__(self) -> None:
        self._last: ConnId | None = None
        """The connection of the last message that the program acknowledged."""
        self._seen = 0
        """How many of its messages came at once in answer to acknowledgements, and none of others between."""

    def acknowledged(self, conn_id: ConnId) -> None:
        """The program acknowledges a message of this connection."""
        if conn_id != self._last:
            self._last, self._seen = conn_id, 0

    def answered(self, conn_id: ConnId, response: object, taken_s: float) -> None:
        """What a router said to an acknowledgement, after so long."""
        if conn_id == self._last:
            self._seen = self._seen + 1 if isinstance(response, MSG) and taken_s <= PROMPT_S else 0

    def is_of(self, conn_id: ConnId) -> bool:
        return conn_id == self._last and self._seen >= SEEN_MIN


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Ready:
    """An acknowledgement that only waits for the disk."""

    queue: RcvQueue
    msg_id: int
    broker_id: bytes
    session: Session
    call: Awaited[Command, Response]
    tx: Tx
    """The transaction that deletes the message."""

    @property
    def message(self) -> tuple[ConnId, int]:
        return self.queue.conn_id, self.msg_id

    @property
    def came(self) -> Came:
        return Came(self.queue.conn_id, self.queue.number, self.broker_id)


class Flows:
    """The acknowledgements of such messages."""

    def __init__(self, ground: Ground, sessions: Sessions, reading: Reading, flow: Flow) -> None:
        self._ground = ground
        self._sessions = sessions
        self._reading = reading
        self._flow = flow
        ground.work.acknowledged.listen(ground.store.unsure.discard)

    async def acknowledge(self, conn_id: ConnId, msg_id: int) -> bool:
        """Acknowledge a message; it is durable that the program is done with it when this returns. False:
        nothing was stored, and it is to be done as always."""
        self._flow.acknowledged(conn_id)
        if not self._flow.is_of(conn_id):
            return False
        async with self._ground.locked(conn_id):
            ready = self._made_ready(conn_id, msg_id)
        if ready is None:
            return False
        told = asyncio.Event()
        finishing = self._ground.spawn(self._finished(ready, told))
        finishing.add_done_callback(lambda _: told.set())  # an agent that is closed may not even begin it
        try:
            await told.wait()
            return await self._is_done(ready)
        except asyncio.CancelledError:
            self._ground.spawn(self._surely(ready))  # the program waits no longer; it has acknowledged it
            raise

    async def _is_done(self, ready: _Ready) -> bool:
        """Wait until it is durable that the program is done with a message. False if that was taken back, and
        is to be done again."""
        entry = self._ground.store.intake.saying_done(ready.came)
        try:
            if entry is None:
                await ready.tx.durable()
                return True
            await ready.tx.written()
            return await entry.kept()
        except StoreFailedError:
            return False

    async def _surely(self, ready: _Ready) -> None:
        if await self._is_done(ready):
            return
        with contextlib.suppress(ConnError, StoreFailedError):
            async with self._ground.locked(ready.queue.conn_id):
                with self._ground.joined() as tx:
                    acknowledge(tx, ready.queue.conn_id, ready.msg_id, None)
            await tx.durable()

    def _made_ready(self, conn_id: ConnId, msg_id: int) -> _Ready | None:
        """Delete the message, and make its acknowledgement ready, if nothing else is to be done first."""
        ground = self._ground
        db = ground.store.reading
        message = messages.to_acknowledge(db, conn_id, msg_id)
        if message is None or message.kind is not MessageKind.A_MSG or message.user_ack:
            return None
        queue = queues.find_rcv_number(db, conn_id, message.queue_number)
        if queue is None or queue.deleted:
            return None
        session = self._sessions.current(self._sessions.key(queue.user_id, queue.server, conn_id))
        if session is None or commands.next_command(db, conn_id, queue.server) is not None:
            return None
        try:
            call = session.client.ready(Call(ACK(message.broker_id), queue.rcv_id, queue.key))
        except ClientError:
            return None
        with ground.joined(sure=True, spare=True) as tx:
            tx.acknowledged(conn_id, msg_id)
            messages.acknowledged(tx, conn_id, msg_id)
        ready = _Ready(queue, msg_id, message.broker_id, session, call, tx)
        tx.group.done.append(ready.came)
        return ready

    async def _finished(self, ready: _Ready, told: asyncio.Event) -> None:
        """Tell the router when it may forget the message, and take what it answers."""
        response: object = None
        with contextlib.suppress(StoreFailedError):
            response = await self._told(ready)
        told.set()
        if not isinstance(response, MSG | OK):
            await self._ground.lasting(partial(self._later, ready))
        if isinstance(response, MSG):
            await self._sessions.hand_over(ready.session, [(ready.queue.rcv_id, response)])
        if isinstance(response, MSG | OK):
            self._reading.acknowledged(ready.queue, ready.broker_id)

    async def _told(self, ready: _Ready) -> object:
        """What the router says; None if that is nothing at once, or it is not to be told now."""
        ground, loop, response = self._ground, asyncio.get_running_loop(), None
        if not ground.operations.is_open(Operation.SENDING):
            return None
        async with ground.operations.under_way(Operation.SENDING):
            left: asyncio.Future[float | None] = loop.create_future()
            entry, leave = ground.store.intake.of(ready.came), partial(self._leave, ready, left)
            if entry is None:
                ground.store.once_durable(ready.message, leave)
            else:
                entry.once_kept(leave)
            began = await left
            if began is None:
                return None
            with contextlib.suppress(TimeoutError):  # what it says later is taken as an event
                async with asyncio.timeout_at(began + PROMPT_S):
                    response = await ready.session.client.answer(ready.call)
            self._flow.answered(ready.queue.conn_id, response, loop.time() - began)
            return response

    def _leave(self, ready: _Ready, left: asyncio.Future[float | None], is_durable: bool) -> None:
        """The disk has the message: its acknowledgement leaves, and `left` says when; None if it does not."""
        if left.done():
            return  # the agent is being closed
        ground, group = self._ground, ready.tx.group
        open_still = ground.operations.is_open(Operation.SENDING) and self._sessions.is_current(ready.session)
        if group.failed or not is_durable or not open_still:
            left.set_result(None)
            return
        if not group.is_committed:
            ground.store.unsure.add(ready.message)
        left.set_result(asyncio.get_running_loop().time())
        ready.session.client.send_ready(ready.call)

    async def _later(self, ready: _Ready) -> None:
        """The router is told as always; not if the message was not deleted after all."""
        async with self._ground.locked(ready.queue.conn_id):
            if ready.tx.group.failed:
                return
            with self._ground.joined() as tx:
                queue = queues.find_rcv_number(tx, ready.queue.conn_id, ready.queue.number)
                if queue is not None:
                    ack_later(tx, queue, ready.broker_id)
        await tx.written()
