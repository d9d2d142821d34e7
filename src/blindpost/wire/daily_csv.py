"""The columns of the reference router's daily statistics."""

from __future__ import annotations


def _names(names: str) -> list[str]:
    return names.split()


def _with(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(f"{prefix} {name}" for name in _names(names))


_PERIODS = "day week month"
_PROXY = "requests successes errorsConnect errorsCompat errorsOther"
_SERVICES = "assocNew assocDuplicate assocUpdated assocRemoved subCount subDuplicate subQueues subEnd"

ROUTER_COLUMNS: tuple[str, ...] = (
    *_names("qCreated qSecured qDeletedAll msgSent msgRecv"),
    *_with("activeQueues", _PERIODS),
    *_names("msgSentNtf msgRecvNtf"),
    *_with("activeQueuesNtf", _PERIODS),
    *_names("qCount msgCount msgExpired qDeletedNew qDeletedSecured"),
    *_with("pRelays", _PROXY),
    *_with("pRelaysOwn", _PROXY),
    *_with("pMsgFwds", _PROXY),
    *_with("pMsgFwdsOwn", _PROXY),
    *_names("pMsgFwdsRecv qSub qSubAuth qSubDuplicate qSubProhibited msgSentAuth msgSentQuota msgSentLarge"),
    *_names("msgNtfs msgNtfNoSub msgNtfLost"),
    "0",
    *_names("msgRecvGet msgGet msgGetNoMsg msgGetAuth msgGetDuplicate msgGetProhibited"),
    *("0", "0", "0"),
    *_names("queueCount ntfCreated ntfDeleted ntfSub ntfSubAuth ntfSubDuplicate notifierCount"),
    *_names("qDeletedAllB qSubAllB qSubEnd qSubEndB ntfDeletedB ntfSubB msgNtfsB msgNtfExpired ntfCount"),
    *_names("rcvServiceCount ntfServiceCount rcvServiceQueuesCount ntfServiceQueuesCount"),
    *_with("rcvServices", _SERVICES),
    *_with("ntfServices", _SERVICES),
    *_with("rslv", "reqs succ notFound resolverErrs disabled"),
)
"""What the 100 cells after the day mean, for a message router; a column named 0 is always 0."""
