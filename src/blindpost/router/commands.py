"""One row for each command: all that the router knows about it apart from its bytes.

A row is looked up once, when a request comes in, and goes with it through the turn: what the store is
asked for, who must have signed it, what is read besides, and the decision at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from blindpost.router import notifications, queues, relaying, services, subscriptions
from blindpost.router.association import associate_notifier
from blindpost.router.authority import (
    NAMING,
    Keys,
    Naming,
    anybody_with_link,
    new_key,
    notifier_key,
    recipient_keys,
    securing_key,
    sender_key,
    service_key,
)
from blindpost.router.changes import HEADS_OF_ACK, Wanted
from blindpost.router.meters import Meter
from blindpost.router.model import Domain, Party, QueueRecord
from blindpost.router.state import RouterClient
from blindpost.router.turn import Delivery, Turn
from blindpost.router.view import View
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    LDEL,
    LGET,
    LKEY,
    LSET,
    NDEL,
    NEW,
    NKEY,
    NSUB,
    NSUBS,
    OFF,
    PFWD,
    PING,
    PRXY,
    QUE,
    RFWD,
    RKEY,
    RSLV,
    SEND,
    SKEY,
    SUB,
    SUBS,
    Command,
)
from blindpost.wire.smp.credentials import RULES, CommandRule
from blindpost.wire.smp.errors import NAME, Code, NameCode
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import ERR, NID, PONG, Response
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.transmissions import Refused

C = TypeVar("C", bound=Command)

Answer = Response | Delivery | None
"""The answer, or None if the decision has sent it already."""

OnQueue = Callable[[Turn, RouterClient, Request, C, QueueRecord], Answer]
Alone = Callable[[Turn, RouterClient, Request, C], Answer]

MESSAGING = frozenset({ServiceRole.MESSAGING})
NOTIFIER = frozenset({ServiceRole.NOTIFIER})
PROXY = frozenset({ServiceRole.PROXY})

PONGED = PONG()
NO_RESOLVER = ERR(NAME(NameCode.NO_RESOLVER))


@dataclass(frozen=True, slots=True)
class Row(Generic[C]):
    """What the router knows about one command."""

    command: type[C]
    party: Party | None
    """By whose id it names its queue; None: it names none."""
    keys: Callable[[RouterClient, C, QueueRecord | None], Keys] | None
    """Which keys may authorize it on this queue, as it is now; None: nobody authorizes it."""
    on_queue: OnQueue[C] | None = None
    """The decision of a command that names a queue."""
    alone: Alone[C] | None = None
    """The decision of one that names none."""
    carries: bool = False
    """There is another command inside, which is decided in its place."""
    roles: frozenset[ServiceRole] = MESSAGING
    """The service roles that may send it. Other connections may send everything."""
    besides: Callable[[Wanted, C], None] | None = None
    """What must be loaded before it is verified, besides its queue."""
    repeats: Callable[[View, C], QueueRecord | None] | None = None
    """The queue that it may read although it names none."""
    heads: int = 0
    """How many messages it looks at, from the head of the queue."""
    ends: bool = False
    """It asks how many messages the queue holds, and reads none."""
    expires: bool = False
    """It may drop messages that are too old."""
    removes: Callable[[C], bytes] | None = None
    """The id of a message that is removed without being read."""
    link_data: bool = False
    notifications: bool = False
    rekeys: bool = False
    """It may change who authorizes later commands of the same batch."""
    decides_blocked: bool = False
    """Decided on a blocked queue like on any other; the rest are answered BLOCKED."""
    refusal: Response = queues.AUTH
    """The answer if the request is not authorized."""
    refused: Meter | None = None
    """Counts refusals."""
    naming: Naming = field(init=False)
    """How its queue is found."""
    rule: CommandRule = field(init=False)
    """What the protocol itself says of the command."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "naming", NAMING[self.party])
        kind: Any = self.command
        object.__setattr__(self, "rule", RULES[kind])

    def allows(self, client: RouterClient) -> bool:
        """Whether a connection in its role may send this."""
        return client.service is None or client.service.role in self.roles


def _want_new_link(wanted: Wanted, command: NEW) -> None:
    if command.request is not None and command.request.link is not None:
        link = command.request.link
        wanted.senders.add(link.sender_id)
        if link.link_id is not None:
            wanted.links.add(link.link_id)


def _want_link(wanted: Wanted, command: LSET) -> None:
    wanted.links.add(command.link_id)


def _repeated(view: View, command: NEW) -> QueueRecord | None:
    """The queue that a NEW may create again."""
    if command.request is None or command.request.link is None:
        return None
    recipient_id = view.senders.get(command.request.link.sender_id)
    return None if recipient_id is None else view.records.get(recipient_id)


def _sub(turn: Turn, client: RouterClient, request: Request, command: SUB, record: QueueRecord) -> Answer:
    subscriptions.sub(turn, client, request.corr_id, queues.touch(turn, record))
    return None


def _nsub(turn: Turn, client: RouterClient, request: Request, command: NSUB, record: QueueRecord) -> Answer:
    record = associate_notifier(turn, client, record)
    assert record.notifier is not None
    notifications.nsub(turn, client, request.corr_id, record.notifier)
    return None


def _nkey(turn: Turn, client: RouterClient, request: Request, command: NKEY, record: QueueRecord) -> Answer:
    notifier = queues.new_notifier(turn, command.creds)
    notifications.set_notifier(turn, client, record, notifier)
    return NID(queues.notifier_creds(notifier))


def _secure(
    turn: Turn, client: RouterClient, request: Request, command: KEY | SKEY, record: QueueRecord
) -> Answer:
    return queues.secure(turn, record, command.key)


