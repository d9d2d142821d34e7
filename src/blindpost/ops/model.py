"""What the page shows: cards of servers, each with a few numbers, as values that become JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Health(Enum):
    """How a server is, in one word."""

    RUNNING = "running"
    NOT_READY = "not ready"
    DRAINING = "draining"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Tile:
    """One number: `name` is what the server's own status calls it."""

    name: str
    label: str
    value: float | str | None
    bad: bool = False
    """Whether somebody should look into it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A curve over the last hour, one point a minute, oldest first."""

    name: str
    label: str
    points: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """A server as an operator sees it."""

    kind: str
    name: str
    health: Health
    note: str = ""
    """Why a server is not ready, in its own words, or what to do about one that is down."""
    tiles: tuple[Tile, ...] = ()
    lines: tuple[Line, ...] = ()
    audits: bool = False
    """Whether there is something to audit."""


@dataclass(frozen=True, slots=True)
class Report:
    """The last report of the pipeline."""

    made: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything on the page at one moment."""

    at: str
    cards: tuple[Card, ...]
    report: Report | None = None
    number: int = 0

    def values(self) -> dict[str, Any]:
        """As JSON for the page's script."""
        return {
            "at": self.at,
            "number": self.number,
            "report": None if self.report is None else {"made": self.report.made},
            "cards": [
                {
                    "kind": card.kind,
                    "name": card.name,
                    "health": card.health.value,
                    "note": card.note,
                    "audits": card.audits,
                    "tiles": [
                        {"name": tile.name, "label": tile.label, "value": tile.value, "bad": tile.bad}
                        for tile in card.tiles
                    ],
                    "lines": [
                        {"name": line.name, "label": line.label, "points": line.points} for line in card.lines
                    ],
                }
                for card in self.cards
            ],
        }
