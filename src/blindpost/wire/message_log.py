"""Undelivered messages and notifications as the reference router saves them when it stops.

One line each: `v3` lines for messages, the same without queue in journal files, `v1` lines for notifications;
and the state lines of its journal store. A line that was written may be unreadable: an empty body is written
as nothing, which readers refuse.
"""

from __future__ import annotations

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.scanner import Scanner, from_utf8
from blindpost.wire.text import b64
from blindpost.wire.value import Buffer, Value

NONCE_SIZE = 24


@dataclass(frozen=True, slots=True, repr=False)
class SavedMessage(Value):
    """A message as SEND brought it, received at `seconds` (Unix time)."""

    msg_id: bytes
    seconds: int
    notification: bool
    body: bytes


@dataclass(frozen=True, slots=True, repr=False)
class SavedQuota(Value):
    """The marker behind the last message of a full queue."""

    msg_id: bytes
    seconds: int


Saved = SavedMessage | SavedQuota


@dataclass(frozen=True, slots=True, repr=False)
class MessageLine(Value):
    """A line of the message log: a message and the queue it waits in."""

    recipient_id: bytes
    message: Saved


@dataclass(frozen=True, slots=True, repr=False)
class NotificationLine(Value):
    """A line of the notification log: a notification that nobody has fetched yet."""

    notifier_id: bytes
    msg_id: bytes
    seconds: int
    nonce: bytes
    encrypted_meta: bytes


def decode_message_line(line: Buffer) -> MessageLine:
    scanner = Scanner(from_utf8(line))
    scanner.expect("v3 ")
    recipient_id = scanner.base64()
    scanner.expect(" ")
    return MessageLine(recipient_id, _scan_saved(scanner))


def encode_message_line(line: MessageLine) -> bytes:
    return f"v3 {b64(line.recipient_id)} ".encode("ascii") + encode_journal_message(line.message)


def decode_journal_message(line: Buffer) -> Saved:
    """A line of a journal file, which belongs to one queue and does not name it."""
    return _scan_saved(Scanner(from_utf8(line)))


def encode_journal_message(message: Saved) -> bytes:
    head = f"{b64(message.msg_id)} {message.seconds} "
    if isinstance(message, SavedQuota):
        return f"{head}quota".encode("ascii")
    return f"{head}flags={_flag(message.notification)} {b64(message.body)}".encode("ascii")


def _scan_saved(scanner: Scanner) -> Saved:
    msg_id = scanner.base64()
    scanner.expect(" ")
    seconds = scanner.integer()
    scanner.expect(" ")
    if scanner.skip("quota"):
        scanner.end()
        return SavedQuota(msg_id, seconds)
    notification = False
    if scanner.skip("flags="):
        notification = scanner.flag()
        scanner.until(" ")
        scanner.expect(" ")
    body = scanner.base64()
    scanner.end()
    return SavedMessage(msg_id, seconds, notification, body)


def decode_notification_line(line: Buffer) -> NotificationLine:
    scanner = Scanner(from_utf8(line))
    scanner.expect("v1 ")
    notifier_id = scanner.base64()
    scanner.expect(" ")
    msg_id = scanner.base64()
    scanner.expect(" ")
    seconds = scanner.integer()
    scanner.expect(" ")
    nonce = scanner.base64()
    if len(nonce) != NONCE_SIZE:
        raise WireError(f"a nonce of {NONCE_SIZE} bytes expected")
    scanner.expect(" ")
    meta = scanner.base64()
    scanner.end()
    return NotificationLine(notifier_id, msg_id, seconds, nonce, meta)


def encode_notification_line(line: NotificationLine) -> bytes:
    fields = (
        b64(line.notifier_id),
        b64(line.msg_id),
        line.seconds,
        b64(line.nonce),
        b64(line.encrypted_meta),
    )
    return " ".join(("v1", *map(str, fields))).encode("ascii")


@dataclass(frozen=True, slots=True, repr=False)
class JournalPosition(Value):
    """How far one side of a queue has come in its journal file, in messages and in bytes."""

    journal: str
    msg_position: int
    msg_count: int
    byte_position: int
    byte_count: int


@dataclass(frozen=True, slots=True, repr=False)
class JournalState(Value):
    """A state line of a queue in the journal store; the last valid one counts."""

    write: JournalPosition
    read: JournalPosition
    can_write: bool
    size: int

    @property
    def valid(self) -> bool:
        """Whether the numbers fit each other."""
        write, read = self.write, self.read
        if write.msg_position != write.msg_count or write.byte_position != write.byte_count:
            return False
        if read.msg_position > read.msg_count or read.byte_position > read.byte_count:
            return False
        unread = read.msg_count - read.msg_position
        if write.journal == read.journal:
            same = (write.msg_count, write.byte_count) == (read.msg_count, read.byte_count)
            return same and self.size == unread
        return self.size == write.msg_count + unread


def decode_journal_state(line: Buffer) -> JournalState:
    scanner = Scanner(from_utf8(line))
    scanner.expect("write=")
    write = _scan_position(scanner)
    scanner.expect(" read=")
    read = _scan_position(scanner)
    scanner.expect(" canWrite=")
    can_write = scanner.flag()
    scanner.expect(" size=")
    size = scanner.integer()
    scanner.end()
    return JournalState(write, read, can_write, size)


def _scan_position(scanner: Scanner) -> JournalPosition:
    journal = scanner.until(",")
    numbers = []
    for _ in range(4):
        scanner.expect(",")
        numbers.append(scanner.natural())
    return JournalPosition(journal, *numbers)


def _flag(flag: bool) -> str:
    return "T" if flag else "F"
