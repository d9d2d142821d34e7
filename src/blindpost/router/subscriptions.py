"""SUB, GET, ACK and what ends a subscription: decisions about who receives."""

from __future__ import annotations

from blindpost.router.association import associate_queue, dissociate_queue, queue_left
from blindpost.router.delivery import count_received, push_head, remove_head, take_head, wait
from blindpost.router.meters import Meter
from blindpost.router.model import Domain, QueueRecord
from blindpost.router.state import GET_IDLE, PUSH_IDLE, RouterClient, SubKind
from blindpost.router.turn import Delivery, Turn
from blindpost.wire.smp.errors import PROHIBITED, Code
from blindpost.wire.smp.responses import DELD, END, ERR, OK, SOK, Response

SUBSCRIBED, DONE = SOK(None), OK()


def subscribe(turn: Turn, client: RouterClient, record: QueueRecord) -> QueueRecord:
    """Make `client` the subscriber; a previous one loses everything about the queue at once.

    A service takes the queue into its set, a plain connection takes it out of any.
    """
    recipient_id = record.recipient_id
    if client.service is not None:
        record = associate_queue(turn, client, record)
        _displaced(turn, client, turn.state.queues.remove(recipient_id), recipient_id)
        turn.state.drop_sub(client, recipient_id)
    else:
        record = dissociate_queue(turn, client, record)
        loser = turn.state.queues.take_over(recipient_id, client)
        if loser is not None:
            _displaced(turn, client, loser, recipient_id)
        client.subs.put(recipient_id, PUSH_IDLE)
    return record


def _displaced(turn: Turn, client: RouterClient, loser: RouterClient | None, recipient_id: bytes) -> None:
    if loser is not None and loser is not client:
        turn.state.drop_sub(loser, recipient_id)
        turn.push(loser, recipient_id, END())
        turn.count(Meter.SUB_ENDS)


def sub(turn: Turn, client: RouterClient, corr_id: bytes, record: QueueRecord) -> None:
    """SUB: take the subscription over; the first pending message follows as an event."""
    recipient_id = record.recipient_id
    held = client.subs.get(recipient_id)
    if held is not None and held.kind is SubKind.GET:
        turn.count(Meter.SUB_PROHIBITED)
        turn.answer(client, corr_id, recipient_id, ERR(PROHIBITED))
        return
    if held is not None:
        turn.count(Meter.SUB_DUPLICATE)
    record = subscribe(turn, client, record)
    turn.answer(
        client, corr_id, recipient_id, SUBSCRIBED if record.service_id is None else SOK(record.service_id)
    )
    if turn.view.ends(recipient_id).size:
        if held is None:
            turn.count(Meter.SUBS)
        push_head(turn, client, record)


def get(turn: Turn, client: RouterClient, record: QueueRecord) -> Response | Delivery:
    """GET: the head message as the response, without a subscription; again until it is acknowledged."""
    recipient_id = record.recipient_id
    held = client.subs.get(recipient_id)
    if held is not None and held.kind is SubKind.PUSH:
        turn.count(Meter.GET_PROHIBITED)
        return ERR(PROHIBITED)
    if held is None:
        client.subs.put(recipient_id, GET_IDLE)
    again = held is not None and held.delivered is not None
    delivery = take_head(turn, client, record)
    if delivery is None:
        turn.count(Meter.GETS_EMPTY)
        return OK()
    turn.count(Meter.GET_DUPLICATE if again else Meter.GETS)
    return delivery


def ack(turn: Turn, client: RouterClient, record: QueueRecord, msg_id: bytes) -> Response | Delivery:
    """ACK: the message that is in flight to this connection leaves the queue; the next one is the answer.

    An empty id fits whatever is in flight and removes nothing.
    """
    recipient_id = record.recipient_id
    held = client.subs.get(recipient_id)
    if held is None or held.delivered is None or (msg_id and msg_id != held.delivered.msg_id):
        return ERR(Code.NO_MSG)
    by_service = record.service_id is not None and held.kind is SubKind.PUSH
    if by_service:
        turn.state.drop_sub(client, recipient_id)
    else:
        client.subs.put(recipient_id, GET_IDLE if held.kind is SubKind.GET else PUSH_IDLE)
    ends = turn.view.ends(recipient_id)
    if msg_id and ends.size and ends.head == held.delivered.number:
        ends = remove_head(turn, recipient_id, ends)
        count_received(turn, recipient_id, held.delivered, held.kind)
    if held.kind is SubKind.GET or not ends.size:
        return DONE
    if client.congested:
        wait(client, record)
        return DONE
    return take_head(turn, client, record) or DONE


def queue_gone(turn: Turn, client: RouterClient | None, record: QueueRecord) -> None:
    """The queue was deleted, by `client` or by the operator: notify the subscriber, if another.

    A client that read it with GET finds out with its next command.
    """
    recipient_id = record.recipient_id
    if record.service_id is not None:
        queue_left(turn, client, Domain.MESSAGES, record.service_id, recipient_id, DELD())
    holder = turn.state.queues.remove(recipient_id)
    if holder is not None:
        turn.state.drop_sub(holder, recipient_id)
        if holder is not client:
            turn.push(holder, recipient_id, DELD())
            turn.count(Meter.SUB_ENDS)
    if client is not None:
        turn.state.drop_sub(client, recipient_id)
