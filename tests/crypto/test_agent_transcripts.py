"""Connections recorded against the running reference agent, opened and rebuilt layer by layer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.ratchet import RatchetErrorKind, RatchetFailure, decrypt
from blindpost.crypto.x3dh import SyncRole
from blindpost.wire.agent.envelopes import (
    AgentEnvelope,
    Confirmation,
    Invitation,
    MessageEnvelope,
    RatchetKey,
    read_client_envelope,
    write_agent_envelope,
)
from blindpost.wire.primitives import decode_whole, encode
from tests.support.agent.parties import RecordedPairs, joined
from tests.support.agent.ratchets import seeded
from tests.support.agent.replay import MATRICES, Replay, transcript, transcript_names


@pytest.mark.parametrize("name", transcript_names())
def test_recorded_connection(name: str) -> None:
    Replay(name).run()


def test_every_file_is_replayed_or_is_a_matrix() -> None:
    for name in MATRICES:
        assert "events" not in transcript(name)
    for name in transcript_names():
        assert transcript(name)["events"]


def test_roles_of_recorded_synchronisations() -> None:
    """As with the reference: the side with the larger hash starts as sender, and its EREADY comes first."""
    roles = Counter[SyncRole]()
    for name in transcript_names():
        if not name.startswith("sync_"):
            continue
        replay = Replay(name)
        replay.run()
        (role,) = replay.roles
        roles[role] += 1
        keys = transcript(name)["keys"]["sync1"]
        assert (keys["hash"] > keys["peer_hash"]) == (role is SyncRole.SENDER)
        events = transcript(name)["events"]
        agreed = max(number for number, event in enumerate(events) if event["note"].startswith("R: "))
        first = events[agreed + 1]
        assert first["note"] == "EREADY"
        assert (first["dir"] == "out") == (role is SyncRole.SENDER)
    assert set(roles) == set(SyncRole)


@pytest.mark.claim("CON-49")
def test_layers_open_with_their_own_keys_only() -> None:
    """Every recorded envelope has the expected layers, and each needs its own key."""
    seen = Counter[tuple[str, str]]()
    for name in transcript_names():

        def check(replay: Replay, event: dict[str, Any], envelope: AgentEnvelope) -> None:
            seen[event["dir"], type(envelope).__name__] += 1
            if "client_envelope" in event:
                check_queue_layer(event)
            check_ratchet_layer(replay, event, envelope)

        Replay(name).run(check)
    kinds = (Confirmation, MessageEnvelope, Invitation, RatchetKey)
    assert set(seen) == {(way, kind.__name__) for way in ("in", "out") for kind in kinds}


def check_queue_layer(event: dict[str, Any]) -> None:
    """Nothing of the agent envelope is visible outside the box, and another secret does not open it."""
    data = bytes.fromhex(event["client_envelope"])
    envelope = decode_whole(data, read_client_envelope)
    secret = bytes.fromhex(event["e2e_secret"])
    content = BoxKey(secret).open_padded(envelope.nonce, envelope.box)
    assert bytes(content[:32]) not in data
    with pytest.raises(CryptoError):
        BoxKey(bytes([secret[0] ^ 1]) + secret[1:]).open(envelope.nonce, envelope.box)


def check_ratchet_layer(replay: Replay, event: dict[str, Any], envelope: AgentEnvelope) -> None:
    whole = encode(envelope, write_agent_envelope)
    match envelope:
        case MessageEnvelope():
            inner = envelope.encrypted_message
            assert len(whole) == 3 + len(inner), "but for version and tag all is under the ratchet"
        case Confirmation():
            inner = envelope.encrypted_info
        case Invitation():
            assert envelope.link.text.encode() in whole, "readable without a ratchet"
            return
        case RatchetKey():
            assert envelope.e2e.key1.spki in whole, "readable without a ratchet"
            assert envelope.info == b"R"
            return
    if "agent_message" in event:
        assert bytes.fromhex(event["agent_message"])[:16] not in whole
    _, stranger = joined(seed="stranger")
    refused = decrypt(stranger.ratchet, {}, inner, entropy=seeded("stranger"), kem=RecordedPairs())
    assert refused.failure == RatchetFailure(RatchetErrorKind.HEADER)
