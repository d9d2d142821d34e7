"""Parts that commands and responses share: modes of queues, link data, credentials, counts of services."""

from __future__ import annotations

from enum import Enum

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_auth_key, read_x25519, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.value import Buffer, Value

IDS_HASH_SIZE = 16
NO_IDS_HASH = bytes(IDS_HASH_SIZE)
NONCE_SIZE = 24


class QueueMode(Enum):
    """Whether a queue belongs to one connection or receives requests from many."""

    MESSAGING = b"M"
    CONTACT = b"C"


class SubMode(Enum):
    """Whether the creator of a queue is subscribed to it at once."""

    SUBSCRIBE = b"S"
    ONLY_CREATE = b"C"


_QUEUE_MODES = {mode.value[0]: mode for mode in QueueMode}
_SUB_MODES = {mode.value[0]: mode for mode in SubMode}


@dataclass(frozen=True, slots=True, repr=False)
class LinkData(Value):
    """Encrypted data of a short link; only the second part may change."""

    fixed: Buffer
    user: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class NewLink(Value):
    """Link data in NEW. The client chooses the link id of a contact queue, the router that of the others."""

    sender_id: bytes
    data: LinkData
    link_id: bytes | None = None


@dataclass(frozen=True, slots=True, repr=False)
class QueueRequest(Value):
    """Which kind of queue NEW asks for, with its link data if it is to have a short link."""

    mode: QueueMode
    link: NewLink | None = None

    def __post_init__(self) -> None:
        if self.link is not None and (self.link.link_id is None) is (self.mode is QueueMode.CONTACT):
            raise WireError("a link id with the link data of a contact queue, and only there, expected")


@dataclass(frozen=True, slots=True, repr=False)
class NtfCreds(Value):
    """Keys that enable notifications of a queue: who may subscribe, and whose secret encrypts."""

    notifier_key: PublicKey
    dh_key: PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class ServerNtfCreds(Value):
    """The router's answer to `NtfCreds`."""

    notifier_id: bytes
    dh_key: PublicKey


def read_queue_mode(reader: Reader) -> QueueMode:
    mode = _QUEUE_MODES.get(reader.u8())
    if mode is None:
        raise WireError("a queue mode M or C expected")
    return mode


def write_queue_mode(writer: Writer, mode: QueueMode) -> None:
    writer.raw(mode.value)


def read_sub_mode(reader: Reader) -> SubMode:
    mode = _SUB_MODES.get(reader.u8())
    if mode is None:
        raise WireError("a subscription mode S or C expected")
    return mode


def mode_of_sender_secure(sender_secure: bool) -> QueueMode:
    """Versions 9 to 14 say only whether the sender may secure the queue."""
    return QueueMode.MESSAGING if sender_secure else QueueMode.CONTACT


def read_link_data(reader: Reader) -> LinkData:
    return LinkData(reader.large(), reader.large())


def write_link_data(writer: Writer, data: LinkData) -> None:
    writer.large(data.fixed).large(data.user)


def read_queue_request(reader: Reader) -> QueueRequest:
    mode = read_queue_mode(reader)
    return QueueRequest(mode, reader.opt(_read_contact_link if mode is QueueMode.CONTACT else _read_link))


def _read_contact_link(reader: Reader) -> NewLink:
    link_id = reader.short()
    sender_id = reader.short()
    return NewLink(sender_id, read_link_data(reader), link_id)


def _read_link(reader: Reader) -> NewLink:
    return NewLink(reader.short(), read_link_data(reader))


def write_queue_request(writer: Writer, request: QueueRequest) -> None:
    write_queue_mode(writer, request.mode)
    writer.opt(request.link, _write_link)


def _write_link(writer: Writer, link: NewLink) -> None:
    if link.link_id is not None:
        writer.short(link.link_id)
    writer.short(link.sender_id)
    write_link_data(writer, link.data)


def read_ntf_creds(reader: Reader) -> NtfCreds:
    return NtfCreds(read_auth_key(reader), read_x25519(reader))


def write_ntf_creds(writer: Writer, creds: NtfCreds) -> None:
    write_key(writer, creds.notifier_key)
    write_key(writer, creds.dh_key)


def read_server_ntf_creds(reader: Reader) -> ServerNtfCreds:
    return ServerNtfCreds(reader.short(), read_x25519(reader))


def write_server_ntf_creds(writer: Writer, creds: ServerNtfCreds) -> None:
    writer.short(creds.notifier_id)
    write_key(writer, creds.dh_key)


def write_ids_hash(writer: Writer, ids_hash: bytes) -> None:
    """A hash of 16 bytes. Readers take any length, as all peers do: a wrong one is merely never equal."""
    if len(ids_hash) != IDS_HASH_SIZE:
        raise WireError(f"an ids hash of {IDS_HASH_SIZE} bytes expected")
    writer.short(ids_hash)


def read_flags(reader: Reader) -> bool:
    """Whether to notify, then bytes that later versions may add, up to a space that is passed over."""
    notify = reader.flag()
    if not reader.skip(b" "):
        reader.pass_space()
    return notify


def write_flags(writer: Writer, notify: bool) -> None:
    writer.raw(b"T " if notify else b"F ")


def read_nonce(reader: Reader) -> bytes:
    return reader.take(NONCE_SIZE)


def write_nonce(writer: Writer, nonce: bytes) -> None:
    if len(nonce) != NONCE_SIZE:
        raise WireError(f"a nonce of {NONCE_SIZE} bytes expected")
    writer.raw(nonce)
