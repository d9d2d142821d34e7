"""The settings of an old reference server in our terms: each is taken over, or skipped with the reason.

Each kind of server lists the settings it knows as rules; unlisted ones are reported as skipped too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

DAY_S, HOUR_S = 86_400, 3_600


class IniError(Exception):
    """The file, or a value in it, cannot be parsed; the text says which line or setting."""


class Fate(Enum):
    """What happened to a setting."""

    TAKEN = "taken"
    CHANGED = "changed"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of the old file and what happened to it."""

    key: str
    value: str
    fate: Fate
    remark: str


@dataclass(slots=True)
class Adopted:
    """What a file of the old server means here."""

    settings: dict[str, dict[str, object]] = field(default_factory=dict)
    """By table and name of our file; JSON values."""
    rows: list[Row] = field(default_factory=list)

    def put(self, name: str, value: object) -> None:
        table, _, key = name.partition(".")
        self.settings.setdefault(table, {})[key] = value


def read_ini(text: str) -> dict[str, str]:
    """Values by `SECTION.key`; lines that begin with # are absent, as the old server reads them."""
    found: dict[str, str] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            continue
        places = [place for place in (line.find("="), line.find(":")) if place > 0]
        if not places or not section:
            raise IniError(f"line {number}: a section, or a name and a value expected.")
        key = f"{section}.{line[: min(places)].strip()}"
        if key in found:
            raise IniError(f"line {number}: {key} is set twice. Keep the one that applies.")
        found[key] = line[min(places) + 1 :].strip()
    return found


Told = tuple[Fate, str]
Rule = Callable[[Adopted, str, str], Told]


def adopt(ini: Mapping[str, str], rules: Mapping[str, Rule], secrets: frozenset[str]) -> Adopted:
    """What the old server's settings mean here; a row for each of them, in the order of the file."""
    result = Adopted()
    for key, value in ini.items():
        shown = "..." if value and ("password" in key or key in secrets) else value
        rule = rules.get(key)
        if rule is None:
            result.rows.append(Row(key, shown, Fate.LEFT, "not known to this version"))
            continue
        fate, remark = rule(result, key, value)
        result.rows.append(Row(key, shown, fate, remark))
    return result


def switch(key: str, value: str) -> bool:
    """On or off."""
    if value.lower() not in {"on", "off"}:
        raise IniError(f"{key}: on or off expected, not {value!r}.")
    return value.lower() == "on"


DIGITS_MAX = 18
"""Numbers of an old server with more digits do not fit into a column."""


def number(key: str, value: str, least: int = 1) -> int:
    """A number that is neither too small nor too long."""
    if value.isascii() and value.isdigit() and len(value) > DIGITS_MAX:
        raise IniError(f"{key}: a number of at most {DIGITS_MAX} digits expected, not one of {len(value)}.")
    if not (value.isascii() and value.isdigit() and int(value) >= least):
        raise IniError(f"{key}: a number of at least {least} expected, not {value!r}.")
    return int(value)


def left(reason: str) -> Rule:
    """Not taken over, and why."""
    return lambda result, key, value: (Fate.LEFT, reason)


def text(name: str) -> Rule:
    """A text for the setting of this name, unless it is empty."""

    def rule(result: Adopted, key: str, value: str) -> Told:
        if not value:
            return Fate.LEFT, "empty"
        result.put(name, value)
        return Fate.TAKEN, name

    return rule


def flag(name: str) -> Rule:
    """On or off for the setting of this name."""

    def rule(result: Adopted, key: str, value: str) -> Told:
        result.put(name, switch(key, value))
        return Fate.TAKEN, name

    return rule


def times(name: str, unit_s: int) -> Rule:
    """A time in this unit, for a setting in seconds."""

    def rule(result: Adopted, key: str, value: str) -> Told:
        result.put(name, number(key, value) * unit_s)
        return Fate.TAKEN, f"{name}, in seconds"

    return rule


def hosts(result: Adopted, key: str, value: str) -> Told:
    """The hosts under which others reach the server."""
    named = [host.strip() for host in value.split(",") if host.strip()]
    if not named:
        raise IniError(f"{key}: a host expected.")
    result.put("address.hosts", named)
    return Fate.TAKEN, "address.hosts"


def socks(result: Adopted, key: str, value: str) -> Told:
    """The proxy for outgoing connections."""
    host, _, port = value.rpartition(":")
    if not host.strip("[]"):
        raise IniError(f"{key}: host:port expected, not {value!r}.")
    number(key, port)
    result.put("outbound.socks", value)
    return Fate.TAKEN, "outbound.socks"


def choice(name: str, *values: str) -> Rule:
    """One of these words, for the setting of this name."""

    def rule(result: Adopted, key: str, value: str) -> Told:
        if value not in values:
            raise IniError(f"{key}: {' or '.join(values)} expected, not {value!r}.")
        result.put(name, value)
        return Fate.TAKEN, name

    return rule
