"""libsodium, called directly on the caller's buffers.

The library is the one that PyNaCl brings along. PyNaCl's own functions copy every message twice and
leave out HSalsa20, so its shared object is opened here by address (cffi, ABI mode); boxes go through the
functions that PyNaCl compiled in, which cost a quarter to call. Lengths are checked here, before a pointer is
handed over; nothing else in the package touches libsodium.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from blindpost.crypto.errors import CryptoError
from blindpost.crypto.sodium_abi import ffi
from blindpost.wire.value import Buffer

KEY_SIZE = 32
NONCE_SIZE = 24
TAG_SIZE = 16
SIGNATURE_SIZE = 64

DECLARATIONS = """
int sodium_init(void);
int crypto_core_hsalsa20(unsigned char *out, const unsigned char *in, const unsigned char *k,
    const unsigned char *c);
int crypto_scalarmult(unsigned char *q, const unsigned char *n, const unsigned char *p);
int crypto_scalarmult_base(unsigned char *q, const unsigned char *n);
int crypto_sign_seed_keypair(unsigned char *pk, unsigned char *sk, const unsigned char *seed);
int crypto_sign_detached(unsigned char *sig, unsigned long long *siglen, const unsigned char *m,
    unsigned long long mlen, const unsigned char *sk);
"""
"""What `sodium_abi.py` was made of."""
_NAMES = (
    "sodium_init",
    "crypto_core_hsalsa20",
    "crypto_scalarmult",
    "crypto_scalarmult_base",
    "crypto_sign_seed_keypair",
    "crypto_sign_detached",
)

_NULL = ffi.NULL
_ZERO_INPUT = bytes(16)
_opened: list[Any] = []
"""Libraries whose functions are in use: cffi closes one that nobody holds."""


def bundled_path() -> str:
    """Where PyNaCl keeps its libsodium."""
    spec = find_spec("nacl._sodium")
    if spec is None or spec.origin is None:
        raise ImportError("PyNaCl with its own libsodium is needed (nacl._sodium is not there)")
    return spec.origin


def load(path: str, names: tuple[str, ...] = _NAMES) -> list[Any]:
    """The functions `names` of the libsodium at `path`, or one error that says what is missing."""
    library = ffi.dlopen(path)
    _opened.append(library)
    found, missing = [], []
    for name in names:
        try:
            found.append(getattr(library, name))
        except AttributeError:
            missing.append(name)
    if missing:
        raise ImportError(
            f"the libsodium inside PyNaCl ({path}) does not export {', '.join(missing)}; "
            "install another release of PyNaCl (1.6 is known to work)"
        )
    return found


(
    _init,
    _hsalsa20,
    _scalarmult,
    _scalarmult_base,
    _seed_keypair,
    _sign,
) = load(bundled_path())
if _init() < 0:
    raise ImportError("libsodium could not be initialized")


_compiled = import_module("nacl._sodium")
_from_buffer = _compiled.ffi.from_buffer
secretbox, secretbox_open = _compiled.lib.crypto_secretbox_easy, _compiled.lib.crypto_secretbox_open_easy


def _sized(data: Buffer, size: int, what: str) -> bytes:
    if len(data) != size:
        raise CryptoError(f"{what} of {size} bytes expected, not {len(data)}")
    return data if type(data) is bytes else bytes(data)


def hsalsa20(secret: bytes) -> bytes:
    """HSalsa20 of 16 zero bytes under `secret`: the key a box is really sealed with."""
    if len(secret) != KEY_SIZE:
        raise CryptoError(f"a secret of {KEY_SIZE} bytes expected, not {len(secret)}")
    out = bytearray(KEY_SIZE)
    _hsalsa20(_from_buffer(out), _ZERO_INPUT, secret, _NULL)
    return bytes(out)


def _check_box(size: int, key: bytes, nonce: Buffer) -> None:
    if size < TAG_SIZE:
        raise CryptoError(f"a box of at least {TAG_SIZE} bytes, the size of its tag, expected")
    if len(key) != KEY_SIZE:
        raise CryptoError(f"a key of {KEY_SIZE} bytes expected, not {len(key)}")
    if len(nonce) != NONCE_SIZE:
        raise CryptoError(f"a nonce of {NONCE_SIZE} bytes expected, not {len(nonce)}")


def seal_in_place(work: bytearray, key: bytes, nonce: Buffer) -> None:
    """Encrypt `work[16:]` in place and put the tag before it, into `work[:16]`."""
    size = len(work)
    if size < TAG_SIZE or len(key) != KEY_SIZE or len(nonce) != NONCE_SIZE:
        _check_box(size, key, nonce)
    start = _from_buffer(work)
    secretbox(start, start + TAG_SIZE, size - TAG_SIZE, nonce if type(nonce) is bytes else bytes(nonce), key)


def seal_once(work: bytearray, secret: bytes, nonce: bytes) -> None:
    """`seal_in_place` with the key that HSalsa20 makes of `secret`, which is used for this box alone."""
    size = len(work)
    if size < TAG_SIZE or len(secret) != KEY_SIZE or len(nonce) != NONCE_SIZE:
        _check_box(size, secret, nonce)
    key, start = _from_buffer(bytearray(KEY_SIZE)), _from_buffer(work)
    _hsalsa20(key, _ZERO_INPUT, secret, _NULL)
    secretbox(start, start + TAG_SIZE, size - TAG_SIZE, nonce, key)


def open_once(out: bytearray, box: Buffer | bytearray, secret: bytes, nonce: bytes) -> None:
    """Open `box` into `out`, which has room for it, as `seal_once` sealed it."""
    size = len(box)
    if size < TAG_SIZE or len(secret) != KEY_SIZE or len(nonce) != NONCE_SIZE:
        _check_box(size, secret, nonce)
    if len(out) < size - TAG_SIZE:
        raise CryptoError(f"room for {size - TAG_SIZE} bytes expected, not {len(out)}")
    key = _from_buffer(bytearray(KEY_SIZE))
    _hsalsa20(key, _ZERO_INPUT, secret, _NULL)
    if secretbox_open(_from_buffer(out), _from_buffer(box), size, nonce, key):
        raise CryptoError("the box does not open")


def open_box(box: Buffer | bytearray, key: bytes, nonce: Buffer) -> bytearray:
    """The message in `box` (tag first), opened straight into a new buffer."""
    size = len(box)
    if size < TAG_SIZE or len(key) != KEY_SIZE or len(nonce) != NONCE_SIZE:
        _check_box(size, key, nonce)
    out = bytearray(size - TAG_SIZE)
    nonce = nonce if type(nonce) is bytes else bytes(nonce)
    if secretbox_open(_from_buffer(out), _from_buffer(box), size, nonce, key):
        raise CryptoError("the box does not open")
    return out


def x25519(private: bytes, public: Buffer) -> bytes:
    """The shared point; 32 zero bytes for a peer's key of small order.

    libsodium reports such keys; the reference ignores that and continues with zeros. We do not refuse them
    either: only the peer that sent such a key gives away what it protects, and refusing would be visible on
    the wire.
    """
    out = bytearray(KEY_SIZE)
    private, public = _sized(private, KEY_SIZE, "a private key"), _sized(public, KEY_SIZE, "a public key")
    if _scalarmult(_from_buffer(out), private, public):
        return bytes(KEY_SIZE)
    return bytes(out)


def x25519_public(private: bytes) -> bytes:
    out = bytearray(KEY_SIZE)
    _scalarmult_base(_from_buffer(out), _sized(private, KEY_SIZE, "a private key"))
    return bytes(out)


def ed25519_expand(seed: bytes) -> bytes:
    """Seed and public key in one, as libsodium signs with; the public key is the second half."""
    public, expanded = bytearray(KEY_SIZE), bytearray(2 * KEY_SIZE)
    _seed_keypair(_from_buffer(public), _from_buffer(expanded), _sized(seed, KEY_SIZE, "a seed"))
    return bytes(expanded)


def ed25519_sign(expanded: bytes, message: Buffer) -> bytes:
    out = bytearray(SIGNATURE_SIZE)
    key = _sized(expanded, 2 * KEY_SIZE, "a signing key")
    source = message if type(message) is bytes else _from_buffer(message)
    _sign(_from_buffer(out), _NULL, source, len(message), key)
    return bytes(out)
