"""libsodium behind our signatures: what it computes, what it refuses, that sizes are checked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import nacl.bindings
import nacl.signing
import pytest
from cffi import FFI
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto import sodium, sodium_abi
from blindpost.crypto.errors import CryptoError
from tests.support.wire.long_values import ramp

KEY = ramp(0x30, 32)
NONCE = ramp(0x80, 24)


def test_missing_functions_are_named_in_one_error() -> None:
    with pytest.raises(ImportError, match="does not export sodium_version_string, no_such_function; install"):
        sodium.load(sodium.bundled_path(), ("sodium_init", "sodium_version_string", "no_such_function"))


@pytest.mark.parametrize("found", [None, ModuleSpec("nacl._sodium", None)], ids=["nothing", "no file"])
def test_a_missing_library_is_named(found: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sodium, "find_spec", lambda name: found)
    with pytest.raises(ImportError, match="PyNaCl with its own libsodium is needed"):
        sodium.bundled_path()


def ffi_made_by(source: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What a module made by cffi hands to its backend."""
    made: dict[str, object] = {}
    backend = ModuleType("_cffi_backend")
    monkeypatch.setattr(backend, "FFI", lambda name, **parts: made.update(parts), raising=False)
    monkeypatch.setitem(sys.modules, "_cffi_backend", backend)
    exec(source, {})  # noqa: S102  # our own file, and what cffi writes
    monkeypatch.undo()
    return made


def test_the_compiled_declarations_match_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ffi = FFI()
    ffi.set_source("sodium_abi", None)
    ffi.cdef(sodium.DECLARATIONS)
    ffi.emit_python_code(str(tmp_path / "made.py"))
    ours = ffi_made_by(Path(sodium_abi.__file__).read_text(), monkeypatch)
    assert ours == ffi_made_by((tmp_path / "made.py").read_text(), monkeypatch)


def seal(message: bytes, nonce: bytes = NONCE) -> bytearray:
    work = bytearray(16) + message
    sodium.seal_in_place(work, KEY, nonce)
    return work


@given(message=st.binary(max_size=300), key=st.binary(min_size=32, max_size=32))
@settings(deadline=None)
def test_boxes_equal_pynacls(message: bytes, key: bytes) -> None:
    work = bytearray(16) + message
    sodium.seal_in_place(work, key, NONCE)
    assert work == nacl.bindings.crypto_secretbox(message, NONCE, key)
    assert sodium.open_box(memoryview(work), key, NONCE) == message


def test_opening_does_not_modify_the_box() -> None:
    box = seal(b"hello")
    before = bytes(box)
    assert sodium.open_box(box, KEY, NONCE) == b"hello"
    assert box == before


def test_a_changed_box_does_not_open() -> None:
    box = seal(b"hello")
    box[-1] ^= 1
    with pytest.raises(CryptoError, match="does not open"):
        sodium.open_box(box, KEY, NONCE)


def test_keys_and_nonces_may_be_views() -> None:
    box = seal(b"hello")
    assert sodium.open_box(box, bytes(memoryview(KEY)), memoryview(b"x" + NONCE)[1:]) == b"hello"
    assert sodium.x25519(ramp(7, 32), memoryview(ramp(9, 32))) == sodium.x25519(ramp(7, 32), ramp(9, 32))


def test_opening_reads_only_the_view_it_is_given() -> None:
    around = memoryview(b"before" + seal(b"hello") + b"after")
    assert sodium.open_box(around[6:-5], KEY, NONCE) == b"hello"


WRONG_SIZES: dict[str, Callable[[], object]] = {
    "short secret": lambda: sodium.hsalsa20(bytes(31)),
    "long secret": lambda: sodium.hsalsa20(bytes(33)),
    "no room for a tag": lambda: sodium.seal_in_place(bytearray(15), KEY, NONCE),
    "short key to seal": lambda: sodium.seal_in_place(bytearray(16), bytes(31), NONCE),
    "short nonce to seal": lambda: sodium.seal_in_place(bytearray(16), KEY, bytes(23)),
    "long nonce to seal": lambda: sodium.seal_in_place(bytearray(16), KEY, bytes(25)),
    "short box": lambda: sodium.open_box(bytes(15), KEY, NONCE),
    "short key to open": lambda: sodium.open_box(bytes(seal(b"")), bytes(31), NONCE),
    "short nonce to open": lambda: sodium.open_box(bytes(seal(b"")), KEY, NONCE[:23]),
    "long nonce to open": lambda: sodium.open_box(bytes(seal(b"")), KEY, NONCE + b"\0"),
    "short private key": lambda: sodium.x25519(bytes(31), ramp(0, 32)),
    "short public key": lambda: sodium.x25519(ramp(0, 32), ramp(0, 31)),
    "short private key alone": lambda: sodium.x25519_public(bytes(31)),
    "short seed": lambda: sodium.ed25519_expand(bytes(31)),
    "short signing key": lambda: sodium.ed25519_sign(bytes(63), b""),
    "no room for a tag, once": lambda: sodium.seal_once(bytearray(15), KEY, NONCE),
    "short secret to seal once": lambda: sodium.seal_once(bytearray(16), bytes(31), NONCE),
    "short nonce to seal once": lambda: sodium.seal_once(bytearray(16), KEY, NONCE[:23]),
    "short box, once": lambda: sodium.open_once(bytearray(9), bytes(15), KEY, NONCE),
    "short secret to open once": lambda: sodium.open_once(bytearray(9), bytes(seal(b"")), bytes(31), NONCE),
    "long nonce to open once": lambda: sodium.open_once(bytearray(9), bytes(seal(b"")), KEY, NONCE + b"\0"),
    "no room for the message": lambda: sodium.open_once(bytearray(4), bytes(seal(b"hello")), KEY, NONCE),
}


@pytest.mark.parametrize("name", WRONG_SIZES)
def test_wrong_sizes_are_refused(name: str) -> None:
    with pytest.raises(CryptoError, match="bytes"):
        WRONG_SIZES[name]()


@given(first=st.binary(min_size=32, max_size=32), second=st.binary(min_size=32, max_size=32))
@settings(deadline=None)
def test_agreement_equals_pynacls(first: bytes, second: bytes) -> None:
    public = nacl.bindings.crypto_scalarmult_base(second)
    assert sodium.x25519_public(second) == public
    assert sodium.x25519(first, public) == nacl.bindings.crypto_scalarmult(first, public)


LOW_ORDER = (
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
)


@pytest.mark.parametrize("public", LOW_ORDER, ids=bytes.hex)
def test_a_key_of_small_order_gives_zeros_as_in_the_reference(public: bytes) -> None:
    assert sodium.x25519(ramp(7, 32), public) == bytes(32)


@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=200))
@settings(deadline=None)
def test_signatures_equal_pynacls(seed: bytes, message: bytes) -> None:
    expanded = sodium.ed25519_expand(seed)
    signature = sodium.ed25519_sign(expanded, memoryview(message))
    assert signature == nacl.signing.SigningKey(seed).sign(message).signature
