"""What an operator should look into: pure tables and decisions, from a server's own answers.

Each problem says what happened and which command helps. What is counted is a problem for a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import blindpost
from blindpost.ops.history import Track
from blindpost.ops.model import Face, Problem

DAY_S = 86_400
CERTIFICATE_S_MIN = 30 * DAY_S
DISK_SHARE_MIN = 0.1
MEMORY_SHARE_MAX = 7 / 8
"""From here on a server closes connections to stay below its limit."""
CONNECTIONS_SHARE_MAX = 0.9

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter that should not grow: where it is in a server's answers, and what its growth means."""

    name: str
    paths: tuple[str, ...]
    text: str
    help: str

    def value(self, answers: Mapping[str, Any]) -> int:
        return sum(_found(answers, path.split("/")) for path in self.paths)


def _found(value: Any, path: Sequence[str]) -> int:
    """A number in nested tables; of a table, the sum of its numbers; 0 if it is not there."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        return sum(each for each in value.values() if isinstance(each, int))
    return value if isinstance(value, int) else 0


_LOG = "Its log says where."
_TOP = "blindpost {word} status --top -c {folder}"
_STATUS = "blindpost {word} status -c {folder}"
_CHECK = "blindpost {word} check -c {folder}"

EVERY = (
    Counted(
        "failed_work", ("status/failed_work",), "Background work failed and was begun again. " + _LOG, _STATUS
    ),
    Counted(
        "accept_failures",
        ("status/accept_failures",),
        "Connections waited because no more files could be opened: raise LimitNOFILE.",
        _CHECK,
    ),
)
_STORED = Counted(
    "refused_stored",
    ("status/limited/stored_refused",),
    "What somebody wanted to be stored was refused, since it would be too much.",
    _TOP,
)
ROUTER = (
    _STORED,
    Counted(
        "internal_errors",
        ("stats/counts/internalErrors", "stats/counts/serviceFaults"),
        "Commands failed by a mistake of the program and changed nothing. " + _LOG,
        "blindpost router stats -c {folder}",
    ),
    Counted(
        "store_errors",
        ("stats/counts/storeErrors",),
        "Commands were refused because the store took no writes.",
        _CHECK,
    ),
    Counted(
        "differed",
        tuple(
            f"stats/counts/{side}.{kind}"
            for side in ("rcvServices", "ntfServices")
            for kind in ("subMore", "subFewer", "subDiff")
        ),
        "Services and this router disagreed about their queues.",
        "blindpost router audit -c {folder}",
    ),
    Counted(
        "refused_connections",
        (
            "status/limited/refused_total",
            "status/limited/refused_address",
            "status/limited/refused_handshakes",
        ),
        "Connections were refused by the limits.",
        _TOP,
    ),
    Counted(
        "refused_queues", ("status/limited/new_refused",), "New queues were refused: too many at once.", _TOP
    ),
    Counted(
        "made_room",
        ("status/limited/made_room",),
        "Connections were closed to make room for others.",
        _TOP,
    ),
)
_SERVED = (
    Counted(
        "internal_errors",
        ("status/counters/internal_errors",),
        "Commands failed by a mistake of the program and changed nothing. " + _LOG,
        _STATUS,
    ),
    Counted(
        "store_errors",
        ("status/counters/store_errors",),
        "Commands were refused because the store took no writes.",
        _CHECK,
    ),
    Counted(
        "refused_connections",
        (
            "status/limited/refused_total",
            "status/limited/refused_address",
            "status/limited/refused_handshakes",
        ),
        "Connections were refused by the limits.",
        _TOP,
    ),
    Counted(
        "made_room",
        ("status/limited/made_room",),
        "Connections were closed to make room for others.",
        _TOP,
    ),
)
NTF = (
    *_SERVED,
    Counted(
        "rejected",
        ("status/ledger/rejected",),
        "Notifications were rejected by the push service.",
        _STATUS,
    ),
    Counted(
        "expired", ("status/ledger/expired",), "Notifications expired before they could be pushed.", _STATUS
    ),
)
DS = (
    *_SERVED,
    _STORED,
    Counted("refused_full", ("status/counters/refused_full",), "Payloads were refused: full.", _STATUS),
)
CANARY = (
    Counted("lost", ("status/lost",), "Messages were lost.", _STATUS),
    Counted("duplicate", ("status/duplicate",), "Messages arrived twice.", _STATUS),
    Counted("integrity_broken", ("status/integrity_broken",), "Messages arrived out of order.", _STATUS),
)


def counted(rows: Sequence[Counted], track: Track, word: str, folder: str) -> Iterator[Problem]:
    """What grew in the last day."""
    for row in rows:
        count = track.last_day(row.name)
        if count:
            yield Problem(row.name, row.text, row.help.format(word=word, folder=folder), count)


def levels(status: Status, face: Face, word: str, folder: str, now_s: float) -> Iterator[Problem]:
    """What is about to run out, and what a restart would change."""
    machine: Mapping[str, int | None] = status["machine"]
    at = f"-c {folder}"
    until = machine["certificate_until"]
    if until is not None and until - now_s < CERTIFICATE_S_MIN:
        days = max(0, int((until - now_s) // DAY_S))
        left = "today" if days == 0 else f"in {days} {'day' if days == 1 else 'days'}"
        help_text = "" if word == "ds" else f"blindpost {word} rotate-cert {at}"
        yield Problem("certificate", f"Its certificate ends {left}.", help_text)
    if _share(machine["disk_free_bytes"], machine["disk_size_bytes"], 1.0) < DISK_SHARE_MIN:
        yield Problem("disk", "The disk is nearly full. Make room, or move the store.", f"df -h {folder}")
    if _share(machine["memory_bytes"], machine["memory_limit_bytes"], 0.0) > MEMORY_SHARE_MAX:
        text = "Its memory is nearly used up: it closes connections. Raise memory_mib in its settings."
        yield Problem("memory", text, f"blindpost {word} status {at}")
    if _share(status.get("connections"), machine["connections_limit"], 0.0) > CONNECTIONS_SHARE_MAX:
        text = "It has nearly as many connections as it may. Raise connections in its settings."
        yield Problem("connections", text, f"blindpost {word} status {at}")
    if status["version"] != blindpost.__version__:
        text = f"It runs version {status['version']}; {blindpost.__version__} is installed. Restart it."
        yield Problem("version", text)
    if face.schema > status["schema"] > 0:
        text = (
            f"Its store has schema {status['schema']}; the installed program brings it to {face.schema} at "
            "the next start, and older programs cannot read that. Back it up first."
        )
        yield Problem("schema", text)


def _share(part: float | None, whole: float | None, unknown: float) -> float:
    return unknown if part is None or not whole else part / whole
