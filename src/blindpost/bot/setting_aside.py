"""Messages whose handlers kept failing: kept until somebody has looked at them."""

from __future__ import annotations

from blindpost.chat.codec.fields import Fields, json_bytes, json_value, written
from blindpost.wire.frozen import dataclass

ASIDE = "bot.aside"


@dataclass(frozen=True, slots=True)
class SetAside:
    """A message, where and when it was sent, and why it could not be handled."""

    key: str
    conversation: str
    at: float
    text: str
    error: str


def aside_bytes(aside: SetAside) -> bytes:
    return json_bytes(written(chat=aside.conversation, at=int(aside.at), text=aside.text, error=aside.error))


def aside_from(key: str, data: bytes) -> SetAside:
    fields = Fields(json_value(data))
    return SetAside(key, fields.text("chat"), fields.number("at"), fields.text("text"), fields.text("error"))
