"""Parameters of the end-to-end key agreement, and ratchet messages with their headers.

These are the public parts only: what the keys do is up to `blindpost.crypto`.
"""

from __future__ import annotations

from collections.abc import Callable

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm, PublicKey, read_x448, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.text import b64, read_query, unb64
from blindpost.wire.value import Buffer, Value
from blindpost.wire.versions import VersionRange, read_version_range, write_version_range

KEM_E2E_VERSION = 3
"""The first version whose parameters and headers have room for a KEM."""

E2E_VERSIONS = VersionRange(2, 3)
"""What this implementation speaks."""

KEM_PUBLIC_KEY_SIZE = 1158
KEM_CIPHERTEXT_SIZE = 1039

TAG_SIZE = 16
IV_SIZE = 16
LARGE_LENGTH_BELOW = 32


@dataclass(frozen=True, slots=True, repr=False)
class KemProposed(Value):
    """An encapsulation key that the other side may use."""

    public_key: bytes

    def __post_init__(self) -> None:
        _sized(self.public_key, KEM_PUBLIC_KEY_SIZE)


@dataclass(frozen=True, slots=True, repr=False)
class KemAccepted(Value):
    """A secret encapsulated to the other side's key, and the key for its answer."""

    ciphertext: bytes
    public_key: bytes

    def __post_init__(self) -> None:
        _sized(self.ciphertext, KEM_CIPHERTEXT_SIZE)
        _sized(self.public_key, KEM_PUBLIC_KEY_SIZE)


KemParams = KemProposed | KemAccepted


def _sized(data: bytes, size: int) -> None:
    if len(data) != size:
        raise WireError(f"{size} bytes of a KEM key or ciphertext expected, not {len(data)}")


@dataclass(frozen=True, slots=True, repr=False)
class E2EParams(Value):
    """One side's keys at one version, as in confirmations and ratchet keys."""

    version: int
    key1: PublicKey
    key2: PublicKey
    kem: KemParams | None = None


@dataclass(frozen=True, slots=True, repr=False)
class E2EParamsUri(Value):
    """The link creator's keys for a range of versions. Here a KEM can only be proposed."""

    versions: VersionRange
    key1: PublicKey
    key2: PublicKey
    kem: KemProposed | None = None

    def at(self, version: int) -> E2EParams:
        """The parameters at the agreed version."""
        return E2EParams(version, self.key1, self.key2, self.kem)

    @property
    def text(self) -> str:
        """The query that a full link carries as `e2e`, not escaped."""
        keys = f"{b64(self.key1.spki)},{b64(self.key2.spki)}"
        written = f"v={self.versions.text}&x3dh={keys}"
        if self.kem is not None and self.versions.high >= KEM_E2E_VERSION:
            written += f"&kem_key={b64(self.kem.public_key)}"
        return written

    @classmethod
    def from_text(cls, text: str) -> E2EParamsUri:
        query = read_query(text)
        if "v" not in query or "x3dh" not in query:
            raise WireError("parameters v and x3dh expected")
        versions = VersionRange.from_text(query["v"])
        keys = query["x3dh"].split(",")
        if len(keys) != 2:
            raise WireError("two x3dh keys expected")
        key1, key2 = (_x448(unb64(key)) for key in keys)
        kem = None
        if versions.high >= KEM_E2E_VERSION and "kem_key" in query:
            if "kem_ct" in query:
                raise WireError("a link may propose a KEM, not accept one")
            kem = KemProposed(unb64(query["kem_key"]))
        return cls(versions, key1, key2, kem)


def _x448(der: bytes) -> PublicKey:
    key = PublicKey.from_spki(der)
    if key.algorithm is not Algorithm.X448:
        raise WireError("an X448 key expected")
    return key


def read_kem(reader: Reader) -> KemParams:
    tag = reader.u8()
    if tag == 0x50:
        return KemProposed(bytes(reader.large()))
    if tag == 0x41:
        return KemAccepted(bytes(reader.large()), bytes(reader.large()))
    raise WireError("a proposed (P) or accepted (A) KEM expected")


def read_proposed_kem(reader: Reader) -> KemProposed:
    kem = read_kem(reader)
    if not isinstance(kem, KemProposed):
        raise WireError("a proposed KEM expected")
    return kem


def write_kem(writer: Writer, kem: KemParams) -> None:
    if isinstance(kem, KemProposed):
        writer.raw(b"P").large(kem.public_key)
    else:
        writer.raw(b"A").large(kem.ciphertext).large(kem.public_key)


