"""Links as applications have them, and the parts they are built from, without network or store."""

from __future__ import annotations

from dataclasses import replace

from blindpost.agent.errors import ProtocolCode, ProtocolError
from blindpost.agent.model import QueueLink
from blindpost.agent.versions import Versions
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.link_data import (
    blob_key,
    contact_link_secrets,
    invitation_link_secret,
    link_key_of,
    seal_fixed_data,
    seal_user_data,
    sign_fixed_data,
    sign_user_data,
)
from blindpost.crypto.x3dh import PrivateParams
from blindpost.wire.addresses import RouterAddress, Server
from blindpost.wire.e2e import E2EParamsUri, KemProposed
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm
from blindpost.wire.links.data import (
    ContactLinkData,
    FixedLinkData,
    InvitationLinkData,
    OwnerAuth,
    Signed,
    UserLinkData,
    read_fixed_link_data,
    read_signed,
    write_signed,
)
from blindpost.wire.links.full import (
    ContactLink,
    FullLink,
    InvitationLink,
    full_link_from_text,
    is_full_link,
    read_full_link,
    write_full_link,
)
from blindpost.wire.links.short import (
    ContactType,
    ShortContact,
    ShortInvitation,
    ShortLink,
    restored,
    short_link_from_text,
)
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.queue_addresses import QueueAddress, QueueUri
from blindpost.wire.smp.values import NONCE_SIZE, QueueMode
from blindpost.wire.value import Buffer, Value


@dataclass(frozen=True, slots=True, repr=False)
class LinkContent(Value):
    """What a short link leads to, proven by the link itself."""

    link: FullLink
    user_data: bytes
    entity_id: bytes | None = None
    direct: bool = True
    owners: tuple[OwnerAuth, ...] = ()
    relays: tuple[ShortContact, ...] = ()


def parse_link(text: str, presets: tuple[RouterAddress, ...] = ()) -> FullLink | ShortLink:
    """Any link; a short one that names only a host is completed from the known routers."""
    text = text.strip()
    try:
        if is_full_link(text):
            return full_link_from_text(text)
        return restored(short_link_from_text(text), [address.server for address in presets])
    except WireError as error:
        raise ProtocolError(ProtocolCode.A_LINK, str(error)) from error


def invitation_link(
    versions: Versions,
    address: QueueAddress,
    params: PrivateParams,
    *,
    with_kem: bool,
    client_data: str | None = None,
) -> InvitationLink:
    """The link of a queue and keys; with the KEM key it is long."""
    kem = KemProposed(params.kem.public_key) if with_kem and params.kem is not None else None
    e2e = E2EParamsUri(versions.e2e, params.key1.public, params.key2.public, kem)
    return InvitationLink(versions.agent, (QueueUri(versions.client, address),), e2e, client_data)


def contact_link(versions: Versions, address: QueueAddress, client_data: str | None = None) -> ContactLink:
    return ContactLink(versions.agent, (QueueUri(versions.client, address),), client_data)


def signed_link(
    versions: Versions, link: FullLink, root_key: PrivateKey, entity_id: bytes | None, entropy: Entropy
) -> QueueLink:
    """A short link for `link`: its key, and its sealed fixed data. Only a contact's id is known by now."""
    fixed = sign_fixed_data(root_key, FixedLinkData(versions.agent, root_key.public, link, entity_id))
    return sealed_link(link, fixed, root_key, entropy)


def sealed_link(link: FullLink, fixed: Signed, root_key: PrivateKey, entropy: Entropy) -> QueueLink:
    link_key = link_key_of(fixed.content)
    if isinstance(link, ContactLink):
        link_id, secret = contact_link_secrets(link_key)
    else:
        link_id, secret = b"", invitation_link_secret(link_key)
    return QueueLink(link_id, link_key, root_key, seal_fixed_data(secret, fixed, entropy))


def user_link_data(
    versions: Versions,
    mode: QueueMode,
    user_data: Buffer,
    *,
    owners: tuple[OwnerAuth, ...] = (),
    relays: tuple[ShortContact, ...] = (),
    direct: bool = True,
) -> UserLinkData:
    if mode is QueueMode.CONTACT:
        return ContactLinkData(versions.agent, direct, owners, relays, user_data)
    return InvitationLinkData(versions.agent, user_data)


