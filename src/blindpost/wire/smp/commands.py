"""Every command that a client sends, at every version.

A router reads any known tag at any version; only the layout of parameters depends on the version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

from blindpost.wire.addresses import Server, read_password, read_server, write_password, write_server
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_auth_key, read_x25519, write_key
from blindpost.wire.primitives import TAG_MAX, Reader, Writer
from blindpost.wire.smp.names import domain_from_bytes, domain_to_bytes
from blindpost.wire.smp.tagged import Bare, read_tagged
from blindpost.wire.smp.values import (
    NO_IDS_HASH,
    LinkData,
    NtfCreds,
    QueueMode,
    QueueRequest,
    SubMode,
    mode_of_sender_secure,
    read_flags,
    read_link_data,
    read_ntf_creds,
    read_queue_request,
    read_sub_mode,
    write_flags,
    write_ids_hash,
    write_link_data,
    write_ntf_creds,
    write_queue_request,
)
from blindpost.wire.smp.versions import (
    NEW_NTF_CREDS_VERSION,
    SENDER_SECURE_VERSION,
    SERVICE_HASH_VERSION,
    SHORT_LINKS_VERSION,
)
from blindpost.wire.value import Buffer, Value

UNKNOWN_COUNT = -1
"""The count of a SUBS or NSUBS that carries none: the client claims nothing."""


class SUB(Bare):
    """Subscribe to a queue as its recipient."""

    __slots__ = ()
    TAG = b"SUB"


class LDEL(Bare):
    """Delete the link data of a queue."""

    __slots__ = ()
    TAG = b"LDEL"


class LGET(Bare):
    """Read the link data of a contact queue."""

    __slots__ = ()
    TAG = b"LGET"


class NDEL(Bare):
    """Stop notifications of a queue."""

    __slots__ = ()
    TAG = b"NDEL"


class NSUB(Bare):
    """Subscribe to the notifications of a queue."""

    __slots__ = ()
    TAG = b"NSUB"


class GET(Bare):
    """Take the message at the head of a queue without subscribing."""

    __slots__ = ()
    TAG = b"GET"


class OFF(Bare):
    """Accept no more messages."""

    __slots__ = ()
    TAG = b"OFF"


class DEL(Bare):
    """Delete a queue."""

    __slots__ = ()
    TAG = b"DEL"


class QUE(Bare):
    """Ask for the state of a queue."""

    __slots__ = ()
    TAG = b"QUE"


class PING(Bare):
    """Ask whether the router is still there."""

    __slots__ = ()
    TAG = b"PING"


@dataclass(frozen=True, slots=True, repr=False)
class NEW(Value):
    """Create a queue."""

    TAG: ClassVar[bytes] = b"NEW"
    auth_key: PublicKey
    dh_key: PublicKey
    basic_auth: bytes | None = None
    sub_mode: SubMode = SubMode.SUBSCRIBE
    request: QueueRequest | None = None
    ntf_creds: NtfCreds | None = None

    def write(self, writer: Writer, version: int) -> None:
        """What a version does not support is left out: first notifications, then links, then the mode."""
        writer.raw(b"NEW ")
        write_key(writer, self.auth_key)
        write_key(writer, self.dh_key)
        if version < SENDER_SECURE_VERSION:
            if self.basic_auth is not None:
                writer.raw(b"A")
                write_password(writer, self.basic_auth)
            writer.raw(self.sub_mode.value)
            return
        writer.opt(self.basic_auth, write_password).raw(self.sub_mode.value)
        if version < SHORT_LINKS_VERSION:
            writer.flag(self.request is not None and self.request.mode is QueueMode.MESSAGING)
            return
        writer.opt(self.request, write_queue_request)
        if version >= NEW_NTF_CREDS_VERSION:
            writer.opt(self.ntf_creds, write_ntf_creds)

    @classmethod
    def read(cls, reader: Reader, version: int) -> NEW:
        reader.expect(b" ")
        auth_key = read_auth_key(reader)
        dh_key = read_x25519(reader)
        if version < SENDER_SECURE_VERSION:
            old_password = read_password(reader) if reader.skip(b"A") else None
            return cls(auth_key, dh_key, old_password, read_sub_mode(reader))
        password = reader.opt(read_password)
        sub_mode = read_sub_mode(reader)
        if version < SHORT_LINKS_VERSION:
            request: QueueRequest | None = QueueRequest(mode_of_sender_secure(reader.flag()))
            return cls(auth_key, dh_key, password, sub_mode, request)
        request = reader.opt(read_queue_request)
        creds = reader.opt(read_ntf_creds) if version >= NEW_NTF_CREDS_VERSION else None
        return cls(auth_key, dh_key, password, sub_mode, request, creds)


@dataclass(frozen=True, slots=True, repr=False)
class _ServiceSubscription(Value):
    """Subscribe to all queues of a service; count and hash are what the client believes they are."""

    TAG: ClassVar[bytes]
    count: int = UNKNOWN_COUNT
    ids_hash: bytes = NO_IDS_HASH

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(self.TAG)
        if version >= SERVICE_HASH_VERSION:
            write_ids_hash(writer.raw(b" ").i64(self.count), self.ids_hash)


class SUBS(_ServiceSubscription):
    """Subscribe to the messages of all queues of this service."""

    __slots__ = ()
    TAG = b"SUBS"


class NSUBS(_ServiceSubscription):
    """Subscribe to the notifications of all queues of this service."""

    __slots__ = ()
    TAG = b"NSUBS"


@dataclass(frozen=True, slots=True, repr=False)
class _OneKey(Value):
    """A command that brings a key."""

    TAG: ClassVar[bytes]
    key: PublicKey

    def write(self, writer: Writer, version: int) -> None:
        write_key(writer.raw(self.TAG).raw(b" "), self.key)


class KEY(_OneKey):
    """Secure a queue with the sender's key, as its recipient."""

    __slots__ = ()
    TAG = b"KEY"


