"""The size of rows: bytes counted for everything that strangers make a router store.

A row counts as its largest size, so that a store is weighed by its number of rows, without reading them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blindpost.router.changes import Change, DeleteLink, DeleteMessage, DeleteQueue, DeleteService
from blindpost.serving.stored import Stored

QUEUE_BYTES = 1 << 10
MESSAGE_BYTES = 16 << 10
LINK_BYTES = 16 << 10
SERVICE_BYTES = 16 << 10
_WEIGHTS = {
    "queues": QUEUE_BYTES,
    "messages": MESSAGE_BYTES,
    "links": LINK_BYTES,
    "notifications": 256,
    "services": SERVICE_BYTES,
    "members": 128,
    "pending": 128,
}
QUEUE, LINK, SERVICE = -1, -2, -3
"""The places of a queue's own row, of a link's and of a service's, beside those of messages."""


def stored_bytes(counts: Mapping[str, int]) -> int:
    """The most that a store with this many rows in each table holds."""
    return sum(weight * counts[table] for table, weight in _WEIGHTS.items())


def left(stored: Stored, changes: Sequence[Change]) -> None:
    """These changes are durable: what they removed no longer counts against whoever added it."""
    for change in changes:
        match change:
            case DeleteMessage(recipient_id, number):
                stored.gone((recipient_id, number), MESSAGE_BYTES)
            case DeleteLink(link_id):
                stored.gone((link_id, LINK), LINK_BYTES)
            case DeleteService(service_id):
                stored.gone((service_id, SERVICE), SERVICE_BYTES)
            case DeleteQueue(record, ends):
                stored.gone((record.recipient_id, QUEUE), QUEUE_BYTES)
                if record.link_id is not None:
                    stored.gone((record.link_id, LINK), LINK_BYTES)
                for number in range(ends.head, ends.tail):
                    stored.gone((record.recipient_id, number), MESSAGE_BYTES)
