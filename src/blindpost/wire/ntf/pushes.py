"""What is pushed to devices: the plaintext inside a push, and the JSON around its ciphertext for Apple.

A push is encrypted between the notification router and the device and padded to one size, so that the push
provider sees nothing but its kind. Inside a message push are items that only the device can open further.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blindpost.wire.addresses import RouterAddress, Scheme, Server, scan_address
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.json_text import JsonObject, json_bytes
from blindpost.wire.scanner import Scanner, from_utf8
from blindpost.wire.text import b64, unb64
from blindpost.wire.value import Buffer, Value

NONCE_SIZE = 24
PADDED_SIZE = 3072
"""The size that the reference pads the plaintext of verification and message pushes to."""
APPLE_PADDED_SIZE = 2912
"""The largest padding with which the body of a message push keeps to Apple's limit of 4096 bytes."""

PUSH_ITEMS_MAX = 6
"""A push carries the newest notification of at most this many queues."""

ALERT = "Encrypted message or another app event"
CATEGORY = "NTF_CAT_CHECK_MESSAGE"


@dataclass(frozen=True, slots=True, repr=False)
class PushItem(Value):
    """One notification of a message push: which queue, when, and metadata for the device alone."""

    server: Server
    notifier_id: bytes
    seconds: int
    nonce: bytes
    encrypted_meta: bytes


def encode_items(items: Sequence[PushItem]) -> bytes:
    """The plaintext of a message push; the last item is the one that caused it."""
    if not items:
        raise WireError("at least one notification expected")
    return ";".join(map(_item_text, items)).encode("utf-8")


def decode_items(plaintext: Buffer) -> tuple[PushItem, ...]:
    return tuple(map(_item_from_text, from_utf8(plaintext).split(";")))


def _item_text(item: PushItem) -> str:
    if len(item.nonce) != NONCE_SIZE or not item.notifier_id or not item.encrypted_meta:
        raise WireError("a notification with an id, a nonce of 24 bytes and metadata expected")
    server = RouterAddress(Scheme.SMP, item.server).text
    return f"{server}/{b64(item.notifier_id)} {item.seconds} {b64(item.nonce)} {b64(item.encrypted_meta)}"


def _item_from_text(text: str) -> PushItem:
    address, end = scan_address(text, 0)
    if address.scheme is not Scheme.SMP or address.password is not None:
        raise WireError("the address of a message router, without a password, expected")
    scanner = Scanner(text[end:])
    scanner.expect("/")
    notifier_id = scanner.base64()
    scanner.expect(" ")
    seconds = scanner.integer()
    scanner.expect(" ")
    nonce = _nonce(scanner.base64())
    scanner.expect(" ")
    encrypted_meta = scanner.base64()
    scanner.end()
    return PushItem(address.server, notifier_id, seconds, nonce, encrypted_meta)


@dataclass(frozen=True, slots=True, repr=False)
class VerificationPush(Value):
    """Brings the registration code, encrypted."""

    nonce: bytes
    ciphertext: bytes


@dataclass(frozen=True, slots=True, repr=False)
class MessagePush(Value):
    """Brings notifications of messages, encrypted."""

    nonce: bytes
    ciphertext: bytes


@dataclass(frozen=True, slots=True, repr=False)
class CheckPush(Value):
    """Tells the device to check for messages, at the interval it asked for."""


Push = VerificationPush | MessagePush | CheckPush


def encode_apns_body(push: Push) -> bytes:
    """The JSON body of a request to Apple."""
    aps: dict[str, Any] = {"content-available": 1}
    data: dict[str, Any]
    match push:
        case VerificationPush(nonce, ciphertext):
            data = {"nonce": b64(nonce), "verification": b64(ciphertext)}
        case MessagePush(nonce, ciphertext):
            aps = {"mutable-content": 1, "alert": ALERT, "category": CATEGORY}
            data = {"message": b64(ciphertext), "nonce": b64(nonce)}
        case CheckPush():
            data = {"checkMessages": True}
    return json_bytes({"aps": aps, "notificationData": data})


def decode_apns_body(body: Buffer) -> Push:
    """The push in a JSON body as the device gets it, which may hold other keys than ours anywhere."""
    data = JsonObject.from_bytes(body).optional_object("notificationData")
    if data is None:
        raise WireError("a push with notificationData expected")
    return push_from_data(data)


def push_from_data(data: JsonObject) -> Push:
    """The push in the `notificationData` that an application hands over."""
    written_nonce = data.optional_text("nonce")
    if written_nonce is None:
        if not data.flag("checkMessages"):
            raise WireError("a push that brings something or tells to check expected")
        return CheckPush()
    nonce = _nonce(unb64(written_nonce))
    verification = data.optional_text("verification")
    if verification is not None:
        return VerificationPush(nonce, unb64(verification))
    return MessagePush(nonce, unb64(data.text("message")))


def _nonce(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_SIZE:
        raise WireError(f"a nonce of {NONCE_SIZE} bytes expected")
    return nonce
