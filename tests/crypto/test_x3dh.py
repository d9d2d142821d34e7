"""The key agreement against the reference's own values, and what it must refuse."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.kem import Encapsulated, KemKeyPair, KemLibrary
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.ratchet_state import receiving_ratchet, sending_ratchet
from blindpost.crypto.ratchet_storage import dump_params, load_params
from blindpost.crypto.x3dh import (
    KemStateError,
    KeyAgreement,
    PrivateParams,
    ReflectedKeysError,
    SyncRole,
    agree_as_receiver,
    agree_as_sender,
    answering_params,
    proposed_params,
    sync_hash,
    sync_role,
)
from blindpost.crypto.x448 import LowOrderKeyError
from blindpost.wire.e2e import (
    E2EParams,
    KemAccepted,
    KemProposed,
    read_e2e_params,
    read_proposed_e2e_params,
    write_e2e_params,
)
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import decode_whole, encode
from tests.support.agent.ratchets import recorded_params, recorded_ratchet, reference_json, seeded, x448
from tests.support.wire.vectors import named, vectors

SESSION_FILES = (
    "ratchet_nopq.json",
    "ratchet_v2.json",
    "ratchet_pq_accepted.json",
    "ratchet_pq_proposed.json",
    "ratchet_pq_switch.json",
)
SETUPS = [
    entry
    for name in ("ratchet.json", *SESSION_FILES)
    for entry in vectors(name)
    if isinstance(entry.get("setup"), dict)
]
ACCEPTED = [entry for entry in SETUPS if (entry["setup"]["S"]["kem"] or {}).get("state") == "accepted"]


@pytest.mark.parametrize("entry", SETUPS, ids=named)
def test_both_sides_of_a_recorded_agreement(entry: dict[str, Any]) -> None:
    setup = entry["setup"]
    version, own_max = setup["e2e_version"], setup["max_version"]
    own_r, own_s = recorded_params(setup["R"]), recorded_params(setup["S"])
    params_r, params_s = own_r.public(version), own_s.public(version)
    for params, side in ((params_r, "R"), (params_s, "S")):
        sent = bytes.fromhex(setup[side]["e2eParams"])
        assert encode(params, write_e2e_params) == sent
        assert decode_whole(sent, read_e2e_params) == params
    agreed_s = agree_as_sender(own_s, params_r)
    agreed_r = agree_as_receiver(own_r, params_s)
    for agreed, name in ((agreed_s, "x3dh_S"), (agreed_r, "x3dh_R")):
        check_agreement(agreed, setup[name])
    start_s = sending_ratchet(version, own_max, params_r.key2, x448(setup["S"]["sD"]["private"]), agreed_s)
    start_r = receiving_ratchet(version, own_max, own_r.key2, agreed_r, pq_support=setup["pqSupport_R"])
    assert start_s == recorded_ratchet(setup["initial_S"])
    assert start_r == recorded_ratchet(setup["initial_R"])
    assert reference_json(start_s) == setup["initial_S_aeson"]
    assert reference_json(start_r) == setup["initial_R_aeson"]
    assert load_params(dump_params(own_s)) == own_s
    assert load_params(dump_params(own_r)) == own_r


def check_agreement(agreed: KeyAgreement, recorded: dict[str, Any]) -> None:
    assert agreed.header_key.hex() == recorded["hk"]
    assert agreed.next_header_key.hex() == recorded["nhk"]
    assert agreed.root_key.hex() == recorded["sk"]
    assert agreed.ad.hex() == recorded["AD"]
    assert agreed.security_code.hex() == recorded["security_code sha256(AD)"]
    accepted = recorded["kemAccepted"]
    if accepted is None:
        assert agreed.accepted is None
    else:
        assert agreed.accepted is not None
        assert agreed.accepted.peer_key.hex() == accepted["peer_public"]
        assert agreed.accepted.secret.hex() == accepted["shared"]
        assert agreed.accepted.ciphertext.hex() == accepted["ct"]


@pytest.mark.claim("CON-22")
@pytest.mark.parametrize("entry", SETUPS, ids=named)
def test_hybrid_key_is_hkdf_of_three_secrets_and_the_kem_secret(entry: dict[str, Any]) -> None:
    """The root key derived from the recorded keys with another library equals that of both sides."""
    setup = entry["setup"]
    version = setup["e2e_version"]
    own_r, own_s = recorded_params(setup["R"]), recorded_params(setup["S"])
    secrets = [own_r.key1.agree(own_s.key2.public), own_r.key2.agree(own_s.key1.public)]
    secrets.append(own_r.key2.agree(own_s.key2.public))
    if entry in ACCEPTED:
        secrets.append(bytes.fromhex(setup["S"]["kem"]["shared"]))
    derived = HKDF(SHA512(), 96, bytes(64), b"SimpleXX3DH").derive(b"".join(secrets))
    for agreed in (
        agree_as_sender(own_s, own_r.public(version)),
        agree_as_receiver(own_r, own_s.public(version)),
    ):
        assert agreed.header_key + agreed.next_header_key + agreed.root_key == derived
    if setup["R"]["kem"] is not None:
        answer = answering_params(own_r.public(version), pq=True, entropy=seeded("S"), kem=KemLibrary())
        assert answer.encapsulated is not None, "who answers a proposal encapsulates"
        assert agree_as_receiver(own_r, answer.public(version)).accepted is not None


@pytest.mark.parametrize(
    ("version", "pq_s", "pq_r", "kind"),
    [
        (3, False, False, None),
        (3, False, True, None),
        (3, True, False, KemProposed),
        (3, True, True, KemAccepted),
        (2, True, True, None),
    ],
)
def test_what_the_joiner_sends(version: int, pq_s: bool, pq_r: bool, kind: type | None) -> None:
    own_r = proposed_params(version, pq=pq_r, entropy=seeded("r"), kem=KemLibrary())
    assert (own_r.kem is not None) == (pq_r and version == 3)
    own_s = answering_params(own_r.public(version), pq=pq_s, entropy=seeded("s"), kem=KemLibrary())
    sent = own_s.public(version)
    assert sent.kem is None if kind is None else type(sent.kem) is kind
    agreed_s = agree_as_sender(own_s, own_r.public(version))
    agreed_r = agree_as_receiver(own_r, sent)
    assert agreed_s.root_key == agreed_r.root_key
    assert agreed_s.security_code == agreed_r.security_code
    assert (agreed_s.accepted is not None) == (agreed_r.accepted is not None) == (kind is KemAccepted)
    assert agreed_s.kem is own_s.kem
    assert agreed_r.kem is (own_r.kem if kind is KemAccepted else None)


@pytest.mark.parametrize("entry", ACCEPTED, ids=named)
def test_acceptance_needs_a_proposal(entry: dict[str, Any]) -> None:
    setup = entry["setup"]
    own_r, own_s = recorded_params(setup["R"]), recorded_params(setup["S"])
    with pytest.raises(KemStateError):
        agree_as_receiver(replace(own_r, kem=None), own_s.public(3))
    for kem in (None, own_s.public(3).kem):
        with pytest.raises(KemStateError):
            agree_as_sender(own_s, replace(own_r.public(3), kem=kem))
    with pytest.raises(WireError):
        decode_whole(bytes.fromhex(setup["S"]["e2eParams"]), read_proposed_e2e_params)


@pytest.mark.parametrize("entry", ACCEPTED, ids=named)
def test_no_kem_takes_part_below_version_3(entry: dict[str, Any]) -> None:
    setup = entry["setup"]
    own_r, own_s = recorded_params(setup["R"]), recorded_params(setup["S"])
    plain_r, plain_s = PrivateParams(own_r.key1, own_r.key2), PrivateParams(own_s.key1, own_s.key2)
    assert agree_as_sender(own_s, own_r.public(2)) == agree_as_sender(plain_s, plain_r.public(2))
    assert agree_as_receiver(own_r, own_s.public(2)) == agree_as_receiver(plain_r, plain_s.public(2))


@pytest.mark.parametrize("first", [True, False])
def test_keys_of_low_order_are_refused(first: bool) -> None:
    own = PrivateParams(x448("01" * 56), x448("02" * 56))
    peer = PrivateParams(x448("03" * 56), x448("04" * 56)).public(3)
    zeros = PublicKey(Algorithm.X448, bytes(56))
    bad = replace(peer, key1=zeros) if first else replace(peer, key2=zeros)
    for agree in (agree_as_sender, agree_as_receiver):
        with pytest.raises(LowOrderKeyError):
            agree(own, bad)


def test_private_values_are_never_printed() -> None:
    own = PrivateParams(x448("01" * 56), x448("02" * 56))
    agreed = agree_as_sender(own, PrivateParams(x448("03" * 56), x448("04" * 56)).public(3))
    shown = f"{own!r} {agreed!r}"
    for secret in (own.key1.raw, own.key2.raw, agreed.root_key, agreed.header_key):
        assert secret.hex() not in shown
        assert repr(secret) not in shown


def golden(name: str) -> bytes:
    (entry,) = [entry for entry in vectors("doc_golden.json") if entry["name"] == name]
    return bytes.fromhex(entry["bytes"])


def test_golden_agreement_of_the_wire_document() -> None:
    own_r, own_s = (
        PrivateParams(x448("01" * 56), x448("02" * 56)),
        PrivateParams(x448("03" * 56), x448("04" * 56)),
    )
    assert own_r.key1.public.raw == golden("r1 public")
    assert own_s.key1.public.raw == golden("s1 public")
    assert own_r.key1.agree(own_s.key2.public) == golden("dh1")
    assert own_r.key2.agree(own_s.key1.public) == golden("dh2")
    assert own_r.key2.agree(own_s.key2.public) == golden("dh3")
    agreed = agree_as_sender(own_s, own_r.public(3))
    assert agreed == agree_as_receiver(own_r, own_s.public(3))
    assert agreed.security_code == golden("sha256 AD")
    assert (agreed.header_key, agreed.next_header_key) == (golden("hk"), golden("nhk"))
    assert agreed.root_key == golden("sk")


def test_golden_agreement_with_a_kem_of_the_wire_document() -> None:
    (recorded,) = [
        entry for entry in vectors("sntrup761.json", "deterministic") if entry["label"] == "sntrup761 vector"
    ]
    pair = KemKeyPair(bytes.fromhex(recorded["pk"]), bytes.fromhex(recorded["sk"]))
    made = Encapsulated(bytes.fromhex(recorded["ct"]), bytes.fromhex(recorded["ss"]))
    own_r = PrivateParams(x448("01" * 56), x448("02" * 56), pair)
    own_s = PrivateParams(x448("03" * 56), x448("04" * 56), pair, made)
    agreed = agree_as_sender(own_s, own_r.public(3))
    assert agree_as_receiver(own_r, own_s.public(3)) == agreed
    assert [key.hex() for key in (agreed.header_key, agreed.next_header_key, agreed.root_key)] == [
        "044f84d4223c54dc3813e83da653f864844e42571a859e6534d25830feb8bca2",
        "b2d27fd37d587dbf9140157b00a6a29bde768aa674a44f5988c4ef0434c85934",
        "0f5a7a1a2973e274d332f05da9ccd48ff7988ccd1d9a0bc79cea8fe5843a373b",
    ]
    start = sending_ratchet(3, 3, own_r.key2.public, x448("05" * 56), agreed)
    assert start.snd is not None
    assert [key.hex() for key in (start.root_key, start.snd.chain_key, start.next_snd_header_key)] == [
        "6f3c3bc2e15ded75613d7de534c7b9b940a9a9b41826daacf3287a90424b816a",
        "46aa8cbc6345604ea2419b8370b4574d0247642f9710569686e8d1c00cfd5f94",
        "ee923adcf47dc265a25c14e3ccbeb88fd1ab8b4847f50c6e830890962957bf49",
    ]


def golden_role_keys(first: str, second: str) -> tuple[PublicKey, PublicKey]:
    return x448(first * 56).public, x448(second * 56).public


def test_golden_sync_hashes() -> None:
    hash_r, hash_s = sync_hash(*golden_role_keys("01", "02")), sync_hash(*golden_role_keys("03", "04"))
    assert (hash_r, hash_s) == (golden("sync hash r"), golden("sync hash s"))
    assert sync_role(own=hash_s, peer=hash_r) is SyncRole.RECEIVER
    assert sync_role(own=hash_r, peer=hash_s) is SyncRole.SENDER


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(min_size=56, max_size=56), min_size=4, max_size=4, unique=True))
def test_roles_are_always_complementary(privates: list[bytes]) -> None:
    keys = [PrivateKey(Algorithm.X448, private).public for private in privates]
    first, second = sync_hash(keys[0], keys[1]), sync_hash(keys[2], keys[3])
    assert first == hashlib.sha256(keys[0].raw + keys[1].raw).digest()
    if first == second:
        return
    assert sync_role(first, second) is (SyncRole.RECEIVER if first < second else SyncRole.SENDER)
    assert {sync_role(first, second), sync_role(second, first)} == set(SyncRole)


def test_reflected_keys_get_no_role() -> None:
    own = sync_hash(*golden_role_keys("01", "02"))
    with pytest.raises(ReflectedKeysError):
        sync_role(own, own)


@pytest.mark.parametrize("pq", [False, True])
def test_synchronised_sides_propose_on_both_ends_and_agree(pq: bool) -> None:
    """In a synchronisation both sides sent proposals: the same keys, with no KEM secret in them yet."""
    first = proposed_params(3, pq=pq, entropy=seeded("first"), kem=KemLibrary())
    second = proposed_params(3, pq=pq, entropy=seeded("second"), kem=KemLibrary())
    as_s: E2EParams = first.public(3)
    sender, receiver = agree_as_sender(first, second.public(3)), agree_as_receiver(second, as_s)
    assert sender.root_key == receiver.root_key
    assert sender.accepted is None
    assert receiver.accepted is None
    assert sender.kem is first.kem
    assert receiver.kem is None