def _subscribe_service(domain: Domain) -> Alone[SUBS | NSUBS]:
    return lambda turn, client, request, command: services.subscribe_service(
        turn, client, domain, request.entity_id, command
    )


_TABLE: tuple[Row[Any], ...] = (
    Row(
        NEW,
        None,
        new_key,
        alone=lambda turn, client, request, command: queues.new(turn, client, request.corr_id, command),
        besides=_want_new_link,
        repeats=_repeated,
        heads=1,
    ),
    Row(SUB, Party.RECIPIENT, recipient_keys, on_queue=_sub, heads=1, refused=Meter.SUB_AUTH),
    Row(
        SUBS,
        None,
        service_key,
        alone=_subscribe_service(Domain.MESSAGES),
        refusal=ERR(Code.SERVICE),
    ),
    Row(KEY, Party.RECIPIENT, recipient_keys, on_queue=_secure, rekeys=True),
    Row(
        RKEY,
        Party.RECIPIENT,
        recipient_keys,
        on_queue=lambda turn, _, __, command, record: queues.set_recipient_keys(turn, record, command.keys),
        rekeys=True,
    ),
    Row(
        LSET,
        Party.RECIPIENT,
        recipient_keys,
        on_queue=lambda turn, client, _, command, record: queues.set_link(turn, client, record, command),
        besides=_want_link,
        link_data=True,
    ),
    Row(
        LDEL,
        Party.RECIPIENT,
        recipient_keys,
        on_queue=lambda turn, _, __, ___, record: queues.delete_link(turn, record),
    ),
    Row(NKEY, Party.RECIPIENT, recipient_keys, on_queue=_nkey, notifications=True),
    Row(
        NDEL,
        Party.RECIPIENT,
        recipient_keys,
        on_queue=lambda turn, client, _, __, record: notifications.remove_notifier(turn, client, record),
        notifications=True,
    ),
    Row(
        GET,
        Party.RECIPIENT,
        recipient_keys,
        on_queue=lambda turn, client, _, __, record: subscriptions.get(
            turn, client, queues.touch(turn, record)
        ),
        heads=1,
        refused=Meter.GET_AUTH,
    ),
    Row(
        ACK,
        Party.RECIPIENT,
        recipient_keys,
        on_queue=lambda turn, client, _, command, record: subscriptions.ack(
            turn, client, record, command.msg_id
        ),
        heads=HEADS_OF_ACK,
        removes=lambda command: command.msg_id,
    ),
    Row(
        OFF,
        Party.RECIPIENT,
        recipient_keys,
        on_queue=lambda turn, _, __, ___, record: queues.switch_off(turn, record),
        decides_blocked=True,
    ),
    Row(
        DEL,
        Party.RECIPIENT,
        recipient_keys,
        on_queue=lambda turn, client, _, __, record: queues.delete(turn, client, record),
        ends=True,
        notifications=True,
        decides_blocked=True,
    ),
    Row(
        QUE,
        Party.RECIPIENT,
        recipient_keys,
        on_queue=lambda turn, client, _, __, record: queues.info(turn, client, record),
        heads=1,
    ),
    Row(SKEY, Party.SENDER, securing_key, on_queue=_secure, rekeys=True),
    Row(
        SEND,
        Party.SENDER,
        sender_key,
        on_queue=lambda turn, client, _, command, record: queues.send(turn, client, record, command),
        ends=True,
        expires=True,
        decides_blocked=True,
        refused=Meter.SENT_AUTH,
    ),
    Row(
        LKEY,
        Party.LINK,
        securing_key,
        on_queue=lambda turn, _, __, command, record: queues.secure_by_link(turn, record, command.key),
        link_data=True,
        rekeys=True,
    ),
    Row(
        LGET,
        Party.LINK,
        anybody_with_link,
        on_queue=lambda turn, _, __, ___, record: queues.link_answer(turn, record),
        link_data=True,
    ),
    Row(
        NSUB,
        Party.NOTIFIER,
        notifier_key,
        on_queue=_nsub,
        roles=NOTIFIER,
        notifications=True,
        decides_blocked=True,
        refused=Meter.NTF_SUB_AUTH,
    ),
    Row(
        NSUBS,
        None,
        service_key,
        alone=_subscribe_service(Domain.NOTIFICATIONS),
        roles=NOTIFIER,
        refusal=ERR(Code.SERVICE),
    ),
    Row(PING, None, None, alone=lambda *_: PONGED, roles=frozenset(ServiceRole)),
    Row(PRXY, None, None, alone=relaying.open_relay),
    Row(PFWD, None, None, alone=relaying.forward),
    Row(RFWD, None, None, carries=True, roles=PROXY),
    Row(RSLV, None, None, alone=lambda *_: NO_RESOLVER),
)

ROWS: dict[type[Command], Row[Any]] = {row.command: row for row in _TABLE}


_BATCHES: dict[type[Command], Meter] = {
    SUB: Meter.SUB_BATCHES,
    DEL: Meter.QUEUES_DELETED_BATCHES,
    NDEL: Meter.NTF_DELETED_BATCHES,
    NSUB: Meter.NTF_SUB_BATCHES,
}


def batch_meter(items: Sequence[Request | Refused]) -> Meter | None:
    """What counts a received block: the reference counts two or more commands of one party, by the first."""
    requests = [item for item in items if type(item) is Request]
    if len(requests) < 2:
        return None
    meter = _BATCHES.get(type(requests[0].command))
    if meter is None:
        return None
    party = ROWS[type(requests[0].command)].party
    return meter if all(ROWS[type(request.command)].party is party for request in requests) else None
