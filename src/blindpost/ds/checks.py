"""Which calls are refused, and with which text, before anything is stored, drained or awaited."""

from __future__ import annotations

from dataclasses import dataclass

from blindpost.ds.auth import Caller
from blindpost.ds.model import (
    CHANNEL_ID_BYTES_MAX,
    KEY_PACKAGE_BYTES_MAX,
    KEY_SIZE,
    PAYLOAD_BYTES_MAX,
    WIRE_VERSION,
    delivery_queue,
    package_queue,
)
from blindpost.wire.capnp.node import (
    ACK_IDS_MAX,
    Ack,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    FetchWait,
    Lease,
    Request,
)
from blindpost.wire.capnp.node import UploadKeyPackage as Upload
from blindpost.wire.capnp.rpc import ExceptionType
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False)
class Refusal(Value):
    """The exception that a caller gets."""

    reason: str
    type: ExceptionType = ExceptionType.FAILED


UNAUTHENTICATED = Refusal("authentication failed")
NOT_OWNER = Refusal("recipientKey belongs to another identity")
NOT_IDENTITY = Refusal("identityKey belongs to another identity")


def queue_of(request: Request) -> bytes:
    """The queue that a call is about; its fields are not checked yet, only cut to the size of a name."""
    if isinstance(request, Upload | FetchKeyPackage):
        return package_queue(request.identity_key[:KEY_SIZE])
    channel_id = request.channel_id if request.version else b""
    return delivery_queue(request.recipient_key[:KEY_SIZE], channel_id[:CHANNEL_ID_BYTES_MAX])


def refusal(request: Request, caller: Caller | None) -> Refusal | None:
    """Why a call is refused: its caller first, then its fields, then whether the queue is the caller's."""
    if caller is None:
        return UNAUTHENTICATED
    reason = _wrong(request)
    if reason is not None:
        return Refusal(reason)
    identity = caller.identity_key
    match request:
        case Fetch() | FetchWait() | Lease() | Ack() if identity not in (None, request.recipient_key):
            return NOT_OWNER
        case Upload() if identity not in (None, request.identity_key):
            return NOT_IDENTITY
        case _:
            return None


def _wrong(request: Request) -> str | None:
    if isinstance(request, Upload | FetchKeyPackage):
        return _wrong_package(request)
    if len(request.recipient_key) != KEY_SIZE:
        return f"recipientKey must be exactly {KEY_SIZE} bytes, got {len(request.recipient_key)}"
    if isinstance(request, Enqueue):
        if not request.payload:
            return "payload must not be empty"
        if len(request.payload) > PAYLOAD_BYTES_MAX:
            return f"payload exceeds max size ({PAYLOAD_BYTES_MAX} bytes)"
    if request.version not in (0, WIRE_VERSION):
        return f"unsupported wire version {request.version} (expected 0 or {WIRE_VERSION})"
    if request.version and len(request.channel_id) > CHANNEL_ID_BYTES_MAX:
        return f"channelId exceeds max size ({CHANNEL_ID_BYTES_MAX} bytes)"
    if isinstance(request, Ack) and len(request.ids) > ACK_IDS_MAX:
        return f"too many ids ({ACK_IDS_MAX} at most)"
    return None


def _wrong_package(request: Upload | FetchKeyPackage) -> str | None:
    if len(request.identity_key) != KEY_SIZE:
        return f"identityKey must be exactly {KEY_SIZE} bytes, got {len(request.identity_key)}"
    if isinstance(request, Upload):
        if not request.package:
            return "package must not be empty"
        if len(request.package) > KEY_PACKAGE_BYTES_MAX:
            return f"package exceeds max size ({KEY_PACKAGE_BYTES_MAX} bytes)"
    return None