class SKEY(_OneKey):
    """Secure a queue with the sender's key, as its sender."""

    __slots__ = ()
    TAG = b"SKEY"


class LKEY(_OneKey):
    """Secure a messaging queue and read its link data."""

    __slots__ = ()
    TAG = b"LKEY"


@dataclass(frozen=True, slots=True, repr=False)
class RKEY(Value):
    """Replace the recipient keys of a contact queue."""

    TAG: ClassVar[bytes] = b"RKEY"
    keys: tuple[PublicKey, ...]

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"RKEY ").list1(self.keys, write_key)

    @classmethod
    def read(cls, reader: Reader, version: int) -> RKEY:
        reader.expect(b" ")
        return cls(reader.list1(read_auth_key))


@dataclass(frozen=True, slots=True, repr=False)
class LSET(Value):
    """Set or change the link data of a queue."""

    TAG: ClassVar[bytes] = b"LSET"
    link_id: bytes
    data: LinkData

    def write(self, writer: Writer, version: int) -> None:
        write_link_data(writer.raw(b"LSET ").short(self.link_id), self.data)

    @classmethod
    def read(cls, reader: Reader, version: int) -> LSET:
        reader.expect(b" ")
        return cls(reader.short(), read_link_data(reader))


@dataclass(frozen=True, slots=True, repr=False)
class NKEY(Value):
    """Enable notifications of a queue."""

    TAG: ClassVar[bytes] = b"NKEY"
    creds: NtfCreds

    def write(self, writer: Writer, version: int) -> None:
        write_ntf_creds(writer.raw(b"NKEY "), self.creds)

    @classmethod
    def read(cls, reader: Reader, version: int) -> NKEY:
        reader.expect(b" ")
        return cls(read_ntf_creds(reader))


@dataclass(frozen=True, slots=True, repr=False)
class ACK(Value):
    """The message was received: delete it, send the next."""

    TAG: ClassVar[bytes] = b"ACK"
    msg_id: bytes

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"ACK ").short(self.msg_id)

    @classmethod
    def read(cls, reader: Reader, version: int) -> ACK:
        reader.expect(b" ")
        return cls(reader.short())


@dataclass(frozen=True, slots=True, repr=False)
class SEND(Value):
    """Put a message into a queue."""

    TAG: ClassVar[bytes] = b"SEND"
    notify: bool
    body: Buffer

    def write(self, writer: Writer, version: int) -> None:
        write_flags(writer.raw(b"SEND "), self.notify)
        writer.raw(self.body)

    @classmethod
    def read(cls, reader: Reader, version: int) -> SEND:
        if reader.skip(b" T "):
            return cls(True, reader.rest())
        reader.expect(b" ")
        notify = read_flags(reader)
        return cls(notify, reader.rest())


@dataclass(frozen=True, slots=True, repr=False)
class PRXY(Value):
    """Ask a proxy for a session with a relay."""

    TAG: ClassVar[bytes] = b"PRXY"
    relay: Server
    basic_auth: bytes | None

    def write(self, writer: Writer, version: int) -> None:
        write_server(writer.raw(b"PRXY "), self.relay)
        writer.opt(self.basic_auth, write_password)

    @classmethod
    def read(cls, reader: Reader, version: int) -> PRXY:
        reader.expect(b" ")
        return cls(read_server(reader), reader.opt(read_password))


