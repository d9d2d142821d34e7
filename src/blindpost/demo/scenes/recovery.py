"""Bob's phone is restored from an old backup: the copy synchronises before it sends."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from blindpost.agent import RatchetSync, SyncState
from blindpost.demo.figures import Row, Say
from blindpost.demo.people import Person, person
from blindpost.demo.scenes.letters import exchange, letters

LETTERS = 10
AFTER = "letter after the new agreement"
ROUNDS = 4
"""Of letters and answers after the backup: enough for keys that it has never seen."""


async def play(
    alice: Person, bobs: contextlib.AsyncExitStack, bob: Person, store: Path, say: Say
) -> list[Row]:
    """Ends with Bob's agent closed: `bobs` is what closes it."""
    backup = store.with_suffix(".backup")
    bob.agent.backup(backup)
    for _ in range(ROUNDS):
        await exchange(alice, bob, 2, "letter that the backup does not know")
    await bobs.aclose()
    os.replace(backup, store)
    async with person("Bob", store, []) as restored:
        (restored.peer,) = restored.agent.connections()
        say("Bob's store is an old backup: his keys are behind Alice's, and his agent knows it")
        for somebody in (alice, restored):
            await somebody.until(lambda one: _state(one) is SyncState.OK)
        await exchange(alice, restored, LETTERS, AFTER)
        say("both agreed on new keys by themselves; letters go both ways again")
        good = letters(restored, AFTER) == LETTERS  # one that the backup had not acknowledged may come too
        return [Row("ratchet broken by a restored backup", "resynchronised", good)]


def _state(somebody: Person) -> SyncState | None:
    states = [event.state for event in somebody.events if isinstance(event, RatchetSync)]
    return states[-1] if states else None
