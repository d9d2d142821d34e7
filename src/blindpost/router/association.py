"""Which queues belong to which service, and which connection serves it now.

The sets themselves are kept in step with the queue records by `View`; this module decides who is notified
when a queue changes hands. A takeover ends the old connection's walk and drops what was in flight to it, but
keeps its own subscriptions and GETs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blindpost.crypto.ids_hash import QueueSet
from blindpost.router.delivery import walk_again
from blindpost.router.meters import Meter
from blindpost.router.model import NO_QUEUES, Domain, QueueRecord
from blindpost.router.state import RouterClient, SubKind
from blindpost.router.turn import Turn
from blindpost.wire.smp.responses import DELD, END, ENDS


@dataclass(frozen=True, slots=True)
class DomainMeters:
    """The counters of one domain."""

    subscribed: Meter
    duplicate: Meter
    queues: Meter
    ended: Meter
    drift_ok: Meter
    drift_more: Meter
    drift_fewer: Meter
    drift_diff: Meter
    drift_more_total: Meter
    drift_fewer_total: Meter


SERVICE_METERS = {
    Domain.MESSAGES: DomainMeters(
        subscribed=Meter.RCV_SERVICE_SUBS,
        duplicate=Meter.RCV_SERVICE_SUB_DUPLICATE,
        queues=Meter.RCV_SERVICE_SUB_QUEUES,
        ended=Meter.RCV_SERVICE_SUB_ENDS,
        drift_ok=Meter.RCV_DRIFT_OK,
        drift_more=Meter.RCV_DRIFT_MORE,
        drift_fewer=Meter.RCV_DRIFT_FEWER,
        drift_diff=Meter.RCV_DRIFT_DIFF,
        drift_more_total=Meter.RCV_DRIFT_MORE_TOTAL,
        drift_fewer_total=Meter.RCV_DRIFT_FEWER_TOTAL,
    ),
    Domain.NOTIFICATIONS: DomainMeters(
        subscribed=Meter.NTF_SERVICE_SUBS,
        duplicate=Meter.NTF_SERVICE_SUB_DUPLICATE,
        queues=Meter.NTF_SERVICE_SUB_QUEUES,
        ended=Meter.NTF_SERVICE_SUB_ENDS,
        drift_ok=Meter.NTF_DRIFT_OK,
        drift_more=Meter.NTF_DRIFT_MORE,
        drift_fewer=Meter.NTF_DRIFT_FEWER,
        drift_diff=Meter.NTF_DRIFT_DIFF,
        drift_more_total=Meter.NTF_DRIFT_MORE_TOTAL,
        drift_fewer_total=Meter.NTF_DRIFT_FEWER_TOTAL,
    ),
}


def register(turn: Turn, client: RouterClient, domain: Domain) -> None:
    """Make this connection serve its service; the previous one gets ENDS and nothing more.

    A walk redelivers what was in flight or due to the previous connection, even if the takeover came from
    a command about a single queue. If that one is gone, it delivers what came to nobody since.
    """
    assert client.service is not None
    service_id, holders = client.service.service_id, turn.state.services(domain)
    returns = holders.holder(service_id) is None and client.service_sub(domain).subscribed
    loser = holders.take_over(service_id, client)
    if loser is not None:
        _displace(turn, loser, domain, service_id)
    if loser is not None or returns:
        walk_again(client, domain)
        turn.serve(client)


def _displace(turn: Turn, loser: RouterClient, domain: Domain, service_id: bytes) -> None:
    held = loser.service_sub(domain)
    loser.service_subs.put(domain, replace(held, members=NO_QUEUES))
    loser.walks.pop(domain)
    if domain is Domain.MESSAGES:
        for recipient_id in tuple(loser.subs):
            sub = loser.subs.get(recipient_id)
            by_service = sub is not None and sub.kind is SubKind.PUSH
            if by_service and turn.state.queues.holder(recipient_id) is not loser:
                turn.state.drop_sub(loser, recipient_id)
    turn.push(loser, service_id, ENDS(held.members.count, held.members.ids_hash))
    turn.count(SERVICE_METERS[domain].ended, held.members.count)
    turn.count(Meter.SUB_ENDS)


def count_in(turn: Turn, client: RouterClient, domain: Domain, entity_id: bytes) -> None:
    """The connection serves one more queue."""
    sub = client.service_sub(domain)
    if not sub.members.count:
        turn.count(SERVICE_METERS[domain].subscribed)
    turn.count(SERVICE_METERS[domain].queues)
    client.service_subs.put(domain, replace(sub, members=sub.members + QueueSet.of((entity_id,))))


def queue_left(
    turn: Turn,
    acting: RouterClient | None,
    domain: Domain,
    service_id: bytes,
    entity_id: bytes,
    event: END | DELD,
) -> None:
    """A queue left this service: its connection counts one less and is notified unless it caused this."""
    holder = turn.state.services(domain).holder(service_id)
    if holder is None:
        return
    sub = holder.service_sub(domain)
    holder.service_subs.put(domain, replace(sub, members=sub.members - QueueSet.of((entity_id,))))
    if holder is not acting:
        if domain is Domain.MESSAGES:
            turn.state.drop_sub(holder, entity_id)
        turn.push(holder, entity_id, event)
        turn.count(Meter.SUB_ENDS)


def associate_queue(turn: Turn, client: RouterClient, record: QueueRecord) -> QueueRecord:
    """SUB by a service: the queue joins it, leaving any other service."""
    assert client.service is not None
    service_id, recipient_id = client.service.service_id, record.recipient_id
    if record.service_id == service_id:
        turn.count(Meter.RCV_ASSOC_DUPLICATE)
        if not client.service_sub(Domain.MESSAGES).members.count:
            count_in(turn, client, Domain.MESSAGES, recipient_id)
            register(turn, client, Domain.MESSAGES)
        return record
    if record.service_id is not None:
        turn.count(Meter.RCV_ASSOC_UPDATED)
        queue_left(turn, client, Domain.MESSAGES, record.service_id, recipient_id, END())
    else:
        turn.count(Meter.RCV_ASSOC_NEW)
    record = record._replace(service_id=service_id)
    turn.view.put_queue(record)
    count_in(turn, client, Domain.MESSAGES, recipient_id)
    register(turn, client, Domain.MESSAGES)
    return record


def dissociate_queue(turn: Turn, client: RouterClient, record: QueueRecord) -> QueueRecord:
    """SUB by a plain connection: the queue leaves its service, if any."""
    if record.service_id is None:
        return record
    turn.count(Meter.RCV_ASSOC_REMOVED)
    queue_left(turn, client, Domain.MESSAGES, record.service_id, record.recipient_id, END())
    record = record._replace(service_id=None)
    turn.view.put_queue(record)
    return record


def associate_notifier(turn: Turn, client: RouterClient, record: QueueRecord) -> QueueRecord:
    """NSUB by a service or by a plain connection: as for messages, by the id of the notifier."""
    notifier = record.notifier
    assert notifier is not None
    old, new = notifier.service_id, None if client.service is None else client.service.service_id
    notifier_id = notifier.notifier_id
    if old != new:
        if old is not None:
            turn.count(Meter.NTF_ASSOC_REMOVED if new is None else Meter.NTF_ASSOC_UPDATED)
            queue_left(turn, client, Domain.NOTIFICATIONS, old, notifier_id, END())
        else:
            turn.count(Meter.NTF_ASSOC_NEW)
        record = record._replace(notifier=replace(notifier, service_id=new))
        turn.view.put_queue(record)
        if new is not None:
            count_in(turn, client, Domain.NOTIFICATIONS, notifier_id)
            register(turn, client, Domain.NOTIFICATIONS)
    elif new is not None:
        turn.count(Meter.NTF_ASSOC_DUPLICATE)
        if not client.service_sub(Domain.NOTIFICATIONS).members.count:
            count_in(turn, client, Domain.NOTIFICATIONS, notifier_id)
            register(turn, client, Domain.NOTIFICATIONS)
    return record