@dataclass(frozen=True, slots=True, repr=False)
class PFWD(Value):
    """Forward an encrypted command to a relay; its version is that agreed with the relay."""

    TAG: ClassVar[bytes] = b"PFWD"
    version: int
    command_key: PublicKey
    enc_transmission: Buffer

    def write(self, writer: Writer, version: int) -> None:
        write_key(writer.raw(b"PFWD ").u16(self.version), self.command_key)
        writer.raw(self.enc_transmission)

    @classmethod
    def read(cls, reader: Reader, version: int) -> PFWD:
        reader.expect(b" ")
        return cls(reader.u16(), read_x25519(reader), reader.rest())


@dataclass(frozen=True, slots=True, repr=False)
class RFWD(Value):
    """A proxy hands a forwarded command to the relay."""

    TAG: ClassVar[bytes] = b"RFWD"
    enc_forward: Buffer

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"RFWD ").raw(self.enc_forward)

    @classmethod
    def read(cls, reader: Reader, version: int) -> RFWD:
        reader.expect(b" ")
        return cls(reader.rest())


@dataclass(frozen=True, slots=True, repr=False)
class RSLV(Value):
    """Resolve a name."""

    TAG: ClassVar[bytes] = b"RSLV"
    domain: str

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(b"RSLV ").raw(domain_to_bytes(self.domain))

    @classmethod
    def read(cls, reader: Reader, version: int) -> RSLV:
        reader.expect(b" ")
        return cls(domain_from_bytes(reader.rest()))


BareCommand: TypeAlias = SUB | LDEL | LGET | NDEL | NSUB | GET | OFF | DEL | QUE | PING
Command: TypeAlias = (
    BareCommand
    | NEW
    | SUBS
    | NSUBS
    | KEY
    | SKEY
    | LKEY
    | RKEY
    | LSET
    | NKEY
    | ACK
    | SEND
    | PRXY
    | PFWD
    | RFWD
    | RSLV
)
ReadCommand: TypeAlias = Callable[[Reader, int], Command]


def _bare(command: BareCommand) -> ReadCommand:
    return lambda reader, version: command


def _one_key(command: type[KEY | SKEY | LKEY]) -> ReadCommand:
    def read(reader: Reader, version: int) -> Command:
        reader.expect(b" ")
        return command(read_auth_key(reader))

    return read


def _service_subscription(command: type[SUBS | NSUBS]) -> ReadCommand:
    def read(reader: Reader, version: int) -> Command:
        if version < SERVICE_HASH_VERSION:
            return command()
        reader.expect(b" ")
        return command(reader.i64(), reader.short())

    return read


BARE_COMMANDS: dict[bytes, BareCommand] = {
    command.TAG: command
    for command in (SUB(), LDEL(), LGET(), NDEL(), NSUB(), GET(), OFF(), DEL(), QUE(), PING())
}

COMMANDS: dict[bytes, ReadCommand] = {
    **{tag: _bare(command) for tag, command in BARE_COMMANDS.items()},
    NEW.TAG: NEW.read,
    SUBS.TAG: _service_subscription(SUBS),
    NSUBS.TAG: _service_subscription(NSUBS),
    KEY.TAG: _one_key(KEY),
    SKEY.TAG: _one_key(SKEY),
    LKEY.TAG: _one_key(LKEY),
    RKEY.TAG: RKEY.read,
    LSET.TAG: LSET.read,
    NKEY.TAG: NKEY.read,
    ACK.TAG: ACK.read,
    SEND.TAG: SEND.read,
    PRXY.TAG: PRXY.read,
    PFWD.TAG: PFWD.read,
    RFWD.TAG: RFWD.read,
    RSLV.TAG: RSLV.read,
}


def read_command(reader: Reader, version: int) -> Command:
    """The command that takes up the rest of a transmission; else `RefusedError` UNKNOWN or SYNTAX.

    A command that is only its tag, such as each of a hundred SUBs in a block, is looked up by all its bytes.
    """
    start, limit = reader.position, reader.limit
    if limit - start <= TAG_MAX:
        command = BARE_COMMANDS.get(bytes(reader.data[start:limit]))
        if command is not None:
            reader.position = limit
            return command
    return read_tagged(reader, version, COMMANDS)
