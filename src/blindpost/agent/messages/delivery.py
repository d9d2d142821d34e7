"""Workers that deliver messages: one for each send queue, strictly in order.

The next message is sent when the one before was taken or given up. What a response means for each kind of
message is decided in `outcomes`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from blindpost.agent.errors import AgentError, CriticalError, InternalError, refused_with
from blindpost.agent.events import Failed, SendFailed
from blindpost.agent.messages import outcomes
from blindpost.agent.messages.layers import seal_confirmation, seal_message
from blindpost.agent.messages.verdicts import Again
from blindpost.agent.model import ConnId, MessageKind, QueueStatus, SndQueue
from blindpost.agent.queues import deletion
from blindpost.agent.routers.proxying import QueueSender
from blindpost.agent.store import connections, messages, queues, ratchets
from blindpost.agent.store.grouping import Group
from blindpost.agent.store.messages import PendingDelivery
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.retries import MESSAGE_FAST, MESSAGE_SLOW, Retry, Told
from blindpost.agent.work.suspension import Operation
from blindpost.agent.work.transactions import DeliveryKey, Waiting
from blindpost.client.calls import Call
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.ratchet import encrypt_body
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.addresses import Server
from blindpost.wire.agent.envelopes import Confirmation, MessageEnvelope, write_agent_envelope
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import encode
from blindpost.wire.smp.commands import SEND
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.values import QueueMode

log = logging.getLogger(__name__)

AT_ONCE = 128
"""Queues of one router that are delivered to side by side."""
SOON_TRIES = 8
"""How often a full queue is tried with short pauses after there was a reason to try it: half a minute, if
nothing failed before."""
NOTED_S = 0.05
"""While more messages wait for a queue, it is noted after this time at the latest that one was taken."""
_CONFIRMATIONS = (MessageKind.CONN_INFO, MessageKind.CONN_INFO_REPLY)


class DeliveryWorkers:
    """A worker lives as long as messages wait for its queue. A router has so many at once; other queues wait
    in its line, and what they have to send stays in the store."""

    def __init__(self, ground: Ground, sender: QueueSender) -> None:
        self._ground = ground
        self._sender = sender
        self._delays = _Delays(ground)
        self._lines: dict[Server, _Line] = {}
        self._workers: dict[DeliveryKey, _Worker] = {}
        self.tasks: dict[DeliveryKey, asyncio.Task[None]] = {}
        ground.work.deliveries.listen(self.wake)
        ground.work.hurry.listen(self._hurry)
        ground.work.room.listen(self._has_room)

    def wake(self, waiting: Waiting) -> None:
        """Something waits for this queue."""
        key, server = waiting
        worker = self._workers.get(key)
        if worker is not None:
            worker.again = True
            return
        line = self._lines.get(server)
        if line is None:
            line = self._lines[server] = _Line(self._begin)
        line.wait(key)

    def _begin(self, key: DeliveryKey, line: _Line) -> None:
        worker = self._workers[key] = _Worker(self._ground, self._sender, self._delays, key, line)
        self.tasks[key] = self._ground.spawn(self._run(key, worker, line))

    def _hurry(self, key: DeliveryKey) -> None:
        """Do not wait any longer, nor long for the next attempts: what gave reason to try may just be on its
        way. Two agents whose queues were both full learn of it at the same time, before their routers do."""
        worker = self._workers.get(key)
        if worker is not None:
            worker.soon = SOON_TRIES
            worker.hurry.set()

    def _has_room(self, key: DeliveryKey) -> None:
        """The queue was full and has room, or will have it in a moment."""
        worker = self._workers.get(key)
        if worker is not None:
            worker.room_told = True
            worker.hurry.set()

    def is_working(self, conn_id: ConnId, number: int) -> bool:
        return (conn_id, number) in self._workers

    def resume(self) -> None:
        """Continue with everything that waits."""
        for waiting in messages.pending_queues(self._ground.store.reading):
            self.wake(waiting)

    async def _run(self, key: DeliveryKey, worker: _Worker, line: _Line) -> None:
        try:
            await self._ground.lasting(worker.work)
        finally:
            del self._workers[key], self.tasks[key]
            line.leave()


class _Line:
    """The queues of one router: those that are being delivered to, and those that wait for a place."""

    def __init__(self, begin: Callable[[DeliveryKey, _Line], None]) -> None:
        self._begin = begin
        self._waiting: dict[DeliveryKey, None] = {}
        self._places = AT_ONCE

    def wait(self, key: DeliveryKey) -> None:
        self._waiting[key] = None
        self._admit()

    def leave(self) -> None:
        self._places += 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._places > 0:
            key = next(iter(self._waiting))
            del self._waiting[key]
            self._places -= 1
            self._begin(key, self)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """A queue that is full must not keep others from the router."""
        self.leave()
        try:
            yield
        finally:
            self._places -= 1


class _Delays:
    """Routers that take no messages for now: logged when that begins and ends, whatever number of messages
    wait and however often they are tried."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._told: dict[Server, Told] = {}

    def waits(self, server: Server, error: AgentError) -> None:
        if self._told.setdefault(server, Told()).is_news(error.word, self._ground.now()):
            log.warning("messages for %s wait, and are tried again: %s", server.hosts[0].text, error)

    def taken(self, server: Server) -> None:
        if self._told.pop(server, None) is not None:
            log.warning("messages for %s are taken again", server.hosts[0].text)


