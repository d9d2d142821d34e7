"""What a backup of a canary holds: its settings. Its connections are made again.

An older copy of an end-to-end encrypted connection must not be used again: its keys have been used. What was
measured is in the journal, which is kept by the pipeline.
"""

from __future__ import annotations

from pathlib import Path

from blindpost.canary.settings import CanaryPlace
from blindpost.serving import backups
from blindpost.serving.backups import Aside, Contents, Made


def contents_of(place: CanaryPlace) -> Contents:
    return Contents(None)


def back_up(place: CanaryPlace, target: Path) -> Made:
    """Write a backup to a new folder. The canary may be running."""
    return backups.back_up(place, contents_of(place), None, target)


def restore(backup: Path, folder: Path, *, force: bool) -> Aside:
    """Restore a backup into `folder`; returns where its previous content was moved to, if any."""
    return backups.restore(CanaryPlace, contents_of, lambda place: None, backup, folder, force=force)
