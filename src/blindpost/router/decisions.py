"""One command in, its answer and its consequences out: where every command finds its decision."""

from __future__ import annotations

import logging
from collections.abc import Callable

from blindpost.crypto.authorizers import Verifier
from blindpost.router import notifications, queues, services, subscriptions
from blindpost.router.association import associate_notifier
from blindpost.router.authority import (
    NO_QUEUE,
    UNVERIFIED,
    Verdict,
    is_damaged,
    named_queue,
    role_allows,
    still_authorized,
)
from blindpost.router.forwarding import Forwarded, ForwardedAnswer
from blindpost.router.meters import Meter
from blindpost.router.model import QueueRecord
from blindpost.router.state import Client
from blindpost.router.turn import Delivery, Forward, OpenRelay, RelayEffect, Turn
from blindpost.router.view import DAMAGED
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
    RKEY,
    RSLV,
    SEND,
    SKEY,
    SUB,
    SUBS,
    Command,
)
from blindpost.wire.smp.errors import (
    BLOCKED,
    NAME,
    PROHIBITED,
    PROXY,
    STORE,
    Code,
    NameCode,
    ProxyCode,
)
from blindpost.wire.smp.responses import ERR, NID, PONG, Response
from blindpost.wire.smp.transmissions import Refused, Request

log = logging.getLogger(__name__)

Answer = Response | Delivery | None
"""What to answer, or None when the decision has answered itself."""

ALLOWED_WHEN_BLOCKED: frozenset[type[Command]] = frozenset({OFF, DEL, NSUB, SEND})
"""SEND tells by itself that the queue is blocked."""

REFUSALS: dict[type[Command], Meter] = {
    SUB: Meter.SUB_AUTH,
    NSUB: Meter.NTF_SUB_AUTH,
    SEND: Meter.SENT_AUTH,
    GET: Meter.GET_AUTH,
}


def decide_forwarded(
    turn: Turn, client: Client, item: Forwarded, verdict: Verdict | None, verifier: Verifier
) -> None:
    """Decide what came through a proxy; the answer goes back the same way."""
    turn.count(Meter.FORWARDED)
    if isinstance(item.inner, Refused):
        answer: Answer = ERR(item.inner.error)
    else:
        answer = _answer(turn, item.sender, item.inner, verdict, verifier)
    assert answer is not None, "a command that may not be forwarded"
    assert not isinstance(answer, Delivery), "a command that may not be forwarded"
    turn.answer(client, item.corr_id, b"", ForwardedAnswer(item, answer))


def decide(
    turn: Turn, client: Client, item: Request | Refused, verdict: Verdict | None, verifier: Verifier
) -> None:
    """Decide one transmission of a connection."""
    if isinstance(item, Refused):
        turn.answer(client, item.corr_id, item.entity_id, ERR(item.error))
        return
    answer = _answer(turn, client, item, verdict, verifier)
    if answer is not None:
        turn.answer(client, item.corr_id, item.entity_id, answer)


def _answer(
    turn: Turn, client: Client, request: Request, verdict: Verdict | None, verifier: Verifier
) -> Answer:
    command = request.command
    kind = type(command)
    record = named_queue(turn.view, request)
    if record is None and kind not in NO_QUEUE:
        if is_damaged(turn.view, request):
            return ERR(STORE(DAMAGED))
        return _refused(turn, command)
    if client.service is not None and not role_allows(client, command):
        return ERR(PROHIBITED)
    if kind in UNVERIFIED:
        if isinstance(command, PRXY | PFWD):
            return _proxied(turn, client, request, command)
        return _WITHOUT_QUEUE[kind]
    assert verdict is not None, "a command that was not verified"
    if not verdict.service:
        return ERR(Code.SERVICE)
    authorized = verdict.authorized
    if record is not verdict.record:
        authorized = still_authorized(record, verifier, client, request, verdict)
    if record is None and isinstance(command, SUBS | NSUBS):
        if client.service is None or client.service.service_id != request.entity_id or not authorized:
            return ERR(Code.SERVICE)
        return services.subscribe_service(turn, client, command)
    if not authorized:
        return _refused(turn, command)
    if kind is NEW:
        assert isinstance(command, NEW)
        return queues.new(turn, client, request.corr_id, command)
    assert record is not None
    if isinstance(record.status, BLOCKED) and kind not in ALLOWED_WHEN_BLOCKED:
        return ERR(record.status)
    return _ON_QUEUE[kind](turn, client, request, record)


