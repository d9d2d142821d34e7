"""The router's tables in PostgreSQL: a batch is one read, one more if messages are needed, and one commit.

Each of them is one statement.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

from blindpost.router import postgres_schema as schema
from blindpost.router.changes import HEADS_OF_ACK, Change, Needed, Wanted
from blindpost.router.model import EMPTY, Domain, Ends, Notification, QueueRecord, StoredMessage
from blindpost.router.postgres_work import Batch
from blindpost.router.records import link_from_row, notification_from_row, queue_from_row, service_from_row
from blindpost.router.tables import CACHE_MAX, TABLES, UNREADABLE
from blindpost.router.view import View
from blindpost.store.contract import Durability
from blindpost.store.postgres import PostgresStore

log = logging.getLogger(__name__)


class PostgresTables:
    """The shared store of a router; it owns its database."""

    def __init__(self, store: PostgresStore) -> None:
        """Use `open`."""
        self.store = store
        self._decoded: OrderedDict[bytes, tuple[bytes, QueueRecord]] = OrderedDict()

    @classmethod
    async def open(
        cls, dsn: str, durability: Durability = Durability.FULL, *, in_turn: bool = False
    ) -> PostgresTables:
        return cls(await PostgresStore.open(dsn, schema.SCHEMA, durability, in_turn=in_turn))

    async def load(self, wanted: Wanted, view: View) -> None:
        named = {
            schema.RECIPIENTS: wanted.recipients,
            schema.SENDERS: wanted.senders,
            schema.NOTIFIERS: wanted.notifiers,
            schema.LINKS: wanted.links,
            schema.SERVICES: wanted.services,
            schema.FINGERPRINTS: wanted.fingerprints,
        }
        asked = {kind: list(ids) for kind, ids in named.items() if ids}
        if not asked:
            return
        rows = await self.store.fetch(schema.load_statement(tuple(asked)), *asked.values())
        for kind, entity_id, owner, record, head, tail, can_write in rows:
            self._fill(view, kind, entity_id, owner, record)
            if kind in schema.OF_QUEUES and record is not None:
                view.fill_ends(owner, EMPTY if head is None else Ends(head, tail, can_write))

    def _fill(self, view: View, kind: int, entity_id: bytes, owner: bytes, record: bytes | None) -> None:
        match kind:
            case schema.SENDERS:
                view.senders.fill(entity_id, owner)
            case schema.NOTIFIERS:
                view.notifiers.fill(entity_id, owner)
            case schema.LINKS:
                view.links.fill(entity_id, owner)
            case schema.FINGERPRINTS:
                view.fingerprints.fill(entity_id, owner)
            case schema.SERVICES if record is not None:
                view.services.fill(entity_id, service_from_row(record))
        if kind in schema.OF_QUEUES and record is not None:
            try:
                view.records.fill(owner, self._queue(owner, record))
            except UNREADABLE:
                log.exception("the row of a queue cannot be read")
                view.damaged.add(owner)

    def _queue(self, recipient_id: bytes, row: bytes) -> QueueRecord:
        """The record of a row; one that was decoded lately and did not change is not decoded again."""
        kept = self._decoded.get(recipient_id)
        if kept is not None and kept[0] == row:
            return kept[1]
        record = queue_from_row(row)
        if kept is None and len(self._decoded) >= CACHE_MAX:
            self._decoded.popitem(last=False)
        self._decoded[recipient_id] = (row, record)
        return record

    async def load_needed(self, needed: Needed, view: View) -> None:
        arguments: list[Sequence[Any] | int] = []
        asked = [owner for owner in needed.ends if _has_to_be_asked(view, needed, owner)]
        if asked:
            arguments += [asked, [needed.messages.get(owner, 0) for owner in asked]]
        if asked and needed.expire:
            arguments += [[owner in needed.expire for owner in asked], needed.expire_before]
        arguments += [list(ids) for ids in (needed.link_data, needed.notifications) if ids]
        if not arguments:
            return
        statement = schema.needed_statement(
            bool(asked), bool(needed.expire), bool(needed.link_data), bool(needed.notifications)
        )
        rows = await self.store.fetch(statement, *arguments)
        for recipient_id in asked:
            view.fill_ends(recipient_id, EMPTY)
        pending: defaultdict[bytes, dict[int, Notification]] = defaultdict(dict)
        for kind, entity_id, head, tail, can_write, number, seconds, msg_id, notify, body in rows:
            if kind == schema.LINK_DATA:
                view.link_data.fill(entity_id, link_from_row(body)[1])
            elif kind == schema.NOTIFICATIONS:
                pending[entity_id][number] = notification_from_row(entity_id, body)
            else:
                view.fill_ends(entity_id, Ends(head, tail, can_write))
                if number is not None:
                    view.fill_message(entity_id, number, StoredMessage(msg_id, seconds, notify, body))
        for notifier_id in needed.notifications:
            found = pending.get(notifier_id, {})
            view.fill_pending(notifier_id, tuple(found[place] for place in sorted(found)))

    async def commit(self, changes: Sequence[Change]) -> None:
        """As `RouterStore`; `OutcomeUnknownError` while it is not known whether the changes are there."""
        if changes:
            batch = Batch(changes)
            await self.store.commit(batch.phases, {"notifiers": batch.notifiers} if batch.notifiers else {})

    async def waiting(
        self, domain: Domain, service_id: bytes, start: bytes, limit: int
    ) -> tuple[tuple[bytes, ...], bytes | None]:
        rows = await self.store.fetch(schema.WAITING, domain.value, service_id, start, limit + 1)
        found = tuple(row["entity_id"] for row in rows)
        return found[:limit], found[limit] if len(found) > limit else None

    async def expired(
        self, before: int, start: bytes, limit: int
    ) -> tuple[list[tuple[bytes, int]], bytes | None]:
        rows = await self.store.fetch(schema.EXPIRED, before, start, limit + 1)
        following = rows[limit]["recipient_id"] if len(rows) > limit else None
        found = [(row["recipient_id"], row["expired"]) for row in rows[:limit] if row["expired"]]
        return found, following

    async def notified(self, start: bytes, limit: int) -> tuple[tuple[bytes, ...], bytes | None]:
        rows = await self.store.fetch(schema.NOTIFIED, start, limit + 1)
        found = tuple(row["notifier_id"] for row in rows)
        return found[:limit], found[limit] if len(found) > limit else None

    @property
    def loaded(self) -> int:
        return len(self._decoded)

    def counts(self) -> dict[str, int]:
        """A sender id is part of its queue's row, so there are as many senders as queues."""
        counts = {**self.store.counts, "senders": self.store.counts["queues"]}
        return {table: counts[table] for table in TABLES}

    async def probe(self) -> None:
        await self.store.probe()

    def close(self) -> None:
        self.store.close()


def _has_to_be_asked(view: View, needed: Needed, recipient_id: bytes) -> bool:
    """Whether a queue needs more than its ends, which were read with its record."""
    ends = view.loaded_ends(recipient_id)
    if ends is None:
        return True
    if recipient_id in needed.expire:
        return bool(ends.size)
    count = min(ends.size, needed.messages.get(recipient_id, 0))
    is_unseen = needed.messages.get(recipient_id) == HEADS_OF_ACK and count == 1
    return count > 0 and not (is_unseen and needed.acknowledged.get(recipient_id) == ends.head)
