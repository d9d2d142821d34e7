"""What is accepted, what was scored last, and the table of it in `docs/mutants.md`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mutants.changes import Change

ACCEPTED = Path(__file__).with_name("accepted.toml")
SCORES = Path(__file__).with_name("scores.json")
DOCUMENT = Path(__file__).parents[1] / "docs" / "mutants.md"
BEGIN, END = "<!-- scores: begin -->", "<!-- scores: end -->"

Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Scored:
    """How many mistakes of a module were tried, of how many, and what became of them."""

    mistakes: int
    tried: int
    caught: int
    accepted: int

    @property
    def score(self) -> float:
        """The share of mistakes that make a difference and were caught."""
        different = self.tried - self.accepted
        return self.caught / different if different else 1.0


def accepted(module: str) -> set[Key]:
    """Mistakes of a module that make no difference, each with a reason."""
    rows = tomllib.loads(ACCEPTED.read_text()).get("accepted", [])
    return {
        (row["function"], row["kind"], row["before"], row["after"])
        for row in rows
        if row["module"] == module and row["reason"]
    }


def key(change: Change) -> Key:
    return change.function, change.kind, change.before, change.after


def stored() -> dict[str, Scored]:
    return {module: Scored(**row) for module, row in json.loads(SCORES.read_text()).items()}


def store(scores: Mapping[str, Scored], order: Iterable[str]) -> None:
    """Renew the scores of these modules and the table; others stay as they were."""
    every = {**stored(), **scores}
    kept = {module: every[module] for module in order if module in every}
    rows = {module: asdict(scored) for module, scored in kept.items()}
    SCORES.write_text(json.dumps(rows, indent=2) + "\n")
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table(kept)}\n{END}{rest.partition(END)[2]}")


def table(scores: Mapping[str, Scored]) -> str:
    lines = ["| module | mistakes | tried | caught | accepted | score |", "|---|---:|---:|---:|---:|---:|"]
    lines += [
        f"| `{module.removeprefix('blindpost.')}` | {one.mistakes} | {one.tried} | {one.caught} "
        f"| {one.accepted} | {100 * one.score:.1f} % |"
        for module, one in scores.items()
    ]
    return "\n".join(lines)
