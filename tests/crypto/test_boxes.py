"""Boxes: round trips, an independent implementation, and every byte changed."""

from __future__ import annotations

import nacl.public
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.boxes import BoxKey, nonce_of, reversed_nonce
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.padding import pad
from tests.support.wire.hostile import calls_made, memory_peak
from tests.support.wire.long_values import ramp

KEY = BoxKey(ramp(0x30, 32))
NONCE = ramp(0x80, 24)


@given(
    first=st.binary(min_size=32, max_size=32), second=st.binary(min_size=32, max_size=32), message=st.binary()
)
@settings(deadline=None)
def test_a_box_between_two_keys_equals_pynacls(first: bytes, second: bytes, message: bytes) -> None:
    own, peer = PrivateKey(Algorithm.X25519, first), PrivateKey(Algorithm.X25519, second)
    independent = nacl.public.Box(nacl.public.PrivateKey(second), nacl.public.PublicKey(own.public.raw))
    box = BoxKey.agreed(own, peer.public).seal(NONCE, message)
    assert box == independent.encrypt(message, NONCE).ciphertext
    assert BoxKey.agreed(peer, own.public).open(NONCE, memoryview(box)) == message


@given(
    secret=st.binary(min_size=32, max_size=32),
    parts=st.lists(st.binary(max_size=40)),
    room=st.integers(2, 90),
)
@settings(deadline=None)
def test_padded_boxes_hold_their_content(secret: bytes, parts: list[bytes], room: int) -> None:
    key, content = BoxKey(secret), b"".join(parts)
    size = len(content) + room
    box = key.seal_parts(NONCE, [memoryview(part) for part in parts], len(content), size)
    assert len(box) == size + 16
    assert box == key.seal_padded(NONCE, content, size)
    assert key.open(NONCE, box) == pad(content, size)
    assert key.open_padded(NONCE, box) == content


def test_sealing_again_gives_the_same_box_and_leaves_the_message_alone() -> None:
    message = bytearray(b"hello")
    assert KEY.seal(NONCE, memoryview(message)) == KEY.seal(NONCE, b"hello")
    assert message == b"hello"


def test_content_that_does_not_fit_is_refused() -> None:
    assert len(KEY.seal_padded(NONCE, bytes(98), 100)) == 116
    with pytest.raises(WireError, match="99 bytes do not fit into 100"):
        KEY.seal_padded(NONCE, bytes(99), 100)
    assert len(KEY.seal_padded(NONCE, bytes(65533), 70000)) == 70016
    with pytest.raises(WireError, match="65534 bytes do not fit"):
        KEY.seal_padded(NONCE, bytes(65534), 70000)


def test_every_changed_byte_keeps_a_box_closed() -> None:
    box = bytearray(KEY.seal(NONCE, ramp(0, 100)))
    for place in range(len(box)):
        for bit in (0x01, 0x80):
            box[place] ^= bit
            with pytest.raises(CryptoError):
                KEY.open(NONCE, memoryview(box))
            box[place] ^= bit
    assert KEY.open(NONCE, memoryview(box)) == ramp(0, 100)


def test_every_truncation_keeps_a_box_closed() -> None:
    box = KEY.seal(NONCE, ramp(0, 40))
    for count in range(len(box)):
        with pytest.raises(CryptoError):
            KEY.open(NONCE, box[:count])
    with pytest.raises(CryptoError):
        KEY.open(NONCE, box + b"\0")


def test_another_nonce_or_key_keeps_a_box_closed() -> None:
    box = KEY.seal(NONCE, b"hello")
    for nonce in (reversed_nonce(NONCE), bytes(24)):
        with pytest.raises(CryptoError, match="does not open"):
            KEY.open(nonce, box)
    with pytest.raises(CryptoError, match="does not open"):
        BoxKey(ramp(0x31, 32)).open(NONCE, box)


def test_padding_inside_an_opened_box_is_checked() -> None:
    with pytest.raises(WireError, match="5 padded bytes announced, 3 there"):
        KEY.open_padded(NONCE, KEY.seal(NONCE, b"\0\5abc"))


@given(data=st.binary(max_size=60))
@settings(deadline=None)
def test_nonces_are_cut_or_padded(data: bytes) -> None:
    nonce = nonce_of(data)
    assert len(nonce) == 24
    assert nonce == (data + bytes(24))[:24]
    assert reversed_nonce(nonce) == bytes(reversed(nonce))


def test_a_box_key_prints_no_secrets() -> None:
    assert repr(KEY) == "BoxKey(32 secret bytes)"
    assert f"{KEY}" == repr(KEY)


def test_opening_takes_one_buffer_whatever_the_size() -> None:
    small, large = (KEY.seal(NONCE, bytes(size)) for size in (16, 65536))

    def unseal(box: bytes) -> object:
        return KEY.open(NONCE, box)

    assert calls_made(unseal, small) == calls_made(unseal, large)
    assert memory_peak(unseal, large) < len(large) + 4096
    forged = bytes(len(large))
    assert memory_peak(unseal, forged) < len(large) + 4096
