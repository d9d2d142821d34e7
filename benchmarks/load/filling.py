"""Stores that are full before the router starts, and keys that need not be kept since they can be derived."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Iterator

from benchmarks.load.process import Place
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.router.changes import AddMessage, Change, PutEnds, PutQueue, PutService, SetMember, SetPending
from blindpost.router.model import (
    DAY_S,
    ID_SIZE,
    Domain,
    Ends,
    Notifier,
    QueueRecord,
    ServiceRecord,
    StoredMessage,
    day_of,
)
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.values import QueueMode

FILL_STEP = 5_000
BODY = bytes(16_000)


def derived(what: str, number: int, size: int) -> bytes:
    return hashlib.sha512(f"{what} {number}".encode()).digest()[:size]


def recipient_id(number: int) -> bytes:
    return derived("recipient id", number, ID_SIZE)


def sender_id(number: int) -> bytes:
    return derived("sender id", number, ID_SIZE)


def recipient_key(number: int) -> PrivateKey:
    return PrivateKey(Algorithm.ED25519, derived("recipient key", number, 32))


def sender_key(number: int) -> PrivateKey:
    return PrivateKey(Algorithm.ED25519, derived("sender key", number, 32))


def notifier_id(number: int) -> bytes:
    return derived("notifier id", number, ID_SIZE)


def notifier_key(number: int) -> PrivateKey:
    return PrivateKey(Algorithm.ED25519, derived("notifier key", number, 32))


@functools.cache
def some_dh_key() -> PublicKey:
    return PrivateKey(Algorithm.X25519, derived("dh key", 0, 32)).public


def queue(number: int, *, day: int, key: PublicKey, service_id: bytes | None = None) -> QueueRecord:
    """Queue `number`, secured; the key of its sender is derived if that of its recipient is."""
    return QueueRecord(
        recipient_id(number),
        sender_id(number),
        (key,),
        some_dh_key().raw,
        Secret(derived("secret", number, 32)),
        some_dh_key().raw,
        QueueMode.MESSAGING,
        sender_key=key,
        updated_day=day,
        service_id=service_id,
    )


async def fill(
    store: Place, count: int, *, usable: bool = True, used_today: bool = True, first: int = 0
) -> None:
    """Put `count` queues into a store. `usable`: each has the key that is derived for it; otherwise all have
    the first one's."""
    day = day_of(time.time()) - (0 if used_today else DAY_S)
    common = recipient_key(0).public

    def rows() -> Iterator[Change]:
        for number in range(first, first + count):
            yield PutQueue(
                queue(number, day=day, key=recipient_key(number).public if usable else common), None
            )

    await _commit_all(store, rows())


async def fill_service(store: Place, service_id: bytes, who: Credentials, count: int, pending: int) -> None:
    """A service with `count` queues; in the first `pending` of them a message waits."""
    now = int(time.time())
    day, common = day_of(now), recipient_key(0).public

    def rows() -> Iterator[Change]:
        members = QueueSet.of(recipient_id(number) for number in range(count))
        yield PutService(
            ServiceRecord(service_id, ServiceRole.MESSAGING, who.fingerprint, who.chain, day, queues=members)
        )
        for number in range(count):
            record = queue(number, day=day, key=common, service_id=service_id)
            yield PutQueue(record, None)
            yield SetMember(Domain.MESSAGES, service_id, record.recipient_id, True)
            if number < pending:
                message = StoredMessage(derived("message id", number, ID_SIZE), now, False, BODY)
                yield AddMessage(record.recipient_id, 0, message)
                yield PutEnds(record.recipient_id, Ends(0, 1))
                yield SetPending(Domain.MESSAGES, service_id, record.recipient_id, True)

    await _commit_all(store, rows())


async def fill_notified(store: Place, numbers: range) -> None:
    """Queues whose notifications may be subscribed to, with keys that are derived."""
    day = day_of(time.time())

    def rows() -> Iterator[Change]:
        for number in numbers:
            notifier = Notifier(
                notifier_id(number), notifier_key(number).public, Secret(bytes(32)), some_dh_key()
            )
            record = queue(number, day=day, key=sender_key(number).public)
            yield PutQueue(record._replace(notifier=notifier), None)

    await _commit_all(store, rows())


async def _commit_all(store: Place, changes: Iterator[Change]) -> None:
    tables = await store.open()
    step: list[Change] = []
    for change in changes:
        step.append(change)
        if len(step) >= FILL_STEP:
            await tables.commit(step)
            step.clear()
    await tables.commit(step)
    tables.close()
