"""What the delivery service counts: numbers only, nothing about a queue or a caller."""

from __future__ import annotations

from enum import Enum

from blindpost.engine.histogram import Histogram
from blindpost.engine.meters import Meters


class Meter(Enum):
    """One counter each."""

    ENQUEUED = "enqueued"
    ENQUEUED_BYTES = "enqueued_bytes"
    HANDED_OUT = "handed_out"
    FINISHED = "finished"
    """Payloads removed because their answer was finished."""
    ACKNOWLEDGED = "acknowledged"
    PUT_BACK = "put_back"
    DISPLACED = "displaced"
    """Holds and leases that were overdue and ended by another caller."""
    REFUSED = "refused"
    REFUSED_AUTH = "refused_auth"
    REFUSED_FULL = "refused_full"
    REFUSED_WAITS = "refused_waits"
    WAITS = "waits"
    WAKES = "wakes"
    """Waiting calls checked again because something arrived in their queue."""
    WAITS_EXPIRED = "waits_expired"
    WAITS_CANCELED = "waits_canceled"
    KEY_PACKAGES_UPLOADED = "key_packages_uploaded"
    KEY_PACKAGES_FETCHED = "key_packages_fetched"
    BROKEN_STREAMS = "broken_streams"
    INTERNAL_ERRORS = "internal_errors"
    STORE_ERRORS = "store_errors"


class DsMeters(Meters[Meter]):
    """Counters since the start of the process."""

    __slots__ = ("wait_s",)

    def __init__(self) -> None:
        super().__init__(Meter)
        self.wait_s = Histogram()
        """How long calls waited that were answered with payloads."""
