"""How many queues were in use today, this week and this month, without recording which.

One HyperLogLog sketch for each day and kind, merged when somebody asks. A sketch sees only a hash of
a queue's id under a salt that is in no backup, and keeps a dozen bits of it, mixed with those of all other
queues: the file tells its reader how many there were.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from datasketches import hll_sketch, hll_union, tgt_hll_type

from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.serving.files import DAMAGED, read_file, set_aside, write_file
from blindpost.serving.logs import log

DAY_S = 86_400
PERIODS = {"daily": 1, "weekly": 7, "monthly": 30}
"""How many days each count covers, today included."""

FOLD_AT = 1024
"""How many different queues are gathered before hashing: a busy queue costs little."""

_LG_K = 12  # 4,096 registers of a byte: counts are right within 2 %, most of the time
_SALT_SIZE = 32
_FORMAT = 1


class Used:
    """The queues of one kind that were in use, by day."""

    def __init__(self) -> None:
        self.days: dict[int, hll_sketch] = {}
        self.recent: dict[bytes, None] = {}
        """Today's queues not yet folded into its sketch, in order: an estimate depends on it."""

    def fold(self, day: int, salt: bytes) -> None:
        if not self.recent:
            return
        if day not in self.days:
            # Registers from the start: a small sketch is a list of hashes otherwise.
            self.days[day] = hll_sketch(_LG_K, tgt_hll_type.HLL_8, True)
        sketch = self.days[day]
        for queue_id in self.recent:
            digest = blake2b(queue_id, digest_size=8, key=salt).digest()
            sketch.update(int.from_bytes(digest, "big", signed=True))
        self.recent.clear()

    def count(self, first: int, last: int) -> int:
        """How many were in use on any of these days."""
        union = hll_union(_LG_K)
        for day, sketch in self.days.items():
            if first <= day <= last:
                union.update(sketch)
        return round(float(union.get_estimate()))


class Activity:
    """The file of one router's active queues."""

    def __init__(self, path: Path, entropy: Entropy = system_entropy) -> None:
        self._path = path
        self._salt = entropy(_SALT_SIZE)
        self._kinds = {"queues": Used(), "queues_notify": Used()}
        self._day = 0
        self._changed = False

    def note(self, used: Sequence[tuple[bytes, bool]], now: int) -> None:
        """A message was put into or taken from these queues; True for one that asks for a notification."""
        if now // DAY_S != self._day:
            self._fold()
            self._day = now // DAY_S
        every, notified = self._kinds.values()
        for queue_id, notify in used:
            every.recent[queue_id] = None
            if notify:
                notified.recent[queue_id] = None
        self._changed = True
        if len(every.recent) >= FOLD_AT:
            self._fold()

    def counts(self, now: int) -> dict[str, int]:
        """By kind and period, how many queues were in use."""
        self._fold()
        today, found = now // DAY_S, {}
        for kind, used in self._kinds.items():
            fewest = 0
            for period, days in PERIODS.items():
                # Estimates of two merged sets need not keep the order of the sets.
                fewest = max(fewest, used.count(today - days + 1, today))
                found[f"{kind}_{period}"] = fewest
        return found

    def sketches(self, day: int) -> dict[str, bytes]:
        """By kind, the sketch of a day (in days since 1970) as other programs can merge it."""
        self._fold()
        return {
            kind: used.days[day].serialize_compact() for kind, used in self._kinds.items() if day in used.days
        }

    def load(self) -> None:
        """Resume from the stored sketches; an unreadable file is set aside."""
        if not self._path.exists():
            return
        try:
            kept = json.loads(read_file(self._path))
            if kept["format"] != _FORMAT:
                raise ValueError("another format")
            salt = base64.b64decode(kept["salt"], validate=True)
            if len(salt) != _SALT_SIZE:
                raise ValueError("another salt")
            days = {kind: _read(kept["days"][kind]) for kind in self._kinds}
        except DAMAGED:
            aside = set_aside(self._path)
            log.warning(
                "the counts of active queues cannot be read and start from zero; the file is kept as %s",
                aside,
            )
            return
        self._salt = salt
        for kind, used in self._kinds.items():
            used.days = days[kind]

    def save(self) -> None:
        """Write what changed since the last time, without the days that no count needs any more."""
        if not self._changed:
            return
        self._fold()
        oldest = self._day - max(PERIODS.values()) + 1
        for used in self._kinds.values():
            used.days = {day: sketch for day, sketch in used.days.items() if day >= oldest}
        kept = {
            "format": _FORMAT,
            "salt": base64.b64encode(self._salt).decode(),
            "days": {kind: _written(used.days) for kind, used in self._kinds.items()},
        }
        write_file(self._path, json.dumps(kept, indent=1).encode())
        self._changed = False

    def _fold(self) -> None:
        for used in self._kinds.values():
            used.fold(self._day, self._salt)


def _written(days: dict[int, hll_sketch]) -> dict[str, str]:
    return {str(day): base64.b64encode(sketch.serialize_compact()).decode() for day, sketch in days.items()}


def _read(days: dict[str, str]) -> dict[int, hll_sketch]:
    found = {
        int(day): hll_sketch.deserialize(base64.b64decode(text, validate=True)) for day, text in days.items()
    }
    if any(sketch.lg_config_k != _LG_K for sketch in found.values()):
        raise ValueError("sketches of another size")
    return found
