"""Web Push encryption: the RFC's example, and both directions with an independent implementation."""

from __future__ import annotations

import json
import random
from typing import Any

import http_ece
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pywebpush import WebPusher

from blindpost.crypto import webpush
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.errors import CryptoError
from blindpost.wire.text import ub64, unb64

PLAINTEXT = b"When I grow up, I want to be a watermelon"
SENDER = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
DEVICE = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
DEVICE_POINT = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
SALT, AUTH = "DGv6ra1nlYgDCS1FRnbzlw", "BTBZMqHH6r4Tts7J_aSIgg"
BODY = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8w"
    "EqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)


def private(text: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(unb64(text), "big"), ec.SECP256R1())


def test_the_example_of_the_rfc_gives_the_same_bytes() -> None:
    body = webpush.encrypt_with(PLAINTEXT, unb64(DEVICE_POINT), unb64(AUTH), private(SENDER), unb64(SALT))
    assert ub64(body) == BODY
    assert webpush.decrypt(body, private(DEVICE), unb64(AUTH)) == PLAINTEXT
    assert webpush.point_of(private(DEVICE)) == unb64(DEVICE_POINT)


def test_another_implementation_decrypts_for_a_thousand_devices() -> None:
    chance = random.Random(8291)
    for number in range(1000):
        key, auth = webpush.new_private_key(chance.randbytes), chance.randbytes(16)
        size = chance.choice((0, 1, 100, webpush.PLAINTEXT_MAX - 1, webpush.PLAINTEXT_MAX))
        plaintext = chance.randbytes(size)
        body = webpush.encrypt(plaintext, webpush.point_of(key), auth, chance.randbytes)
        assert len(body) <= 4096
        assert http_ece.decrypt(body, private_key=key, auth_secret=auth, version="aes128gcm") == plaintext, (
            number
        )


def test_what_another_sender_encrypts_is_opened() -> None:
    key, auth = webpush.new_private_key(system_entropy), system_entropy(16)
    keys = {"p256dh": ub64(webpush.point_of(key)), "auth": ub64(auth)}
    pusher = WebPusher({"endpoint": "https://push.example/x", "keys": keys})
    encoded: dict[str, Any] = pusher.encode(b'{"checkMessages": true}', content_encoding="aes128gcm")
    assert json.loads(webpush.decrypt(bytes(encoded["body"]), key, auth)) == {"checkMessages": True}


def test_changed_and_foreign_pushes_are_refused() -> None:
    key, auth = webpush.new_private_key(system_entropy), system_entropy(16)
    body = webpush.encrypt(b"secret", webpush.point_of(key), auth, system_entropy)
    for place in range(len(body)):
        changed = bytearray(body)
        changed[place] ^= 1
        if 16 <= place < 20 and int.from_bytes(changed[16:20], "big") >= len(body) - 86:
            continue  # another record size that still holds it says nothing
        with pytest.raises(CryptoError):
            webpush.decrypt(bytes(changed), key, auth)
    for size in range(len(body)):
        with pytest.raises(CryptoError):
            webpush.decrypt(body[:size], key, auth)
    with pytest.raises(CryptoError):
        webpush.decrypt(body, webpush.new_private_key(system_entropy), auth)
    with pytest.raises(CryptoError):
        webpush.decrypt(body, key, bytes(16))


def test_invalid_keys_and_too_long_content_are_refused() -> None:
    point = webpush.point_of(webpush.new_private_key(system_entropy))
    with pytest.raises(CryptoError):
        webpush.encrypt(bytes(webpush.PLAINTEXT_MAX + 1), point, bytes(16), system_entropy)
    with pytest.raises(CryptoError):
        webpush.encrypt(b"", b"\x04" + bytes(64), bytes(16), system_entropy)


def test_signatures_verify_with_the_key() -> None:
    key = webpush.new_private_key(system_entropy)
    signature = webpush.es256(key, b"content")
    assert webpush.verify_es256(webpush.point_of(key), b"content", signature)
    assert not webpush.verify_es256(webpush.point_of(key), b"other", signature)
    assert not webpush.verify_es256(webpush.point_of(key), b"content", signature[:-1])
    assert not webpush.verify_es256(b"\x04" + bytes(64), b"content", signature)
