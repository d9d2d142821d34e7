"""Counters that survive restarts.

One small file, replaced whole: every minute and at the end. After a crash the counts of the last moments
are missing; what they counted is not. Gauges and latencies are about this process only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from blindpost.router.meters import Meter, RouterMeters
from blindpost.router.moving.stats import OldCounters, StatsError, read_stats
from blindpost.serving.failures import OperatorError
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
        write_counters(self._path, self.since, {meter: self._meters[meter] for meter in Meter})


def write_counters(path: Path, since: int, counts: Mapping[Meter, int]) -> None:
    """The file that a router goes on counting from."""
    named = {meter.value: counts.get(meter, 0) for meter in Meter}
    kept = {"format": _FORMAT, "since": since, "counts": named}
    write_file(path, json.dumps(kept, indent=1).encode())


def take_over_stats(path: Path, stats: Path) -> OldCounters:
    """Let a router that never ran go on from what an smp-server has counted."""
    if path.exists():
        raise OperatorError(
            f"{path}: this router has counted already. Statistics are taken over before its first start."
        )
    try:
        old = read_stats(read_file(stats).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise OperatorError(f"{stats}: UTF-8 text expected.") from error
    except StatsError as error:
        raise OperatorError(f"{stats}: {error}. Nothing was taken over.") from error
    write_counters(path, old.since, old.counts)
    return old


def _is_known(name: str) -> bool:
    return name in Meter._value2member_map_
