"""What clients of a router were promised, as lists and dicts, and what may be pushed to them.

A message may be pushed only if it is the head of its queue, to the one connection that receives from it,
with nothing else in flight there. That every message that is due does come is asked when all is quiet.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from blindpost.crypto.ids_hash import QueueSet
from blindpost.router.config import RouterRules
from blindpost.router.model import NO_QUEUES, Domain
from blindpost.router.state import RouterClient
from blindpost.router.turn import Delivery, Outgoing
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ALLS, DELD, END, ENDS, ERR, NMSG, Response


class Violation(AssertionError):  # noqa: N818  # it is what is asserted, not an error of the program
    """The router did what it must not do, or did not do what it must."""


@dataclass(eq=False)
class Message:
    """A message in a queue, or a marker if it has no body. The router chooses its id."""

    body: bytes | None
    seconds: int
    msg_id: bytes | None = None


@dataclass(eq=False)
class Notifier:
    notifier_id: bytes
    service_id: bytes | None = None
    pending: int = 0


@dataclass(eq=False)
class Queue:
    recipient_id: bytes
    sender_id: bytes
    messages: list[Message] = field(default_factory=list)
    can_write: bool = True
    off: bool = False
    service_id: bytes | None = None
    notifier: Notifier | None = None


@dataclass(eq=False)
class Sub:
    push: bool
    in_flight: Message | None = None


@dataclass(eq=False)
class Connection:
    """What a connection is subscribed to, and what the router owes it."""

    client: RouterClient
    service_id: bytes | None
    subs: dict[bytes, Sub] = field(default_factory=dict)
    notifier_ids: set[bytes] = field(default_factory=set)
    subscribed: set[Domain] = field(default_factory=set)
    members: dict[Domain, QueueSet] = field(default_factory=lambda: dict.fromkeys(Domain, NO_QUEUES))
    owed: set[bytes] = field(default_factory=set)
    """Queues whose head must come, unless it leaves or the connection does."""
    owed_notifiers: set[bytes] = field(default_factory=set)
    awaited: set[bytes] | None = None
    """After the first SUBS: the queues that must come before ALLS. None: no ALLS is due."""


class Promises:
    """Everything that clients were promised."""

    def __init__(self, rules: RouterRules) -> None:
        self.rules = rules
        self.now = 0
        self.queues: dict[bytes, Queue] = {}
        self.senders: dict[bytes, Queue] = {}
        self.notifiers: dict[bytes, Queue] = {}
        self.accepted: set[bytes] = set()
        """Bodies of all messages that were ever stored."""
        self.bodies: dict[bytes, bytes | None] = {}
        """By message id, what was ever delivered."""
        self.forged: set[bytes] = set()
        """Correlation ids of commands that are not authorized."""
        self.broken: set[bytes] = set()
        """Queues that could not be read at some time: a service is told so, and asks again."""
        self.forget_connections()

    def forget_connections(self) -> None:
        """The router starts anew."""
        self.connections: dict[int, Connection] = {}
        self.holders: dict[bytes, Connection] = {}
        self.notifier_holders: dict[bytes, Connection] = {}
        self.service_holders: dict[tuple[Domain, bytes], Connection] = {}
        self.told: list[tuple[Connection, bytes, Response]] = []

    # What is known

    def connection(self, client: RouterClient) -> Connection:
        known = self.connections.get(client.client_id)
        if known is None:
            service_id = None if client.service is None else client.service.service_id
            known = self.connections[client.client_id] = Connection(client, service_id)
        return known

    def members(self, domain: Domain, service_id: bytes) -> set[bytes]:
        """The queues, or the notifiers, of a service."""
        if domain is Domain.MESSAGES:
            return {queue.recipient_id for queue in self.queues.values() if queue.service_id == service_id}
        return {
            queue.notifier.notifier_id
            for queue in self.queues.values()
            if queue.notifier is not None and queue.notifier.service_id == service_id
        }

    def receiver(self, queue: Queue) -> Connection | None:
        """The one connection that messages of a queue are pushed to."""
        if queue.service_id is not None:
            return self.service_holders.get((Domain.MESSAGES, queue.service_id))
        return self.holders.get(queue.recipient_id)

    def notified(self, notifier: Notifier) -> Connection | None:
        if notifier.service_id is not None:
            return self.service_holders.get((Domain.NOTIFICATIONS, notifier.service_id))
        return self.notifier_holders.get(notifier.notifier_id)

    def may_push(self, connection: Connection, queue: Queue) -> bool:
        if self.receiver(queue) is not connection:
            return False
        sub = connection.subs.get(queue.recipient_id)
        if sub is None:
            return queue.service_id is not None
        return sub.push and sub.in_flight is None

    # What is pushed

    def push(self, connection: Connection, outgoing: Outgoing) -> bool:
        """An event of a queue or of a walk; False if it may not be said now."""
        entity_id, response = outgoing.entity_id, outgoing.response
        match response:
            case Delivery():
                queue = self.queues.get(entity_id)
                if queue is None or not self.may_push(connection, queue):
                    return False
                return self.hand_over(connection, queue, response)
            case NMSG():
                owner = self.notifiers.get(entity_id)
                notifier = None if owner is None else owner.notifier
                if notifier is None or not notifier.pending or self.notified(notifier) is not connection:
                    return False
                notifier.pending -= 1
                return True
            case ALLS():
                return self._all_came(connection)
            case ERR(Code.INTERNAL):
                return connection.awaited is not None and entity_id in self.broken
            case _:
                return False

    def hand_over(self, connection: Connection, queue: Queue, delivery: Delivery) -> bool:
        """A message goes to a connection: it is the head, with the id that it always had."""
        message = delivery.message
        if not queue.messages or not _same(queue.messages[0], message.body):
            return False
        head = queue.messages[0]
        if head.msg_id is None:
            if message.msg_id in self.bodies:
                raise Violation("two messages have one id")
            head.msg_id = message.msg_id
            self.bodies[message.msg_id] = head.body
        if head.msg_id != message.msg_id:
            raise Violation("a message came again under another id")
        sub = connection.subs.setdefault(queue.recipient_id, Sub(push=True))
        sub.in_flight = head
        connection.owed.discard(queue.recipient_id)
        if connection.awaited is not None:
            connection.awaited.discard(queue.recipient_id)
        return True

    def _all_came(self, connection: Connection) -> bool:
        if connection.awaited is None:
            return False
        missing = [
            recipient_id
            for recipient_id in connection.awaited
            if recipient_id not in self.broken and self._is_due(connection, recipient_id)
        ]
        if missing:
            raise Violation(f"ALLS came before the messages of {len(missing)} queues")
        connection.awaited = None
        return True

    def _is_due(self, connection: Connection, recipient_id: bytes) -> bool:
        queue = self.queues.get(recipient_id)
        return queue is not None and bool(queue.messages) and self.may_push(connection, queue)

    # Subscriptions that change hands

    def tell(self, connection: Connection, entity_id: bytes, event: Response) -> None:
        """An event that must be said in this turn."""
        self.told.append((connection, entity_id, event))

    def left(
        self,
        acting: Connection,
        domain: Domain,
        service_id: bytes | None,
        entity_id: bytes,
        event: END | DELD,
    ) -> None:
        """A queue leaves its service: who serves it counts one less and, if another, is told."""
        holder = None if service_id is None else self.service_holders.get((domain, service_id))
        if holder is None:
            return
        holder.members[domain] -= QueueSet.of((entity_id,))
        if holder is not acting:
            if domain is Domain.MESSAGES:
                holder.subs.pop(entity_id, None)
            self.tell(holder, entity_id, event)

    def register(self, connection: Connection, domain: Domain) -> None:
        """One connection serves a service; the one before loses all but what it reads on its own."""
        service_id = connection.service_id
        assert service_id is not None
        loser = self.service_holders.get((domain, service_id))
        self.service_holders[domain, service_id] = connection
        if loser is None or loser is connection:
            return
        before = loser.members[domain]
        loser.members[domain] = NO_QUEUES
        taken = self.members(domain, service_id)
        if domain is Domain.NOTIFICATIONS:
            loser.owed_notifiers -= taken
            connection.owed_notifiers |= taken
        else:
            loser.awaited = None
            loser.owed -= taken
            connection.owed |= taken
            for recipient_id, sub in list(loser.subs.items()):
                if sub.push and self.holders.get(recipient_id) is not loser:
                    del loser.subs[recipient_id]
        self.tell(loser, service_id, ENDS(before.count, before.ids_hash))

    def gone(self, connection: Connection) -> None:
        self.holders = {key: holder for key, holder in self.holders.items() if holder is not connection}
        self.notifier_holders = {
            key: holder for key, holder in self.notifier_holders.items() if holder is not connection
        }
        self.service_holders = {
            key: holder for key, holder in self.service_holders.items() if holder is not connection
        }
        self.connections.pop(connection.client.client_id, None)

    # When all is quiet

    def quiet(self, congested: Collection[int]) -> None:
        """Nothing more will happen: whatever is due to a connection that reads has come."""
        for client_id, connection in self.connections.items():
            if client_id in congested:
                continue
            pushed = {one for one, sub in connection.subs.items() if sub.push}
            late = [one for one in connection.owed | pushed if self._is_due(connection, one)]
            if set(late) - (self.broken if connection.service_id is not None else set()):
                raise Violation(f"messages of {len(late)} queues never came")
            if connection.awaited is not None:
                raise Violation("ALLS never came")
            for notifier_id in connection.owed_notifiers:
                owner = self.notifiers.get(notifier_id)
                notifier = None if owner is None else owner.notifier
                if notifier is not None and notifier.pending and self.notified(notifier) is connection:
                    raise Violation("a notification never came")


def _same(message: Message, body: object) -> bool:
    if message.body is None or body is None:
        return message.body is body
    return message.body == body
