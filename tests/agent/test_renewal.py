"""New ratchets from two pairs of ratchet keys: as recorded with the reference, and for random keys."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.agent.sync.renewal import hash_of, renewed
from blindpost.crypto.kem import KemSource
from blindpost.crypto.ratchet import decrypt, encrypt_body, encrypt_header
from blindpost.crypto.x3dh import PrivateParams, ReflectedKeysError, SyncRole, proposed_params
from blindpost.wire.e2e import E2EParams
from tests.support.agent.parties import RecordedPairs
from tests.support.agent.ratchets import Played, seeded, x448, x448_public
from tests.support.agent.replay import check_state, recorded_pair, transcript, transcript_names

SYNCHRONISED = [name for name in transcript_names() if name.startswith("sync_")]
NO_KEM: KemSource = RecordedPairs()


@pytest.mark.claim("CON-41")
@pytest.mark.parametrize("name", SYNCHRONISED)
def test_renewed_ratchets_match_the_recordings(name: str) -> None:
    recorded = transcript(name)["keys"]["sync1"]
    own = PrivateParams(x448(recorded["k1_priv"]), x448(recorded["k2_priv"]), recorded_pair(recorded))
    peer = E2EParams(3, x448_public(recorded["peer_k1"]), x448_public(recorded["peer_k2"]))
    assert hash_of(peer).hex() == recorded["peer_hash"]
    draws = Played([bytes.fromhex(recorded["sD_priv"])] if recorded["role"] == "S" else [])
    initial = recorded["ratchet_initial"]
    made = renewed(own, peer, 3, pq_support=initial["supportKEM"], entropy=draws.entropy)
    assert made.role is {"S": SyncRole.SENDER, "R": SyncRole.RECEIVER}[recorded["role"]]
    assert draws.exhausted
    check_state(made.ratchet, initial)


@pytest.mark.claim("CON-41")
@given(one=st.integers(0, 1 << 32), other=st.integers(0, 1 << 32), pq=st.booleans())
@settings(deadline=None, max_examples=25)
def test_roles_are_complementary_and_the_ratchets_fit(one: int, other: int, pq: bool) -> None:
    entropies = [seeded(f"one {one}"), seeded(f"other {other}")]
    params = [proposed_params(3, pq=False, entropy=entropy, kem=NO_KEM) for entropy in entropies]
    public = [each.public(3) for each in params]
    hashes = [hashlib.sha256(each.key1.raw + each.key2.raw).digest() for each in public]
    sides = [renewed(params[me], public[1 - me], 3, pq_support=pq, entropy=entropies[me]) for me in (0, 1)]
    larger = 0 if hashes[0] > hashes[1] else 1
    assert sides[larger].role is SyncRole.SENDER
    assert sides[1 - larger].role is SyncRole.RECEIVER
    _, key = encrypt_header(sides[larger].ratchet, None, 3)
    sealed = encrypt_body(key, b"ready", 100)
    kem = RecordedPairs()
    opened = decrypt(sides[1 - larger].ratchet, {}, sealed, entropy=entropies[0], kem=kem)
    assert opened.plaintext == b"ready"


def test_own_keys_sent_back_are_refused() -> None:
    entropy = seeded("own")
    own = proposed_params(3, pq=False, entropy=entropy, kem=NO_KEM)
    with pytest.raises(ReflectedKeysError):
        renewed(own, own.public(3), 3, pq_support=False, entropy=entropy)
