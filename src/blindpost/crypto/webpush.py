"""Encryption of Web Push: RFC 8291 over RFC 8188 with one record, and the tokens of RFC 8292 (VAPID).

Each push has its own key pair and salt. The device's key pair and its `auth` secret are what the
device gave to the application with the endpoint.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError

SALT_SIZE = 16
POINT_SIZE = 65
RECORD_SIZE = 4096
_COORDINATE = 32
_TAG_SIZE = 16
_HEAD_SIZE = SALT_SIZE + 4 + 1 + POINT_SIZE
_LAST = b"\x02"
PLAINTEXT_MAX = RECORD_SIZE - _HEAD_SIZE - _TAG_SIZE - len(_LAST)
"""Push services are required to accept a body of 4096 bytes."""
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def new_private_key(entropy: Entropy) -> ec.EllipticCurvePrivateKey:
    """A key of P-256."""
    # 48 bytes, reduced: no scalar is noticeably likelier than another.
    scalar = int.from_bytes(entropy(48), "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(scalar, ec.SECP256R1())


def new_key_pem(entropy: Entropy) -> bytes:
    """A new private key as a file."""
    return new_private_key(entropy).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def point_of(key: ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) -> bytes:
    """The public key as an uncompressed point."""
    public = key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key
    return public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def public_key(point: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a point, or `CryptoError` if it is not on the curve."""
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    except ValueError as error:
        raise CryptoError("a point of P-256 expected") from error


def encrypt(plaintext: bytes, p256dh: bytes, auth: bytes, entropy: Entropy) -> bytes:
    """The body of a push to the device with this key and secret."""
    return encrypt_with(plaintext, p256dh, auth, new_private_key(entropy), entropy(SALT_SIZE))


def encrypt_with(
    plaintext: bytes, p256dh: bytes, auth: bytes, key: ec.EllipticCurvePrivateKey, salt: bytes
) -> bytes:
    if len(plaintext) > PLAINTEXT_MAX:
        raise CryptoError(f"at most {PLAINTEXT_MAX} bytes fit into a push")
    own = point_of(key)
    secret = key.exchange(ec.ECDH(), public_key(p256dh))
    content_key, nonce = _derived(secret, auth, p256dh, own, salt)
    sealed = AESGCM(content_key).encrypt(nonce, plaintext + _LAST, None)
    return b"".join((salt, RECORD_SIZE.to_bytes(4, "big"), bytes((POINT_SIZE,)), own, sealed))


def decrypt(body: bytes, key: ec.EllipticCurvePrivateKey, auth: bytes) -> bytes:
    """What a push brought, on the device; `CryptoError` if it is not for this key and secret."""
    if len(body) < _HEAD_SIZE + _TAG_SIZE + 1 or body[SALT_SIZE + 4] != POINT_SIZE:
        raise CryptoError("a push with the sender's public key in its head expected")
    record_size = int.from_bytes(body[SALT_SIZE : SALT_SIZE + 4], "big")
    sender, sealed = body[_HEAD_SIZE - POINT_SIZE : _HEAD_SIZE], body[_HEAD_SIZE:]
    if len(sealed) > record_size:
        raise CryptoError("a push of one record expected")
    secret = key.exchange(ec.ECDH(), public_key(sender))
    content_key, nonce = _derived(secret, auth, point_of(key), sender, body[:SALT_SIZE])
    try:
        padded = AESGCM(content_key).decrypt(nonce, sealed, None).rstrip(b"\x00")
    except InvalidTag:
        raise CryptoError("the push is not for this device, or was changed") from None
    if not padded.endswith(_LAST):
        raise CryptoError("the padding of a last record expected")
    return padded[:-1]


def _derived(secret: bytes, auth: bytes, device: bytes, sender: bytes, salt: bytes) -> tuple[bytes, bytes]:
    key_material = _expanded(_extracted(auth, secret), b"WebPush: info\x00" + device + sender, 32)
    pseudorandom = _extracted(salt, key_material)
    return (
        _expanded(pseudorandom, b"Content-Encoding: aes128gcm\x00", 16),
        _expanded(pseudorandom, b"Content-Encoding: nonce\x00", 12),
    )


def _extracted(salt: bytes, material: bytes) -> bytes:
    return hmac.digest(salt, material, hashlib.sha256)


def _expanded(key: bytes, info: bytes, size: int) -> bytes:
    return hmac.digest(key, info + b"\x01", hashlib.sha256)[:size]


def es256(key: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    """The signature as JOSE wants it: r and s, 32 bytes each, without DER around them."""
    r, s = decode_dss_signature(key.sign(content, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(_COORDINATE, "big") + s.to_bytes(_COORDINATE, "big")


def verify_es256(point: bytes, content: bytes, signature: bytes) -> bool:
    """Whether the owner of this public key signed the content."""
    if len(signature) != 2 * _COORDINATE:
        return False
    r, s = (int.from_bytes(half, "big") for half in (signature[:_COORDINATE], signature[_COORDINATE:]))
    try:
        public_key(point).verify(encode_dss_signature(r, s), content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, CryptoError):
        return False
    return True
