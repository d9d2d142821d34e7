"""Every vector of `crypto.json`: values printed by the reference's own functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from blindpost.crypto import aead
from blindpost.crypto.authorizers import AuthenticatorKeys, authorize, check_of
from blindpost.crypto.block_chain import client_chains, router_chains
from blindpost.crypto.boxes import BoxKey, nonce_of, reversed_nonce
from blindpost.crypto.chains import fingerprint
from blindpost.crypto.credentials import Credentials, sign_session_key, verify_session_key
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.ids_hash import QueueSet, id_hash, ids_hash, sender_id_of
from blindpost.crypto.kdf import hkdf
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.crypto.verifying import OneByOne
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.padding import pad, unpad
from blindpost.wire.primitives import decode_whole, encode
from blindpost.wire.signed_key import signed_key_from_der, signed_key_to_der
from blindpost.wire.smp.messages import (
    Message,
    NMsgMeta,
    QuotaMarker,
    ReceivedMessage,
    read_message,
    read_nmsg_meta,
    write_message,
    write_nmsg_meta,
)
from tests.support.wire.long_values import same, whole
from tests.support.wire.vectors import vectors

Vector = dict[str, Any]
ALGORITHMS = {algorithm.label: algorithm for algorithm in Algorithm}
PADDED_MSG_SIZE = 16106


def private_key(entry: Vector) -> PrivateKey:
    """A key of the vectors; each one also shows our public key and both DER forms."""
    key = PrivateKey(ALGORITHMS[entry["alg"]], bytes.fromhex(entry["private"]))
    assert key.public.raw.hex() == entry["public"]
    assert key.public.spki.hex() == entry["public_spki"]
    assert PublicKey.from_spki(bytes.fromhex(entry["public_spki"])) == key.public
    assert key.pkcs8.hex() == entry["private_pkcs8"]
    assert PrivateKey.from_pkcs8(bytes.fromhex(entry["private_pkcs8"])) == key
    return key


def refused(vector: Vector, action: Callable[[], object]) -> bool:
    """Whether the vector records a refusal; if so, ours must refuse too."""
    if "error" not in vector:
        return False
    with pytest.raises(WireError):
        action()
    return True


def show_pad(vector: Vector) -> None:
    message, size = whole(vector["message"]), vector["paddedLen"]
    if not refused(vector, lambda: pad(message, size)):
        assert same(pad(message, size), vector["bytes"])
        assert unpad(pad(message, size)) == message


def show_unpad(vector: Vector) -> None:
    padded = bytes.fromhex(vector["input"])
    if not refused(vector, lambda: unpad(padded)):
        assert same(unpad(padded), vector["bytes"])


def sealed(key: BoxKey, vector: Vector) -> bytes:
    nonce, message = bytes.fromhex(vector["nonce"]), whole(vector["message"])
    if vector["padded"] is None:
        return key.seal(nonce, message)
    return bytes(key.seal_padded(nonce, message, vector["padded"]))


def show_sealing(key: BoxKey, vector: Vector) -> None:
    if refused(vector, lambda: sealed(key, vector)):
        return
    box = sealed(key, vector)
    assert same(box, vector["bytes"])
    unseal = key.open if vector["padded"] is None else key.open_padded
    assert unseal(bytes.fromhex(vector["nonce"]), box) == whole(vector["message"])


def show_box(vector: Vector) -> None:
    own, peer = private_key(vector["private"]), private_key(vector["peer"])
    assert own.agree(peer.public).hex() == vector["secret"]
    assert BoxKey.agreed(own, peer.public) == BoxKey.agreed(peer, own.public)
    show_sealing(BoxKey.agreed(own, peer.public), vector)


def show_sbox(vector: Vector) -> None:
    show_sealing(BoxKey(bytes.fromhex(vector["key"])), vector)


def show_box_open(vector: Vector) -> None:
    key, nonce = BoxKey(bytes.fromhex(vector["secret"])), bytes.fromhex(vector["nonce"])
    box = bytes.fromhex(vector["input"])
    assert vector["unpad"] is True
    if not refused(vector, lambda: key.open_padded(nonce, box)):
        assert same(key.open_padded(nonce, box), vector["bytes"])
    if vector.get("error") == "CBDecryptError":
        with pytest.raises(CryptoError):
            key.open(nonce, box)


def show_nonce(vector: Vector) -> None:
    nonce = nonce_of(bytes.fromhex(vector["input"]))
    assert nonce.hex() == vector["bytes"]
    assert reversed_nonce(nonce).hex() == vector["reversed"]


def show_dh(vector: Vector) -> None:
    key = private_key(vector["private"])
    peer = PublicKey(key.algorithm, bytes.fromhex(vector["peer_public"]))
    assert key.agree(peer).hex() == vector["bytes"]


def show_sign(vector: Vector) -> None:
    key, message = private_key(vector["private"]), bytes.fromhex(vector["message"])
    assert key.sign(message).hex() == vector["bytes"]
    assert verify(key.public, message, bytes.fromhex(vector["bytes"]))


def show_authenticator(vector: Vector) -> None:
    queue, session = private_key(vector["queue_private"]), private_key(vector["router_session"])
    authorized, corr_id = whole(vector["authorized"]), bytes.fromhex(vector["corrId_nonce"])
    assert hashlib.sha512(authorized).hexdigest() == vector["sha512"]
    authorization = authorize(queue, authorized, corr_id, session.public)
    assert authorization.hex() == vector["bytes"]
    check = check_of(queue.public, authorization, authorized, corr_id, AuthenticatorKeys(session))
    assert OneByOne().verify_many([check]) == [True]


def show_signed_key(vector: Vector) -> None:
    signer = private_key(vector["signer"])
    subject = PublicKey.from_spki(bytes.fromhex(vector["subject_key"]))
    signed = sign_session_key(Credentials((b"not looked at",), signer), subject).signed_key
    assert signed.signed.hex() == vector["signed_bytes"]
    assert signed_key_to_der(signed).hex() == vector["bytes"]
    received = signed_key_from_der(bytes.fromhex(vector["bytes"]))
    assert received == signed
    assert verify_session_key(signer.public, received)


def show_hash(vector: Vector) -> None:
    data = whole(vector["input"])
    functions: dict[str, Callable[[bytes], bytes]] = {
        "sha256": fingerprint,
        "sha512": lambda data: hashlib.sha512(data).digest(),
        "sha3_256": lambda data: hashlib.sha3_256(data).digest(),
        "sha3_384": lambda data: hashlib.sha3_384(data).digest(),
        "md5": id_hash,
    }
    assert functions[vector["name"]](data).hex() == vector["bytes"]


def show_sender_id(vector: Vector) -> None:
    assert sender_id_of(bytes.fromhex(vector["corrId"])).hex() == vector["bytes"]


def show_hkdf(vector: Vector) -> None:
    salt, secret = bytes.fromhex(vector["salt"]), bytes.fromhex(vector["ikm"])
    assert hkdf(salt, secret, vector["info"].encode("latin-1"), vector["n"]).hex() == vector["bytes"]


def show_block_chain(vector: Vector) -> None:
    session_id, secret = bytes.fromhex(vector["sessionId"]), bytes.fromhex(vector["shared_secret"])
    router, client = router_chains(session_id, secret), client_chains(session_id, secret)
    directions = (
        ("ck1 (router to client)", "ck1_steps", router.sending, client.receiving),
        ("ck2 (client to router)", "ck2_steps", client.sending, router.receiving),
    )
    for first_key, steps, sending, receiving in directions:
        assert vector[steps][0]["chainKey_before"] == vector[first_key]
        for step in vector[steps]:
            derived = hkdf(b"", bytes.fromhex(step["chainKey_before"]), b"SimpleXSbChain", 88)
            assert derived.hex() == step["chainKey_after"] + step["blockKey"] + step["nonce"]
            payload = bytes.fromhex(step["payload"])
            block = sending.seal_block([payload], len(payload))
            assert same(bytes(block), step["block"])
            assert receiving.open_block(block) == payload


def show_plain_block(vector: Vector) -> None:
    payload = whole(vector["payload"])
    if not refused(vector, lambda: pad(payload, 16384)):
        assert same(pad(payload, 16384), vector["bytes"])
        assert unpad(pad(payload, 16384)) == payload


def show_message_delivery(vector: Vector) -> None:
    recipient, router = private_key(vector["recipient_private"]), private_key(vector["router_private"])
    assert router.agree(recipient.public).hex() == vector["rcvDhSecret"]
    nonce = nonce_of(bytes.fromhex(vector["msgId"]))
    assert nonce.hex() == vector["nonce"]
    plaintext = whole(vector["plaintext"])
    message: ReceivedMessage = QuotaMarker(vector["timestamp"])
    if vector["sentBody"] is not None:
        message = Message(vector["timestamp"], vector["notification"], whole(vector["sentBody"]))
    assert encode(message, write_message) == plaintext
    box = BoxKey.agreed(router, recipient.public).seal_padded(nonce, plaintext, PADDED_MSG_SIZE)
    assert same(box, vector["bytes"])
    assert BoxKey.agreed(recipient, router.public).open_padded(nonce, box) == plaintext


def show_nmsg_meta(vector: Vector) -> None:
    meta = NMsgMeta(bytes.fromhex(vector["msgId"]), vector["timestamp"])
    plaintext = encode(meta, write_nmsg_meta)
    assert plaintext.hex() == vector["plaintext"]
    assert decode_whole(plaintext, read_nmsg_meta) == meta
    key, nonce = BoxKey(bytes.fromhex(vector["ntfSecret"])), bytes.fromhex(vector["nonce"])
    assert same(key.seal_padded(nonce, plaintext, 128), vector["bytes"])
    assert key.open_padded(nonce, bytes.fromhex(vector["bytes"])) == plaintext


def show_rcv_body_parse(vector: Vector) -> None:
    plaintext, result = bytes.fromhex(vector["plaintext"]), vector["result"]
    if refused(result, lambda: decode_whole(plaintext, read_message)):
        return
    message = decode_whole(plaintext, read_message)
    if "quota" in result:
        assert message == QuotaMarker(result["timestamp"])
    else:
        body = bytes.fromhex(result["body"])
        assert message == Message(result["timestamp"], result["notification"], body)
    if vector["name"] != "long flags":
        assert encode(message, write_message) == plaintext


def show_ids_hash(vector: Vector) -> None:
    if "ids" in vector:
        ids = [bytes.fromhex(queue_id) for queue_id in vector["ids"]]
    else:
        ids = [number.to_bytes(4, "big") + bytes(20) for number in range(vector["count"])]
    assert ids_hash(ids).hex() == vector["bytes"]
    assert QueueSet.of(ids) == QueueSet(len(ids), bytes.fromhex(vector["bytes"]))


def show_id_hash(vector: Vector) -> None:
    assert id_hash(bytes.fromhex(vector["id"])).hex() == vector["bytes"]


def queue_set(entry: Vector) -> QueueSet:
    return QueueSet(entry["count"], bytes.fromhex(entry["idsHash"]))


def show_add(vector: Vector) -> None:
    assert queue_set(vector["a"]) + queue_set(vector["b"]) == queue_set(vector["result"])


def show_subtract(vector: Vector) -> None:
    assert queue_set(vector["a"]) - queue_set(vector["b"]) == queue_set(vector["result"])


def show_gcm(vector: Vector) -> None:
    key, iv = bytes.fromhex(vector["key"]), bytes.fromhex(vector["iv"])
    associated, message = whole(vector.get("ad", "")), whole(vector["message"])
    plaintext = pad(message, vector["paddedLen"]) if "paddedLen" in vector else message
    tag, ciphertext = aead.seal(key, iv, associated, plaintext)
    assert tag.hex() == vector["tag"]
    assert same(ciphertext, vector["bytes"])
    assert aead.unseal(key, iv, associated, tag, ciphertext) == plaintext


def show_kem_hybrid(vector: Vector) -> None:
    key = private_key(vector["private"])
    shared = key.agree(PublicKey(Algorithm.X25519, bytes.fromhex(vector["peer_public"])))
    secret = hashlib.sha3_256(shared + bytes.fromhex(vector["kem_shared"])).digest()
    assert secret.hex() == vector["hybrid_secret"]
    nonce, message = bytes.fromhex(vector["nonce"]), bytes.fromhex(vector["message"])
    assert same(BoxKey(secret).seal_padded(nonce, message, vector["paddedLen"]), vector["bytes"])


SHOWN: dict[str, Callable[[Vector], None]] = {
    "pad": show_pad,
    "unpad": show_unpad,
    "box": show_box,
    "sbox": show_sbox,
    "box_open": show_box_open,
    "nonceOf": show_nonce,
    "dh": show_dh,
    "sign": show_sign,
    "authenticator": show_authenticator,
    "signed_key": show_signed_key,
    "hash": show_hash,
    "senderId": show_sender_id,
    "hkdf": show_hkdf,
    "block_chain": show_block_chain,
    "plain_block": show_plain_block,
    "message_delivery": show_message_delivery,
    "nmsg_meta": show_nmsg_meta,
    "rcv_body_parse": show_rcv_body_parse,
    "ids_hash": show_ids_hash,
    "id_hash": show_id_hash,
    "add_subs": show_add,
    "subtract_subs": show_subtract,
    "gcm": show_gcm,
    "gcm12": show_gcm,
    "kem_hybrid": show_kem_hybrid,
}


def by_kind_and_name(vector: Vector) -> str:
    return f"{vector['kind']}: {vector['name']}"


@pytest.mark.parametrize("vector", vectors("crypto.json"), ids=by_kind_and_name)
def test_reference_value(vector: Vector) -> None:
    SHOWN[vector["kind"]](vector)


def test_every_kind_has_vectors() -> None:
    assert {vector["kind"] for vector in vectors("crypto.json")} == set(SHOWN)
