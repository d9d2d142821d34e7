"""The values given in the protocol documents, and those that the reference reproduced."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import nacl.secret
import pytest

from blindpost.crypto import sodium
from blindpost.crypto.authorizers import authorize, with_fingerprint
from blindpost.crypto.block_chain import client_chains, router_chains
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.credentials import Credentials, sign_session_key
from blindpost.crypto.ids_hash import ids_hash, sender_id_of
from blindpost.crypto.kdf import hkdf
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.batch import batch_of_one
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.padding import pad
from blindpost.wire.primitives import Writer
from blindpost.wire.signed_key import signed_key_to_der
from blindpost.wire.transmission import Layout, authorized_bytes, start_signed, transmission_of
from tests.support.wire.long_values import ramp, same
from tests.support.wire.vectors import vectors

SESSION_ID = ramp(0x00, 32)
CORR_ID = ramp(0x80, 24)
SESSION = PrivateKey(Algorithm.X25519, ramp(0x40, 32))
QUEUE_X25519 = PrivateKey(Algorithm.X25519, ramp(0x60, 32))
QUEUE_ED25519 = PrivateKey(Algorithm.ED25519, ramp(0x00, 32))
LAYOUT = Layout(SESSION_ID, session_sent=False, service_field=True)


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def sub() -> Writer:
    return start_signed(CORR_ID, ramp(0xA0, 24)).raw(b"SUB")


def test_hsalsa20_of_nacl() -> None:
    key = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    expected = "1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389"
    assert sodium.hsalsa20(key).hex() == expected


def test_first_block_in_each_direction() -> None:
    secret = ramp(0x20, 32)
    block = router_chains(SESSION_ID, secret).sending.seal_block([b"hello"], 5)
    assert bytes(block[:48]).hex() == (
        "4e95a668ff7cc1931e2195ff1d494b28756455763ade91eca37c3c2ab849145a222cd5c19b4e2efffc3c5806e38aa54b"
    )
    assert sha256(bytes(block)) == "dd66498d0d3bc0f42973f0847735abcb7ae253b3618d746b0f5bf3c4033c7b42"
    assert bytes(client_chains(SESSION_ID, secret).receiving.open_block(block)) == b"hello"
    plain = "df8563363c61d5b887988a57d1f4e06a091074281d911cf8666f683953dea848"
    assert sha256(pad(b"hello", 16384)) == plain


def test_authorized_bytes_of_sub() -> None:
    assert hashlib.sha512(authorized_bytes(LAYOUT, sub())).hexdigest() == (
        "0b9c3509836a0da42ab037c3daf859fd85b6405bfe6d27a5e3403011efeff718"
        "361fc9333e6d7184eb7a4ff16616a838fdf623382104fb7193f835a0ef20ae5c"
    )


def test_authenticator_of_sub() -> None:
    session_public = "79a631eede1bf9c98f12032cdeadd0e7a079398fc786b88cc846ec89af85a51a"
    queue_public = "675dd574ed7789310b3d2e7681f3790b466c773b1521fecf36577958371ea52f"
    shared = "d6fb939511b2381bc8599b4b8edc5968829450dfd7a87aebe78a703cd04cd54e"
    assert SESSION.public.raw.hex() == session_public
    assert QUEUE_X25519.public.raw.hex() == queue_public
    assert QUEUE_X25519.agree(SESSION.public).hex() == shared
    authorization = authorize(QUEUE_X25519, authorized_bytes(LAYOUT, sub()), CORR_ID, SESSION.public)
    assert authorization.hex() == (
        "fd1d6a65765d92dd67dbcaacdc091025c6a2f97f24688ad7d6e0b50668251d32852c1f1962e782aa"
        "b2920603eddb6352433067b4d8a747a111e190055ea93785ffab4c274f9ade577536c8a63e0b88e3"
    )
    batch = batch_of_one(transmission_of(LAYOUT, sub(), authorization)).done()
    assert len(batch) == 138
    assert sha256(batch) == "a8b2b57c7945a4cf0d62afa1ad00d8423bcbff89ba107445854535c1eb2619b4"


def test_signature_of_sub() -> None:
    public = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    assert QUEUE_ED25519.public.raw.hex() == public
    assert authorize(QUEUE_ED25519, authorized_bytes(LAYOUT, sub()), CORR_ID, None).hex() == (
        "37e11a95358691b65a057868fc9ded9816ef3ccf4eaf7497e30179047f1b83ec"
        "53e2135c842a63a250173c500734ba338c9fe5d4c479f139acf2fcebee112400"
    )


def test_both_signatures_of_sub_on_a_service_connection() -> None:
    session_key = PrivateKey(Algorithm.ED25519, ramp(0xC0, 32))
    session_public = "dde3bccec7f3a66a1115f45d720f4dc135c3ae7c4e22dca38fdb1efd6a495ff8"
    assert session_key.public.raw.hex() == session_public
    authorized = authorized_bytes(LAYOUT, sub())
    by_queue = authorize(QUEUE_ED25519, with_fingerprint(ramp(0xE0, 32), authorized), CORR_ID, None)
    by_service = session_key.sign(authorized)
    assert by_queue.hex() == (
        "f465480308c9a72c31537c19ed7ae7a75bcba18728c6d0c01d70d2a1fb731e93"
        "0d747a7e91b51e773d678f261ad6b083948f6520f04442ebf0cffc93f1568301"
    )
    assert by_service.hex() == (
        "c59b5c72c4e1a5eb682e93752072ec0d348a6f5195334fbe20adf99c061812a1"
        "e36ca72eaa8e66c05de9df01d802fdccff08a178fd334f8cb844b07120f15907"
    )
    transmission = transmission_of(LAYOUT, sub(), by_queue, by_service).done()
    assert len(transmission) == 184
    assert sha256(transmission) == "002cc295e915383b1aae35887c9a60de83ce0a2e5900fe7e1447ce2523a70a50"


def test_hash_and_sender_id() -> None:
    assert sender_id_of(CORR_ID).hex() == "47553dcaafcca4130f4e7be513c4c9c36dff814dda87dd24"
    assert ids_hash([ramp(0x00, 24), ramp(0x18, 24)]).hex() == "3c63ed673327d6ebd6297beffa737b60"


def test_message_boxes() -> None:
    router, recipient = (PrivateKey(Algorithm.X25519, ramp(first, 32)) for first in (0x21, 0x01))
    secret = "a84dc7c3c8f058b1b2dc4cd1e9b5dc0a7987f88b6a9564cde3391fc421159e77"
    assert router.agree(recipient.public).hex() == secret
    key = BoxKey.agreed(router, recipient.public)
    nonce, time = ramp(0x50, 24), (1_700_000_000).to_bytes(8, "big")
    message = key.seal_padded(nonce, time + b"T hello", 16106)
    assert bytes(message[:48]).hex() == (
        "6fbddcdb2a4ccd5d45b509623b687a77f484a31aa8d4a203404ac27a972297f306f5d41c84490d3aa8439de5a41d6901"
    )
    assert len(message) == 16122
    assert sha256(message) == "5bf1cb04c9aedd739c2c0a971f92950fe934c0d18d9422df564f06b17204c65e"
    quota = key.seal_padded(nonce, b"QUOTA " + time, 16106)
    assert sha256(quota) == "65a5a94d2ce316c209ab18e91a667e5c4f9433a2950da2589cb1cc6acc60bde3"


def test_a_symmetric_key_does_not_give_a_plain_secretbox() -> None:
    key, nonce = ramp(0x00, 32), ramp(0x20, 24)
    padded = pad(b"hello", 32)
    plain = nacl.secret.SecretBox(key).encrypt(padded, nonce).ciphertext
    assert plain.hex() == (
        "d9c5808148273cf28781f926c891e6dcf15c25c0214b35b52a16764d2f6b94d79a919ea8d23a00579f5510b1e1388fde"
    )
    assert BoxKey(key).seal(nonce, padded) != plain
    assert BoxKey(sodium.hsalsa20(key)) != BoxKey(key)


def of(algorithm: Algorithm, byte: int) -> PrivateKey:
    return PrivateKey(algorithm, bytes([byte]) * algorithm.raw_size)


NTF_TOKEN = of(Algorithm.ED25519, 0x0A)
NTF_SECRET = BoxKey.agreed(of(Algorithm.X25519, 0x0B), of(Algorithm.X25519, 0x0C).public)


def text_of(name: str) -> str:
    return next(str(entry["text"]) for entry in vectors("doc_golden.json") if entry["name"] == name)


def bytes_of(name: str) -> bytes:
    return next(
        bytes.fromhex(entry["bytes"]) for entry in vectors("doc_golden.json") if entry["name"] == name
    )


def ntf_tnew_authorized() -> bytes:
    ids = Writer().short(ramp(0, 32)).short(ramp(0, 24)).short(b"").done()
    return ids + bytes_of("ntf TNEW")


def ntf_signed_key() -> bytes:
    session: PublicKey = of(Algorithm.X25519, 0x0F).public
    signer = Credentials((b"not looked at",), of(Algorithm.ED25519, 0x0E))
    return signed_key_to_der(sign_session_key(signer, session).signed_key)


def ntf_two_items() -> memoryview:
    item = text_of("ntf one item")
    both = f"{item};{item.replace(' 1700000000 ', ' 1700000060 ')}"
    return NTF_SECRET.seal_padded(ramp(0, 24), both.encode("ascii"), 3072)


X448 = [of(Algorithm.X448, byte) for byte in range(6)]
R1, R2, S1, S2 = X448[1:5]

PRINTED: dict[str, Callable[[], bytes | memoryview]] = {
    "pad(hello, 16)": lambda: pad(b"hello", 16),
    "box key 00..1f nonce 20..37 pad(hello, 32)": lambda: BoxKey(ramp(0, 32)).seal_padded(
        ramp(0x20, 24), b"hello", 32
    ),
    "contact linkId of 00..1f": lambda: hkdf(b"", ramp(0, 32), b"SimpleXContactLink", 56)[:24],
    "contact key of 00..1f": lambda: hkdf(b"", ramp(0, 32), b"SimpleXContactLink", 56)[24:],
    "invitation key of 00..1f": lambda: hkdf(b"", ramp(0, 32), b"SimpleXInvLink", 32),
    "sender ID of 00..17": lambda: sender_id_of(ramp(0, 24)),
    "r1 public": lambda: R1.public.raw,
    "s1 public": lambda: S1.public.raw,
    "dh1": lambda: R1.agree(S2.public),
    "dh2": lambda: R2.agree(S1.public),
    "dh3": lambda: R2.agree(S2.public),
    "S of X25519(07, 08)": lambda: of(Algorithm.X25519, 7).agree(of(Algorithm.X25519, 8).public),
    "ntf signedKey": ntf_signed_key,
    "ntf TNEW signature": lambda: NTF_TOKEN.sign(ntf_tnew_authorized()),
    "ntf token secret": lambda: of(Algorithm.X25519, 0x0B).agree(of(Algorithm.X25519, 0x0C).public),
    "ntf verification ciphertext": lambda: NTF_SECRET.seal_padded(ramp(0, 24), ramp(0, 32), 3072),
    "ntf two items ciphertext": ntf_two_items,
    "ntf ids hash": lambda: ids_hash([ramp(0x64, 24)]),
}


@pytest.mark.parametrize("name", PRINTED)
def test_printed_by_the_reference(name: str) -> None:
    entry = next(entry for entry in vectors("doc_golden.json") if entry["name"] == name)
    assert same(PRINTED[name](), entry["bytes"])
