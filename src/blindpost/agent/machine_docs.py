"""Draws the agent's state machines for `docs/agent-machines.md`: `python -m blindpost.agent.machine_docs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from blindpost.agent.machines import Machine, Move, Refused, label
from blindpost.agent.rotation.tables import RECIPIENT, SENDER
from blindpost.agent.sync.tables import FAILURES, PROHIBITED, SYNC, Sending

_HEAD = """# The agent's state machines

Drawn from the tables in `blindpost.agent` by `python -m blindpost.agent.machine_docs`; a test compares.
Every pair of a state and an event is in its table: as a move, or refused with a reason.
"""


def document() -> str:
    """The whole page."""
    parts = [_HEAD]
    machines: tuple[Machine[Any, Any, Any], ...] = (RECIPIENT, SENDER, SYNC)
    parts += ["\n".join(_drawn(machine)) for machine in machines]
    parts += ["\n".join(_failures()), "\n".join(_prohibited())]
    return "\n".join(parts)


def _drawn(machine: Machine[Any, Any, Any]) -> Iterator[str]:
    yield f"## {machine.name.capitalize()}\n\n{machine.about}\n"
    yield "```mermaid\nstateDiagram-v2"
    for (state, event), cell in machine.cells.items():
        if isinstance(cell, Move) and (cell.to is not state or cell.effects):
            yield f"    {label(state)} --> {label(cell.to)}: {event.name}"
    yield "```\n"
    yield from _table(("event", "means"), ((event.name, event.value) for event in machine.events))
    yield from _table(
        ("state", "event", "next state", "effects"),
        ((label(state), event.name, *_cell(cell)) for (state, event), cell in machine.cells.items()),
    )


def _cell(cell: Move[Any, Any] | Refused) -> tuple[str, str]:
    if isinstance(cell, Refused):
        return "refused", cell.why
    return label(cell.to), "; ".join(str(effect.value) for effect in cell.effects) or "none"


def _failures() -> Iterator[str]:
    yield "## Messages that are not decrypted\n"
    yield from _table(
        ("failure", "event of the synchronisation"),
        ((kind.value, "none" if event is None else event.name) for kind, event in FAILURES.items()),
    )


def _prohibited() -> Iterator[str]:
    yield "## What may be sent\n"
    yield from _table(
        ("", *(label(state) for state in PROHIBITED)),
        (
            (kind.value, *("no" if kind in refused else "yes" for refused in PROHIBITED.values()))
            for kind in Sending
        ),
    )


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]] | Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"
    yield ""


if __name__ == "__main__":
    print(document(), end="")
