"""Messages whose handlers kept failing: kept until somebody has looked at them."""

from __future__ import annotations

from blindpost.chat.codec.fields import Fields, json_bytes, json_value, written
from blindpost.wire.frozen import dataclass

ASIDE = "bot.aside"
ASIDE_MAX = 10_000
"""So many are kept, the newest ones: whoever makes a handler fail again and again cannot fill the store."""
TEXT_MAX = 4_000
"""How much of a message's text is kept."""
REASON_MAX = 2_000
"""How much of an error's text is kept."""


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


def reason_of(failure: Exception) -> str:
    """Its type and text, as they can be stored: a path in it need not be UTF-8, and a text may be huge."""
    try:
        text = str(failure)
    except Exception:
        text = ""
    return f"{type(failure).__name__}: {text[:REASON_MAX]}".encode(errors="replace").decode()
