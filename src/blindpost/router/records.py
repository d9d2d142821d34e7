"""Rows of the store: the router's values as bytes, in our own layout.

The first byte of a row is its format, so that a later format can be read beside this one.
"""

from __future__ import annotations

import re
import struct

from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.secret import Secret
from blindpost.router.model import (
    Domain,
    Ends,
    Notification,
    Notifier,
    QueueRecord,
    ServiceRecord,
    Status,
    StoredMessage,
)
from blindpost.wire.errors import WireError
from blindpost.wire.keys import AUTH_ALGORITHMS, Algorithm, PublicKey, read_key, read_x25519, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.error_codec import read_error, write_error
from blindpost.wire.smp.errors import BLOCKED
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.values import LinkData, QueueMode, read_link_data, write_link_data
from blindpost.wire.value import Buffer

_FORMAT = 1
_MODES: dict[int, QueueMode | None] = {
    ord("-"): None,
    ord("M"): QueueMode.MESSAGING,
    ord("C"): QueueMode.CONTACT,
}
_MARKS = {ord("0"): False, ord("1"): True}
"""Whether an optional field follows."""
_STATUSES: dict[int, Status] = {ord("A"): Status.ACTIVE, ord("O"): Status.OFF}
"""Any other value is a blocked queue, with the reason."""
_from_spki = PublicKey.from_spki
_DH_PREFIX = Algorithm.X25519.spki_prefix
_ID, _SECRET, _KEY = rb"\x18(.{24})", rb"\x20(.{32})", rb"\x2c(.{44})"
_DH_KEY = rb"\x2c" + re.escape(_DH_PREFIX) + rb"(.{32})"
_NUMBER_SIZE = 8
_ENDS = struct.Struct(">qqc")
_FLAGS = {b"T": True, b"F": False}
_MESSAGE_START = struct.Struct(">qB")
"""The time of arrival, and the size of the id that follows."""

NOTIFICATIONS_WAITING_MAX = 256
"""How many notifications wait for one notifier that is not subscribed; the oldest give way."""


def queue_to_row(record: QueueRecord) -> bytes:
    writer = Writer().u8(_FORMAT)
    writer.short(record.recipient_id).short(record.sender_id)
    writer.list1(record.recipient_keys, write_key)
    writer.opt(record.recipient_dh_key, _write_dh_key)
    writer.short(record.secret.raw)
    writer.opt(record.router_dh_key, _write_dh_key)
    writer.raw(record.mode.value if record.mode else b"-")
    writer.opt(record.sender_key, write_key).opt(record.link_id, Writer.short)
    writer.opt(record.notifier, _write_notifier)
    writer.i64(record.updated_day).opt(record.service_id, Writer.short)
    _write_status(writer, record.status)
    return writer.done()


def _maybe(field: bytes) -> bytes:
    return rb"(?:0|1" + field + rb")"


_usual_row = re.compile(
    b"".join(
        (
            re.escape(bytes((_FORMAT,))) + _ID + _ID + rb"\x01" + _KEY,
            _maybe(_DH_KEY) + _SECRET + _maybe(_DH_KEY) + rb"([-MC])",
            _maybe(_KEY) + _maybe(_ID),
            _maybe(_ID + _KEY + _SECRET + _maybe(_DH_KEY) + _maybe(_ID)),
            rb"(.{8})" + _maybe(_ID) + rb"([AO])",
        )
    ),
    re.DOTALL,
).fullmatch
"""What `queue_to_row` writes for a queue with ids and keys of the usual sizes, a single recipient key, and
that is not blocked. Nearly all are like that, and one match extracts their fields in half the time of a walk.
Keys of this size are Ed25519 and X25519, which may authorize."""


def queue_from_row(row: bytes) -> QueueRecord:
    """Runs for each queue that is not in the cache."""
    usual = _usual_row(row)
    if usual is None:
        return _walked(row)
    (
        recipient_id,
        sender_id,
        key,
        recipient_dh_key,
        secret,
        router_dh_key,
        mode,
        sender_key,
        link_id,
        notifier_id,
        notifier_key,
        notifier_secret,
        notifier_dh_key,
        notifier_service_id,
        updated_day,
        service_id,
        status,
    ) = usual.groups()
    notifier = None
    if notifier_id is not None:
        notifier = Notifier(
            notifier_id,
            _from_spki(notifier_key),
            Secret(notifier_secret),
            None if notifier_dh_key is None else PublicKey(Algorithm.X25519, notifier_dh_key),
            notifier_service_id,
        )
    return QueueRecord(
        recipient_id,
        sender_id,
        (_from_spki(key),),
        recipient_dh_key,
        Secret(secret),
        router_dh_key,
        _MODES[mode[0]],
        None if sender_key is None else _from_spki(sender_key),
        link_id,
        notifier,
        _STATUSES[status[0]],
        int.from_bytes(updated_day, "big", signed=True),
        service_id,
    )


