"""Agent messages: what the ratchet protects, innermost of all layers."""

from __future__ import annotations

from collections.abc import Callable

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_auth_key, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.queue_addresses import (
    QueueInfo,
    QueueUri,
    SenderAddress,
    read_queue_info,
    read_queue_uri,
    read_sender_address,
    swallows,
    write_queue_info,
    write_queue_uri,
    write_sender_address,
)
from blindpost.wire.value import Buffer, Value


@dataclass(frozen=True, slots=True, repr=False)
class Hello(Value):
    """`HELLO`: the queue is secured and works."""


@dataclass(frozen=True, slots=True, repr=False)
class AMsg(Value):
    """`A_MSG`: a message of the application."""

    body: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class Receipt(Value):
    """That the peer's message of this number and hash was received."""

    msg_id: int
    msg_hash: bytes
    info: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class ARcvd(Value):
    """`A_RCVD`: receipts."""

    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True, repr=False)
class AQCont(Value):
    """`A_QCONT`: the queue that was full has room again."""

    address: SenderAddress


@dataclass(frozen=True, slots=True, repr=False)
class AddedQueue(Value):
    """A new queue, and the one that it is to replace."""

    queue: QueueUri
    replaced: SenderAddress | None


@dataclass(frozen=True, slots=True, repr=False)
class QAdd(Value):
    """`QADD`: the recipient offers new queues."""

    queues: tuple[AddedQueue, ...]


@dataclass(frozen=True, slots=True, repr=False)
class KeyedQueue(Value):
    """A new queue with the sender's key to secure it; the address carries the sender's own DH key."""

    queue: QueueInfo
    sender_key: PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class QKey(Value):
    """`QKEY`: the sender gives its keys for new queues."""

    queues: tuple[KeyedQueue, ...]


@dataclass(frozen=True, slots=True, repr=False)
class UsedQueue(Value):
    """A queue that is ready, and whether it is to be the primary one."""

    address: SenderAddress
    primary: bool


@dataclass(frozen=True, slots=True, repr=False)
class QUse(Value):
    """`QUSE`: the recipient has secured the new queues."""

    queues: tuple[UsedQueue, ...]


@dataclass(frozen=True, slots=True, repr=False)
class QTest(Value):
    """`QTEST`: the sender tries the new queues."""

    addresses: tuple[SenderAddress, ...]


@dataclass(frozen=True, slots=True, repr=False)
class EReady(Value):
    """`EREADY`: the new ratchet is ready; the last message that was received under the old one."""

    last_received_msg_id: int


AMessage = Hello | AMsg | ARcvd | AQCont | QAdd | QKey | QUse | QTest | EReady


@dataclass(frozen=True, slots=True, repr=False)
class AgentConnInfo(Value):
    """`I`: the initiator's information for the joiner."""

    info: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class AgentConnInfoReply(Value):
    """`D`: the joiner's information, with the queues to reply to.

    Behind an address that is written without its mode the information cannot start with M, C, T or F: the
    reader would take that byte for the mode.
    """

    queues: tuple[QueueInfo, ...]
    info: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class AgentRatchetInfo(Value):
    """`R`: information along with ratchet keys; empty so far."""

    info: Buffer


@dataclass(frozen=True, slots=True, repr=False)
class AgentMessage(Value):
    """`M`: a message with its number and the hash of the one before, which make gaps and changes visible."""

    snd_msg_id: int
    prev_msg_hash: bytes
    message: AMessage


AnyAgentMessage = AgentConnInfo | AgentConnInfoReply | AgentRatchetInfo | AgentMessage


def read_agent_message(reader: Reader) -> AnyAgentMessage:
    tag = reader.u8()
    if tag == 0x4D:
        return AgentMessage(reader.i64(), reader.short(), read_a_message(reader))
    if tag == 0x49:
        return AgentConnInfo(reader.rest())
    if tag == 0x44:
        return AgentConnInfoReply(reader.list1(read_queue_info), reader.rest())
    if tag == 0x52:
        return AgentRatchetInfo(reader.rest())
    raise WireError("an agent message of type I, D, R or M expected")


