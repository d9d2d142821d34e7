"""Every response and event that a router sends, at every version."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_x25519, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.signed_key import CertKey, read_cert_key, write_cert_key
from blindpost.wire.smp.error_codec import error_at, read_error, write_error
from blindpost.wire.smp.errors import SMPError
from blindpost.wire.smp.names import NameRecord, name_record_from_json, name_record_to_json
from blindpost.wire.smp.queue_info import QueueInfo, queue_info_from_json, queue_info_to_json
from blindpost.wire.smp.tagged import Bare, read_tagged
from blindpost.wire.smp.values import (
    NO_IDS_HASH,
    LinkData,
    QueueMode,
    ServerNtfCreds,
    mode_of_sender_secure,
    read_link_data,
    read_nonce,
    read_queue_mode,
    read_server_ntf_creds,
    write_ids_hash,
    write_link_data,
    write_nonce,
    write_queue_mode,
    write_server_ntf_creds,
)
from blindpost.wire.smp.versions import (
    DELETED_EVENT_VERSION,
    NEW_NTF_CREDS_VERSION,
    SENDER_SECURE_VERSION,
    SERVICE_CERTS_VERSION,
    SERVICE_HASH_VERSION,
    SHORT_LINKS_VERSION,
)
from blindpost.wire.value import Buffer, Value
from blindpost.wire.versions import VersionRange, read_version_range, write_version_range


class OK(Bare):
    """Done."""

    __slots__ = ()
    TAG = b"OK"


class PONG(Bare):
    """The router is there."""

    __slots__ = ()
    TAG = b"PONG"


class END(Bare):
    """Another connection took over the subscription."""

    __slots__ = ()
    TAG = b"END"


class ALLS(Bare):
    """All messages that waited for a service at its SUBS were sent."""

    __slots__ = ()
    TAG = b"ALLS"


class DELD(Bare):
    """The queue was deleted. Older peers get END."""

    __slots__ = ()
    TAG = b"DELD"

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"DELD" if version >= DELETED_EVENT_VERSION else b"END")


@dataclass(frozen=True, slots=True, repr=False)
class IDS(Value):
    """A queue was created: its ids and the key for its messages."""

    TAG: ClassVar[bytes] = b"IDS"
    recipient_id: bytes
    sender_id: bytes
    dh_key: PublicKey
    mode: QueueMode | None = None
    link_id: bytes | None = None
    service_id: bytes | None = None
    ntf_creds: ServerNtfCreds | None = None

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"IDS ").short(self.recipient_id).short(self.sender_id)
        write_key(writer, self.dh_key)
        if version < SENDER_SECURE_VERSION:
            return
        if version < SHORT_LINKS_VERSION:
            writer.flag(self.mode is QueueMode.MESSAGING)
            return
        writer.opt(self.mode, write_queue_mode).opt(self.link_id, Writer.short)
        if version >= SERVICE_CERTS_VERSION:
            writer.opt(self.service_id, Writer.short)
        if version >= NEW_NTF_CREDS_VERSION:
            writer.opt(self.ntf_creds, write_server_ntf_creds)

    @classmethod
    def read(cls, reader: Reader, version: int) -> IDS:
        reader.expect(b" ")
        recipient_id, sender_id, dh_key = reader.short(), reader.short(), read_x25519(reader)
        if version < SENDER_SECURE_VERSION:
            return cls(recipient_id, sender_id, dh_key)
        if version < SHORT_LINKS_VERSION:
            return cls(recipient_id, sender_id, dh_key, mode_of_sender_secure(reader.flag()))
        mode = reader.opt(read_queue_mode)
        link_id = reader.opt(Reader.short)
        service_id = reader.opt(Reader.short) if version >= SERVICE_CERTS_VERSION else None
        creds = reader.opt(read_server_ntf_creds) if version >= NEW_NTF_CREDS_VERSION else None
        return cls(recipient_id, sender_id, dh_key, mode, link_id, service_id, creds)


@dataclass(frozen=True, slots=True, repr=False)
class SOK(Value):
    """Subscribed; on behalf of a service if there is an id. Older peers get OK."""

    TAG: ClassVar[bytes] = b"SOK"
    service_id: bytes | None

    def write(self, writer: Writer, version: int) -> None:
        if version < SERVICE_CERTS_VERSION:
            writer.raw(b"OK")
        elif self.service_id is None:
            writer.raw(b"SOK 0")
        else:
            writer.raw(b"SOK 1").short(self.service_id)

    @classmethod
    def read(cls, reader: Reader, version: int) -> SOK:
        reader.expect(b" ")
        return cls(reader.opt(Reader.short))


@dataclass(frozen=True, slots=True, repr=False)
class _ServiceCount(Value):
    """How many queues, and the hash of their ids."""

    TAG: ClassVar[bytes]
    count: int
    ids_hash: bytes = NO_IDS_HASH

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(self.TAG).raw(b" ").i64(self.count)
        if version >= SERVICE_HASH_VERSION:
            write_ids_hash(writer, self.ids_hash)


class SOKS(_ServiceCount):
    """A service is subscribed to its queues, as the router counts them."""

    __slots__ = ()
    TAG = b"SOKS"


class ENDS(_ServiceCount):
    """Another connection took over these subscriptions of a service."""

    __slots__ = ()
    TAG = b"ENDS"


@dataclass(frozen=True, slots=True, repr=False)
class MSG(Value):
    """A message, encrypted for its recipient."""

    TAG: ClassVar[bytes] = b"MSG"
    msg_id: bytes
    enc_body: Buffer

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"MSG ").short(self.msg_id).raw(self.enc_body)

    @classmethod
    def read(cls, reader: Reader, version: int) -> MSG:
        reader.expect(b" ")
        return cls(reader.short(), reader.rest())


@dataclass(frozen=True, slots=True, repr=False)
class LNK(Value):
    """The link data of a queue and where to send to it."""

    TAG: ClassVar[bytes] = b"LNK"
    sender_id: bytes
    data: LinkData

    def write(self, writer: Writer, version: int) -> None:
        write_link_data(writer.raw(b"LNK ").short(self.sender_id), self.data)

    @classmethod
    def read(cls, reader: Reader, version: int) -> LNK:
        reader.expect(b" ")
        return cls(reader.short(), read_link_data(reader))


@dataclass(frozen=True, slots=True, repr=False)
class NID(Value):
    """Notifications of the queue are enabled."""

    TAG: ClassVar[bytes] = b"NID"
    creds: ServerNtfCreds

    def write(self, writer: Writer, version: int) -> None:
        write_server_ntf_creds(writer.raw(b"NID "), self.creds)

    @classmethod
    def read(cls, reader: Reader, version: int) -> NID:
        reader.expect(b" ")
        return cls(read_server_ntf_creds(reader))


@dataclass(frozen=True, slots=True, repr=False)
class NMSG(Value):
    """A queue received a message; which one is encrypted for its recipient."""

    TAG: ClassVar[bytes] = b"NMSG"
    nonce: bytes
    enc_meta: bytes

    def write(self, writer: Writer, version: int) -> None:
        write_nonce(writer.raw(b"NMSG "), self.nonce)
        writer.short(self.enc_meta)

    @classmethod
    def read(cls, reader: Reader, version: int) -> NMSG:
        reader.expect(b" ")
        return cls(read_nonce(reader), reader.short())


@dataclass(frozen=True, slots=True, repr=False)
class PKEY(Value):
    """A proxy has a session with the relay: its id, versions and the relay's key."""

    TAG: ClassVar[bytes] = b"PKEY"
    session_id: bytes
    versions: VersionRange
    cert_key: CertKey

    def write(self, writer: Writer, version: int) -> None:
        write_version_range(writer.raw(b"PKEY ").short(self.session_id), self.versions)
        write_cert_key(writer, self.cert_key)

    @classmethod
    def read(cls, reader: Reader, version: int) -> PKEY:
        reader.expect(b" ")
        return cls(reader.short(), read_version_range(reader), read_cert_key(reader))


