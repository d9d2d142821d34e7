"""Tier L of the notification router: every state of notifications to the operator's own devices."""

from __future__ import annotations

from collections.abc import Iterable

from blindpost.journal.lab import LabJournal
from blindpost.ntf.turn import Happened


class NtfLab:
    """Writes what happened to the notifications of these devices, blinded; the plan passes on no others."""

    def __init__(self, journal: LabJournal, devices: Iterable[bytes]) -> None:
        self.devices = frozenset(devices)
        self._journal = journal

    def note(self, now: float, happened: Iterable[Happened]) -> None:
        journal, time_us = self._journal, int(now * 1_000_000)
        for event in happened:
            token = journal.number(event.token_id, now)
            # By the day of its receipt, so that it is one notification on both sides of midnight.
            notification = journal.number(event.name, event.since)
            journal.add(time_us, token, notification, journal.code("state", event.state))
