"""The reference router's store log: one line for each change of a queue or a service.

Lines are read as strictly as the reference reads them, and written exactly as it writes them, including two
kinds that nobody can read back: a blocked queue with both a notice and a service (the notice takes the rest
of the line), and link data of which a part is empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import AUTH_ALGORITHMS, PublicKey
from blindpost.wire.primitives import decode_whole, encode
from blindpost.wire.scanner import Scanner, from_utf8
from blindpost.wire.smp.error_codec import read_error, write_error
from blindpost.wire.smp.errors import BLOCKED
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.values import LinkData, QueueMode, mode_of_sender_secure
from blindpost.wire.text import b64
from blindpost.wire.value import Buffer, Value

SECRET_SIZE = 32

_WORD = re.compile(r"[A-Z_]+", re.ASCII)
_REASON = re.compile(r"[a-z]*", re.ASCII)


@dataclass(frozen=True, slots=True, repr=False)
class NotifierRecord(Value):
    """Notifier credentials of a queue, and the service that subscribes to them."""

    notifier_id: bytes
    key: PublicKey
    dh_secret: bytes
    service_id: bytes | None = None


class Activity(Enum):
    """Whether a queue accepts messages; a blocked one has `BLOCKED` with its reason instead."""

    ACTIVE = "active"
    OFF = "off"


QueueStatus = Activity | BLOCKED


@dataclass(frozen=True, slots=True, repr=False)
class CreateQueue(Value):
    """A queue with all that is known of it."""

    recipient_id: bytes
    recipient_keys: tuple[PublicKey, ...]
    dh_secret: bytes
    sender_id: bytes
    sender_key: PublicKey | None = None
    mode: QueueMode | None = None
    link: tuple[bytes, LinkData] | None = None
    notifier: NotifierRecord | None = None
    updated_at: int | None = None
    status: QueueStatus = Activity.ACTIVE
    service_id: bytes | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CreateLink(Value):
    recipient_id: bytes
    link_id: bytes
    data: LinkData


@dataclass(frozen=True, slots=True, repr=False)
class DeleteLink(Value):
    recipient_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class SecureQueue(Value):
    recipient_id: bytes
    sender_key: PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class UpdateKeys(Value):
    recipient_id: bytes
    recipient_keys: tuple[PublicKey, ...]


@dataclass(frozen=True, slots=True, repr=False)
class AddNotifier(Value):
    recipient_id: bytes
    notifier: NotifierRecord


@dataclass(frozen=True, slots=True, repr=False)
class DeleteNotifier(Value):
    recipient_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class SuspendQueue(Value):
    recipient_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class BlockQueue(Value):
    recipient_id: bytes
    blocked: BLOCKED


@dataclass(frozen=True, slots=True, repr=False)
class UnblockQueue(Value):
    recipient_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class DeleteQueue(Value):
    recipient_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class UpdateTime(Value):
    """When a queue was last used, in Unix seconds of the start of that day."""

    recipient_id: bytes
    seconds: int


@dataclass(frozen=True, slots=True, repr=False)
class NewService(Value):
    """A client service: its role and its certificate chain, as DER, leaf first."""

    service_id: bytes
    role: ServiceRole
    chain: tuple[bytes, ...]
    cert_hash: bytes
    created_at: int


class Party(Enum):
    """Which side of a queue a service subscribes to."""

    RECIPIENT = "R"
    NOTIFIER = "N"


@dataclass(frozen=True, slots=True, repr=False)
class QueueService(Value):
    """The service of a queue or of its notifier changed or was removed."""

    recipient_id: bytes
    party: Party
    service_id: bytes | None


StoreRecord = (
    CreateQueue
    | CreateLink
    | DeleteLink
    | SecureQueue
    | UpdateKeys
    | AddNotifier
    | DeleteNotifier
    | SuspendQueue
    | BlockQueue
    | UnblockQueue
    | DeleteQueue
    | UpdateTime
    | NewService
    | QueueService
)


def decode_store_line(line: Buffer) -> StoreRecord:
    """One line, without its end."""
    scanner = Scanner(from_utf8(line))
    scan = _SCANNERS.get(scanner.match(_WORD, "the kind of a store log line"))
    if scan is None:
        raise WireError("a known kind of store log line expected")
    scanner.expect(" ")
    record = scan(scanner)
    scanner.end()
    return record


def encode_store_line(record: StoreRecord) -> bytes:
    """The line, without its end."""
    return _text(record).encode("utf-8")


def _text(record: StoreRecord) -> str:
    match record:
        case CreateQueue():
            return _create_text(record)
        case CreateLink(queue, link_id, data):
            return f"LINK {b64(queue)} {b64(link_id)} {_link_text(data)}"
        case DeleteLink(queue):
            return f"LDELETE {b64(queue)}"
        case SecureQueue(queue, key):
            return f"SECURE {b64(queue)} {b64(key.spki)}"
        case UpdateKeys(queue, keys):
            return f"KEYS {b64(queue)} {_keys_text(keys)}"
        case AddNotifier(queue, notifier):
            return f"NOTIFIER {b64(queue)} {_notifier_text(notifier)}"
        case DeleteNotifier(queue):
            return f"NDELETE {b64(queue)}"
        case SuspendQueue(queue):
            return f"SUSPEND {b64(queue)}"
        case BlockQueue(queue, blocked):
            return f"BLOCK {b64(queue)} {_blocked_text(blocked)}"
        case UnblockQueue(queue):
            return f"UNBLOCK {b64(queue)}"
        case DeleteQueue(queue):
            return f"DELETE {b64(queue)}"
        case UpdateTime(queue, seconds):
            return f"TIME {b64(queue)} {seconds}"
        case NewService():
            return _service_text(record)
        case QueueService(queue, party, service_id):
            return f"QUEUE_SERVICE {b64(queue)} {party.value} {b64(service_id or b'')}"


def _create_text(record: CreateQueue) -> str:
    sender_key = "" if record.sender_key is None else b64(record.sender_key.spki)
    text = (
        f"CREATE rid={b64(record.recipient_id)} rk={_keys_text(record.recipient_keys)}"
        f" rdh={b64(record.dh_secret)} sid={b64(record.sender_id)} sk={sender_key}"
    )
    if record.mode is not None:
        text += f" queue_mode={record.mode.value.decode('ascii')}"
    if record.link is not None:
        link_id, data = record.link
        text += f" link_id={b64(link_id)} queue_data={_link_text(data)}"
    if record.notifier is not None:
        text += f" notifier={_notifier_text(record.notifier)}"
    if record.updated_at is not None:
        text += f" updated_at={record.updated_at}"
    match record.status:
        case BLOCKED() as blocked:
            text += f" status=blocked,{_blocked_text(blocked)}"
        case Activity.OFF:
            text += " status=off"
    if record.service_id is not None:
        text += f" rsrv={b64(record.service_id)}"
    return text


def _service_text(record: NewService) -> str:
    chain = ",".join(map(b64, record.chain))
    return (
        f"NEW_SERVICE service_id={b64(record.service_id)} role={record.role.value.decode('ascii')}"
        f" cert={chain} cert_hash={b64(record.cert_hash)} created_at={record.created_at}"
    )


def _link_text(data: LinkData) -> str:
    return f"{b64(data.fixed)} {b64(data.user)}"


def _keys_text(keys: tuple[PublicKey, ...]) -> str:
    return ",".join(b64(key.spki) for key in keys)


def _notifier_text(notifier: NotifierRecord) -> str:
    service = "" if notifier.service_id is None else f" nsrv={b64(notifier.service_id)}"
    return f"{b64(notifier.notifier_id)} {b64(notifier.key.spki)} {b64(notifier.dh_secret)}{service}"


def _blocked_text(blocked: BLOCKED) -> str:
    """As in the error, without its name."""
    return encode(blocked, write_error).decode("utf-8").removeprefix("BLOCKED ")


def _scan_create(scanner: Scanner) -> CreateQueue:
    scanner.expect("rid=")
    recipient_id = scanner.base64()
    scanner.expect(" rk=")
    keys = _scan_keys(scanner)
    scanner.expect(" rdh=")
    dh_secret = _scan_secret(scanner)
    scanner.expect(" sid=")
    sender_id = scanner.base64()
    scanner.expect(" sk=")
    sender_key = None if scanner.at_end or scanner.next_is(" ") else _scan_key(scanner)
    return CreateQueue(
        recipient_id,
        keys,
        dh_secret,
        sender_id,
        sender_key,
        _scan_mode(scanner),
        _scan_optional_link(scanner),
        _scan_notifier(scanner) if scanner.skip(" notifier=") else None,
        scanner.integer() if scanner.skip(" updated_at=") else None,
        _scan_status(scanner) if scanner.skip(" status=") else Activity.ACTIVE,
        scanner.base64() if scanner.skip(" rsrv=") else None,
    )


def _scan_mode(scanner: Scanner) -> QueueMode | None:
    """The mode, or what came before it: whether the sender may secure the queue."""
    if scanner.skip(" sndSecure="):
        return mode_of_sender_secure(scanner.flag())
    if not scanner.skip(" queue_mode="):
        return None
    if scanner.skip("M"):
        return QueueMode.MESSAGING
    scanner.expect("C")
    return QueueMode.CONTACT


def _scan_optional_link(scanner: Scanner) -> tuple[bytes, LinkData] | None:
    if not scanner.skip(" link_id="):
        return None
    link_id = scanner.base64()
    scanner.expect(" queue_data=")
    return link_id, _scan_link(scanner)


def _scan_link(scanner: Scanner) -> LinkData:
    fixed = scanner.base64()
    scanner.expect(" ")
    return LinkData(fixed, scanner.base64())


def _scan_status(scanner: Scanner) -> QueueStatus:
    if scanner.skip("blocked,"):
        return _scan_blocked(scanner)
    if scanner.skip("active"):
        return Activity.ACTIVE
    scanner.expect("off")
    return Activity.OFF


def _scan_blocked(scanner: Scanner) -> BLOCKED:
    scanner.expect("reason=")
    text = f"BLOCKED reason={scanner.match(_REASON, 'a reason')}"
    if scanner.skip(",notice="):
        text += f",notice={scanner.rest()}"
    blocked = decode_whole(text.encode("utf-8"), read_error)
    assert isinstance(blocked, BLOCKED)
    return blocked


def _scan_notifier(scanner: Scanner) -> NotifierRecord:
    notifier_id = scanner.base64()
    scanner.expect(" ")
    key = _scan_key(scanner)
    scanner.expect(" ")
    dh_secret = _scan_secret(scanner)
    return NotifierRecord(notifier_id, key, dh_secret, scanner.base64() if scanner.skip(" nsrv=") else None)


def _scan_secret(scanner: Scanner) -> bytes:
    secret = scanner.base64()
    if len(secret) != SECRET_SIZE:
        raise WireError(f"a secret of {SECRET_SIZE} bytes expected")
    return secret


def _scan_key(scanner: Scanner) -> PublicKey:
    key = PublicKey.from_spki(scanner.base64())
    if key.algorithm not in AUTH_ALGORITHMS:
        raise WireError("an authorization key expected")
    return key


def _scan_keys(scanner: Scanner) -> tuple[PublicKey, ...]:
    keys = [_scan_key(scanner)]
    while scanner.skip(","):
        keys.append(_scan_key(scanner))
    return tuple(keys)


def _scan_queue(scanner: Scanner) -> bytes:
    """The queue, when more follows it."""
    recipient_id = scanner.base64()
    scanner.expect(" ")
    return recipient_id


def _scan_create_link(scanner: Scanner) -> CreateLink:
    recipient_id = _scan_queue(scanner)
    link_id = scanner.base64()
    scanner.expect(" ")
    return CreateLink(recipient_id, link_id, _scan_link(scanner))


def _scan_new_service(scanner: Scanner) -> NewService:
    scanner.expect("service_id=")
    service_id = scanner.base64()
    scanner.expect(" role=")
    role = _scan_role(scanner)
    scanner.expect(" cert=")
    chain = [scanner.base64()]
    while scanner.skip(","):
        chain.append(scanner.base64())
    scanner.expect(" cert_hash=")
    cert_hash = scanner.base64()
    scanner.expect(" created_at=")
    return NewService(service_id, role, tuple(chain), cert_hash, scanner.integer())


def _scan_role(scanner: Scanner) -> ServiceRole:
    for role in ServiceRole:
        if scanner.skip(role.value.decode("ascii")):
            return role
    raise WireError("a role of services expected")


def _scan_queue_service(scanner: Scanner) -> QueueService:
    recipient_id = _scan_queue(scanner)
    party = Party.RECIPIENT if scanner.skip("R") else Party.NOTIFIER
    if party is Party.NOTIFIER:
        scanner.expect("N")
    scanner.expect(" ")
    return QueueService(recipient_id, party, None if scanner.at_end else scanner.base64())


_SCANNERS: dict[str, Callable[[Scanner], StoreRecord]] = {
    "CREATE": _scan_create,
    "LINK": _scan_create_link,
    "LDELETE": lambda scanner: DeleteLink(scanner.base64()),
    "SECURE": lambda scanner: SecureQueue(_scan_queue(scanner), _scan_key(scanner)),
    "KEYS": lambda scanner: UpdateKeys(_scan_queue(scanner), _scan_keys(scanner)),
    "NOTIFIER": lambda scanner: AddNotifier(_scan_queue(scanner), _scan_notifier(scanner)),
    "NDELETE": lambda scanner: DeleteNotifier(scanner.base64()),
    "SUSPEND": lambda scanner: SuspendQueue(scanner.base64()),
    "BLOCK": lambda scanner: BlockQueue(_scan_queue(scanner), _scan_blocked(scanner)),
    "UNBLOCK": lambda scanner: UnblockQueue(scanner.base64()),
    "DELETE": lambda scanner: DeleteQueue(scanner.base64()),
    "TIME": lambda scanner: UpdateTime(_scan_queue(scanner), scanner.integer()),
    "NEW_SERVICE": _scan_new_service,
    "QUEUE_SERVICE": _scan_queue_service,
}