def _write_opt_kem(writer: Writer, kem: KemParams | None) -> None:
    writer.raw(b"0" if kem is None else b"1")
    if kem is not None:
        write_kem(writer, kem)


def read_e2e_params(reader: Reader) -> E2EParams:
    """Parameters of a confirmation: a KEM may be proposed or accepted."""
    return _read_params(reader, read_kem)


def read_proposed_e2e_params(reader: Reader) -> E2EParams:
    """Parameters of a ratchet key: a KEM may only be proposed."""
    return _read_params(reader, read_proposed_kem)


def _read_params(reader: Reader, kem: Callable[[Reader], KemParams]) -> E2EParams:
    version = reader.u16()
    key1, key2 = read_x448(reader), read_x448(reader)
    return E2EParams(version, key1, key2, reader.opt(kem) if version >= KEM_E2E_VERSION else None)


def write_e2e_params(writer: Writer, params: E2EParams) -> None:
    writer.u16(params.version)
    write_key(writer, params.key1)
    write_key(writer, params.key2)
    if params.version >= KEM_E2E_VERSION:
        _write_opt_kem(writer, params.kem)


def read_e2e_uri(reader: Reader) -> E2EParamsUri:
    """The binary form, as in short-link data: here the KEM field does not depend on versions."""
    versions = read_version_range(reader)
    return E2EParamsUri(versions, read_x448(reader), read_x448(reader), reader.opt(read_proposed_kem))


def write_e2e_uri(writer: Writer, params: E2EParamsUri) -> None:
    write_version_range(writer, params.versions)
    write_key(writer, params.key1)
    write_key(writer, params.key2)
    _write_opt_kem(writer, params.kem)


@dataclass(frozen=True, slots=True, repr=False)
class RatchetHeader(Value):
    """What a ratchet message says about its chain, once its header is opened."""

    max_version: int
    dh_key: PublicKey
    kem: KemParams | None
    previous_count: int
    number: int


def read_ratchet_header(reader: Reader, version: int) -> RatchetHeader:
    """A header in a message of `version`; bytes that a later version may add are left unread."""
    max_version = reader.u16()
    dh_key = read_x448(reader)
    kem = reader.opt(read_kem) if version >= KEM_E2E_VERSION else None
    return RatchetHeader(max_version, dh_key, kem, reader.u32(), reader.u32())


def write_ratchet_header(writer: Writer, header: RatchetHeader, version: int) -> None:
    writer.u16(header.max_version)
    write_key(writer, header.dh_key)
    if version >= KEM_E2E_VERSION:
        _write_opt_kem(writer, header.kem)
    writer.u32(header.previous_count).u32(header.number)


@dataclass(frozen=True, slots=True, repr=False)
class EncryptedHeader(Value):
    """A sealed header; `version` is the sender's current one and decides the form of the rest."""

    version: int
    iv: bytes
    tag: bytes
    ciphertext: Buffer


def read_encrypted_header(reader: Reader) -> EncryptedHeader:
    return EncryptedHeader(
        reader.u16(), reader.take(IV_SIZE), reader.take(TAG_SIZE), _read_either_length(reader)
    )


def write_encrypted_header(writer: Writer, header: EncryptedHeader) -> None:
    writer.u16(header.version).raw(header.iv).raw(header.tag)
    _write_length_of(writer, header.ciphertext, header.version)


@dataclass(frozen=True, slots=True, repr=False)
class RatchetMessage(Value):
    """A message of the double ratchet. The header stays encoded: the body is authenticated over its bytes."""

    encoded_header: Buffer
    tag: bytes
    body: Buffer


def read_ratchet_message(reader: Reader) -> RatchetMessage:
    return RatchetMessage(_read_either_length(reader), reader.take(TAG_SIZE), reader.rest())


def write_ratchet_message(writer: Writer, message: RatchetMessage, version: int) -> None:
    _write_length_of(writer, message.encoded_header, version)
    writer.raw(message.tag).raw(message.body)


def _read_either_length(reader: Reader) -> Buffer:
    """A string whose length has two bytes or one: headers are of 32 to 8191 bytes."""
    first = reader.peek()
    return reader.large() if first is not None and first < LARGE_LENGTH_BELOW else reader.short()


def _write_length_of(writer: Writer, data: Buffer, version: int) -> None:
    if version >= KEM_E2E_VERSION:
        writer.large(data)
    else:
        writer.short(data)
