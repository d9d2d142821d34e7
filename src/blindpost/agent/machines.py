"""State machines as tables: for every state and every event either a move or the reason why there is none.

A table with a missing pair cannot be built, so no case is left undefined. Effects name what a move entails;
the code that runs the machine carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Generic, TypeVar

from blindpost.wire.frozen import dataclass

S = TypeVar("S", bound=Enum | None)
E = TypeVar("E", bound=Enum)
F = TypeVar("F", bound=Enum)


@dataclass(frozen=True, slots=True)
class Move(Generic[S, F]):
    """The next state, and what is to be done in this order."""

    to: S
    effects: tuple[F, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The event is not allowed in the state; the state stays."""

    why: str


class MoveRefusedError(Exception):
    """An event came in a state that does not allow it."""

    def __init__(self, machine: str, state: Enum | None, event: Enum, why: str) -> None:
        super().__init__(f"{machine}: {why}")
        self.state = state
        self.event = event
        self.why = why


@dataclass(frozen=True)
class Machine(Generic[S, E, F]):
    """A whole table. Rows are states, columns are events."""

    name: str
    about: str
    states: Sequence[S]
    events: Sequence[E]
    effects: Sequence[F]
    cells: Mapping[tuple[S, E], Move[S, F] | Refused]

    def __post_init__(self) -> None:
        pairs = {(state, event) for state in self.states for event in self.events}
        if pairs != self.cells.keys():
            wrong = ", ".join(f"{label(state)}/{event.name}" for state, event in self.cells.keys() ^ pairs)
            raise ValueError(f"{self.name}: each pair of state and event must be in the table once: {wrong}")

    def step(self, state: S, event: E) -> Move[S, F]:
        """The move for this event, or `MoveRefusedError`."""
        cell = self.cells[state, event]
        if isinstance(cell, Refused):
            raise MoveRefusedError(self.name, state, event, cell.why)
        return cell


def label(state: Enum | None) -> str:
    """A state as it is written in the store; none is the state in which nothing is in progress."""
    return "idle" if state is None else str(state.value)


def row(state: S, cells: Mapping[E, Move[S, F] | Refused]) -> dict[tuple[S, E], Move[S, F] | Refused]:
    """All that can happen in one state."""
    return {(state, event): cell for event, cell in cells.items()}
