"""Which changes of its configuration a running server takes over, as pure decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from blindpost.serving.place import ServerSettings
from blindpost.serving.settings import Section

S = TypeVar("S", bound=ServerSettings)


def changed_settings(before: ServerSettings, after: ServerSettings) -> list[str]:
    """The settings that differ, as `table.name`."""
    found: list[str] = []
    for table in type(before).model_fields:
        old, new = getattr(before, table), getattr(after, table)
        if old != new:
            names = type(old).model_fields if isinstance(old, Section) else ()
            differ = [f"{table}.{name}" for name in names if getattr(old, name) != getattr(new, name)]
            found += differ or [table]
    return found


def divided(changed: Sequence[str], reloads: frozenset[str]) -> tuple[list[str], list[str]]:
    """Those that can be taken over now, and those that need a restart."""
    taken = [name for name in changed if name in reloads or name.partition(".")[0] in reloads]
    return taken, [name for name in changed if name not in taken]


def with_taken(before: S, after: S, taken: Iterable[str]) -> S:
    """The settings as they were, with these taken over."""
    tables: dict[str, dict[str, object]] = {}
    for name in taken:
        table, _, field = name.partition(".")
        fields = tables.setdefault(table, {})
        if field:
            fields[field] = getattr(getattr(after, table), field)
    update = {
        table: getattr(before, table).model_copy(update=fields) if fields else getattr(after, table)
        for table, fields in tables.items()
    }
    return before.model_copy(update=update)