@dataclass(frozen=True, slots=True, repr=False)
class PRES(Value):
    """The relay's encrypted response, handed on by the proxy."""

    TAG: ClassVar[bytes] = b"PRES"
    enc_response: Buffer

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"PRES ").raw(self.enc_response)

    @classmethod
    def read(cls, reader: Reader, version: int) -> PRES:
        reader.expect(b" ")
        return cls(reader.rest())


@dataclass(frozen=True, slots=True, repr=False)
class RRES(Value):
    """The relay's response to a proxy."""

    TAG: ClassVar[bytes] = b"RRES"
    enc_forward_response: Buffer

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"RRES ").raw(self.enc_forward_response)

    @classmethod
    def read(cls, reader: Reader, version: int) -> RRES:
        reader.expect(b" ")
        return cls(reader.rest())


@dataclass(frozen=True, slots=True, repr=False)
class INFO(Value):
    """The state of a queue."""

    TAG: ClassVar[bytes] = b"INFO"
    info: QueueInfo

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"INFO ").raw(queue_info_to_json(self.info))

    @classmethod
    def read(cls, reader: Reader, version: int) -> INFO:
        reader.expect(b" ")
        return cls(queue_info_from_json(reader.rest()))


@dataclass(frozen=True, slots=True, repr=False)
class RNAME(Value):
    """What a name stands for."""

    TAG: ClassVar[bytes] = b"RNAME"
    record: NameRecord

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"RNAME ").raw(name_record_to_json(self.record))

    @classmethod
    def read(cls, reader: Reader, version: int) -> RNAME:
        reader.expect(b" ")
        return cls(name_record_from_json(reader.rest()))


