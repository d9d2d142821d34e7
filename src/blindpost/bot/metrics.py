"""What a bot did since it started, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from blindpost.serving.prometheus import Text


@dataclass(slots=True)
class Metrics:
    """Counters; `waiting` and `contacts` are current values."""

    received: int = 0
    """Messages received."""
    handled: int = 0
    """Messages that a handler has finished."""
    sent: int = 0
    """Messages that were stored to be sent."""
    retried: int = 0
    """Handlers that failed and were tried again."""
    set_aside: int = 0
    """Messages whose handlers kept failing."""
    connected: int = 0
    """Contacts who connected."""
    left: int = 0
    """Contacts who left."""
    jobs: int = 0
    """Scheduled work that was done."""
    waiting: int = 0
    """Received and not finished."""
    contacts: int = 0

    def add(self, counts: Metrics) -> None:
        """Count all that another one counted."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(counts, one.name))

    def text(self) -> str:
        """In Prometheus' format."""
        text = Text()
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("waiting", "contacts"):
                text.gauge(f"blindpost_bot_{one.name}", f"bot: {one.name}", value)
            else:
                text.counter(f"blindpost_bot_{one.name}_total", f"bot: {one.name}", value)
        return text.done()
