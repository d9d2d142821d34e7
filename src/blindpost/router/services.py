"""Client services: one identity, one SUBS for all of its queues, and the walk over what waits in them.

A service's queue has an entry only while a message is in flight, so a service with a million queues costs no
more than one with ten.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable
from dataclasses import replace

from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.loop import StoreFailedError
from blindpost.router.association import SERVICE_METERS, register
from blindpost.router.delivery import may_push, push_head
from blindpost.router.meters import Meter
from blindpost.router.model import ID_SIZE, Domain, ServiceRecord, day_of
from blindpost.router.notifications import deliver_pending
from blindpost.router.state import RouterClient, ServiceSub, Walk
from blindpost.router.turn import Turn
from blindpost.router.view import DAMAGED
from blindpost.router.weights import SERVICE, SERVICE_BYTES
from blindpost.wire.smp.commands import NSUBS, SUBS, UNKNOWN_COUNT
from blindpost.wire.smp.errors import STORE, Code, SMPError
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import ALLS, ERR, SOKS, Response

log = logging.getLogger(__name__)


def find_service(
    turn: Turn,
    asked: Callable[[bytes | None], None],
    role: ServiceRole,
    fingerprint: bytes,
    chain: tuple[bytes, ...],
    account: Hashable = None,
) -> None:
    """A certificate was presented: its service, a new one if there is room, none if it has another role."""
    service_id = turn.view.fingerprints.get(fingerprint)
    if service_id is None and turn.stored.allows(account, SERVICE_BYTES):
        service_id = service_id_of(fingerprint)
        turn.stored.add(account, (service_id, SERVICE), SERVICE_BYTES)
        turn.view.put_service(ServiceRecord(service_id, role, fingerprint, chain, day_of(turn.now)))
    elif service_id is not None:
        known = turn.view.services.get(service_id)
        if known is None or known.role is not role:
            service_id = None
    turn.tell_service(asked, service_id)


def service_id_of(fingerprint: bytes) -> bytes:
    """The id is derived from the certificate, so a forgotten service comes back under the same id."""
    return hashlib.sha256(b"blindpost service\0" + fingerprint).digest()[:ID_SIZE]


def expire_service(turn: Turn, service_id: bytes, before_day: int) -> None:
    """Presenting a certificate creates a service; one that never had a queue is forgotten."""
    service = turn.view.services.get(service_id)
    if service is not None and service.created_day < before_day and service.is_empty:
        turn.view.delete_service(service)


def subscribe_service(
    turn: Turn, client: RouterClient, domain: Domain, service_id: bytes, command: SUBS | NSUBS
) -> Response:
    """SUBS and NSUBS: answered from what is stored; what waits in the queues follows on its own."""
    if client.service is None or client.service.service_id != service_id:
        return ERR(Code.SERVICE)
    held = client.service_sub(domain)
    if held.subscribed:
        turn.count(SERVICE_METERS[domain].duplicate)
        return SOKS(held.members.count, held.members.ids_hash)
    service = turn.view.services.get(service_id)
    if service is None:
        return ERR(Code.AUTH)
    members = service.members(domain)
    agreed = _count_drift(turn, domain, command, members)
    turn.compare(service.service_id, domain, agreed)
    if not held.members.count:
        turn.count(SERVICE_METERS[domain].subscribed)
    turn.count(SERVICE_METERS[domain].queues, max(0, members.count - held.members.count))
    register(turn, client, domain)
    client.service_subs.put(domain, ServiceSub(True, members))
    client.walks.put(domain, Walk(announced=domain is Domain.MESSAGES))
    turn.serve(client)
    return SOKS(members.count, members.ids_hash)


def _count_drift(turn: Turn, domain: Domain, command: SUBS | NSUBS, members: QueueSet) -> bool:
    """Count whether the client's count and hash match the stored ones; never a reason to refuse."""
    meters = SERVICE_METERS[domain]
    more = members.count - command.count
    if command.count == UNKNOWN_COUNT or (more == 0 and members.ids_hash == command.ids_hash):
        turn.count(meters.drift_ok)
        return True
    if more > 0:
        turn.count(meters.drift_more)
        turn.count(meters.drift_more_total, more)
    elif more < 0:
        turn.count(meters.drift_fewer)
        turn.count(meters.drift_fewer_total, -more)
    else:
        turn.count(meters.drift_diff)
    return False


def walk_step(
    turn: Turn, client: RouterClient, domain: Domain, entity_ids: tuple[bytes, ...], following: bytes | None
) -> None:
    """Hand over what waits in these queues, then continue after them or end the walk."""
    service = client.service
    serves = service is not None and turn.state.services(domain).holder(service.service_id) is client
    failed: list[tuple[bytes, SMPError]] = []
    for entity_id in entity_ids if serves else ():
        error = _hand_over(turn, client, domain, entity_id)
        if error is not None:
            failed.append((entity_id, error))
    walk = client.walks.get(domain)
    if walk is None or not serves:
        client.walks.pop(domain)
        return
    errors = (*walk.errors, *failed)
    if following is not None:
        client.walks.put(domain, replace(walk, start=following, errors=errors))
        return
    if walk.announced:
        for entity_id, error in errors:
            turn.push(client, entity_id, ERR(error))
        turn.push(client, b"", ALLS())
    if walk.again:
        client.walks.put(domain, Walk())
    else:
        client.walks.pop(domain)


def walk_failed(turn: Turn, client: RouterClient, domain: Domain, error: StoreFailedError) -> None:
    """The store could not be read: the client gets one error in place of ALLS, and the walk waits.

    It resumes where it stopped once the store can be read again, so that nothing is missed.
    """
    walk = client.walks.get(domain)
    if walk is not None and walk.announced:
        turn.push(client, b"", ERR(STORE(str(error))))
        client.walks.put(domain, replace(walk, announced=False, errors=()))


def _hand_over(turn: Turn, client: RouterClient, domain: Domain, entity_id: bytes) -> SMPError | None:
    """One queue of a walk; its error if it failed, which holds up no other."""
    mark = turn.state.undo.mark()
    if entity_id in turn.view.damaged:
        return STORE(DAMAGED)
    try:
        if domain is Domain.NOTIFICATIONS:
            deliver_pending(turn, client, entity_id)
            return None
        record = turn.view.records.get(entity_id)
        if record is not None and may_push(client, record):
            push_head(turn, client, record)
            turn.count(Meter.RCV_WALK_MESSAGES)
        elif record is not None:
            turn.count(Meter.RCV_WALK_DUPLICATES)
    except Exception:
        log.exception("a queue failed in the walk over a service")
        turn.state.undo.rollback(mark)
        turn.count(Meter.INTERNAL_ERRORS)
        return Code.INTERNAL
    return None
