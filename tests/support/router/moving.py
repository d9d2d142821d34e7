"""Imports into stores of a test's own, and what came of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blindpost.engine.undo import Undo
from blindpost.router.bulk import BulkStore, WholeQueue
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.changes import Needed, Wanted
from blindpost.router.config import RouterRules
from blindpost.router.model import Notification, ServiceRecord, StoredMessage
from blindpost.router.moving.certificate import Certificate, certificate_of
from blindpost.router.moving.importing import Importer, Source
from blindpost.router.tables import LmdbTables, RouterStore
from blindpost.router.view import View
from blindpost.store.contract import Durability
from blindpost.wire.message_log import (
    MessageLine,
    NotificationLine,
    encode_message_line,
    encode_notification_line,
)
from blindpost.wire.store_log import StoreRecord, encode_store_line

NOW = 1_700_000_000
RULES = RouterRules()


@dataclass
class Imported:
    """What an import left in its store."""

    counts: dict[str, int]
    report: list[str]
    source: Certificate
    result: Certificate
    queues: dict[bytes, WholeQueue]
    messages: dict[bytes, list[StoredMessage]]
    notifications: list[Notification]
    services: dict[bytes, ServiceRecord]

    @property
    def reasons(self) -> list[str]:
        """Why lines were not taken, without where they are."""
        return [line.split(": ", 1)[1] for line in self.report]


Line = StoreRecord | bytes


def store_log(folder: Path, lines: Iterable[Line]) -> Path:
    path = folder / "smp-server-store.log"
    raw = (line if isinstance(line, bytes) else encode_store_line(line) for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


def message_log(folder: Path, lines: Iterable[MessageLine | bytes]) -> Path:
    path = folder / "smp-server-messages.log"
    raw = (line if isinstance(line, bytes) else encode_message_line(line) for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


def notification_log(folder: Path, lines: Iterable[NotificationLine | bytes]) -> Path:
    path = folder / "smp-server-ntfs.log"
    raw = (line if isinstance(line, bytes) else encode_notification_line(line) for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


def files(
    folder: Path,
    lines: Iterable[Line],
    messages: Sequence[MessageLine | bytes] = (),
    notifications: Sequence[NotificationLine | bytes] = (),
    journal: Path | None = None,
) -> Source:
    return Source(
        store_log(folder, lines),
        message_log(folder, messages) if messages else None,
        journal,
        notification_log(folder, notifications) if notifications else None,
    )


def importer(
    source: Source, store: RouterStore, bulk: BulkStore, folder: Path, chunk_lines: int = 4_000
) -> Importer:
    report = folder / "report"
    return Importer(source, store, bulk, report, RULES, now=lambda: NOW, chunk_lines=chunk_lines)


async def imported(folder: Path, source: Source, chunk_lines: int = 4_000) -> Imported:
    """Import into a new store; the certificates are compared here, for every test."""
    tables = LmdbTables(folder / "store", Durability.OS)
    bulk = LmdbBulk(tables)
    try:
        work = importer(source, tables, bulk, folder, chunk_lines)
        assert await work.run()
        found = await seen(work, tables, bulk, folder)
    finally:
        tables.close()
    assert found.source == found.result
    assert found.result["derived rows that disagree"] == 0
    return found


async def seen(work: Importer, store: RouterStore, bulk: BulkStore, folder: Path) -> Imported:
    queues = {queue.record.recipient_id: queue for queue in (await bulk.queues(b"", 10_000)).items}
    messages: dict[bytes, list[StoredMessage]] = {}
    for held in (await bulk.messages(b"", 100_000)).items:
        messages.setdefault(held.recipient_id, []).append(held.message)
    await _found_by_every_id(store, queues)
    return Imported(
        work.mark.counts,
        (folder / "report").read_text().splitlines(),
        await work.check(),
        await certificate_of(bulk),
        queues,
        messages,
        list((await bulk.notifications(b"", 100_000)).items),
        {service.service_id: service for service in (await bulk.services(b"", 1_000)).items},
    )


async def _found_by_every_id(store: RouterStore, queues: dict[bytes, WholeQueue]) -> None:
    """The router finds each queue by each of its ids, and finds what belongs to it."""
    view = View(Undo())
    wanted, needed = Wanted(), Needed()
    for recipient_id, queue in queues.items():
        record = queue.record
        wanted.senders.add(record.sender_id)
        needed.ends.add(recipient_id)
        if record.notifier is not None:
            wanted.notifiers.add(record.notifier.notifier_id)
        if record.link_id is not None:
            wanted.links.add(record.link_id)
            needed.link_data.add(record.link_id)
    await store.load(wanted, view)
    await store.load_needed(needed, view)
    for recipient_id, queue in queues.items():
        record = queue.record
        assert view.records.get(recipient_id) == record
        assert view.senders.get(record.sender_id) == recipient_id
        assert view.ends(recipient_id) == queue.ends
        if record.notifier is not None:
            assert view.notifiers.get(record.notifier.notifier_id) == recipient_id
        if record.link_id is not None:
            assert view.links.get(record.link_id) == recipient_id
            assert view.link_data.get(record.link_id) == queue.link
