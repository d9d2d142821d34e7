"""For your tests and ours: virtual time, a network in memory with faults, Apple's push service and others'.

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
from blindpost.testing.webpush import Arrived, Browser, PushService, WebAnswer

__all__ = [
    "ACCEPTED",
    "Answer",
    "Arrived",
    "ApnsServer",
    "BAD_DEVICE_TOKEN",
    "Browser",
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
    "PushService",
    "TOO_MANY_REQUESTS",
    "UNAVAILABLE",
    "UNREGISTERED",
    "WebAnswer",
    "run_virtual",
]
