"""What the engine and a front say to each other: the kinds of frames, and their bodies.

Blocks and answers, which are nearly all of them, are laid out by hand; the others use the wire's own
encoding. Nothing here can execute anything, whatever the other side sends.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.router.model import StoredMessage
from blindpost.transport.handshake import Agreement, FindService, ServiceSession
from blindpost.transport.plan import SessionLimits
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey, read_key, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.value import Buffer
from blindpost.wire.versions import VersionRange

VERSION = 1
"""To be raised with every change of a frame: a front of a program that was installed meanwhile must not serve
an older engine."""

# From the engine to a front.
SETUP, ACCEPT, SAY, PAUSE, RESUME, CLOSE, ABORT, FOUND, REFUSED, LEARN, PING, MARK = range(1, 13)
# From a front to the engine.
BLOCK, BAD_BLOCK, ESTABLISHED, SERVICE, LAGS, DRAINED, CLOSED, UNWRITTEN, PONG, MARKED = range(32, 42)

_PLAIN, _MESSAGE, _MARKER = range(3)
_ANSWER = struct.Struct("<BI")
"""What an answer is, and how long it is."""
_DELIVERY = struct.Struct("<32sq?BBB")
"""The secret of a message, its time, whether it notifies, and the lengths of three ids."""
SAID_MAX = 256 << 10
"""Answers of one frame; a turn may have more of them for one connection."""


class Late(NamedTuple):
    """A message that a front encrypts."""

    corr_id: bytes
    entity_id: bytes
    secret: Secret
    message: StoredMessage


def put_short(parts: list[Buffer], start: bytes, rest: bytes) -> int:
    """Append a transmission of two short parts; how many bytes."""
    size = len(start) + len(rest)
    parts.append(_ANSWER.pack(_PLAIN, size) + start + rest)
    return _ANSWER.size + size


def put_written(parts: list[Buffer], transmission: Writer) -> int:
    """Append a transmission that is complete; how many bytes."""
    parts.append(_ANSWER.pack(_PLAIN, transmission.size))
    parts += transmission.parts
    return _ANSWER.size + transmission.size


def put_late(
    parts: list[Buffer], corr_id: bytes, entity_id: bytes, secret: Secret, message: StoredMessage
) -> int:
    """Append a message that the front is to encrypt; how many bytes."""
    msg_id, body = message.msg_id, message.body
    kind = _MARKER if body is None else _MESSAGE
    ids = len(corr_id), len(entity_id), len(msg_id)
    start = _DELIVERY.pack(secret.raw, message.seconds, message.notify, *ids)
    size = len(start) + sum(ids) + (0 if body is None else len(body))
    parts.append(b"".join((_ANSWER.pack(kind, size), start, corr_id, entity_id, msg_id)))
    if body is not None:
        parts.append(body)
    return _ANSWER.size + size


def said(view: memoryview) -> Iterator[Writer | Late]:
    """The answers of a frame, in order; each is valid as long as the frame."""
    at = 0
    while at < len(view):
        kind, size = _ANSWER.unpack_from(view, at)
        start = at + _ANSWER.size
        at = start + size
        if kind == _PLAIN:
            yield Writer([view[start:at]], size)
            continue
        secret, seconds, notify, corr, entity, msg = _DELIVERY.unpack_from(view, start)
        start += _DELIVERY.size
        ids = bytes(view[start : start + corr + entity + msg])
        corr_id, entity_id, msg_id = ids[:corr], ids[corr : corr + entity], ids[corr + entity :]
        body = view[start + len(ids) : at] if kind == _MESSAGE else None
        yield Late(corr_id, entity_id, Secret(secret), StoredMessage(msg_id, seconds, notify, body))


def block_of(keys: Sequence[bytes], payload: bytes) -> tuple[list[Buffer], int]:
    """A block, with the key that verified each of its transmissions, empty where none did."""
    if not any(keys):
        return [b"\0", payload], 1 + len(payload)
    start = b"%c%b" % (len(keys), b"".join([b"%c%b" % (len(key), key) for key in keys]))
    return [start, payload], len(start) + len(payload)


def read_block(view: memoryview) -> tuple[Sequence[bytes], bytes]:
    count, at = view[0], 1
    if not count:
        return (), bytes(view[1:])
    if count == 1:
        at = 2 + view[1]
        return (bytes(view[2:at]),), bytes(view[at:])
    keys = []
    for _ in range(count):
        stop = at + 1 + view[at]
        keys.append(bytes(view[at + 1 : stop]))
        at = stop
    return keys, bytes(view[at:])


def write_agreement(agreement: Agreement) -> bytes:
    """What the engine needs of a handshake."""
    writer = Writer().u16(agreement.version).short(agreement.session_id)
    writer.opt(agreement.own_key, lambda to, key: to.short(key.raw))
    writer.opt(agreement.peer_key, write_key)
    writer.flag(agreement.encrypted).flag(agreement.proxy)
    writer.opt(agreement.service, _write_service)
    return writer.done()


def _write_service(writer: Writer, service: ServiceSession) -> None:
    writer.short(service.role.value).short(service.service_id).short(service.fingerprint)
    write_key(writer, service.key)


def read_agreement(data: bytes) -> Agreement:
    reader = Reader(data)
    version, session_id = reader.u16(), reader.short()
    own_key = reader.opt(lambda of: PrivateKey(Algorithm.X25519, of.short()))
    peer_key = reader.opt(read_key)
    encrypted, proxy = reader.flag(), reader.flag()
    service = reader.opt(_read_service)
    reader.end()
    return Agreement(version, session_id, own_key, peer_key, encrypted, proxy, service)


def _read_service(reader: Reader) -> ServiceSession:
    return ServiceSession(_read_role(reader), reader.short(), reader.short(), read_key(reader))


def _read_role(reader: Reader) -> ServiceRole:
    try:
        return ServiceRole(reader.short())
    except ValueError as error:
        raise WireError("the role of a service expected") from error


def write_request(request: FindService) -> bytes:
    writer = Writer().short(request.role.value).short(request.fingerprint)
    return writer.list0(request.chain, Writer.large).done()


def read_request(data: bytes) -> FindService:
    reader = Reader(data)
    found = FindService(_read_role(reader), reader.short(), reader.list0(lambda of: bytes(of.large())))
    reader.end()
    return found


def write_learnt(entity_id: bytes, key: PublicKey) -> bytes:
    return b"%c%b%b" % (len(entity_id), entity_id, key.spki)


def read_learnt(view: memoryview) -> tuple[bytes, PublicKey]:
    stop = 1 + view[0]
    return bytes(view[1:stop]), PublicKey.from_spki(bytes(view[stop:]))


@dataclass(frozen=True, slots=True)
class Setup:
    """What a front needs: the identity it shows to new connections, their limits, and how it logs."""

    credentials: Credentials
    limits: SessionLimits
    log_format: str
    log_level: str
    versions: VersionRange = SMP_VERSIONS

    def written(self) -> bytes:
        own = self.credentials
        return json.dumps(
            {
                "chain": [der.hex() for der in own.chain],
                "key": [own.key.algorithm.name, own.key.raw.hex()],
                "limits": asdict(self.limits),
                "log": [self.log_format, self.log_level],
                "versions": [self.versions.low, self.versions.high],
            }
        ).encode()

    @classmethod
    def read(cls, data: bytes) -> Setup:
        found = json.loads(data)
        algorithm, raw = found["key"]
        key = PrivateKey(Algorithm[algorithm], bytes.fromhex(raw))
        chain = tuple(bytes.fromhex(der) for der in found["chain"])
        limits, versions = SessionLimits(**found["limits"]), VersionRange(*found["versions"])
        log_format, log_level = found["log"]
        return cls(Credentials(chain, key), limits, log_format, log_level, versions)
