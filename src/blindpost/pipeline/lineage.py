"""From a day of a table back to the files of the journal that it was made of."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from blindpost.pipeline.dataset import Dataset
from blindpost.pipeline.ledger import Entry
from blindpost.pipeline.runner import Days


def files_of(dataset: Dataset, day: date, entries: Iterable[Entry]) -> list[Entry]:
    """The files whose rows a day of a table may be made of, in the order of their tables and paths."""
    windows = {given.table: Days(day, day).widened(given) for given in dataset.inputs}
    found = [
        entry
        for entry in entries
        if entry.good and entry.table in windows and any(one in windows[entry.table] for one in entry.days)
    ]
    return sorted(found, key=lambda entry: (entry.table, entry.path))