def _walked(row: bytes) -> QueueRecord:
    """A row of any shape. Fields are cut out by their lengths; if it ends among them, no status is left."""
    try:
        if row[0] != _FORMAT:
            raise WireError("a row of a known format expected")
        stop = 2 + row[1]
        recipient_id = row[2:stop]
        start, stop = stop + 1, stop + 1 + row[stop]
        sender_id = row[start:stop]
        count, stop = row[stop], stop + 1
        keys = []
        for _ in range(count):
            start, stop = stop + 1, stop + 1 + row[stop]
            keys.append(_auth_key(row[start:stop]))
        recipient_dh_key, stop = _optional(row, stop)
        start, stop = stop + 1, stop + 1 + row[stop]
        secret = row[start:stop]
        router_dh_key, stop = _optional(row, stop)
        mode = _MODES[row[stop]]
        sender_key, stop = _optional(row, stop + 1)
        link_id, stop = _optional(row, stop)
        notifier, stop = _read_notifier(row, stop + 1) if _MARKS[row[stop]] else (None, stop + 1)
        updated_day = int.from_bytes(row[stop : stop + 8], "big", signed=True)
        service_id, stop = _optional(row, stop + 8)
        status = _STATUSES.get(row[stop]) or _read_blocked(Reader(row, stop + 1))
    except IndexError as error:
        raise WireError("the row of a queue expected") from error
    return QueueRecord(
        recipient_id,
        sender_id,
        tuple(keys),
        None if recipient_dh_key is None else _dh_key(recipient_dh_key),
        Secret(secret),
        None if router_dh_key is None else _dh_key(router_dh_key),
        mode,
        None if sender_key is None else _auth_key(sender_key),
        link_id,
        notifier,
        status,
        updated_day,
        service_id,
    )


def _optional(row: bytes, place: int) -> tuple[bytes | None, int]:
    """The field behind the mark at `place`, if there is one, and where it ends."""
    if not _MARKS[row[place]]:
        return None, place + 1
    stop = place + 2 + row[place + 1]
    return row[place + 2 : stop], stop


def _write_dh_key(writer: Writer, raw: bytes) -> None:
    writer.short(_DH_PREFIX + raw)


def _dh_key(spki: bytes) -> bytes:
    if len(spki) != Algorithm.X25519.spki_size or not spki.startswith(_DH_PREFIX):
        raise WireError("a stored X25519 key expected")
    return spki[len(_DH_PREFIX) :]


def _auth_key(spki: bytes) -> PublicKey:
    key = _from_spki(spki)
    if key.algorithm not in AUTH_ALGORITHMS:
        raise WireError("a stored authorization key expected")
    return key


def _write_notifier(writer: Writer, notifier: Notifier) -> None:
    writer.short(notifier.notifier_id)
    write_key(writer, notifier.key)
    writer.short(notifier.secret.raw)
    writer.opt(notifier.router_dh_key, write_key)
    writer.opt(notifier.service_id, Writer.short)


def _read_notifier(row: bytes, place: int) -> tuple[Notifier, int]:
    """The notifier at `place` of the row of its queue, and where it ends."""
    reader = Reader(row, place)
    notifier_id, key, secret = reader.short(), read_key(reader), Secret(reader.short())
    notifier = Notifier(notifier_id, key, secret, reader.opt(read_x25519), reader.opt(Reader.short))
    return notifier, reader.position


def _write_status(writer: Writer, status: Status | BLOCKED) -> None:
    if isinstance(status, BLOCKED):
        write_error(writer.raw(b"B"), status)
    else:
        writer.raw(b"A" if status is Status.ACTIVE else b"O")


def _read_blocked(reader: Reader) -> BLOCKED:
    blocked = read_error(reader)
    if not isinstance(blocked, BLOCKED):
        raise WireError("a stored queue status expected")
    return blocked


def _check_format(reader: Reader) -> None:
    if reader.u8() != _FORMAT:
        raise WireError("a row of a known format expected")


def ends_to_row(ends: Ends) -> bytes:
    return _ENDS.pack(ends.head, ends.tail, b"T" if ends.can_write else b"F")


def ends_from_row(row: Buffer) -> Ends:
    try:
        head, tail, can_write = _ENDS.unpack(row)
        return Ends(head, tail, _FLAGS[can_write])
    except (struct.error, KeyError) as error:
        raise WireError("the stored ends of a queue expected") from error