def sealed_user_data(short: ShortLink, root_key: PrivateKey, data: UserLinkData, entropy: Entropy) -> bytes:
    """User data as the router keeps it."""
    try:
        signed = sign_user_data(root_key, root_key.public, data)
        return seal_user_data(blob_key(short), signed, entropy)
    except WireError as error:
        raise ProtocolError(ProtocolCode.A_LINK, str(error)) from error


def short_of(mode: QueueMode | None, server: Server, link: QueueLink) -> ShortLink:
    """The text-bearing form of a queue's short link."""
    if mode is QueueMode.CONTACT:
        return ShortContact(ContactType.CONTACT, server, link.link_key)
    return ShortInvitation(server, link.link_id, link.link_key)


FORM = 1


@dataclass(frozen=True, slots=True, repr=False)
class PreparedLink(Value):
    """The link of an address that does not exist yet, and all that is needed to make it.

    `dump` and `load` carry it over a restart, so that a link that was given away is never an orphan.
    """

    link: ContactLink
    address: RouterAddress
    corr_id: bytes
    key: PrivateKey
    dh_key: PrivateKey
    e2e_key: PrivateKey
    root_key: PrivateKey
    fixed: Signed

    @property
    def link_key(self) -> bytes:
        return link_key_of(self.fixed.content)

    @property
    def short(self) -> ShortContact:
        return ShortContact(ContactType.CONTACT, self.address.server, self.link_key)

    def __str__(self) -> str:
        return self.short.text

    def anew(self, versions: Versions, entropy: Entropy) -> PreparedLink:
        """Another link with the same owner, for when this one can never be used."""
        entity_id = decode_whole(self.fixed.content, read_fixed_link_data).entity_id
        client_data = self.link.client_data
        return prepare_link(
            self.address,
            versions,
            entropy,
            root_key=self.root_key,
            entity_id=entity_id,
            client_data=client_data,
        )

    def dump(self) -> bytes:
        return encode(self, _write_prepared)

    @classmethod
    def load(cls, stored: bytes) -> PreparedLink:
        return decode_whole(stored, _read_prepared)


def prepare_link(
    address: RouterAddress,
    versions: Versions,
    entropy: Entropy,
    *,
    root_key: PrivateKey | None = None,
    entity_id: bytes | None = None,
    client_data: str | None = None,
) -> PreparedLink:
    """A contact link with all of its keys: its sender id follows from the nonce that NEW will use."""
    corr_id = entropy(NONCE_SIZE)
    e2e_key = PrivateKey.generate(Algorithm.X25519, entropy)
    root_key = root_key or PrivateKey.generate(Algorithm.ED25519, entropy)
    queue = QueueAddress(address.server, sender_id_of(corr_id), e2e_key.public, QueueMode.CONTACT)
    link = contact_link(versions, queue, client_data)
    fixed = sign_fixed_data(root_key, FixedLinkData(versions.agent, root_key.public, link, entity_id))
    return PreparedLink(
        link,
        address,
        corr_id,
        PrivateKey.generate(Algorithm.ED25519, entropy),
        PrivateKey.generate(Algorithm.X25519, entropy),
        e2e_key,
        root_key,
        fixed,
    )


def _write_prepared(writer: Writer, prepared: PreparedLink) -> None:
    writer.u8(FORM).large(encode(prepared.link, write_full_link))
    writer.large(prepared.address.text.encode()).short(prepared.corr_id)
    for key in (prepared.key, prepared.dh_key, prepared.e2e_key, prepared.root_key):
        writer.short(key.pkcs8)
    write_signed(writer, prepared.fixed)


def _read_prepared(reader: Reader) -> PreparedLink:
    if reader.u8() != FORM:
        raise WireError("a prepared link that this version knows expected")
    link = decode_whole(reader.large(), read_full_link)
    if not isinstance(link, ContactLink):
        raise WireError("a prepared contact link expected")
    try:
        address = RouterAddress.from_text(str(reader.large(), "utf-8"))
    except UnicodeDecodeError as error:
        raise WireError("a router address expected") from error
    corr_id = reader.short()
    key, dh_key, e2e_key, root_key = (PrivateKey.from_pkcs8(reader.short()) for _ in range(4))
    fixed = read_signed(reader)
    fixed = replace(fixed, content=bytes(fixed.content))
    return PreparedLink(link, address, corr_id, key, dh_key, e2e_key, root_key, fixed)