@dataclass(frozen=True, slots=True, repr=False)
class ERR(Value):
    """A command failed, or something that concerns the client happened."""

    TAG: ClassVar[bytes] = b"ERR"
    error: SMPError

    def write(self, writer: Writer, version: int) -> None:
        write_error(writer.raw(b"ERR "), error_at(self.error, version))

    @classmethod
    def read(cls, reader: Reader, version: int) -> ERR:
        reader.expect(b" ")
        return cls(read_error(reader))


BareResponse: TypeAlias = OK | PONG | END | ALLS | DELD
Response: TypeAlias = (
    BareResponse | IDS | SOK | SOKS | ENDS | MSG | LNK | NID | NMSG | PKEY | PRES | RRES | INFO | RNAME | ERR
)
ReadResponse: TypeAlias = Callable[[Reader, int], Response]


def _bare(response: BareResponse) -> ReadResponse:
    return lambda reader, version: response


def _service_count(response: type[SOKS | ENDS]) -> ReadResponse:
    def read(reader: Reader, version: int) -> Response:
        reader.expect(b" ")
        count = reader.i64()
        return response(count, reader.short()) if version >= SERVICE_HASH_VERSION else response(count)

    return read


RESPONSES: dict[bytes, ReadResponse] = {
    OK.TAG: _bare(OK()),
    PONG.TAG: _bare(PONG()),
    END.TAG: _bare(END()),
    ALLS.TAG: _bare(ALLS()),
    DELD.TAG: _bare(DELD()),
    IDS.TAG: IDS.read,
    SOK.TAG: SOK.read,
    SOKS.TAG: _service_count(SOKS),
    ENDS.TAG: _service_count(ENDS),
    MSG.TAG: MSG.read,
    LNK.TAG: LNK.read,
    NID.TAG: NID.read,
    NMSG.TAG: NMSG.read,
    PKEY.TAG: PKEY.read,
    PRES.TAG: PRES.read,
    RRES.TAG: RRES.read,
    INFO.TAG: INFO.read,
    RNAME.TAG: RNAME.read,
    ERR.TAG: ERR.read,
}


def read_response(reader: Reader, version: int) -> Response:
    """The response that takes up the rest of a transmission; else `RefusedError` UNKNOWN or SYNTAX."""
    return read_tagged(reader, version, RESPONSES)
