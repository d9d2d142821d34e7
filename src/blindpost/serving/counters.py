"""Counters that survive restarts.

One small file, replaced whole: every minute and at the end. After a crash the counts of the last moments
are missing; what they counted is not. Gauges and latencies are about this process only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar

from blindpost.engine.meters import Meters
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import DAMAGED, read_file, set_aside, write_file
from blindpost.serving.logs import log
from blindpost.serving.old_stats import OldCounters, OldNames, StatsError, read_stats

_FORMAT = 1

M = TypeVar("M", bound=Enum)


class KeptCounters(Generic[M]):
    """The file of one server's counters."""

    def __init__(self, path: Path, meters: Meters[M]) -> None:
        self._path = path
        self._meters = meters
        self._is_loaded = False
        self.since = int(time.time())
        """When the oldest of the counts began, in Unix seconds."""

    def load(self) -> None:
        """Add earlier counts; an unreadable file is set aside: the service matters more."""
        self._is_loaded = True
        if not self._path.exists():
            return
        known = {str(meter.value): meter for meter in self._meters.counts}
        try:
            kept = json.loads(read_file(self._path))
            if kept["format"] != _FORMAT:
                raise ValueError("another format")
            counts = {known[name]: int(count) for name, count in kept["counts"].items() if name in known}
            self.since = int(kept["since"])
        except DAMAGED:
            aside = set_aside(self._path)
            log.warning(
                "the saved counters cannot be read and start from zero; the file is kept as %s", aside
            )
            return
        for meter, count in counts.items():
            self._meters.add(meter, count)

    def save(self) -> None:
        """A server that fails before loading the counts must not overwrite them with zeros."""
        if not self._is_loaded:
            return
        write_counters(self._path, self.since, self._meters.counts)


def write_counters(path: Path, since: int, counts: Mapping[M, int]) -> None:
    """Write the file that a server continues its counts from."""
    named = {meter.value: count for meter, count in counts.items()}
    kept = {"format": _FORMAT, "since": since, "counts": named}
    write_file(path, json.dumps(kept, indent=1).encode())


def take_over_stats(path: Path, stats: Path, names: OldNames[M]) -> OldCounters[M]:
    """Let a server that never ran continue its predecessor's counts."""
    if path.exists():
        raise OperatorError(
            f"{path}: this server has counted already. Statistics are taken over before its first start."
        )
    try:
        old = read_stats(read_file(stats).decode("utf-8"), names)
    except UnicodeDecodeError as error:
        raise OperatorError(f"{stats}: UTF-8 text expected. Nothing was taken over.") from error
    except StatsError as error:
        raise OperatorError(f"{stats}: {error}. Nothing was taken over.") from error
    counters = type(names.known[names.first])
    write_counters(path, old.since, {counter: old.counts.get(counter, 0) for counter in counters})
    return old
