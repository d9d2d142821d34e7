"""The statistics that smp-server and ntf-server keep across restarts, under the names of our counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Generic, TypeVar

from blindpost.serving.ini import DIGITS_MAX

M = TypeVar("M", bound=Enum)


class StatsError(Exception):
    """The file is not what the old server writes; the text says on which line."""


@dataclass(frozen=True, slots=True)
class OldNames(Generic[M]):
    """What an old server calls our counters."""

    program: str
    known: Mapping[str, M]
    first: str
    """The counter that every such file has."""
    sections: frozenset[str] = frozenset()
    """Sections whose counters are named `section.name`."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Names within sections as the old server writes them, and as they are meant."""


@dataclass(slots=True)
class OldCounters(Generic[M]):
    """What the old server counted, since when, and the names that have no counter here."""

    since: int = 0
    counts: dict[M, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def read_stats(text: str, names: OldNames[M]) -> OldCounters[M]:
    """Every line is taken over or reported as skipped, as are hashes of activity, which are useless here."""
    found: OldCounters[M] = OldCounters()
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
        if name in names.known or name == "fromTime":
            section = ""
        elif section in names.sections:
            name = f"{section}.{names.spelled.get(name, name)}"
        elif section:
            name = f"{section}.{name}"
        if name == "fromTime":
            found.since = _seconds(value, number)
        elif name not in names.known:
            found.left.append(name)
        elif not (value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX):
            raise StatsError(f"line {number}: a number expected for {name}")
        else:
            found.counts[names.known[name]] = int(value)
    if not found.since or names.known[names.first] not in found.counts:
        raise StatsError(f"fromTime and {names.first} expected, as {names.program} writes them")
    return found


def _seconds(text: str, number: int) -> int:
    try:
        return int(datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp())
    except ValueError as error:
        raise StatsError(f"line {number}: a time expected, such as 2026-01-01T00:00:00Z") from error
