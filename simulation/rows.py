"""What servers and agents keep, looked at when all is well: what is kept twice must agree."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

from blindpost.crypto.ids_hash import QueueSet
from blindpost.router.audit import audit
from blindpost.router.bulk import WholeQueue
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.server import Router
from blindpost.router.tables import ENDS, LINKS, MESSAGES, NOTIFIERS, SENDERS, LmdbTables

_SERVICES = "SELECT user_id, host, port, service_queue_count, service_queue_ids_hash FROM client_services"
_QUEUES_OF = (
    "SELECT rcv_id FROM rcv_queues"
    " WHERE user_id = ? AND host = ? AND port = ? AND rcv_service_assoc AND NOT deleted"
)
QUEUES_MAX = 10_000
_ROWS = (
    "SELECT 'tokens', count(*) FROM tokens UNION ALL SELECT 'subscriptions', count(*) FROM subscriptions"
    " UNION ALL SELECT 'notifications', count(*) FROM notifications"
)


async def wrong_in_router(tables: LmdbTables, router: Router) -> str | None:
    """What is wrong with a router's rows, or with what it keeps in memory."""
    bulk = LmdbBulk(tables)
    found = await audit(bulk)
    if not found.clean:
        return f"an audit finds {found.values()}"
    queues = {queue.record.recipient_id: queue for queue in (await bulk.queues(b"", QUEUES_MAX)).items}
    return next(iter((*_wrong_rows(tables, queues), *_wrong_memory(router))), None)


def _wrong_rows(tables: LmdbTables, queues: Mapping[bytes, WholeQueue]) -> Iterator[str]:
    """Every name of a queue has a row and no other has one; what is in memory of queues is theirs."""
    counts, records = tables.counts(), [queue.record for queue in queues.values()]
    rows = {
        SENDERS: len(records),
        NOTIFIERS: sum(record.notifier is not None for record in records),
        LINKS: sum(record.link_id is not None for record in records),
        MESSAGES: sum(queue.ends.size for queue in queues.values()),
    }
    for table, count in rows.items():
        if counts[table] != count:
            yield f"{counts[table]} {table} are stored, and queues have {count}"
    if counts[ENDS] > len(records):
        yield "it keeps the ends of queues that are gone"
    for recipient_id, record in tables._cache.items():
        if recipient_id not in queues or queues[recipient_id].record != record:
            yield "it has another record of a queue in memory than in its store"
    if not queues.keys().isdisjoint(tables._unknown):
        yield "it takes a queue for unknown that it has"


def _wrong_memory(router: Router) -> Iterator[str]:
    """Only connections that there are receive, each what it is registered for, and nothing waits for them."""
    state = router.plan.state
    clients = {member.client for member in router.by_session.values()}
    for registry in (state.queues, state.notifiers, *state._by_service.values()):
        if any(client not in clients for _, client in registry._holders.items()):
            yield "a connection that is gone is subscribed still"
    for client in clients:
        if client.congested or client.has_work:
            yield "something waits for a connection that takes everything"
        for recipient_id, sub in client.subs.items():
            if sub.delivered is not None:
                yield "a message is in flight, and no queue has one"
            if state.queues.holder(recipient_id) is not client:
                yield "a connection is subscribed to a queue that another one holds"
        if any(state.notifiers.holder(notifier_id) is not client for notifier_id in client.notifier_ids):
            yield "a connection is subscribed to a notifier that another one holds"


def wrong_in_agent(sql: sqlite3.Connection) -> str | None:
    """What is wrong with an agent's rows: those of what is gone, or a service that counts other queues."""
    if gone := sql.execute("PRAGMA foreign_key_check").fetchall():
        return f"{len(gone)} rows belong to something that is gone"
    for user_id, host, port, count, ids_hash in sql.execute(_SERVICES).fetchall():
        queues = QueueSet.of(rcv_id for (rcv_id,) in sql.execute(_QUEUES_OF, (user_id, host, port)))
        if QueueSet(count, ids_hash) != queues:
            return f"it counts {count} queues of its service at {host}, and has {queues}"
    return None


def wrong_in_ntf(sql: sqlite3.Connection) -> str | None:
    """What is wrong with the rows of a notification router."""
    if gone := sql.execute("PRAGMA foreign_key_check").fetchall():
        return f"{len(gone)} rows belong to something that is gone"
    counters = dict(sql.execute("SELECT name, value FROM counters").fetchall())
    for table, rows in sql.execute(_ROWS):
        if counters.get(table, 0) != rows:
            return f"{counters.get(table, 0)} {table} are counted, {rows} are stored"
    return None
