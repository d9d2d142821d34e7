"""What the page shows, as values: cards of servers with numbers, problems and curves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from blindpost.ops.history import Bars, Levels
from blindpost.serving.health import WELL


class Health(Enum):
    """How a server is, in one word."""

    RUNNING = "running"
    NOT_READY = "not ready"
    DRAINING = "stopping"
    STANDBY = "standby"
    DOWN = "down"


class Level(Enum):
    """How much a person should care."""

    GOOD = "good"
    LOOK = "look"
    BAD = "bad"


class Unit(Enum):
    """How a number is written."""

    COUNT = "count"
    BYTES = "bytes"
    MILLISECONDS = "ms"


@dataclass(frozen=True, slots=True)
class Tile:
    """One number: `name` is what the server's own status calls it."""

    name: str
    label: str
    value: float | None
    unit: Unit = Unit.COUNT
    limit: float | None = None
    """What it may be at most; a bar shows how much of it is in use."""
    is_main: bool = False
    """Shown even if it is nothing; the others are folded away, and left out if they are nothing."""
    bad: bool = False

    @property
    def is_meter(self) -> bool:
        """Whether it is about how much of something is in use."""
        return self.limit is not None or self.name == "memory_bytes"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that hardly changes, in words."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to look into: what happened, how often in the last day, and the command that helps."""

    name: str
    text: str
    help: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """What came in and went out, in each minute of an hour and in each quarter of an hour of a day."""

    noun: str
    arrived: str
    left: str
    hour: tuple[Bars, Bars]
    day: tuple[Bars, Bars]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a curve, over the same spans of time as bars."""

    word: str
    hour: Levels
    day: Levels


@dataclass(frozen=True, slots=True)
class Curve:
    """Levels in milliseconds: the lower line first."""

    noun: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """What users are given; `shown` is without the password, if there is one."""

    shown: str
    whole: str

    @property
    def is_secret(self) -> bool:
        return self.shown != self.whole


@dataclass(frozen=True, slots=True)
class Face:
    """What a server is called, before it answers anything."""

    name: str
    address: Address | None = None
    schema: int = 0
    """The schema version that this program would give its store."""


@dataclass(frozen=True, slots=True)
class Card:
    """A server as an operator sees it."""

    kind: str
    word: str
    folder: str
    face: Face
    health: Health
    sentence: str
    """The same as on its `/health`."""
    remedy: str = ""
    """What to do about a server that does not answer."""
    tiles: tuple[Tile, ...] = ()
    facts: tuple[Fact, ...] = ()
    problems: tuple[Problem, ...] = ()
    chart: Chart | None = None
    push_key: str = ""
    """What applications of Web Push devices give to their push service."""
    actions: tuple[str, ...] = ()
    curve: Curve | None = None

    @property
    def note(self) -> str:
        """What is wrong and what to do; empty if nothing is."""
        if self.health is Health.RUNNING and self.sentence == WELL:
            return ""
        return f"{self.sentence}. {self.remedy}" if self.remedy else self.sentence

    @property
    def level(self) -> Level:
        if self.health not in (Health.RUNNING, Health.STANDBY):
            return Level.BAD
        return Level.LOOK if self.problems or (self.note and self.health is Health.RUNNING) else Level.GOOD


@dataclass(frozen=True, slots=True)
class Verdict:
    """All servers in one sentence, and how much it matters."""

    level: Level
    text: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything on the page at one moment."""

    at: str
    cards: tuple[Card, ...]
    report: str = ""
    """When the last report of the pipeline was made."""
    trouble: str = ""
    """What the page itself cannot do."""
    number: int = 0

    @property
    def verdict(self) -> Verdict:
        return judged(self.cards)

    def values(self) -> dict[str, Any]:
        """As JSON, for programs."""
        return {
            "at": self.at,
            "verdict": self.verdict.text,
            "level": self.verdict.level.value,
            "cards": [
                {
                    "kind": card.kind,
                    "name": card.face.name,
                    "health": card.health.value,
                    "note": card.note,
                    "tiles": {tile.name: tile.value for tile in card.tiles},
                    "problems": {problem.name: problem.count for problem in card.problems},
                    "facts": {fact.label: fact.text for fact in card.facts},
                }
                for card in self.cards
            ],
        }


def judged(cards: tuple[Card, ...]) -> Verdict:
    """The sentence of `/health`, of the server that needs somebody most."""
    if not cards:
        return Verdict(Level.GOOD, "No server is set up yet.")
    bad = [card for card in cards if card.level is Level.BAD]
    if bad:
        worst = next((card for card in bad if card.health is Health.DOWN), bad[0])
        text = f"{worst.face.name}: {worst.sentence.removesuffix('.')}."
        others = len(bad) - 1
        return Verdict(
            Level.BAD, text, _counted(others, "other server needs", "other servers need") if others else ""
        )
    noted = [card for card in cards if card.note and card.health is Health.RUNNING]
    text = sentence_of(noted[0].sentence if noted else cards[0].sentence)
    count = sum(len(card.problems) for card in cards) + len(noted)
    if count:
        return Verdict(Level.LOOK, text, _counted(count, "thing needs", "things need"))
    return Verdict(Level.GOOD, text)


def sentence_of(text: str) -> str:
    """With a capital at its start and a full stop at its end."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many} a look."