@dataclass(slots=True)
class _Taken:
    """A message that the router took."""

    proxy: Server | None
    group: Group | None = None
    """The last one that was to note it."""


class _Worker:
    def __init__(
        self, ground: Ground, sender: QueueSender, delays: _Delays, key: DeliveryKey, line: _Line
    ) -> None:
        self._ground = ground
        self._sender = sender
        self._delays = delays
        self._line = line
        self._conn_id, self._number = key
        self.again = False
        self.hurry = asyncio.Event()
        self._noting: Group | None = None
        """The last group that notes messages which were taken."""
        self._taken: dict[int, _Taken] = {}
        """Messages that the router took, while that may not be stored yet: a full disk must not fill the
        peer's queue with copies of them."""
        self.soon = 0
        """How many of the next pauses are short although the queue is full."""
        self.room_told = False
        """The peer said that the queue has room, and nothing was taken since. It may say so before it is
        true: until then a full queue is tried again soon, for the peer will not say it a second time."""

    async def work(self) -> None:
        """Deliver until nothing waits; ends without a pause after it has seen that.

        A message is stored for good before it is sent. That an earlier one was taken need not be: after a
        power loss it is sent again, and is the same.
        """
        while True:
            self.again = False
            pending = self._next()
            if pending is not None:
                if await self._ground.store.is_durable((self._conn_id, pending.internal_id)):
                    await self._deliver(pending)
                    if not pending.others and not self.again and not self._is_undone():
                        return
            elif not self.again:
                return

    def _next(self) -> PendingDelivery | None:
        """The next message that can be read; those that cannot are put aside, and reported."""
        db = self._ground.store.reading
        while True:
            try:
                return messages.next_delivery(db, self._conn_id, self._number)
            except WireError as error:
                delivery_id, internal_id = messages.first_delivery(db, self._conn_id, self._number)
                with self._ground.transaction() as tx:
                    messages.set_delivery_failed(tx, delivery_id)
                    unreadable = InternalError(f"a stored message cannot be read: {error}")
                    tx.emit(SendFailed(tx.handle(self._conn_id), internal_id, unreadable))

    async def _deliver(self, pending: PendingDelivery) -> None:
        fast, slow = _schedules(pending)
        told = Told()
        while True:
            self.hurry.clear()
            try:
                async with self._ground.operations.under_way(Operation.DELIVERY):
                    outcome = await self._attempt(pending, told)
            except StoreFailedError as error:
                if self._ground.store.is_broken:
                    raise
                critical = CriticalError(str(error), temporary=True)
                self._ground.stream.put(Failed(self._ground.handle(self._conn_id), critical))
                outcome = Again.FAST
            if outcome is Again.NO:
                self.room_told, self.soon = False, 0
                return
            retry = fast if outcome is Again.FAST or self.room_told or self.soon else slow
            self.soon = max(0, self.soon - 1)
            with self._line.resting() if retry is slow else nullcontext():
                await self._pause(retry.delay_s)
            if not messages.is_waiting(self._ground.store.reading, pending.delivery_id):
                with self._ground.transaction() as tx:
                    deletion.delivered(tx, self._conn_id)
                return  # its receipt came, or its queue was left
            fast = fast.next() if retry is fast else fast
            slow = slow.next() if retry is slow else slow
            with self._ground.transaction() as tx:
                messages.set_retry(tx, self._conn_id, pending.internal_id, slow.delay_us, fast.delay_us)

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self.hurry.wait()
        except TimeoutError:
            pass

    async def _attempt(self, pending: PendingDelivery, told: Told) -> Again:
        """Send once, and store what follows from the answer."""
        queue = queues.find_snd_number(self._ground.store.reading, self._conn_id, self._number)
        if queue is None:
            return Again.NO
        proxy, failed = None, None
        try:
            proxy = await self._sent(queue, pending)
        except StoreFailedError:
            raise
        except AgentError as error:
            failed = error
        except Exception as error:
            log.exception("a message could not be made ready")
            failed = InternalError(repr(error))
        if failed is None:
            self._delays.taken(queue.server)
        elif failed.retried:
            self._delays.waits(queue.server, failed)
        news = failed is not None and told.is_news(failed.word, self._ground.now())
        async with self._ground.locked(self._conn_id):
            taken = failed is None and pending.kind is MessageKind.A_MSG
            with self._ground.joined(sure=taken) as tx:
                if connections.find(tx, self._conn_id, deleted=True) is None:
                    return Again.NO
                whole = connections.load_whole(tx, self._conn_id, deleted=True)
                found = next((one for one in whole.snd if one.number == self._number), None)
                if found is None:
                    return Again.NO
                if failed is None:
                    outcomes.delivered(tx, whole, found, pending, proxy)
                    again = Again.NO
                else:
                    again = outcomes.failed(tx, whole, found, pending, failed, news=news)
        if failed is None:
            self._taken[pending.internal_id].group = tx.group
        if taken and pending.others:
            self._leave_to(tx.group)
        else:
            await tx.written()
            self._forget_stored()
        return again

    async def _sent(self, queue: SndQueue, pending: PendingDelivery) -> Server | None:
        """The proxy by which it was sent, now or before."""
        if pending.internal_id not in self._taken:
            self._taken[pending.internal_id] = _Taken(await self._send(queue, pending))
        return self._taken[pending.internal_id].proxy

    def _leave_to(self, group: Group) -> None:
        """What was taken need not be noted before the next message is sent: it is noted together with
        others. If the process dies before that, it is sent again as the same bytes; the peer drops it."""
        if group is not self._noting:
            self.again = self.again or self._is_undone()
            self._noting = group
            self._forget_stored(but=group)
        group.lazily(NOTED_S)

    def _forget_stored(self, but: Group | None = None) -> None:
        self._taken = {
            internal_id: taken
            for internal_id, taken in self._taken.items()
            if taken.group is None or taken.group is but or taken.group.failed
        }

    def _is_undone(self) -> bool:
        """Whether what was left to a group did not happen, and waits again."""
        group, self._noting = self._noting, None
        return group is not None and group.failed

    async def _send(self, queue: SndQueue, pending: PendingDelivery) -> Server | None:
        """SEND, directly or through a proxy, which is returned.

        A queue that its recipient secures takes its confirmation from anybody. If it does not any more, it
        may be secured already, with our key, because a SEND before this one was heard and we were not told.
        """
        entropy = self._ground.config.entropy
        envelope = self._envelope(pending)
        if pending.kind not in _CONFIRMATIONS:
            return await self._send_body(queue, pending, seal_message(queue, envelope, entropy), queue.key)
        body = seal_confirmation(queue, envelope, entropy)
        if queue.mode is QueueMode.MESSAGING:
            return await self._send_body(queue, pending, body, queue.key)
        try:
            return await self._send_body(queue, pending, body, None)
        except AgentError as error:
            if not refused_with(error, Code.AUTH):
                raise
        return await self._send_body(queue, pending, body, queue.key)

    async def _send_body(
        self, queue: SndQueue, pending: PendingDelivery, body: bytes, key: PrivateKey | None
    ) -> Server | None:
        call = Call(SEND(pending.notify, body), queue.snd_id, key)
        # All else that is sent was made of more than the message, and all of that must be durable.
        is_durable = pending.kind is MessageKind.A_MSG and queue.status is QueueStatus.ACTIVE
        answered = await self._sender.send_to_queue(
            queue.user_id, queue.server, call, entity=queue.conn_id, is_durable=is_durable
        )
        return answered.proxy

    def _envelope(self, pending: PendingDelivery) -> bytes:
        """The agent's envelope; a body is encrypted with the key that was taken for it when it was stored."""
        if pending.body_key is None:
            return pending.body
        encrypted = encrypt_body(pending.body_key, pending.body, pending.padded_size)
        db, high = self._ground.store.reading, self._ground.config.versions.agent.high
        match pending.kind:
            case MessageKind.CONN_INFO_REPLY:
                version = connections.load(db, self._conn_id, deleted=True).agent_version
                e2e = ratchets.find_public(db, self._conn_id)
                return encode(Confirmation(version, e2e, encrypted), write_agent_envelope)
            case MessageKind.CONN_INFO:
                version = connections.load(db, self._conn_id, deleted=True).agent_version
                return encode(Confirmation(version, None, encrypted), write_agent_envelope)
        return encode(MessageEnvelope(high, encrypted), write_agent_envelope)


def _schedules(pending: PendingDelivery) -> tuple[Retry, Retry]:
    """The fast and the slow one, where they were when the agent ended."""
    fast, slow = Retry.first(MESSAGE_FAST), Retry.first(MESSAGE_SLOW)
    if pending.retry_fast_us is not None:
        fast = Retry.resumed(MESSAGE_FAST, pending.retry_fast_us)
    if pending.retry_slow_us is not None:
        slow = Retry.resumed(MESSAGE_SLOW, pending.retry_slow_us)
    return fast, slow
