"""The last day of some counters, minute by minute, kept over restarts of the page.

A minute in which nobody looked is unknown, which is not the same as nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

from blindpost.serving.failures import OperatorError
from blindpost.serving.files import DAMAGED, read_file, set_aside, write_file
from blindpost.serving.locking import RunningError, locked
from blindpost.serving.logs import log

DAY = 24 * 60
"""A day in minutes."""
_KEPT = DAY + 15
_FILE_MAX = 16 << 20
_FORMAT = 1

Bars = tuple[int | None, ...]
"""Growth in equal spans of time, the oldest first; None where nobody looked."""

Levels = tuple[float | None, ...]
"""What was measured in them."""


class Track:
    """The counters of one server."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}
        self._grown: dict[str, dict[int, int]] = {}
        self._levels: dict[str, dict[int, float]] = {}
        self._last: dict[str, int] = {}
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        self._now = 0

    def sample(self, at_s: float, counters: Mapping[str, int]) -> None:
        """What the counters say now. One that went back is that of a new process, which starts over."""
        minute = self._enter(int(at_s // 60))
        for name, value in counters.items():
            last = self._last.get(name)
            recent = self._recent.setdefault(name, deque())
            if last is None or value < last or (recent and at_s < recent[-1][0]):
                recent.clear()
            if last is not None and value > last:
                grown = self._grown.setdefault(name, {})
                grown[minute] = grown.get(minute, 0) + value - last
            self._last[name] = value
            recent.append((at_s, value))
            while recent[0][0] < at_s - 60:
                recent.popleft()

    def level(self, name: str, value: float | None) -> None:
        """What is measured now; of a minute the greatest is kept."""
        if value is not None:
            kept = self._levels.setdefault(name, {})
            kept[self._now] = max(kept.get(self._now, 0.0), value)

    def _enter(self, minute: int) -> int:
        """The minute that counts now; after a clock was put back, what came later never was."""
        if minute == self._now - 1:
            return self._now
        if minute < self._now:
            self._keep(lambda known: known <= minute)
        self._now = minute
        self._seen[minute] = None
        while len(self._seen) > _KEPT:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            for grown in self._grown.values():
                grown.pop(oldest, None)
            for levels in self._levels.values():
                levels.pop(oldest, None)
        return minute

    def _keep(self, wanted: Any) -> None:
        self._seen = {minute: None for minute in self._seen if wanted(minute)}
        for name, grown in self._grown.items():
            self._grown[name] = {minute: count for minute, count in grown.items() if wanted(minute)}
        for name, levels in self._levels.items():
            self._levels[name] = {minute: value for minute, value in levels.items() if wanted(minute)}

    def forget_last(self) -> None:
        """The server did not answer: what it counts from now on may be another count."""
        for recent in self._recent.values():
            recent.clear()

    def per_minute(self, name: str) -> int:
        """How much a counter grew over what was seen of the last minute."""
        recent = self._recent.get(name)
        return recent[-1][1] - recent[0][1] if recent else 0

    def bars(self, name: str, count: int, width: int) -> Bars:
        """Growth in the last `count` spans of `width` minutes; the last of them is not over yet."""
        grown = self._grown.get(name, {})
        found: list[int | None] = []
        for span in self._last_spans(count, width):
            seen = any(minute in self._seen for minute in span)
            found.append(sum(grown.get(minute, 0) for minute in span) if seen else None)
        return tuple(found)

    def curve(self, name: str, count: int, width: int) -> Levels:
        """The greatest level in the same spans; None where nothing was measured."""
        levels = self._levels.get(name, {})
        return tuple(
            max((levels[minute] for minute in span if minute in levels), default=None)
            for span in self._last_spans(count, width)
        )

    def _last_spans(self, count: int, width: int) -> Iterator[range]:
        first = (self._now // width - count + 1) * width
        return (range(start, start + width) for start in range(first, first + count * width, width))

    def last_day(self, name: str) -> int:
        """How much a counter grew since this time yesterday, as far as somebody looked."""
        return sum(count for minute, count in self._grown.get(name, {}).items() if minute > self._now - DAY)

    def values(self) -> dict[str, Any]:
        """For the file."""
        grown = {name: sorted(counts.items()) for name, counts in self._grown.items() if counts}
        levels = {name: sorted(values.items()) for name, values in self._levels.items() if values}
        return {"seen": _spans(self._seen), "grown": grown, "levels": levels}

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Track:
        """From the file; ValueError, LookupError, TypeError or AttributeError where it is damaged."""
        track = cls()
        spans = [(int(first), int(last)) for first, last in kept["seen"]]
        if sum(last - first + 1 for first, last in spans) > _KEPT or any(
            last < first for first, last in spans
        ):
            raise ValueError("more than was ever kept")
        seen = sorted({minute for first, last in spans for minute in range(first, last + 1)})
        track._seen = dict.fromkeys(seen)
        for name, pairs in kept["grown"].items():
            counts = {int(minute): int(count) for minute, count in pairs}
            if any(minute not in track._seen or count < 0 for minute, count in counts.items()):
                raise ValueError("growth at a time that nobody saw")
            track._grown[str(name)] = counts
        for name, measured in kept.get("levels", {}).items():
            values = {int(minute): float(value) for minute, value in measured}
            if any(minute not in track._seen or not 0 <= value < inf for minute, value in values.items()):
                raise ValueError("a level at a time that nobody saw")
            track._levels[str(name)] = values
        track._now = max(seen, default=0)
        return track


def _spans(minutes: Iterable[int]) -> list[list[int]]:
    """Neighbouring minutes as one span."""
    spans: list[list[int]] = []
    for minute in sorted(minutes):
        if spans and spans[-1][1] == minute - 1:
            spans[-1][1] = minute
        else:
            spans.append([minute, minute])
    return spans


class History:
    """The tracks of all servers of a page, and the file that keeps them.

    One page writes a file; a second page over the same folder reads it at its start and writes nothing.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Without a file, the day begins anew with every page."""
        self._file = file
        self._tracks: dict[str, Track] = {}
        self._lock = contextlib.ExitStack()
        self._is_ours = False
        self.trouble = ""
        """Why it could not be saved last time."""

    def track(self, name: str) -> Track:
        """The track of the server of this name."""
        return self._tracks.setdefault(name, Track())

    def open(self) -> None:
        """Read what was kept. A damaged file is set aside: the day begins anew."""
        if self._file is None:
            return
        try:
            self._lock.enter_context(locked(self._file.with_suffix(".lock"), "another page"))
            self._is_ours = True
        except RunningError:
            log.info("another page keeps the history of this folder; this one only reads it")
        except OperatorError as error:
            self._failed(error)
        try:
            if self._file.exists():
                self._tracks.update(_read(self._file))
        except OperatorError as error:
            self._failed(error)
        except DAMAGED:
            where = f" It is kept as {set_aside(self._file)}." if self._is_ours else ""
            log.warning("the page's history cannot be read: the day begins anew.%s", where)

    def save(self) -> None:
        """Write it; what fails is told on the page, and tried again next time."""
        if not self._is_ours or self._file is None:
            return
        servers = {name: track.values() for name, track in self._tracks.items()}
        content = json.dumps({"format": _FORMAT, "servers": servers}, separators=(",", ":")).encode()
        try:
            write_file(self._file, content)
            self.trouble = ""
        except OperatorError as error:
            self._failed(error)

    def close(self) -> None:
        self.save()
        self._lock.close()

    def _failed(self, error: OperatorError) -> None:
        self.trouble = f"The last day cannot be kept: {error}"
        log.warning("the page's history is not kept: %s", error)


def _read(file: Path) -> dict[str, Track]:
    if file.stat().st_size > _FILE_MAX:
        raise ValueError("too large to be ours")
    kept = json.loads(read_file(file))
    if kept["format"] != _FORMAT:
        raise ValueError("another format")
    return {str(name): Track.read(values) for name, values in kept["servers"].items()}
