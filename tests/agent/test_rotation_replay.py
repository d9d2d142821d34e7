"""Rotations and synchronisations recorded between two reference agents, replayed by this agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import Failed, RatchetSync, Received, Switched
from blindpost.testing.clock import run_virtual
from tests.support.agent.replay import transcript_names
from tests.support.agent.replayed import ReplayedAgent

RECORDED = [name for name in transcript_names() if name.startswith(("rotation_", "sync_"))]

SWITCHES = {
    "rotation_aborted": [*["snd started", "snd confirmed"] * 2, "snd secured", "snd completed"],
    "rotation_by_haskell": ["snd started", "snd confirmed", "snd secured", "snd completed"],
    "rotation_by_python": ["rcv started", "rcv confirmed", "rcv secured", "rcv completed"],
    "rotation_pq_double": ["snd started", "snd confirmed", "snd secured", "snd completed"],
}
STATES = {"sync_after_python_restore": ["required", "agreed", "ok"]}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded(name: str, tmp_path: Path) -> None:
    """Every received message decrypts, and what is sent is of the recorded kinds."""
    played = ReplayedAgent(name, tmp_path)
    run_virtual(played.run())
    switches = [
        f"{told.direction.value} {told.phase.value}" for told in played.told if isinstance(told, Switched)
    ]
    assert switches == SWITCHES.get(name, [])
    states = [told.state.value for told in played.told if isinstance(told, RatchetSync)]
    assert states == (STATES.get(name, ["agreed", "ok"]) if name.startswith("sync_") else [])
    recorded = [
        (event["decoded"]["message"][1], event["integrity"])
        for event in played.events
        if event["dir"] == "in" and event["note"] == "A_MSG"
    ]
    received = [told.msg for told in played.told if isinstance(told, Received)]
    assert [(msg.body.hex(), "ok") for msg in received] == recorded
    assert not [told for told in played.told if isinstance(told, Failed)]
    assert ("KEY" in played.commands, "DEL" in played.commands) == (name == "rotation_by_python",) * 2
