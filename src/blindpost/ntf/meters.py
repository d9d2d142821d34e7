"""What the notification router counts: numbers only, nothing about a device or a queue."""

from __future__ import annotations

import itertools
from collections import Counter
from enum import Enum

from blindpost.engine.histogram import Histogram
from blindpost.engine.meters import Meters
from blindpost.ntf.model import STORED_CARRIERS


class Meter(Enum):
    """One counter each. Those of the reference come first, by the ends of their names there."""

    TOKENS_CREATED = "tokens_created"
    TOKENS_VERIFIED = "tokens_verified"
    TOKENS_DELETED = "tokens_deleted"
    TOKENS_REPLACED = "tokens_replaced"
    SUBSCRIPTIONS_CREATED = "subscriptions_created"
    SUBSCRIPTIONS_DELETED = "subscriptions_deleted"
    RECEIVED = "notifications_received"
    RECEIVED_AUTH = "notifications_received_auth"
    """For no subscription of ours, or for a token that is not active."""
    DELIVERED = "notifications_delivered"
    FAILED = "notifications_failed"
    PERIODIC_DELIVERED = "notifications_periodic_delivered"
    PERIODIC_FAILED = "notifications_periodic_failed"
    CODES_QUEUED = "notifications_verification_queued"
    CODES_DELIVERED = "notifications_verification_delivered"
    CODES_FAILED = "notifications_verification_failed"
    CODES_INVALID_TOKENS = "notifications_verification_invalid_tkn"

    COMMANDS = "commands"
    REFUSED_AUTH = "refused_auth"
    REFUSED_LIMIT = "refused_limit"
    CODES_WRONG = "codes_wrong"
    CODES_LOCKED = "codes_locked"
    TOKENS_INVALID = "tokens_invalid"
    TOKENS_EXPIRED = "tokens_expired"
    """Never verified, and removed."""
    RETRIES = "push_retries"
    DEFERRED = "pushes_deferred"
    """Left in the store until fewer pushes wait in memory."""
    INTERNAL_ERRORS = "internal_errors"
    STORE_ERRORS = "store_errors"

    @property
    def is_of_reference(self) -> bool:
        return self in _OF_REFERENCE


_OF_REFERENCE = frozenset(itertools.takewhile(lambda meter: meter is not Meter.COMMANDS, Meter))


class NtfMeters(Meters[Meter]):
    """Counters since the start of the process."""

    __slots__ = ("funnel", "push_s", "transitions")

    def __init__(self) -> None:
        super().__init__(Meter)
        self.funnel: Counter[tuple[str, str, str]] = Counter()
        """How many notifications entered which state, why, and by which provider, in the journal's words."""
        self.transitions: Counter[tuple[str, str, str]] = Counter()
        """How many tokens went from which state to which, and why."""
        self.push_s = {carrier: Histogram() for carrier in STORED_CARRIERS}
        """From NMSG until the provider accepted the push."""