def write_agent_message(writer: Writer, message: AnyAgentMessage) -> None:
    match message:
        case AgentMessage():
            writer.raw(b"M").i64(message.snd_msg_id).short(message.prev_msg_hash)
            write_a_message(writer, message.message)
        case AgentConnInfo():
            writer.raw(b"I").raw(message.info)
        case AgentConnInfoReply():
            if message.queues and swallows(message.queues[-1], message.info):
                raise WireError("information that cannot be taken for the mode of a queue expected")
            writer.raw(b"D").list1(message.queues, write_queue_info).raw(message.info)
        case AgentRatchetInfo():
            writer.raw(b"R").raw(message.info)


def read_a_message(reader: Reader) -> AMessage:
    tag = reader.take(1)
    if tag == b"Q":
        tag += reader.take(1)
    read = _READERS.get(tag)
    if read is None:
        raise WireError("a message of type H, M, V, QC, QA, QK, QU, QT or E expected")
    return read(reader)


_READERS: dict[bytes, Callable[[Reader], AMessage]] = {
    b"H": lambda reader: Hello(),
    b"M": lambda reader: AMsg(reader.rest()),
    b"V": lambda reader: ARcvd(reader.list1(_read_receipt)),
    b"QC": lambda reader: AQCont(read_sender_address(reader)),
    b"QA": lambda reader: QAdd(reader.list1(_read_added)),
    b"QK": lambda reader: QKey(reader.list1(_read_keyed)),
    b"QU": lambda reader: QUse(reader.list1(_read_used)),
    b"QT": lambda reader: QTest(reader.list1(read_sender_address)),
    b"E": lambda reader: EReady(reader.i64()),
}


def write_a_message(writer: Writer, message: AMessage) -> None:
    match message:
        case Hello():
            writer.raw(b"H")
        case AMsg():
            writer.raw(b"M").raw(message.body)
        case ARcvd():
            writer.raw(b"V").list1(message.receipts, _write_receipt)
        case AQCont():
            write_sender_address(writer.raw(b"QC"), message.address)
        case QAdd():
            writer.raw(b"QA").list1(message.queues, _write_added)
        case QKey():
            writer.raw(b"QK").list1(message.queues, _write_keyed)
        case QUse():
            writer.raw(b"QU").list1(message.queues, _write_used)
        case QTest():
            writer.raw(b"QT").list1(message.addresses, write_sender_address)
        case EReady():
            writer.raw(b"E").i64(message.last_received_msg_id)


def _read_receipt(reader: Reader) -> Receipt:
    return Receipt(reader.i64(), reader.short(), reader.large())


def _write_receipt(writer: Writer, receipt: Receipt) -> None:
    writer.i64(receipt.msg_id).short(receipt.msg_hash).large(receipt.info)


def _read_added(reader: Reader) -> AddedQueue:
    return AddedQueue(read_queue_uri(reader), reader.opt(read_sender_address))


def _write_added(writer: Writer, added: AddedQueue) -> None:
    write_queue_uri(writer, added.queue)
    writer.opt(added.replaced, write_sender_address)


def _read_keyed(reader: Reader) -> KeyedQueue:
    return KeyedQueue(read_queue_info(reader), read_auth_key(reader))


def _write_keyed(writer: Writer, keyed: KeyedQueue) -> None:
    write_queue_info(writer, keyed.queue)
    write_key(writer, keyed.sender_key)


def _read_used(reader: Reader) -> UsedQueue:
    return UsedQueue(read_sender_address(reader), reader.flag())


def _write_used(writer: Writer, used: UsedQueue) -> None:
    write_sender_address(writer, used.address)
    writer.flag(used.primary)
