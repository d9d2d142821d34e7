"""The layers around an agent message: the client envelope of a queue, and the agent envelope inside it.

SMP message body = client envelope [ box [ private header, agent envelope [ ratchet [ agent message ] ] ] ]
"""

from __future__ import annotations

from blindpost.wire.e2e import (
    E2EParams,
    KemAccepted,
    read_e2e_params,
    read_proposed_e2e_params,
    write_e2e_params,
)
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_auth_key, read_x25519, write_key
from blindpost.wire.links.full import InvitationLink, full_link_from_text
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.value import Buffer, Value

NONCE_SIZE = 24

CONFIRMATION_BOX_SIZE = 15904
"""The padded content of envelopes with a key in their header: confirmations and invitations."""

MESSAGE_BOX_SIZE = 16000
"""The padded content of all other envelopes."""


@dataclass(frozen=True, slots=True, repr=False)
class PublicHeader(Value):
    """What a router can read of an envelope; the key is there until the queue's secret is agreed."""

    client_version: int
    dh_key: PublicKey | None = None

    @property
    def box_size(self) -> int:
        """The size that the content after this header is padded to."""
        return MESSAGE_BOX_SIZE if self.dh_key is None else CONFIRMATION_BOX_SIZE


@dataclass(frozen=True, slots=True, repr=False)
class ClientEnvelope(Value):
    """The body of an SMP message: a box between the queue's two ends."""

    header: PublicHeader
    nonce: bytes
    box: Buffer


def read_public_header(reader: Reader) -> PublicHeader:
    return PublicHeader(reader.u16(), reader.opt(read_x25519))


def write_public_header(writer: Writer, header: PublicHeader) -> None:
    writer.u16(header.client_version).opt(header.dh_key, write_key)


def read_client_envelope(reader: Reader) -> ClientEnvelope:
    return ClientEnvelope(read_public_header(reader), reader.take(NONCE_SIZE), reader.rest())


def write_client_envelope(writer: Writer, envelope: ClientEnvelope) -> None:
    if len(envelope.nonce) != NONCE_SIZE:
        raise WireError(f"a nonce of {NONCE_SIZE} bytes expected")
    write_public_header(writer, envelope.header)
    writer.raw(envelope.nonce).raw(envelope.box)


@dataclass(frozen=True, slots=True, repr=False)
class ClientMessage(Value):
    """The content of the box: the key to secure the queue with, if the recipient must, and the rest."""

    sender_key: PublicKey | None
    agent_envelope: Buffer


def read_private_header(reader: Reader) -> PublicKey | None:
    tag = reader.u8()
    if tag == 0x5F:
        return None
    if tag == 0x4B:
        return read_auth_key(reader)
    raise WireError("a private header, K or _, expected")


def write_private_header(writer: Writer, sender_key: PublicKey | None) -> None:
    if sender_key is None:
        writer.raw(b"_")
    else:
        writer.raw(b"K")
        write_key(writer, sender_key)


def read_client_message(reader: Reader) -> ClientMessage:
    return ClientMessage(read_private_header(reader), reader.rest())


def write_client_message(writer: Writer, message: ClientMessage) -> None:
    write_private_header(writer, message.sender_key)
    writer.raw(message.agent_envelope)


@dataclass(frozen=True, slots=True, repr=False)
class Confirmation(Value):
    """`C`: connection information under a new ratchet; the joiner's carries its keys of the agreement."""

    agent_version: int
    e2e: E2EParams | None
    encrypted_info: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class MessageEnvelope(Value):
    """`M`: an agent message, wholly under the ratchet."""

    agent_version: int
    encrypted_message: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class Invitation(Value):
    """`I`: a request to connect, sent to a contact address; only the queue's box protects it."""

    agent_version: int
    link: InvitationLink
    info: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class RatchetKey(Value):
    """`R`: keys to agree on a new ratchet; only the queue's box protects them. A KEM can only be proposed."""

    agent_version: int
    e2e: E2EParams
    info: Buffer


AgentEnvelope = Confirmation | MessageEnvelope | Invitation | RatchetKey


def read_agent_envelope(reader: Reader) -> AgentEnvelope:
    version = reader.u16()
    tag = reader.u8()
    if tag == 0x4D:
        return MessageEnvelope(version, reader.rest())
    if tag == 0x43:
        return Confirmation(version, reader.opt(read_e2e_params), reader.rest())
    if tag == 0x49:
        return Invitation(version, _read_invitation(reader), reader.rest())
    if tag == 0x52:
        return RatchetKey(version, read_proposed_e2e_params(reader), reader.rest())
    raise WireError("an agent envelope of type C, M, I or R expected")


def write_agent_envelope(writer: Writer, envelope: AgentEnvelope) -> None:
    writer.u16(envelope.agent_version)
    match envelope:
        case MessageEnvelope():
            writer.raw(b"M").raw(envelope.encrypted_message)
        case Confirmation():
            writer.raw(b"C").opt(envelope.e2e, write_e2e_params).raw(envelope.encrypted_info)
        case Invitation():
            writer.raw(b"I").large(envelope.link.text.encode("ascii")).raw(envelope.info)
        case RatchetKey():
            if isinstance(envelope.e2e.kem, KemAccepted):
                raise WireError("a ratchet key with a proposed KEM or none expected")
            writer.raw(b"R")
            write_e2e_params(writer, envelope.e2e)
            writer.raw(envelope.info)


def _read_invitation(reader: Reader) -> InvitationLink:
    try:
        link = full_link_from_text(str(reader.large(), "utf-8"))
    except UnicodeDecodeError as error:
        raise WireError("the text of a link expected") from error
    if not isinstance(link, InvitationLink):
        raise WireError("the text of a full invitation expected")
    return link
