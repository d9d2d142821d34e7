"""Device tokens: which push provider, and the text by which it knows the device."""

from __future__ import annotations

import functools
import re
from enum import Enum

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.ntf.webpush import Subscription, read_subscription, write_plainly, write_subscription
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.value import Value

NULL_TOKEN = b"test_ntf_token"
"""The token with which a device tests a router; only the null provider takes it as text."""

_HEX = re.compile(r"(?:[0-9a-f]{2})*", re.ASCII)


class PushProvider(Enum):
    """A push service, by its two letters in commands; `text` is its name in stores and settings."""

    APNS_DEV = (b"AD", "apns_dev")
    APNS_PROD = (b"AP", "apns_prod")
    APNS_TEST = (b"AT", "apns_test")
    APNS_NULL = (b"AN", "apns_null")
    WEB_PUSH = (b"WP", "webpush")

    def __init__(self, letters: bytes, text: str) -> None:
        self.letters = letters
        self.text = text

    @classmethod
    def from_text(cls, text: str) -> PushProvider:
        provider = _BY_TEXT.get(text)
        if provider is None:
            raise WireError("a known push provider expected")
        return provider


_BY_LETTERS = {provider.letters: provider for provider in PushProvider}
_BY_TEXT = {provider.text: provider for provider in PushProvider}


@dataclass(frozen=True, slots=True, repr=False)
class DeviceToken(Value):
    """A device as its push provider knows it. Commands carry any bytes as `token`, text only some.

    Of a Web Push device `token` is the whole encoded subscription.
    """

    provider: PushProvider
    token: bytes

    @classmethod
    def web(cls, subscription: Subscription) -> DeviceToken:
        return cls(PushProvider.WEB_PUSH, encode(subscription, write_subscription))

    @property
    def subscription(self) -> Subscription:
        """The subscription of a Web Push device."""
        if self.provider is not PushProvider.WEB_PUSH:
            raise WireError("a Web Push device expected")
        return _subscription(self.token)

    @property
    def plain(self) -> DeviceToken:
        """The same for all spellings of a device, to compare and to count; what is pushed to is as given."""
        if self.provider is PushProvider.WEB_PUSH:
            return DeviceToken(self.provider, _plain_web(self.token))
        return DeviceToken(self.provider, self.token.lower())

    @property
    def text(self) -> str:
        """Provider and token for stores and settings; refused where `from_text` could not read it back."""
        if self.provider is PushProvider.WEB_PUSH:
            return f"{self.provider.text} {self.subscription.text}"
        if not _readable(self.provider, self.token):
            raise WireError("a device token of lower-case hexadecimal digits expected")
        return f"{self.provider.text} {self.token.decode('ascii')}"

    @classmethod
    def from_text(cls, text: str) -> DeviceToken:
        name, space, written = text.partition(" ")
        provider = PushProvider.from_text(name)
        if provider is PushProvider.WEB_PUSH:
            return cls.web(Subscription.from_text(written))
        token = written.encode("utf-8", "surrogatepass")
        if not space or not _readable(provider, token):
            raise WireError("a push provider, a space and an even number of hexadecimal digits expected")
        return cls(provider, token)


@functools.lru_cache(maxsize=1024)
def _subscription(token: bytes) -> Subscription:
    """Kept, since a push needs it several times."""
    return decode_whole(token, read_subscription)


@functools.lru_cache(maxsize=1024)
def _plain_web(token: bytes) -> bytes:
    return encode(_subscription(token), write_plainly)


def _readable(provider: PushProvider, token: bytes) -> bool:
    if provider is PushProvider.APNS_NULL and token == NULL_TOKEN:
        return True
    return _HEX.fullmatch(token.decode("latin-1")) is not None


def read_device_token(reader: Reader) -> DeviceToken:
    provider = _BY_LETTERS.get(reader.take(2))
    if provider is None:
        raise WireError("a known push provider expected")
    if provider is PushProvider.WEB_PUSH:
        return DeviceToken.web(read_subscription(reader))
    return DeviceToken(provider, reader.short())


def write_device_token(writer: Writer, token: DeviceToken) -> None:
    writer.raw(token.provider.letters)
    if token.provider is PushProvider.WEB_PUSH:
        writer.raw(token.token)
    else:
        writer.short(token.token)