def _proxied(turn: Turn, client: Client, request: Request, command: PRXY | PFWD) -> Answer:
    """PRXY and PFWD: what the relay says comes later, out of order."""
    if isinstance(command, PFWD):
        turn.ask(Forward(client, request.corr_id, request.entity_id, command))
    elif not turn.rules.proxy or not queues.password_fits(turn, command.basic_auth):
        return ERR(PROXY(ProxyCode.BASIC_AUTH))
    else:
        turn.ask(OpenRelay(client, request.corr_id, command.relay))
    return None


def relay_answered(turn: Turn, effect: RelayEffect, response: Response) -> None:
    """A relay was asked; count how it went and tell whoever wanted to know."""
    failed = isinstance(response, ERR)
    if isinstance(effect, OpenRelay):
        turn.count(Meter.RELAYS)
        turn.count(Meter.RELAYS_FAILED if failed else Meter.RELAYS_OPENED)
        turn.answer(effect.client, effect.corr_id, b"", response)
    else:
        turn.count(Meter.RELAYED)
        turn.count(Meter.RELAYED_FAILED if failed else Meter.RELAYED_ANSWERED)
        turn.answer(effect.client, effect.corr_id, effect.session_id, response)


def _refused(turn: Turn, command: Command) -> Answer:
    meter = REFUSALS.get(type(command))
    if meter is not None:
        turn.count(meter)
    return queues.AUTH


def _sub(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    subscriptions.sub(turn, client, request.corr_id, queues.touch(turn, record))
    return None


def _get(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    return subscriptions.get(turn, client, queues.touch(turn, record))


def _ack(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    assert isinstance(request.command, ACK)
    return subscriptions.ack(turn, client, record, request.command.msg_id)


def _send(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    assert isinstance(request.command, SEND)
    return queues.send(turn, record, request.command, client.version)


def _secure(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    assert isinstance(request.command, KEY | SKEY)
    return queues.secure(turn, record, request.command.key)


def _recipient_keys(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    assert isinstance(request.command, RKEY)
    return queues.set_recipient_keys(turn, record, request.command.keys)


def _link_key(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    assert isinstance(request.command, LKEY)
    return queues.secure_by_link(turn, record, request.command.key)


def _link_set(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    assert isinstance(request.command, LSET)
    return queues.set_link(turn, record, request.command)


def _notifier_key(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    assert isinstance(request.command, NKEY)
    notifier = queues.new_notifier(turn, request.command.creds)
    notifications.set_notifier(turn, client, record, notifier)
    return NID(queues.notifier_creds(notifier))


def _nsub(turn: Turn, client: Client, request: Request, record: QueueRecord) -> Answer:
    record = associate_notifier(turn, client, record)
    assert record.notifier is not None
    notifications.nsub(turn, client, request.corr_id, record.notifier)
    return None


_ON_QUEUE: dict[type[Command], Callable[[Turn, Client, Request, QueueRecord], Answer]] = {
    SUB: _sub,
    GET: _get,
    ACK: _ack,
    SEND: _send,
    KEY: _secure,
    SKEY: _secure,
    RKEY: _recipient_keys,
    LSET: _link_set,
    LDEL: lambda turn, client, request, record: queues.delete_link(turn, record),
    LKEY: _link_key,
    LGET: lambda turn, client, request, record: queues.link_answer(turn, record),
    NKEY: _notifier_key,
    NDEL: lambda turn, client, request, record: notifications.remove_notifier(turn, client, record),
    NSUB: _nsub,
    OFF: lambda turn, client, request, record: queues.switch_off(turn, record),
    DEL: lambda turn, client, request, record: queues.delete(turn, client, record),
    QUE: lambda turn, client, request, record: queues.info(turn, client, record),
}

_WITHOUT_QUEUE: dict[type[Command], Response] = {
    PING: PONG(),
    RSLV: ERR(NAME(NameCode.NO_RESOLVER)),
}
"""What is answered without a queue: this router resolves no names."""
