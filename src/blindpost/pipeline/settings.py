"""An operator's settings for the fleet: who must write, when silence is reported, how long data is kept."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from blindpost.journal.schema import DAYS_LAB, Table, Tier
from blindpost.pipeline.errors import PipelineError

DAYS_MINUTES = 400
"""Minutes hold sums only: a year of them, and a month to compare it with."""
SILENT_MINUTES = 45
"""Servers seal every ten minutes, and journals are copied now and then."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """`[fleet]`."""

    expected: tuple[str, ...] = ()
    """Names of the servers and canaries that must write; if empty, anyone may."""
    silent_minutes: int = SILENT_MINUTES


@dataclass(frozen=True, slots=True)
class Keep:
    """`[keep]`: days before today. Sums of days and published tables without names of queues stay."""

    state_days: int = DAYS_LAB
    lab_days: int = DAYS_LAB
    minute_days: int = DAYS_MINUTES

    def days(self, tier: Tier) -> int:
        return {
            Tier.STATE: self.state_days,
            Tier.LAB: self.lab_days,
            Tier.PRODUCTION: self.minute_days,
        }[tier]

    def first_day(self, tier: Tier, now_s: float) -> str:
        """The first day of this tier that is kept."""
        today = datetime.fromtimestamp(now_s, UTC).date()
        return (today - timedelta(days=self.days(tier))).isoformat()

    def first_of(self, table: Table, now_s: float) -> str:
        """The same of a silver table; a table that the journal keeps for ever is kept for ever here too."""
        return "" if table.days_kept is None else self.first_day(table.tier, now_s)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the file can say."""

    fleet: Fleet = field(default_factory=Fleet)
    keep: Keep | None = None
    """None: as the last run that was told, or as usual."""


def read_settings(file: Path | None) -> Settings:
    """The settings in a TOML file; without one, the usual ones."""
    if file is None:
        return Settings()
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise PipelineError(f"{file}: {error.strerror}. Name the file of the pipeline's settings.") from error
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"{file}: it is no TOML: {error}.") from error
    unknown = sorted(found.keys() - {"fleet", "keep"})
    if unknown:
        raise PipelineError(f"{file}: there is no section [{unknown[0]}]. There are [fleet] and [keep].")
    keep = Keep(**_section(file, found, "keep", Keep)) if "keep" in found else None
    return Settings(Fleet(**_section(file, found, "fleet", Fleet)), keep)


def _section(file: Path, found: Mapping[str, Any], name: str, kind: type[Fleet | Keep]) -> dict[str, Any]:
    section = found.get(name, {})
    known = {one.name for one in fields(kind)}
    if not isinstance(section, dict) or (unknown := sorted(section.keys() - known)):
        wrong = unknown[0] if isinstance(section, dict) else name
        raise PipelineError(f"{file}: [{name}] has no setting {wrong}. It has {', '.join(sorted(known))}.")
    values: dict[str, Any] = {}
    for key, value in section.items():
        if key == "expected":
            if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
                raise PipelineError(f'{file}: [fleet] expected: names expected, such as ["smp-1", "ntf-1"].')
            values[key] = tuple(value)
        elif isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 36_500:
            values[key] = value
        else:
            raise PipelineError(f"{file}: [{name}] {key}: a number from 1 to 36500 expected.")
    return values
