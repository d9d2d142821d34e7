"""What QUE reports about a queue, for troubleshooting."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.json_text import JsonObject, json_bytes
from blindpost.wire.value import Buffer, Value

NANOSECONDS = 1_000_000_000

_EPOCH = datetime(1970, 1, 1)

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", re.ASCII)


class SubThread(Enum):
    """How this connection is subscribed to the queue."""

    NO_SUB = "noSub"
    PENDING = "subPending"
    SUBSCRIBED = "subThread"
    PROHIBITED = "prohibitSub"


class MessageType(Enum):
    MESSAGE = "message"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True, repr=False)
class SubInfo(Value):
    """The subscription of the connection that asks, with the message that waits for its ACK."""

    thread: SubThread
    delivered: bytes | None


@dataclass(frozen=True, slots=True, repr=False)
class MessageInfo(Value):
    """The message at the head of the queue, received at `nanoseconds` of Unix time."""

    msg_id: bytes
    nanoseconds: int
    type: MessageType


@dataclass(frozen=True, slots=True, repr=False)
class QueueInfo(Value):
    """Whether there are keys of a sender and a notifier, who is subscribed, how much waits."""

    secured: bool
    notifier: bool
    sub: SubInfo | None
    size: int
    msg: MessageInfo | None


def queue_info_from_json(data: Buffer) -> QueueInfo:
    info = JsonObject.from_bytes(data)
    sub = info.optional_object("qiSub")
    msg = info.optional_object("qiMsg")
    return QueueInfo(
        secured=info.flag("qiSnd"),
        notifier=info.flag("qiNtf"),
        sub=None if sub is None else _sub(sub),
        size=info.integer("qiSize"),
        msg=None if msg is None else _msg(msg),
    )


def queue_info_to_json(info: QueueInfo) -> bytes:
    fields: dict[str, Any] = {"qiSnd": info.secured, "qiNtf": info.notifier}
    if info.sub is not None:
        fields["qiSub"] = {"qSubThread": info.sub.thread.value}
        if info.sub.delivered is not None:
            fields["qiSub"]["qDelivered"] = _base64(info.sub.delivered)
    fields["qiSize"] = info.size
    if info.msg is not None:
        fields["qiMsg"] = {
            "msgId": _base64(info.msg.msg_id),
            "msgTs": _time_text(info.msg.nanoseconds),
            "msgType": info.msg.type.value,
        }
    return json_bytes(fields)


def _sub(fields: JsonObject) -> SubInfo:
    delivered = fields.optional_text("qDelivered")
    thread = fields.text("qSubThread")
    try:
        known = SubThread(thread)
    except ValueError as error:
        raise WireError("a known kind of subscription expected") from error
    return SubInfo(known, None if delivered is None else _unbase64(delivered))


def _msg(fields: JsonObject) -> MessageInfo:
    msg_type = fields.text("msgType")
    try:
        known = MessageType(msg_type)
    except ValueError as error:
        raise WireError("a known type of message expected") from error
    return MessageInfo(_unbase64(fields.text("msgId")), _time(fields.text("msgTs")), known)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii", "replace"), validate=True)
    except binascii.Error as error:
        raise WireError("standard base64 text expected") from error


def _time_text(nanoseconds: int) -> str:
    """ISO 8601 in UTC; the fraction has no trailing zeros and is left out when it is zero."""
    seconds, fraction = divmod(nanoseconds, NANOSECONDS)
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError as error:
        raise WireError("a time between the years 1 and 9999 expected") from error
    decimals = f".{fraction:09d}".rstrip("0").rstrip(".")
    return f"{moment.isoformat()}{decimals}Z"


def _time(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise WireError("a time in UTC expected")
    try:
        moment = datetime.fromisoformat(match[1])
    except ValueError as error:
        raise WireError("a time in UTC expected") from error
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * NANOSECONDS + int((match[2] or "0").ljust(9, "0"))
