"""A record holds the increment of every counter exactly once, whatever the disk does in between."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from blindpost.engine.histogram import Histogram
from blindpost.journal.author import Author
from blindpost.journal.folder import DAY_S
from blindpost.journal.frames import RecordWriter
from blindpost.journal.minutes import MinuteJournal, Reading
from blindpost.journal.schema import P_COUNTERS, P_FUNNEL, P_GAUGES, P_HISTOGRAMS, P_TOKEN_TRANSITIONS
from blindpost.journal.seal import seal_folder
from tests.support.journal.sealed import rows

DAY = 20_000 * DAY_S
AUTHOR = Author("ntf-1", "ntf", "0" * 16)


def test_transitions_and_states_are_written_as_increments(tmp_path: Path) -> None:
    born, refused = ("", "REGISTERED", ""), ("ACTIVE", "INVALID", "UNREGISTERED")
    first = Reading({}, {}, token_transitions={born: 5}, funnel={("received", "", "apns"): 9})
    journal = MinuteJournal(tmp_path, AUTHOR, first, DAY)
    second = Reading(
        {},
        {},
        token_transitions={born: 7, refused: 1},
        funnel={
            ("received", "", "apns"): 12,
            ("refused", "BadTopic", "apns"): 2,
            ("accepted", "", "webpush"): 0,
        },
    )
    journal.record(second, DAY)
    journal.record(second, DAY + 60)
    journal.close()
    seal_folder(tmp_path, now=DAY)
    transitions = rows(tmp_path, P_TOKEN_TRANSITIONS)
    assert [(row["from_state"], row["to_state"], row["reason"], row["value"]) for row in transitions] == [
        (*born, 2),
        (*refused, 1),
    ]
    names = ("state", "reason", "value", "provider")
    states = [tuple(row[name] for name in names) for row in rows(tmp_path, P_FUNNEL)]
    assert states == [("received", "", 3, "apns"), ("refused", "BadTopic", 2, "apns")]


def test_an_old_record_without_a_provider_is_sealed_without_one(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, AUTHOR)
    writer.add({"minute_s": DAY, "rows": {P_FUNNEL.name: [("received", "", 3)]}})
    writer.close()
    seal_folder(tmp_path, now=DAY)
    (row,) = rows(tmp_path, P_FUNNEL)
    assert (row["state"], row["value"], row["provider"]) == ("received", 3, None)


def test_a_disk_full_at_start_loses_no_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MinuteJournal(tmp_path, AUTHOR, Reading({"commands": 10}, {"tokens": 1}), DAY)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for work in (journal.begin, lambda: journal.record(Reading({"commands": 12}, {}), DAY)):
            with pytest.raises(OSError, match="space"):
                work()
    journal.record(Reading({"commands": 15}, {"tokens": 4}), DAY + 60)
    journal.close()
    seal_folder(tmp_path, now=DAY)
    assert [row["value"] for row in rows(tmp_path, P_COUNTERS)] == [5]
    assert [(row["seq"], row["value"]) for row in rows(tmp_path, P_GAUGES)] == [(0, 1.0), (1, 4.0)]


def test_counts_the_disk_refused_are_in_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_s = Histogram((1.0,))
    journal = MinuteJournal(tmp_path, AUTHOR, Reading({"commands": 10}, {}), DAY)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    taken_s.observe(0.5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="space"):
            journal.record(Reading({"commands": 14}, {}, {"taken_s": taken_s}), DAY)
    taken_s.observe(3.0)
    journal.record(Reading({"commands": 15}, {}, {"taken_s": taken_s}), DAY + 60)
    journal.close()
    seal_folder(tmp_path, now=DAY)
    assert [(row["seq"], row["value"]) for row in rows(tmp_path, P_COUNTERS)] == [(1, 5)]
    (histogram,) = rows(tmp_path, P_HISTOGRAMS)
    assert (histogram["counts"], histogram["total"], histogram["maximum"]) == ([1, 1], 3.5, 3.0)
