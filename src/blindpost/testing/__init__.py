"""For your tests and ours: virtual time, a network in memory with faults, and Apple's push service.

What is named here is for programs; the modules below are private and move.
"""

from blindpost.testing.apns import (
    ACCEPTED,
    BAD_DEVICE_TOKEN,
    EXPIRED_TOKEN,
    NOT_FOR_TOPIC,
    TOO_MANY_REQUESTS,
    UNAVAILABLE,
    UNREGISTERED,
    Answer,
    ApnsServer,
    Delivered,
    Fault,
)
from blindpost.testing.clock import (
    LoopClock,
    NothingWillHappenError,
    run_virtual,
)
from blindpost.testing.clock import (
    VirtualClock as Clock,
)
from blindpost.testing.network import (
    PERFECT,
    Link,
)
from blindpost.testing.network import (
    MemoryNetwork as Network,
)

__all__ = [
    "ACCEPTED",
    "Answer",
    "ApnsServer",
    "BAD_DEVICE_TOKEN",
    "Clock",
    "Delivered",
    "EXPIRED_TOKEN",
    "Fault",
    "Link",
    "LoopClock",
    "NOT_FOR_TOPIC",
    "Network",
    "NothingWillHappenError",
    "PERFECT",
    "TOO_MANY_REQUESTS",
    "UNAVAILABLE",
    "UNREGISTERED",
    "run_virtual",
]
