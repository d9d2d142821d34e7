"""One command in, its answer and its consequences out: what all commands have in common."""

from __future__ import annotations

import logging

from blindpost.crypto.authorizers import Verifier
from blindpost.router.asking import Asked, still_authorized
from blindpost.router.commands import Answer
from blindpost.router.forwarding import Forwarded, ForwardedAnswer
from blindpost.router.meters import Meter
from blindpost.router.state import RouterClient
from blindpost.router.turn import Delivery, Turn
from blindpost.router.view import DAMAGED
from blindpost.wire.smp.errors import BLOCKED, PROHIBITED, STORE, Code
from blindpost.wire.smp.responses import ERR
from blindpost.wire.transmissions import Refused

log = logging.getLogger(__name__)


def decide(turn: Turn, client: RouterClient, item: Asked | Refused, verifier: Verifier) -> None:
    """Decide one transmission of a connection."""
    if isinstance(item, Refused):
        turn.answer(client, item.corr_id, item.entity_id, ERR(item.error))
    elif item.opened is not None:
        _decide_forwarded(turn, client, item, item.opened, verifier)
    else:
        answer = _answer(turn, item, verifier)
        if answer is not None:
            request = item.request
            turn.answer(client, request.corr_id, request.entity_id, answer)


def _decide_forwarded(
    turn: Turn, client: RouterClient, item: Asked, opened: Forwarded | Refused, verifier: Verifier
) -> None:
    """Decide what came through a proxy; the answer goes back the same way."""
    if isinstance(opened, Refused):
        turn.answer(client, opened.corr_id, b"", ERR(opened.error))
        return
    turn.count(Meter.FORWARDED)
    if isinstance(opened.inner, Refused):
        answer: Answer = ERR(opened.inner.error)
    else:
        assert item.inner is not None, "a forwarded command that was not looked up"
        answer = _answer(turn, item.inner, verifier)
    assert answer is not None, "a command that may not be forwarded"
    assert not isinstance(answer, Delivery), "a command that may not be forwarded"
    turn.answer(client, opened.corr_id, b"", ForwardedAnswer(opened, answer))


def _answer(turn: Turn, asked: Asked, verifier: Verifier) -> Answer:
    client, request, row = asked.client, asked.request, asked.row
    record = row.naming.find(turn.view, request.entity_id)
    if record is None and row.party is not None:
        if row.naming.recipient_id(turn.view, request.entity_id) in turn.view.damaged:
            # It exists but cannot be read: it must not look deleted.
            return ERR(STORE(DAMAGED))
        return _refused(turn, asked)
    if client.service is not None and not row.allows(client):
        return ERR(PROHIBITED)
    if row.keys is not None:
        if not asked.vouched:
            return ERR(Code.SERVICE)
        authorized = asked.authorized
        if record is not asked.record:
            authorized = still_authorized(record, verifier, asked)
        if not authorized:
            return _refused(turn, asked)
    if record is None:
        assert row.alone is not None, "a command that carries another and was not opened"
        return row.alone(turn, client, request, request.command)
    if isinstance(record.status, BLOCKED) and not row.decides_blocked:
        return ERR(record.status)
    assert row.on_queue is not None
    return row.on_queue(turn, client, request, request.command, record)


def _refused(turn: Turn, asked: Asked) -> Answer:
    if asked.row.refused is not None:
        turn.count(asked.row.refused)
    return asked.row.refusal
