"""A session key signed by a certificate's key, and the chain that goes with it.

    signedKey = SEQUENCE { SEQUENCE { SubjectPublicKeyInfo }, AlgorithmIdentifier, BIT STRING signature }

The signature covers the inner wrapper byte for byte. X.509 libraries do not know this
structure, so its DER is read here by hand: definite lengths in their shortest form and nothing else.
"""

from __future__ import annotations

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.value import Buffer, Value

_SEQUENCE = 0x30
_BIT_STRING = 0x03

_SIGNERS = {
    bytes.fromhex("06032b6570"): (Algorithm.ED25519, 64),
    bytes.fromhex("06032b6571"): (Algorithm.ED448, 114),
}
"""Object identifiers of signature algorithms, without parameters, and how long their signatures are."""

_SIGNER_OIDS = {algorithm: (oid, size) for oid, (algorithm, size) in _SIGNERS.items()}


@dataclass(frozen=True, slots=True, repr=False)
class SignedKey(Value):
    """A public key with the signature that vouches for it, not verified."""

    key: PublicKey
    signer: Algorithm
    signature: bytes

    @property
    def signed(self) -> bytes:
        """What the signature covers: the wrapped key."""
        return signed_key_content(self.key)


def signed_key_content(key: PublicKey) -> bytes:
    """The bytes that a signer of `key` signs."""
    return _der(_SEQUENCE, key.spki)


def signed_key_from_der(der: Buffer) -> SignedKey:
    """Read the whole structure; every encoding but the one `signed_key_to_der` writes is refused."""
    outer = Reader(der)
    fields = _content(outer, _SEQUENCE)
    outer.end()
    key = PublicKey.from_spki(bytes(_content(fields, _SEQUENCE).rest()))
    oid = bytes(_content(fields, _SEQUENCE).rest())
    if oid not in _SIGNERS:
        raise WireError("an Ed25519 or Ed448 signature algorithm expected")
    signer, signature_size = _SIGNERS[oid]
    bits = _content(fields, _BIT_STRING)
    fields.end()
    if bits.u8() != 0:
        raise WireError("a bit string without unused bits expected")
    if bits.remaining != signature_size:
        raise WireError(f"a {signer.label} signature of {signature_size} bytes expected")
    return SignedKey(key, signer, bits.take(signature_size))


def signed_key_to_der(signed_key: SignedKey) -> bytes:
    if signed_key.signer not in _SIGNER_OIDS:
        raise WireError("a signature by Ed25519 or Ed448 expected")
    oid, signature_size = _SIGNER_OIDS[signed_key.signer]
    if len(signed_key.signature) != signature_size:
        raise WireError(f"a {signed_key.signer.label} signature of {signature_size} bytes expected")
    content = signed_key.signed + _der(_SEQUENCE, oid) + _der(_BIT_STRING, b"\0" + signed_key.signature)
    return _der(_SEQUENCE, content)


def read_signed_key(reader: Reader) -> SignedKey:
    return signed_key_from_der(reader.large())


def write_signed_key(writer: Writer, signed_key: SignedKey) -> None:
    writer.large(signed_key_to_der(signed_key))


@dataclass(frozen=True, slots=True, repr=False)
class CertKey(Value):
    """A certificate chain, leaf first, each as DER, and a session key signed by the leaf."""

    chain: tuple[bytes, ...]
    signed_key: SignedKey


def read_cert_key(reader: Reader) -> CertKey:
    chain = reader.list1(lambda item: bytes(item.large()))
    return CertKey(chain, read_signed_key(reader))


def write_cert_key(writer: Writer, cert_key: CertKey) -> None:
    writer.list1(cert_key.chain, Writer.large)
    write_signed_key(writer, cert_key.signed_key)


def _content(reader: Reader, tag: int) -> Reader:
    """The content of the next element, which must have this tag."""
    if reader.u8() != tag:
        raise WireError(f"a DER element with tag {tag:#04x} expected")
    length = reader.u8()
    if length < 0x80:
        return reader.sub(length)
    if length == 0x81:
        length = reader.u8()
        if length < 0x80:
            raise WireError("a DER length in its shortest form expected")
        return reader.sub(length)
    raise WireError("a DER length below 256 expected")


def _der(tag: int, content: bytes) -> bytes:
    """One element; nothing in these structures is longer than 255 bytes."""
    count = len(content)
    length = bytes((count,)) if count < 0x80 else bytes((0x81, count))
    return bytes((tag,)) + length + content
