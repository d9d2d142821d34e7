"""Short-link data: its keys, its two sealed blobs, and what must hold before a reader may trust them.

Everything follows from the link key, which the link carries and the router never learns: it is the hash of
the fixed data, so a router cannot replace that, and it gives the key that both blobs are sealed with.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace

from blindpost.crypto.boxes import NONCE_SIZE, BoxKey
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.kdf import hkdf
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey
from blindpost.wire.links.data import (
    ContactLinkData,
    FixedLinkData,
    InvitationLinkData,
    OwnerAuth,
    Signed,
    UserLinkData,
    read_fixed_link_data,
    read_signed,
    read_user_link_data,
    signed_encoding,
    write_fixed_link_data,
    write_signed,
    write_user_link_data,
)
from blindpost.wire.links.full import ContactLink, InvitationLink
from blindpost.wire.links.short import ShortInvitation, ShortLink
from blindpost.wire.primitives import Reader, decode_whole, encode
from blindpost.wire.text import ub64
from blindpost.wire.value import Buffer, Value

FIXED_DATA_SIZE = 2008
"""The padded fixed data, in a blob of 2048 bytes."""

USER_DATA_SIZE = 13784
"""The padded user data, in a blob of 13824 bytes."""

LINK_ID_SIZE = 24


class LinkDataError(CryptoError):
    """Link data that opened and parsed but must not be trusted (`A_LINK`); its text is the reason."""


def link_key_of(fixed: Buffer) -> bytes:
    """The link key of encoded fixed data."""
    return hashlib.sha3_256(fixed).digest()


def contact_link_secrets(link_key: bytes) -> tuple[bytes, bytes]:
    """The link id at the router and the key of the blobs, for a contact link."""
    derived = hkdf(b"", link_key, b"SimpleXContactLink", LINK_ID_SIZE + 32)
    return derived[:LINK_ID_SIZE], derived[LINK_ID_SIZE:]


def invitation_link_secret(link_key: bytes) -> bytes:
    """The key of the blobs for an invitation, whose link id the router chooses."""
    return hkdf(b"", link_key, b"SimpleXInvLink", 32)


def blob_key(link: ShortLink) -> bytes:
    """The key of the blobs that `link` leads to."""
    if isinstance(link, ShortInvitation):
        return invitation_link_secret(link.link_key)
    return contact_link_secrets(link.link_key)[1]


def sign_fixed_data(root: PrivateKey, data: FixedLinkData) -> Signed:
    """Fixed data signed with its root key; `link_key_of` its content is the new link's key."""
    if root.public != data.root_key:
        raise CryptoError("fixed link data must be signed with the root key that it names")
    return signed_encoding(data, write_fixed_link_data, root.sign)


def sign_user_data(signer: PrivateKey, root_key: PublicKey, data: UserLinkData) -> Signed:
    """User data signed by an owner of the link; refused when readers would refuse it."""
    if isinstance(data, ContactLinkData):
        check_owners(root_key, data.owners)
        allowed = (root_key, *(owner.owner_key for owner in data.owners))
    else:
        allowed = (root_key,)
    if signer.public not in allowed:
        raise LinkDataError("the signer is not an owner of the link")
    return signed_encoding(data, write_user_link_data, signer.sign)


def check_owners(root_key: PublicKey, owners: Sequence[OwnerAuth]) -> None:
    """Owners are all different, none is the root, and each is authorized by the root or by an earlier one."""
    for count, owner in enumerate(owners):
        earlier = owners[:count]
        shown = ub64(owner.owner_id)
        if owner.owner_key == root_key:
            raise LinkDataError(f"owner key for ID {shown} matches root key")
        if any(owner.owner_id == one.owner_id or owner.owner_key == one.owner_key for one in earlier):
            raise LinkDataError(f"duplicate owner key or ID {shown}")
        signers = (root_key, *(one.owner_key for one in earlier))
        if not any(verify(signer, owner.signed_bytes, owner.signature) for signer in signers):
            raise LinkDataError(f"invalid authorization of owner ID {shown}")


def seal_fixed_data(key: bytes, fixed: Signed, entropy: Entropy) -> bytes:
    """The blob of fixed data: sealed once, then sent unchanged for as long as the link lives."""
    return _sealed(key, fixed, FIXED_DATA_SIZE, entropy)


def seal_user_data(key: bytes, user: Signed, entropy: Entropy) -> bytes:
    """The blob of user data, sealed again on each change."""
    return _sealed(key, user, USER_DATA_SIZE, entropy)


def _sealed(key: bytes, signed: Signed, size: int, entropy: Entropy) -> bytes:
    nonce = entropy(NONCE_SIZE)
    return nonce + BoxKey(key).seal_padded(nonce, encode(signed, write_signed), size)


def open_blob(key: bytes, blob: Buffer) -> Signed:
    """What is in a blob, not verified: `CryptoError` when it does not open."""
    reader = Reader(blob)
    nonce = reader.take(NONCE_SIZE)
    return decode_whole(BoxKey(key).open_padded(nonce, reader.rest()), read_signed)


@dataclass(frozen=True, slots=True, repr=False)
class VerifiedLinkData(Value):
    """Link data that holds."""

    fixed: FixedLinkData
    user: UserLinkData


def verify_link_data(link: ShortLink, fixed: Signed, user: Signed) -> VerifiedLinkData:
    """Parse and verify both parts against the link.

    Raises `LinkDataError` when they are not what the link's maker signed, and another `WireError` when they
    cannot be read or are of the other kind (`A_MESSAGE`).
    """
    data = VerifiedLinkData(
        decode_whole(fixed.content, read_fixed_link_data), decode_whole(user.content, read_user_link_data)
    )
    _check_kind(link, data)
    root_key = data.fixed.root_key
    if not hmac.compare_digest(link_key_of(fixed.content), link.link_key):
        raise LinkDataError("link data hash")
    if not verify(root_key, fixed.content, fixed.signature):
        raise LinkDataError("link data signature")
    signers = [root_key]
    if isinstance(data.user, ContactLinkData):
        check_owners(root_key, data.user.owners)
        signers += [owner.owner_key for owner in data.user.owners]
    if not any(verify(signer, user.content, user.signature) for signer in signers):
        raise LinkDataError("user data signature")
    return data


def _check_kind(link: ShortLink, data: VerifiedLinkData) -> None:
    if isinstance(link, ShortInvitation):
        fits = isinstance(data.fixed.link, InvitationLink) and isinstance(data.user, InvitationLinkData)
    else:
        fits = isinstance(data.fixed.link, ContactLink) and isinstance(data.user, ContactLinkData)
    if not fits:
        raise WireError("link data of the same kind as the link expected")


def resolve_link_data(
    link: ShortLink, sender_id: bytes, fixed_blob: Buffer, user_blob: Buffer
) -> VerifiedLinkData:
    """The data that a router returned for `link` along with `sender_id`, opened and verified.

    The queue must be the one that the router names, at the router that the link names; where the rest of the
    router's identity differs, the link's holds.
    """
    key = blob_key(link)
    data = verify_link_data(link, open_blob(key, fixed_blob), open_blob(key, user_blob))
    queue = data.fixed.link.queues[0]
    if link.server.hosts[0] not in queue.address.server.hosts or queue.address.sender_id != sender_id:
        raise LinkDataError("different address")
    if queue.address.server == link.server:
        return data
    queue = replace(queue, address=replace(queue.address, server=link.server))
    full = replace(data.fixed.link, queues=(queue, *data.fixed.link.queues[1:]))
    return replace(data, fixed=replace(data.fixed, link=full))
