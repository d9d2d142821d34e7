"""`ntf-server-stats.log`: what ntf-server calls our counters."""

from __future__ import annotations

from blindpost.ntf.meters import Meter
from blindpost.serving.old_stats import OldNames

NAMES = OldNames(
    "ntf-server",
    {
        "tknCreated": Meter.TOKENS_CREATED,
        "tknVerified": Meter.TOKENS_VERIFIED,
        "tknDeleted": Meter.TOKENS_DELETED,
        "tknReplaced": Meter.TOKENS_REPLACED,
        "subCreated": Meter.SUBSCRIPTIONS_CREATED,
        "subDeleted": Meter.SUBSCRIPTIONS_DELETED,
        "ntfReceived": Meter.RECEIVED,
        "ntfReceivedAuth": Meter.RECEIVED_AUTH,
        "ntfDelivered": Meter.DELIVERED,
        "ntfFailed": Meter.FAILED,
        "ntfCronDelivered": Meter.PERIODIC_DELIVERED,
        "ntfCronFailed": Meter.PERIODIC_FAILED,
        "ntfVrfQueued": Meter.CODES_QUEUED,
        "ntfVrfDelivered": Meter.CODES_DELIVERED,
        "ntfVrfFailed": Meter.CODES_FAILED,
        "ntfVrfInvalidTkn": Meter.CODES_INVALID_TOKENS,
    },
    first="tknCreated",
)
