"""What can be chosen about subscriptions."""

from __future__ import annotations

from blindpost.agent.work.retries import RECONNECT, Schedule
from blindpost.wire.frozen import dataclass


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """How much at once, and how often again."""

    page: int = 1350
    """Queues in one batch."""
    window: int = 2
    """Batches under way at a time on one session."""
    sessions_at_once: int = 32
    """Sessions that are connected and subscribed at a time."""
    schedule: Schedule = RECONNECT
    soon_s: float = 0.5
    """The first attempt after a loss comes at a random time before this."""
    gentle_s: float = 0.2
    """Between two batches of a fall back to single queues passes a random time up to this."""
    lasting_s: float = 30.0
    """A session that lasted this long was good: delays are reset."""
    offline_max_s: float = 1800.0
    renewal_check_s: float = 6 * 3600.0
