"""Connections recorded between two reference agents, made and used by this agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import Connected, Failed, Integrity, MsgBadId, MsgOk, MsgSkipped, Received
from blindpost.testing.clock import run_virtual
from blindpost.wire.links.full import InvitationLink
from tests.support.agent.replay import transcript_names
from tests.support.agent.replayed import ReplayedAgent
from tests.support.agent.replayed_handshake import ReplayedHandshake

ELSEWHERE = {
    "integrity": "the recorded side breaks its own numbers, which this agent cannot be made to",
    "handshake_slow_reply_leg": "the recorded side offers an older reply queue than it agreed on: see below",
}
LATER = ("rotation_", "sync_")
RECORDED = [name for name in transcript_names() if not name.startswith(LATER) and name not in ELSEWHERE]


def outcome(recorded: str) -> type[Integrity]:
    word = recorded.split()[0]
    return {"ok": MsgOk, "skipped": MsgSkipped, "badid": MsgBadId}[word]


def check(played: ReplayedAgent) -> None:
    """What was received matches the record, including the outcomes of the chain."""
    recorded = [
        (event["decoded"]["message"][1], outcome(event["integrity"]))
        for event in played.events
        if event["dir"] == "in" and event["note"] == "A_MSG"
    ]
    received = [told.msg for told in played.told if isinstance(told, Received)]
    assert [(msg.body.hex(), type(msg.integrity)) for msg in received] == recorded
    assert not [told for told in played.told if isinstance(told, Failed)]
    duplex = [event for event in played.events if event["note"].startswith("initiator confirmation")]
    assert len([told for told in played.told if isinstance(told, Connected)]) == len(duplex)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded(name: str, tmp_path: Path) -> None:
    """Everything received opens, and everything sent is the recorded message inside the ratchet."""
    played = ReplayedHandshake(name, tmp_path)
    run_virtual(played.run())
    check(played)
    if "contact" in name and "x3dh_S" not in played.keys and "x3dh_R" not in played.keys:
        (asked,) = played.requests
        decoded = played.events[0]["decoded"]
        assert asked.request.info.decode() == decoded["info"]
    if "short_link" in played.keys:
        assert played.created is not None
        assert played.created.short is not None
        assert played.created.short.link_key.hex() == played.keys["short_link"]["link_key"]
        assert isinstance(played.created.full, InvitationLink) is ("x3dh_R" in played.keys)


def test_recorded_slow_reply_leg(tmp_path: Path) -> None:
    """From the confirmation on, which offered an old reply queue: HELLO both ways."""
    played = ReplayedAgent("handshake_slow_reply_leg", tmp_path)
    run_virtual(played.run())
    check(played)
    assert "KEY" in played.commands


def test_every_recording_is_replayed_or_listed_as_not() -> None:
    others = [name for name in transcript_names() if name.startswith(LATER)]
    assert sorted([*RECORDED, *ELSEWHERE, *others]) == sorted(transcript_names())
