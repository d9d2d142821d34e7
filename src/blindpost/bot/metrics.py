"""What a bot did since it started, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from blindpost.serving.prometheus import Text


@dataclass(slots=True)
class Metrics:
    """Counters; `waiting` and `contacts` are how it stands."""

    received: int = 0
    """Messages that came."""
    handled: int = 0
    """Those that a handler has finished."""
    sent: int = 0
    """Messages that were stored to be sent."""
    retried: int = 0
    """Handlers that failed and were tried again."""
    set_aside: int = 0
    """Messages whose handlers kept failing."""
    connected: int = 0
    """Contacts who came."""
    left: int = 0
    """Contacts who went."""
    jobs: int = 0
    """Scheduled work that was done."""
    waiting: int = 0
    """What came and is not finished."""
    contacts: int = 0

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
