"""`export-state`: queues and claims of services for the pipeline's audit, while the router may run."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindpost.crypto.ids_hash import id_hash
from blindpost.engine.loop import StoreFailedError
from blindpost.journal.keeping import can_seal
from blindpost.router.bulk import CHUNK_ITEMS, chunks
from blindpost.router.model import Domain, ServiceRecord
from blindpost.router.running.journaling import SERVICE_ROLES
from blindpost.router.running.settings import RouterPlace
from blindpost.router.running.stores import DATA_FILE, in_database, store_name
from blindpost.router.state_reading import QueueState, StateReader, Waiting, lmdb_state, postgres_state
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import DAMAGED, read_file, telling
from blindpost.serving.journal import journal_name
from blindpost.store.contract import StoreVersionError
from blindpost.store.file_locks import is_held
from blindpost.wire.smp.errors import BLOCKED
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.text import unb64

if TYPE_CHECKING:
    from blindpost.journal.state import StateWriter

Progress = Callable[[str, int, int | None], None]

_HASHES = {"ids hash": "ids_hash", "content hash": "content_hash"}
_OF_SERVICE = "service "
_ROLES = {ServiceRole.MESSAGING: Domain.MESSAGES, ServiceRole.NOTIFIER: Domain.NOTIFICATIONS}


@dataclass(frozen=True, slots=True)
class Exported:
    """A snapshot and how much is in it."""

    snapshot: str
    queues: int
    """Rows: a queue with a notifier has two."""
    claims: int
    damaged: int
    online: bool
    migration_lines: int
    """Lines of the certificate of the import that filled this router."""
    deleted: int = 0
    """Folders of days with exports that were too old."""


async def export_state(
    place: RouterPlace, target: Path, progress: Progress, certificate: Path | None = None
) -> Exported:
    """Write the state of all queues, and the certificate of an import, to a journal's folder.

    Exports in it that are older than `lab_days` are deleted.
    """
    if not can_seal():
        raise OperatorError(
            "writing Parquet needs pyarrow. Install it with `pip install 'blindpost[pipeline]'`."
        )
    if not in_database(place):
        place.require_store(place.store / DATA_FILE)
    # Imported by this command only: no server loads Arrow.
    from blindpost.journal.seal import forget_exports

    name = journal_name(place.settings.journal, place.settings.address.hosts[0])
    opened = postgres_state(place.settings.store.dsn) if in_database(place) else lmdb_state(place.store)
    try:
        with telling(target):
            deleted = forget_exports(target, place.settings.journal.lab_days)
            async with opened as reader:
                exported = await _write(reader, target, name, is_held(place.lock), progress)
            lines = 0 if certificate is None else write_certificate(target, name, certificate)
            return replace(exported, migration_lines=lines, deleted=deleted)
    except (StoreFailedError, StoreVersionError) as error:
        raise OperatorError(f"{store_name(place)}: {error}.") from error


async def _write(reader: StateReader, target: Path, name: str, online: bool, progress: Progress) -> Exported:
    from blindpost.journal.state import StateWriter

    writer = StateWriter(target, name, side="router", online=online)
    total, done = await reader.queue_count(), 0
    async for services in chunks(reader.services, CHUNK_ITEMS):
        for service in services.items:
            _add_claims(writer, service)
    async for queues in chunks(reader.queues, CHUNK_ITEMS):
        for queue in queues.items:
            _add_queue(writer, queue)
        done += len(queues.items)
        progress("queues", done, total)
        await asyncio.sleep(0)
    writer.finish()
    counts = writer.counts
    return Exported(
        writer.snapshot, counts["s_queues"], counts["s_service_claims"], reader.damaged, online, 0
    )


def _add_claims(writer: StateWriter, service: ServiceRecord) -> None:
    for domain in Domain:
        members = service.members(domain)
        if members.count or _ROLES[service.role] is domain:
            writer.add_claim(service.service_id, SERVICE_ROLES[domain], members.count, members.ids_hash)


def _add_queue(writer: StateWriter, queue: QueueState) -> None:
    record = queue.record
    status = "blocked" if isinstance(record.status, BLOCKED) else record.status.value
    writer.add_queue(
        SERVICE_ROLES[Domain.MESSAGES],
        record.recipient_id,
        id_hash(record.recipient_id),
        record.service_id,
        status,
        None if record.mode is None else record.mode.name.lower(),
        record.sender_key is not None,
        *_waiting(writer, queue.messages),
        queue.full,
        record.updated_day,
    )
    notifier = record.notifier
    if notifier is not None:
        writer.add_queue(
            SERVICE_ROLES[Domain.NOTIFICATIONS],
            notifier.notifier_id,
            id_hash(notifier.notifier_id),
            notifier.service_id,
            *(None, None, None),
            *_waiting(writer, queue.notifications),
            *(None, None),
        )


def _waiting(writer: StateWriter, waiting: Waiting) -> tuple[int, int | None]:
    return waiting.count, None if waiting.since is None else max(0, writer.at_s - waiting.since)


def write_certificate(target: Path, name: str, certificate: Path) -> int:
    """The certificate that `import` left as rows of the pipeline; how many."""
    from blindpost.journal.state import write_migration

    content = read_file(certificate)
    try:
        sides = json.loads(content)
        lines = [line for side in ("source", "result") for line in _lines(side, sides[side])]
    except DAMAGED as error:
        raise OperatorError(
            f"{certificate}: the certificate of `blindpost router import` expected."
        ) from error
    migration = hashlib.sha256(content).hexdigest()[:16]
    write_migration(target, name, migration, int(certificate.stat().st_mtime), lines)
    return len(lines)


def _lines(side: str, certificate: Mapping[str, int | str]) -> list[dict[str, Any]]:
    """One line for each thing in a certificate, from its three separately named values."""
    found: dict[str, dict[str, Any]] = {}
    for text, value in certificate.items():
        name, _, kind = text.rpartition(": ")
        column = _HASHES.get(kind, "count")
        found.setdefault(name if column != "count" else text, {"side": side})[column] = value
    for text, line in found.items():
        line["name"] = text
        if text.startswith(_OF_SERVICE):
            service, _, domain = text.removeprefix(_OF_SERVICE).rpartition(": ")
            role = SERVICE_ROLES[Domain[domain.upper()]]
            line |= {"name": "service", "service_id": unb64(service), "role": role}
    return list(found.values())
