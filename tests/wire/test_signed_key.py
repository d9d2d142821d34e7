"""Signed session keys: one strict DER form, and the bytes that the signature covers."""

from __future__ import annotations

import pytest

from blindpost.crypto.keys import PrivateKey, verify
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader, decode_whole, encode
from blindpost.wire.signed_key import (
    CertKey,
    SignedKey,
    read_cert_key,
    read_signed_key,
    signed_key_content,
    signed_key_from_der,
    signed_key_to_der,
    write_cert_key,
    write_signed_key,
)
from tests.support.wire.hostile import calls_made, changed_everywhere, memory_peak, truncated_everywhere
from tests.support.wire.long_values import ramp
from tests.support.wire.vectors import vectors

SESSION = PrivateKey(Algorithm.X25519, ramp(0x40, 32)).public
SIGNERS = [PrivateKey(Algorithm.ED25519, ramp(0, 32)), PrivateKey(Algorithm.ED448, ramp(0, 57))]
DOCUMENTED = bytes.fromhex(
    "3078302c302a300506032b656e03210079a631eede1bf9c98f12032cdeadd0e7a079398fc786b88cc846ec89af85a51a"
    "300506032b6570034100165d4c3fb8952400510b1e29a3af8d1537eef1c2bcbf25bc9c1fd4f3f2a73d68702903f60e59"
    "e0d7a2678051455625681e473416e649507d46dd02bb70c2b109"
)


def signed_by(signer: PrivateKey) -> SignedKey:
    return SignedKey(SESSION, signer.algorithm, signer.sign(signed_key_content(SESSION)))


def test_documented_value() -> None:
    assert signed_key_to_der(signed_by(SIGNERS[0])) == DOCUMENTED
    assert signed_key_from_der(DOCUMENTED) == signed_by(SIGNERS[0])


def test_golden_value() -> None:
    (golden,) = (entry for entry in vectors("doc_golden.json") if entry["name"] == "ntf signedKey")
    data = bytes.fromhex(golden["bytes"])
    signed_key = signed_key_from_der(data)
    assert signed_key_to_der(signed_key) == data
    signer = PrivateKey(Algorithm.ED25519, b"\x0e" * 32).public
    assert verify(signer, signed_key.signed, signed_key.signature)


@pytest.mark.parametrize(("signer", "size"), list(zip(SIGNERS, [122, 173], strict=True)))
def test_both_signers(signer: PrivateKey, size: int) -> None:
    signed_key = signed_by(signer)
    der = signed_key_to_der(signed_key)
    assert len(der) == size
    assert signed_key_from_der(der) == signed_key
    assert der[2 if size < 128 else 3 :].startswith(signed_key.signed)
    assert signed_key.signed == b"\x30\x2c" + SESSION.spki
    assert verify(signer.public, signed_key.signed, signed_key.signature)
    assert decode_whole(encode(signed_key, write_signed_key), read_signed_key) == signed_key


@pytest.mark.parametrize("signer", SIGNERS)
def test_any_change_is_refused_or_is_another_value(signer: PrivateKey) -> None:
    """One encoding per value: whatever decodes encodes back to the same bytes."""
    der = signed_key_to_der(signed_by(signer))

    def decode(data: bytes) -> None:
        assert signed_key_to_der(signed_key_from_der(data)) == data

    assert truncated_everywhere(decode, der) == 0
    free = 32 + len(signed_by(signer).signature)
    assert changed_everywhere(decode, der, "signed key") <= free + 2
    with pytest.raises(WireError):
        decode(der + b"\0")


@pytest.mark.parametrize(
    ("place", "found", "changed"),
    [
        ("bare key without its wrapper", "302c302a3005", "302a3005"),
        ("parameters in the algorithm", "300506032b6570", "300706032b65700500"),
        ("unused bits", "034100", "034101"),
        ("long form of a short length", "3078302c", "308178302c"),
        ("four-byte length", "3078302c", "308400000078302c"),
        ("indefinite length", "3078302c", "3080302c"),
        ("another tag", "3078302c", "3178302c"),
        ("unknown signer", "300506032b6570", "300506032b656f"),
        ("Ed448 named over an Ed25519 signature", "300506032b6570", "300506032b6571"),
    ],
)
def test_other_forms_are_refused(place: str, found: str, changed: str) -> None:
    text = DOCUMENTED.hex()
    assert text.count(found) == 1, place
    with pytest.raises(WireError):
        signed_key_from_der(bytes.fromhex(text.replace(found, changed)))


def test_a_wrong_signature_is_not_written() -> None:
    for bad in (
        SignedKey(SESSION, Algorithm.ED25519, bytes(63)),
        SignedKey(SESSION, Algorithm.X25519, bytes(64)),
    ):
        with pytest.raises(WireError):
            signed_key_to_der(bad)


@pytest.mark.parametrize("chain", [(b"leaf",), (b"leaf", b"", b"identity")])
def test_chain_and_key(chain: tuple[bytes, ...]) -> None:
    cert_key = CertKey(chain, signed_by(SIGNERS[1]))
    data = encode(cert_key, write_cert_key)
    assert decode_whole(data, read_cert_key) == cert_key
    truncated_everywhere(lambda piece: read_cert_key(Reader(piece)), data)
    changed_everywhere(lambda piece: read_cert_key(Reader(piece)), data, "chain")


def test_an_empty_chain_is_refused() -> None:
    with pytest.raises(WireError):
        encode(CertKey((), signed_by(SIGNERS[0])), write_cert_key)
    with pytest.raises(WireError):
        decode_whole(b"\0" + encode(signed_by(SIGNERS[0]), write_signed_key), read_cert_key)


def test_cost_is_bounded() -> None:
    many = b"\xff" + b"\0\x3e" * 8000
    assert calls_made(lambda data: read_cert_key(Reader(data)), many) < 3000
    assert memory_peak(lambda data: read_cert_key(Reader(data)), many) < 200_000
