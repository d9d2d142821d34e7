"""Every bound of the subscriber."""

from __future__ import annotations

from dataclasses import dataclass, field

from blindpost.client.options import Bounds, SmpOptions, Timing
from blindpost.ntf.subscriber.backoff import Backoff

EVENTS = 250

WATCHFUL = SmpOptions(timing=Timing(ping_after_s=60.0, silence_max_s=180.0), bounds=Bounds(events=EVENTS))
"""A dead session notifies nobody, so it is probed more often than others; as many events may wait as are
stored together."""


@dataclass(frozen=True, slots=True)
class SubscriberOptions:
    """All options, with their defaults."""

    use_services: bool = True
    """Whether message routers are shown a certificate and subscribe all of our queues by one command."""
    smp: SmpOptions = WATCHFUL
    connecting: int = 64
    """How many never-reached message routers are tried at once; others do not wait for them, since anybody
    can name hosts that do not answer."""
    batch: int = 900
    """How many NSUB of one session wait for their answers at once."""
    events: int = EVENTS
    """How many events of a session are stored together."""
    fresh: int = 10_000
    """How many new subscriptions of a router are remembered; more are found in the store again."""
    reconnect: Backoff = field(default_factory=Backoff)
    settled_s: float = 10.0
    """After a session that lasted this long, pauses start from the shortest again."""
    unused_s: float = 300.0
    """How often an idle session checks whether there is still something to subscribe."""
    patience: int = 20
    """After this many failures the pauses for a never-reached message router grow to an hour: anybody can
    invent one."""
    repair_pause_s: float = 0.1
    """The mean pause between batches that associate queues again."""
    leaving_s: float = 1.0
    """How long a session that is ended hears what its message router says until it knows."""
    store: Backoff = field(default_factory=lambda: Backoff(first_s=0.2, max_s=5.0))
    """Pauses while the store fails."""
