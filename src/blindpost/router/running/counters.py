"""Counters that survive restarts.

One small file, replaced whole: every minute and at the end. After a crash the counts of the last moments
are missing; what they counted is not. Gauges and latencies are about this process only.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from blindpost.router.meters import Meter, RouterMeters
from blindpost.serving.files import read_file, set_aside, write_file
from blindpost.serving.logs import log

_FORMAT = 1


class KeptCounters:
    """The file of one router's counters."""

    def __init__(self, path: Path, meters: RouterMeters) -> None:
        self._path = path
        self._meters = meters
        self.since = int(time.time())
        """When the oldest of the counts began, in Unix seconds."""

    def load(self) -> None:
        """Add what was counted before; a file that cannot be read is set aside: messages matter more."""
        if not self._path.exists():
            return
        try:
            kept = json.loads(read_file(self._path))
            if kept["format"] != _FORMAT:
                raise ValueError("another format")
            counts = {Meter(name): int(count) for name, count in kept["counts"].items() if _is_known(name)}
            self.since = int(kept["since"])
        except (ValueError, KeyError, TypeError, AttributeError):
            aside = set_aside(self._path)
            log.warning(
                "the saved counters cannot be read and start from zero; the file is kept as %s", aside
            )
            return
        for meter, count in counts.items():
            self._meters.add(meter, count)

    def save(self) -> None:
        counts = {meter.value: self._meters[meter] for meter in Meter}
        kept = {"format": _FORMAT, "since": self.since, "counts": counts}
        write_file(self._path, json.dumps(kept, indent=1).encode())


def _is_known(name: str) -> bool:
    return name in Meter._value2member_map_
