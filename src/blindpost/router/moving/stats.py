"""`smp-server-stats.log`: the counters that smp-server keeps over restarts, under the names of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from blindpost.router.meters import Meter

_SPELLED = {"assocUpdatedt": "assocUpdated"}
"""As the old server writes them, and as they are meant."""
_SECTIONS = frozenset({"pRelays", "pRelaysOwn", "pMsgFwds", "pMsgFwdsOwn", "rcvServices", "ntfServices"})
_KNOWN = {meter.value: meter for meter in Meter}


class StatsError(Exception):
    """The file is not what smp-server writes; the text says on which line."""


@dataclass(slots=True)
class OldCounters:
    """What the old server counted, since when, and the names that have no counter here."""

    since: int = 0
    counts: dict[Meter, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def read_stats(text: str) -> OldCounters:
    """Every line is taken or named as left. Active queues are hashes that only the old server can make."""
    found = OldCounters()
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if line.endswith(":"):
            section = line[:-1]
            continue
        name, is_value, value = line.partition("=")
        if not is_value:
            raise StatsError(f"line {number}: a name and a value expected")
        if name in _KNOWN or name == "fromTime":
            section = ""
        elif section in _SECTIONS:
            name = f"{section}.{_SPELLED.get(name, name)}"
        elif section:
            name = f"{section}.{name}"
        if name == "fromTime":
            found.since = _seconds(value, number)
        elif name not in _KNOWN:
            found.left.append(name)
        elif not (value.isascii() and value.isdigit()):
            raise StatsError(f"line {number}: a number expected for {name}")
        else:
            found.counts[_KNOWN[name]] = int(value)
    if not found.since or Meter.QUEUES_CREATED not in found.counts:
        raise StatsError("fromTime and qCreated expected, as smp-server writes them")
    return found


def _seconds(text: str, number: int) -> int:
    try:
        return int(datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp())
    except ValueError as error:
        raise StatsError(f"line {number}: a time expected, such as 2026-01-01T00:00:00Z") from error
