"""A Web Push subscription as a device token: where the push service is, and the keys of the device."""

from __future__ import annotations

import re

from blindpost.wire.addresses import Host
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.json_text import JsonObject, json_bytes
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, Push, VerificationPush, push_from_data
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.text import b64, unb64
from blindpost.wire.value import Buffer, Value

AUTH_SIZE = 16
POINT_SIZE = 65
HTTPS_PORT = 443
_UNCOMPRESSED = 0x04
_HOST = re.compile(r"[A-Za-z0-9._:-]+", re.ASCII)
_PATH = re.compile(rb"/[\x21-\x7e]*")
_PORT_MAX = 0xFFFF
_ENDPOINT = re.compile(r"https://(\[[^\]/ ]+\]|[^:/ \[\]]+)(?::([0-9]{1,5}))?(/[^ ]*)")


@dataclass(frozen=True, slots=True, repr=False)
class Subscription(Value):
    """What a push service and a device agreed on; anyone who has it may push to the device."""

    host: str
    port: str
    """Empty for 443."""
    path: bytes
    auth: bytes
    p256dh: bytes
    """The device's public key, as an uncompressed point of P-256."""

    def __post_init__(self) -> None:
        if _HOST.fullmatch(self.host) is None or Host(self.host).text != self.host:
            raise WireError("the host of a push service expected, in its usual form")
        digits = self.port.isascii() and self.port.isdecimal() and self.port[0] != "0"
        if self.port and not (digits and len(self.port) <= 5 and int(self.port) <= _PORT_MAX):
            raise WireError("the port of a push service expected")
        if _PATH.fullmatch(self.path) is None:
            raise WireError("a path that begins with / and has no spaces expected")
        if len(self.auth) != AUTH_SIZE:
            raise WireError(f"{AUTH_SIZE} bytes of auth expected")
        if len(self.p256dh) != POINT_SIZE or self.p256dh[0] != _UNCOMPRESSED:
            raise WireError("an uncompressed point of P-256 expected")

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of the push service, the same for all their spellings."""
        return self.host.lower().rstrip(".") or self.host, int(self.port or HTTPS_PORT)

    @property
    def authority(self) -> str:
        """`place` as in a URL. A push service compares it with its own (RFC 8292, section 2)."""
        host, port = self.place
        return _authority(host, "" if port == HTTPS_PORT else str(port))

    @property
    def endpoint(self) -> str:
        """The URL, as it was given."""
        return f"https://{_authority(self.host, self.port)}{self.path.decode('ascii')}"

    @property
    def text(self) -> str:
        return f"{self.endpoint} {b64(self.auth)} {b64(self.p256dh)}"

    @classmethod
    def from_text(cls, text: str) -> Subscription:
        """An endpoint and both keys, with spaces between."""
        endpoint, *keys = text.split(" ")
        if len(keys) != 2:
            raise WireError("an endpoint and two keys expected")
        return cls.of(endpoint, unb64(keys[0]), unb64(keys[1]))

    @classmethod
    def of(cls, endpoint: str, auth: bytes, p256dh: bytes) -> Subscription:
        """What a browser or a distributor hands to the application: an https URL and two keys."""
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None:
            raise WireError("an endpoint of a push service, https://host/path, expected")
        host, port, path = found[1].strip("[]"), found[2] or "", found[3]
        try:
            written = path.encode("ascii")
        except UnicodeEncodeError as error:
            raise WireError("an endpoint in ASCII expected") from error
        return cls(Host(host).text, "" if port == str(HTTPS_PORT) else port, written, auth, p256dh)


def _authority(host: str, port: str) -> str:
    written = f"[{host}]" if ":" in host else host
    return f"{written}:{port}" if port else written


def read_subscription(reader: Reader) -> Subscription:
    host, port = _ascii(reader.short()), _ascii(reader.short())
    return Subscription(host, port, reader.short(), reader.short(), reader.short())


def write_subscription(writer: Writer, subscription: Subscription) -> None:
    _write(writer, subscription.host, subscription.port, subscription)


def write_plainly(writer: Writer, subscription: Subscription) -> None:
    """As `write_subscription`, but the same for all spellings of the push service."""
    host, port = subscription.place
    _write(writer, host, "" if port == HTTPS_PORT else str(port), subscription)


def _write(writer: Writer, host: str, port: str, subscription: Subscription) -> None:
    writer.short(host.encode("ascii")).short(port.encode("ascii"))
    writer.short(subscription.path).short(subscription.auth).short(subscription.p256dh)


def _ascii(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise WireError("ASCII text expected") from error


def encode_web_body(push: Push) -> bytes:
    """The JSON inside a push, before the push service's own encryption."""
    match push:
        case VerificationPush(nonce, ciphertext):
            return json_bytes({"nonce": b64(nonce), "verification": b64(ciphertext)})
        case MessagePush(nonce, ciphertext):
            return json_bytes({"nonce": b64(nonce), "message": b64(ciphertext)})
        case CheckPush():
            return json_bytes({"checkMessages": True})


def decode_web_body(body: Buffer) -> Push:
    """The push in what the device decrypted."""
    return push_from_data(JsonObject.from_bytes(body))
