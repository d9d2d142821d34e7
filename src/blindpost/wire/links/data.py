"""What a short link leads to: fixed data that defines the link, and user data that may change.

Both end in room for later versions: bytes after the known fields are ignored. That is why `Signed` keeps the
bytes that were signed, and why a hash or signature is always taken over those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_ed25519, write_key
from blindpost.wire.links.full import FullLink, read_full_link, write_full_link
from blindpost.wire.links.short import ShortContact, read_short_contact, write_short_link
from blindpost.wire.primitives import Reader, Writer, encode
from blindpost.wire.value import Buffer, Value
from blindpost.wire.versions import VersionRange, read_version_range, write_version_range

SIGNATURE_SIZE = 64
SHORT_USER_DATA_MAX = 254
LARGE_USER_DATA = 0xFF

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class FixedLinkData(Value):
    """What the link key is the hash of. Its own version range says who wrote it and is not negotiated."""

    agent_versions: VersionRange
    root_key: PublicKey
    link: FullLink
    entity_id: bytes | None = None


def read_fixed_link_data(reader: Reader) -> FixedLinkData:
    versions = read_version_range(reader)
    root_key = read_ed25519(reader)
    link = read_full_link(reader)
    following = reader.peek()
    entity_id = None
    if following is not None and following < reader.remaining:
        entity_id = reader.short()
    reader.rest()
    return FixedLinkData(versions, root_key, link, entity_id)


def write_fixed_link_data(writer: Writer, data: FixedLinkData) -> None:
    write_version_range(writer, data.agent_versions)
    write_key(writer, data.root_key)
    write_full_link(writer, data.link)
    if data.entity_id is not None:
        writer.short(data.entity_id)


@dataclass(frozen=True, slots=True, repr=False)
class OwnerAuth(Value):
    """A further owner of a contact link; the signature is by the root key or by an earlier owner."""

    owner_id: bytes
    owner_key: PublicKey
    signature: bytes

    @property
    def signed_bytes(self) -> bytes:
        return owner_signed_bytes(self.owner_id, self.owner_key)


def owner_signed_bytes(owner_id: bytes, owner_key: PublicKey) -> bytes:
    """What authorizes an owner: the id and the key, with no length between them."""
    return owner_id + owner_key.spki


def read_owner_auth(reader: Reader) -> OwnerAuth:
    inner = reader.sub(reader.u8())
    return OwnerAuth(inner.short(), read_ed25519(inner), _read_signature(inner))


def write_owner_auth(writer: Writer, owner: OwnerAuth) -> None:
    inner = Writer().short(owner.owner_id)
    write_key(inner, owner.owner_key)
    inner.short(_checked_signature(owner.signature))
    writer.short(inner.done())


@dataclass(frozen=True, slots=True, repr=False)
class InvitationLinkData(Value):
    """User data of an invitation."""

    agent_versions: VersionRange
    user_data: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class ContactLinkData(Value):
    """User data of a contact link. `direct`: the queue in the fixed data may be used, not only the relays."""

    agent_versions: VersionRange
    direct: bool
    owners: tuple[OwnerAuth, ...]
    relays: tuple[ShortContact, ...]
    user_data: Buffer


UserLinkData = InvitationLinkData | ContactLinkData


def read_user_link_data(reader: Reader) -> UserLinkData:
    tag = reader.u8()
    data: UserLinkData
    if tag == 0x49:
        data = InvitationLinkData(read_version_range(reader), _read_user_data(reader))
    elif tag == 0x43:
        data = ContactLinkData(
            read_version_range(reader),
            reader.flag(),
            reader.list0(read_owner_auth),
            reader.list0(read_short_contact),
            _read_user_data(reader),
        )
    else:
        raise WireError("user data of an invitation (I) or contact (C) link expected")
    reader.rest()
    return data


def write_user_link_data(writer: Writer, data: UserLinkData) -> None:
    if isinstance(data, InvitationLinkData):
        writer.raw(b"I")
        write_version_range(writer, data.agent_versions)
    else:
        writer.raw(b"C")
        write_version_range(writer, data.agent_versions)
        writer.flag(data.direct)
        writer.list0(data.owners, write_owner_auth).list0(data.relays, write_short_link)
    _write_user_data(writer, data.user_data)


def _read_user_data(reader: Reader) -> Buffer:
    if reader.peek() == LARGE_USER_DATA:
        reader.u8()
        return reader.large()
    return reader.short()


def _write_user_data(writer: Writer, data: Buffer) -> None:
    if len(data) <= SHORT_USER_DATA_MAX:
        writer.short(data)
    else:
        writer.u8(LARGE_USER_DATA).large(data)


@dataclass(frozen=True, slots=True, repr=False)
class Signed(Value):
    """A signature and the exact bytes that it covers."""

    signature: bytes
    content: Buffer


def read_signed(reader: Reader) -> Signed:
    return Signed(_read_signature(reader), reader.rest())


def write_signed(writer: Writer, signed: Signed) -> None:
    writer.short(_checked_signature(signed.signature)).raw(signed.content)


def signed_encoding(item: T, write: Callable[[Writer, T], object], sign: Callable[[bytes], bytes]) -> Signed:
    """The encoding of `item` with the signature that `sign` makes of it."""
    content = encode(item, write)
    return Signed(sign(content), content)


def _read_signature(reader: Reader) -> bytes:
    return _checked_signature(reader.short())


def _checked_signature(signature: bytes) -> bytes:
    if len(signature) != SIGNATURE_SIZE:
        raise WireError(f"an Ed25519 signature of {SIGNATURE_SIZE} bytes expected")
    return signature
