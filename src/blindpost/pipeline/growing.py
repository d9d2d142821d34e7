"""What to do with the files of a silver day: add new ones, copy those that meet none, compare the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from blindpost.journal.schema import Table
from blindpost.pipeline.ledger import Entry
from blindpost.pipeline.silver import SILVER_VERSION, is_revised
from blindpost.pipeline.spans import alone, within, writers_of

WRITERS_MOST = 1_000
"""With more writers than this whose files are gone, silver's own rows are not told apart by writer."""
FILES_MOST = 64
"""A day of more files than this is written anew, so that a follower leaves no heap of small ones."""

ByDay = Mapping[str, Sequence[Entry]]


def different(entries: Iterable[Entry]) -> list[Entry]:
    """Each content once: of a file under several names, one that is there, and of those the newest."""
    found: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: (not entry.gone, entry.modified_us, entry.path)):
        found[entry.sha256] = entry
    return list(found.values())


def made_of(table: Table, entries: Sequence[Entry]) -> frozenset[str]:
    """What a day is made of, one by one; nothing if it cannot be added to."""
    if is_revised(table) or not all(entry.spans for entry in entries):
        return frozenset()
    return frozenset([f"version {SILVER_VERSION} {table.version}", *(entry.sha256 for entry in entries)])


def growing(
    table: Table, by_day: ByDay, known: Mapping[str, frozenset[str]], files: Mapping[str, int]
) -> dict[str, list[Entry]]:
    """The days to which new files only add records, with these files.

    `known` is what each day was made of when it was published, `files` how many files it has.
    """
    every = {entry.path: entry.spans for found in by_day.values() for entry in found}
    single = alone(every)
    added: dict[str, list[Entry]] = {}
    for day, found in by_day.items():
        before = known.get(day, frozenset())
        new = [entry for entry in found if entry.sha256 not in before]
        only_more = before and new and before <= made_of(table, found)
        fresh = all(entry.path in single and not entry.gone for entry in new)
        if only_more and fresh and files[day] < FILES_MOST:
            added[day] = new
    for day, new in list(added.items()):
        for entry in new:  # one that another day has already would be added to that day twice
            for other in entry.days:
                if other != day and entry not in added.get(other, [entry]):
                    del added[other]
    return added


def is_whole(entries: Sequence[Entry]) -> bool:
    """Whether all that was ever read of a day is in files that are there."""
    gone = [entry for entry in different(entries) if entry.gone]
    there = (line for entry in entries if not entry.gone for line in entry.spans)
    return all(entry.spans for entry in gone) and within(
        (line for entry in gone for line in entry.spans), there
    )


@dataclass(frozen=True, slots=True)
class Meeting:
    """Files of days that are written anew."""

    passing: list[Entry]
    """Those that share no record with another."""
    compared: list[Entry]
    writers: set[str] | None
    """Whose rows of silver stand for files that are gone; None for everybody's."""


def meeting(used: Sequence[Entry]) -> Meeting:
    gone = [entry for entry in used if entry.gone]
    left = {writer for entry in gone for writer in writers_of(entry.spans)}
    single: set[str] = set()
    if all(entry.spans for entry in gone) and len(left) <= WRITERS_MOST:
        single = alone({entry.path: entry.spans for entry in used if not entry.gone}, left)
    return Meeting(
        [entry for entry in used if entry.path in single],
        [entry for entry in used if entry.path not in single],
        left if single else None,
    )
