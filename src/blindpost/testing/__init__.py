"""For your tests and ours: a world in memory and in virtual time with routers, agents, people and faults;
Apple's push service and others'.

What is named here is for programs; the modules below are private and move.
"""

from blindpost.testing.agents import Peer
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
from blindpost.testing.people import Guest, Person
from blindpost.testing.webpush import Arrived, Browser, PushService, WebAnswer
from blindpost.testing.world import MemoryRouter, World, virtual

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
    "Guest",
    "Link",
    "LoopClock",
    "MemoryRouter",
    "NOT_FOR_TOPIC",
    "Network",
    "NothingWillHappenError",
    "PERFECT",
    "Peer",
    "Person",
    "PushService",
    "TOO_MANY_REQUESTS",
    "UNAVAILABLE",
    "UNREGISTERED",
    "WebAnswer",
    "World",
    "run_virtual",
    "virtual",
]
