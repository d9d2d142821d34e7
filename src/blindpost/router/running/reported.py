"""Queues that were reported: found by what a report names, and the operator's own log of what was done.

A report holds a link, or the id of a sender or a link. The log is optional and local: it holds ids, so it is
for the operator alone and never leaves the router's folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blindpost.crypto.link_data import contact_link_secrets
from blindpost.engine.loop import StoreFailedError
from blindpost.router.bulk import CHUNK_ITEMS, chunks
from blindpost.router.running.settings import RouterPlace
from blindpost.router.running.stores import in_database, store_name
from blindpost.router.state_reading import lmdb_state, postgres_state
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import PRIVATE, telling
from blindpost.store.contract import StoreVersionError
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError
from blindpost.wire.links.full import full_link_from_text, is_full_link
from blindpost.wire.links.short import ShortInvitation, short_link_from_text
from blindpost.wire.smp.errors import BLOCKED
from blindpost.wire.text import b64, unb64


def reported_id(text: str, fingerprint: bytes) -> bytes:
    """The sender id or link id that a report names, in a link of this router or by itself."""
    text = text.strip()
    try:
        if is_full_link(text):
            queues = full_link_from_text(text).queues
            ours = [queue for queue in queues if queue.address.server.key_hash == fingerprint]
            if not ours:
                raise OperatorError("this link leads to another router.")
            return ours[0].address.sender_id
        if "/" in text:
            link = short_link_from_text(text)
            _check_ours(link.server, fingerprint)
            if isinstance(link, ShortInvitation):
                return link.link_id
            return contact_link_secrets(link.link_key)[0]
        return unb64(text)
    except WireError as error:
        raise OperatorError("a link, or a sender or link id in base64url expected.") from error


def _check_ours(server: Server, fingerprint: bytes) -> None:
    """A link that names its router by the host alone is trusted."""
    if server.key_hash and server.key_hash != fingerprint:
        raise OperatorError("this link leads to another router.")


class OperatorLog:
    """What was done to which queue, one JSON object on a line; nothing without a file."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def note(self, action: str, queue_id: bytes, reason: str, remark: str) -> None:
        if self._file is None:
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "action": action,
            "id": b64(queue_id),
            **({"reason": reason} if reason else {}),
            **({"note": remark} if remark else {}),
        }
        with telling(self._file):
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                file.flush()
                os.fsync(descriptor)

    def blocks(self) -> dict[str, Mapping[str, Any]]:
        """The last block of each id; lines that are not ours are skipped."""
        found: dict[str, Mapping[str, Any]] = {}
        if self._file is None or not self._file.exists():
            return found
        with telling(self._file):
            lines = self._file.read_text(encoding="utf-8", errors="replace").split("\n")
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["action"] == "block":
                    found[str(entry["id"])] = entry
            except (ValueError, LookupError, TypeError):
                continue
        return found


def log_of(place: RouterPlace) -> OperatorLog:
    named = place.settings.queues.log
    return OperatorLog(place.folder / named if named else None)


@dataclass(frozen=True, slots=True)
class Blocked:
    """One blocked queue."""

    sender_id: str
    reason: str
    since: str
    note: str


async def blocked_queues(place: RouterPlace) -> list[Blocked]:
    """All blocked queues of the store at this moment, with what the log says about them."""
    logged = log_of(place).blocks()
    opened = postgres_state(place.settings.store.dsn) if in_database(place) else lmdb_state(place.store)
    found: list[Blocked] = []
    try:
        async with opened as reader:
            async for chunk in chunks(reader.queues, CHUNK_ITEMS):
                for queue in chunk.items:
                    record = queue.record
                    if not isinstance(record.status, BLOCKED):
                        continue
                    sender_id = b64(record.sender_id)
                    ids = [sender_id] if record.link_id is None else [sender_id, b64(record.link_id)]
                    entry = next((logged[one] for one in ids if one in logged), {})
                    reason = record.status.reason.value.decode()
                    found.append(
                        Blocked(sender_id, reason, str(entry.get("time", "")), str(entry.get("note", "")))
                    )
    except (StoreFailedError, StoreVersionError) as error:
        raise OperatorError(f"{store_name(place)}: {error}.") from error
    return found
