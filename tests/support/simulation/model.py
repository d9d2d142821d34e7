"""What a router must answer: the judge of the simulation.

It follows the committed turns in their order, one command after the other. Replies, END, DELD and ENDS are
foretold exactly; the pushes between them must be allowed by what was promised before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.events import Gone
from blindpost.router.events import Commands, Event, Expire
from blindpost.router.model import Domain
from blindpost.router.turn import Delivery, Outgoing
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    NDEL,
    NEW,
    NKEY,
    NSUB,
    NSUBS,
    OFF,
    PING,
    SEND,
    SUB,
    SUBS,
    Command,
)
from blindpost.wire.smp.errors import PROHIBITED, Code
from blindpost.wire.smp.responses import DELD, END, ERR, IDS, NID, OK, PONG, SOK, SOKS, Response
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.values import SubMode
from tests.support.simulation.promises import Connection, Message, Notifier, Promises, Queue, Sub, Violation

AUTH = ERR(Code.AUTH)


class HeadOf:
    """The reply must be the head of this queue."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue


Expected = Response | HeadOf | type[IDS] | type[NID]


class RouterModel(Promises):
    """Follows turns."""

    def turn(self, now: int, events: Sequence[tuple[Event, bool]], outbox: Sequence[Outgoing]) -> None:
        """Follow a committed turn; each event comes with whether its connection was congested.

        `outbox` is what the turn said, or was about to say when the router died.
        """
        self.now = now
        said = deque(outbox)
        for event, congested in events:
            self._take_pushes(said)
            match event:
                case Commands(client, items):
                    for item in items:
                        assert isinstance(item, Request)
                        self._take_pushes(said)
                        self._command(self.connection(client), item, congested, said)
                case Gone(client):
                    self.gone(self.connection(client))
                case Expire(found, before):
                    for recipient_id, _ in found:
                        if recipient_id in self.queues:
                            _expire(self.queues[recipient_id], before)
                case _:
                    pass
        self._take_pushes(said)
        if said:
            raise Violation(f"said without reason: {said[0]!r}")

    def refused(self, batch: Sequence[Event], outbox: Sequence[Outgoing]) -> None:
        """A turn that was not committed: every command is told so, nothing else is said."""
        for said in outbox:
            if not (isinstance(said.response, ERR) and said.corr_id):
                raise Violation(f"said although the store failed: {said!r}")
        commands = sum(len(event.items) for event in batch if isinstance(event, Commands))
        if commands != len(outbox):
            raise Violation(f"{commands} commands were refused by the store and {len(outbox)} answered")

    def _take_pushes(self, said: deque[Outgoing]) -> None:
        """Take what may be pushed as things are now."""
        while said and not said[0].corr_id:
            connection = self.connections.get(said[0].client_id)
            if connection is None or not self.push(connection, said[0]):
                return
            said.popleft()

    def _command(
        self, connection: Connection, request: Request, congested: bool, said: deque[Outgoing]
    ) -> None:
        reply = next((one for one in said if one.corr_id == request.corr_id), None)
        if reply is None:
            raise Violation(f"no reply to {request!r}")
        if reply.client_id != connection.client.client_id:
            raise Violation(f"another connection got the reply to {request!r}")
        if reply.response == ERR(Code.INTERNAL) and self._is_broken(request.entity_id):
            said.remove(reply)
            return
        self.told.clear()
        expected = self._decided(connection, request, congested)
        while said[0] is not reply:
            self._told(said.popleft())
        said.popleft()
        if self.told:
            raise Violation(f"not said: {self.told[0][2]!r} after {request!r}")
        self._replied(connection, request, expected, reply.response)

    def _is_broken(self, entity_id: bytes) -> bool:
        queue = self.queues.get(entity_id) or self.senders.get(entity_id)
        return queue is not None and queue.recipient_id in self.broken

    def _told(self, outgoing: Outgoing) -> None:
        """Something said before the reply: what the command makes necessary, or a push that it allows."""
        connection = self.connections.get(outgoing.client_id)
        for place, (loser, entity_id, event) in enumerate(self.told):
            if (loser, entity_id, event) == (connection, outgoing.entity_id, outgoing.response):
                del self.told[place]
                return
        if connection is None or not self.push(connection, outgoing):
            raise Violation(f"said without reason: {outgoing!r}")

    def _replied(self, connection: Connection, request: Request, expected: Expected, actual: object) -> None:
        if isinstance(expected, HeadOf):
            correct = isinstance(actual, Delivery) and self.hand_over(connection, expected.queue, actual)
        elif isinstance(expected, type):
            correct = isinstance(actual, expected)
            if correct:
                self._learned(connection, request, actual)
        else:
            correct = actual == expected
        if not correct:
            raise Violation(f"{request!r} must be answered {expected!r}, not {actual!r}")

    def _learned(self, connection: Connection, request: Request, actual: object) -> None:
        """The router chose ids."""
        if isinstance(actual, NID):
            self._set_notifier(self.queues[request.entity_id], Notifier(actual.creds.notifier_id))
            return
        assert isinstance(actual, IDS)
        assert isinstance(request.command, NEW)
        queue = Queue(actual.recipient_id, actual.sender_id)
        self.queues[queue.recipient_id] = self.senders[queue.sender_id] = queue
        if actual.ntf_creds is not None:
            self._set_notifier(queue, Notifier(actual.ntf_creds.notifier_id))
        if request.command.sub_mode is SubMode.SUBSCRIBE:
            self._subscribe(connection, queue)
        if actual.service_id != queue.service_id:
            raise Violation("a new queue of another service than its connection's")

    def _set_notifier(self, queue: Queue, notifier: Notifier) -> None:
        queue.notifier = notifier
        self.notifiers[notifier.notifier_id] = queue

    # Commands

    def _decided(self, connection: Connection, request: Request, congested: bool) -> Expected:
        command = request.command
        match command:
            case PING():
                return PONG()
            case NEW():
                return self._new(connection, command)
            case SUBS() | NSUBS():
                return self._subs(connection, request)
            case SEND():
                return self._send(request.entity_id, command)
            case NSUB():
                return self._nsub(connection, request)
            case ACK(msg_id):
                queue = self.queues.get(request.entity_id)
                forged = queue is None or request.corr_id in self.forged
                return AUTH if forged or queue is None else self._ack(connection, queue, msg_id, congested)
            case _:
                queue = self.queues.get(request.entity_id)
                if queue is None or request.corr_id in self.forged:
                    return AUTH
                rules: dict[type[Command], Callable[[Connection, Queue], Expected]] = {
                    SUB: self._sub,
                    GET: self._get,
                    DEL: self._del,
                    OFF: self._off,
                    NKEY: self._nkey,
                    NDEL: self._ndel,
                }
                return rules[type(command)](connection, queue)

    def _new(self, connection: Connection, command: NEW) -> Expected:
        if connection.service_id is not None:
            if command.sub_mode is not SubMode.SUBSCRIBE:
                return ERR(PROHIBITED)
            self.register(connection, Domain.MESSAGES)
        return IDS

    def _send(self, sender_id: bytes, command: SEND) -> Expected:
        queue = self.senders.get(sender_id)
        if queue is None or queue.off:
            return AUTH
        if self.rules.expire_on_send and self.rules.message_ttl_s is not None:
            _expire(queue, self.now - self.rules.message_ttl_s)
        if queue.messages and not queue.can_write:
            return ERR(Code.QUOTA)
        queue.can_write = len(queue.messages) < self.rules.quota
        if not queue.can_write:
            queue.messages.append(Message(None, self.now))
            return ERR(Code.QUOTA)
        body = bytes(command.body)
        self.accepted.add(body)
        queue.messages.append(Message(body, self.now))
        receiver = self.receiver(queue)
        if receiver is not None and len(queue.messages) == 1:
            receiver.owed.add(queue.recipient_id)
        if command.notify and queue.notifier is not None:
            queue.notifier.pending += 1
            notified = self.notified(queue.notifier)
            if notified is not None and queue.notifier.pending == 1:
                notified.owed_notifiers.add(queue.notifier.notifier_id)
        return OK()

    def _sub(self, connection: Connection, queue: Queue) -> Expected:
        held = connection.subs.get(queue.recipient_id)
        if held is not None and not held.push:
            return ERR(PROHIBITED)
        self._subscribe(connection, queue)
        connection.owed.add(queue.recipient_id)
        return SOK(queue.service_id)

    def _subscribe(self, connection: Connection, queue: Queue) -> None:
        recipient_id, service_id = queue.recipient_id, connection.service_id
        if queue.service_id != service_id:
            self.left(connection, Domain.MESSAGES, queue.service_id, recipient_id, END())
            queue.service_id = service_id
            if service_id is not None:
                connection.members[Domain.MESSAGES] += QueueSet.of((recipient_id,))
                self.register(connection, Domain.MESSAGES)
        elif service_id is not None and not connection.members[Domain.MESSAGES].count:
            connection.members[Domain.MESSAGES] += QueueSet.of((recipient_id,))
            self.register(connection, Domain.MESSAGES)
        loser = self.holders.pop(recipient_id, None)
        if loser is not None and loser is not connection:
            loser.subs.pop(recipient_id, None)
            self.tell(loser, recipient_id, END())
        connection.subs.pop(recipient_id, None)
        if service_id is None:
            self.holders[recipient_id] = connection
            connection.subs[recipient_id] = Sub(push=True)

    def _get(self, connection: Connection, queue: Queue) -> Expected:
        held = connection.subs.get(queue.recipient_id)
        if held is not None and held.push:
            return ERR(PROHIBITED)
        connection.subs.setdefault(queue.recipient_id, Sub(push=False))
        return HeadOf(queue) if queue.messages else OK()

    def _ack(self, connection: Connection, queue: Queue, msg_id: bytes, congested: bool) -> Expected:
        held = connection.subs.get(queue.recipient_id)
        if held is None or held.in_flight is None or (msg_id and msg_id != held.in_flight.msg_id):
            return ERR(Code.NO_MSG)
        message, held.in_flight = held.in_flight, None
        if held.push and queue.service_id is not None:
            del connection.subs[queue.recipient_id]
        if msg_id and queue.messages and queue.messages[0] is message:
            _remove_head(queue)
        if not held.push or not queue.messages:
            return OK()
        if congested:
            connection.owed.add(queue.recipient_id)
            return OK()
        return HeadOf(queue)

    def _del(self, connection: Connection, queue: Queue) -> Expected:
        recipient_id = queue.recipient_id
        self.left(connection, Domain.MESSAGES, queue.service_id, recipient_id, DELD())
        holder = self.holders.pop(recipient_id, None)
        if holder is not None:
            holder.subs.pop(recipient_id, None)
            if holder is not connection:
                self.tell(holder, recipient_id, DELD())
        connection.subs.pop(recipient_id, None)
        self._notifier_gone(connection, queue)
        del self.queues[recipient_id], self.senders[queue.sender_id]
        return OK()

    def _off(self, connection: Connection, queue: Queue) -> Expected:
        queue.off = True
        return OK()

    def _nkey(self, connection: Connection, queue: Queue) -> Expected:
        self._notifier_gone(connection, queue)
        return NID

    def _ndel(self, connection: Connection, queue: Queue) -> Expected:
        self._notifier_gone(connection, queue)
        return OK()

    def _notifier_gone(self, connection: Connection, queue: Queue) -> None:
        notifier, queue.notifier = queue.notifier, None
        if notifier is None:
            return
        notifier_id = notifier.notifier_id
        self.left(connection, Domain.NOTIFICATIONS, notifier.service_id, notifier_id, DELD())
        holder = self.notifier_holders.pop(notifier_id, None)
        if holder is not None:
            holder.notifier_ids.discard(notifier_id)
            if holder is not connection:
                self.tell(holder, notifier_id, DELD())
        self.notifiers.pop(notifier_id, None)

    def _nsub(self, connection: Connection, request: Request) -> Expected:
        notifier_id, service_id = request.entity_id, connection.service_id
        queue = self.notifiers.get(notifier_id)
        if queue is None or queue.notifier is None or request.corr_id in self.forged:
            return AUTH
        notifier, members = queue.notifier, connection.members
        if notifier.service_id != service_id:
            self.left(connection, Domain.NOTIFICATIONS, notifier.service_id, notifier_id, END())
            notifier.service_id = service_id
            counts = service_id is not None
        else:
            counts = service_id is not None and not members[Domain.NOTIFICATIONS].count
        if counts:
            members[Domain.NOTIFICATIONS] += QueueSet.of((notifier_id,))
            self.register(connection, Domain.NOTIFICATIONS)
        loser = self.notifier_holders.pop(notifier_id, None)
        if loser is not None and loser is not connection:
            loser.notifier_ids.discard(notifier_id)
            self.tell(loser, notifier_id, END())
        if service_id is None:
            self.notifier_holders[notifier_id] = connection
            connection.notifier_ids.add(notifier_id)
        connection.owed_notifiers.add(notifier_id)
        return SOK(service_id)

    def _subs(self, connection: Connection, request: Request) -> Expected:
        service_id = connection.service_id
        if service_id != request.entity_id or request.corr_id in self.forged:
            return ERR(Code.SERVICE)
        domain = Domain.MESSAGES if isinstance(request.command, SUBS) else Domain.NOTIFICATIONS
        if domain not in connection.subscribed:
            connection.subscribed.add(domain)
            found = self.members(domain, service_id)
            connection.members[domain] = QueueSet.of(found)
            self.register(connection, domain)
            if domain is Domain.MESSAGES:
                connection.awaited = {one for one in found if self.queues[one].messages}
                connection.owed |= found
            else:
                connection.owed_notifiers |= found
        members = connection.members[domain]
        return SOKS(members.count, members.ids_hash)


def _remove_head(queue: Queue) -> None:
    del queue.messages[0]
    queue.can_write = queue.can_write or not queue.messages


def _expire(queue: Queue, before: int) -> None:
    """Drop old messages from the head; a marker stops it."""
    while queue.messages and queue.messages[0].body is not None and queue.messages[0].seconds < before:
        _remove_head(queue)
