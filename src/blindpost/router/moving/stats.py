"""`smp-server-stats.log`: what smp-server calls our counters."""

from __future__ import annotations

from blindpost.router.meters import Meter
from blindpost.serving.old_stats import OldNames

NAMES = OldNames(
    "smp-server",
    {meter.value: meter for meter in Meter},
    first=Meter.QUEUES_CREATED.value,
    sections=frozenset({"pRelays", "pRelaysOwn", "pMsgFwds", "pMsgFwdsOwn", "rcvServices", "ntfServices"}),
    spelled={"assocUpdatedt": "assocUpdated"},
)