def message_to_row(message: StoredMessage) -> bytes:
    """The time comes first, so that expiry reads eight bytes and no body."""
    start = _MESSAGE_START.pack(message.seconds, len(message.msg_id))
    if message.body is None:
        return b"".join((start, message.msg_id, b"Q"))
    return b"".join((start, message.msg_id, b"N" if message.notify else b"M", message.body))


def message_from_row(row: bytes) -> StoredMessage:
    if len(row) < _MESSAGE_START.size:
        raise WireError("a stored message expected")
    seconds, id_size = _MESSAGE_START.unpack_from(row)
    place = _MESSAGE_START.size + id_size
    msg_id, kind = row[_MESSAGE_START.size : place], row[place : place + 1]
    if kind == b"Q":
        return StoredMessage(msg_id, seconds, False, None)
    if kind not in (b"N", b"M"):
        raise WireError("a stored message expected")
    return StoredMessage(msg_id, seconds, kind == b"N", memoryview(row)[place + 1 :])


def is_expired_row(row: Buffer, before: int) -> bool:
    """Whether the row holds an ordinary message that came before `before`.

    Markers do not expire, and an unreadable row stays where it is.
    """
    if len(row) < _MESSAGE_START.size:
        return False
    seconds, id_size = _MESSAGE_START.unpack_from(row)
    place = _MESSAGE_START.size + id_size
    return seconds < before and row[place : place + 1] in (b"N", b"M")


def message_key(recipient_id: bytes, number: int) -> bytes:
    """Messages of one queue are adjacent and in order."""
    return message_prefix(recipient_id) + number.to_bytes(_NUMBER_SIZE, "big")


def message_prefix(recipient_id: bytes) -> bytes:
    """What the keys of all messages of one queue, and of no other, begin with."""
    return len(recipient_id).to_bytes(1, "big") + recipient_id


def link_key(link_id: bytes) -> bytes:
    """Clients choose link ids, also the empty one, which the store would not take as a key."""
    return b"L" + link_id


def link_to_row(recipient_id: bytes, data: LinkData) -> bytes:
    writer = Writer().short(recipient_id)
    write_link_data(writer, data)
    return writer.done()


def link_from_row(row: bytes) -> tuple[bytes, LinkData]:
    reader = Reader(row)
    return reader.short(), read_link_data(reader)


def link_owner(row: Buffer) -> bytes:
    """Only the owner of the link."""
    return Reader(row).short()


def notification_to_row(notification: Notification) -> bytes:
    writer = Writer().i64(notification.seconds).i64(notification.number)
    return writer.short(notification.nonce).short(notification.enc_meta).done()


def notification_from_row(notifier_id: bytes, row: Buffer) -> Notification:
    reader = Reader(row)
    seconds, number = reader.i64(), reader.i64()
    return Notification(notifier_id, number, seconds, reader.short(), reader.short())


def notification_place(number: int) -> int:
    """One of a ring of places for each notifier, so that a newer notification replaces the oldest."""
    return number % NOTIFICATIONS_WAITING_MAX


def notification_key(notifier_id: bytes, number: int) -> bytes:
    return notifier_id + notification_place(number).to_bytes(1, "big")


def notifier_of(key: bytes) -> bytes:
    """The notifier id in the key of a notification."""
    return key[:-1]


def behind_notifications(notifier_id: bytes) -> bytes:
    """Where the notifications of the next notifier begin at the earliest."""
    return notifier_id + b"\xff\0"


def service_to_row(service: ServiceRecord) -> bytes:
    writer = Writer().u8(_FORMAT).short(service.service_id).raw(service.role.value).short(service.fingerprint)
    writer.list1(service.chain, Writer.large).i64(service.created_day)
    for members in (service.queues, service.notifiers):
        writer.i64(members.count).short(members.ids_hash)
    return writer.done()


def service_from_row(row: bytes) -> ServiceRecord:
    reader = Reader(row)
    _check_format(reader)
    service_id, role, fingerprint = reader.short(), ServiceRole(reader.take(1)), reader.short()
    chain = tuple(bytes(certificate) for certificate in reader.list1(Reader.large))
    created_day = reader.i64()
    queues, notifiers = (QueueSet(reader.i64(), reader.short()) for _ in range(2))
    return ServiceRecord(service_id, role, fingerprint, chain, created_day, queues, notifiers)


def service_prefix(domain: Domain, service_id: bytes) -> bytes:
    """What the keys of a service's queues begin with; the queues follow in the order of their ids."""
    return b"".join((domain.value, len(service_id).to_bytes(1, "big"), service_id))
