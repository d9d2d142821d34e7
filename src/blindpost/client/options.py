"""What can be chosen about a connection, with the values that clients of this network use."""

from __future__ import annotations

import time
from dataclasses import field
from enum import Enum

from blindpost.client.gate import Gate
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.transport.certificates import Now
from blindpost.transport.network import TCP, Network
from blindpost.transport.plan import SessionLimits
from blindpost.transport.plans import BACKGROUND as BACKGROUND_LIMITS
from blindpost.transport.plans import INTERACTIVE as INTERACTIVE_LIMITS
from blindpost.wire.frozen import dataclass
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.versions import VersionRange


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to wait for what."""

    limits: SessionLimits = BACKGROUND_LIMITS
    """Of connecting, TLS and handshake."""
    response_s: float = 30.0
    ping_after_s: float = 600.0
    """A router that was silent for so long is asked whether it is there, once something is subscribed."""
    timeouts_max: int = 3
    silence_max_s: float = 900.0
    """The connection is given up after so many timeouts in a row and so long a silence."""

    @property
    def proxy_session_s(self) -> float:
        """For PRXY: the proxy may have to connect first."""
        return self.limits.connect_timeout_s + self.response_s

    @property
    def forwarded_s(self) -> float:
        """For PFWD: two routers answer, one after the other."""
        return 2 * self.response_s


BACKGROUND = Timing()
INTERACTIVE = Timing(limits=INTERACTIVE_LIMITS, response_s=10.0)
"""Without anybody waiting, and while a person waits."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait."""

    window_blocks: int = 64
    """How many blocks may have been sent without all of their responses."""
    events: int = 64
    """How many events may wait for the caller before no more is read from the router."""
    events_while_calling: int = 1024
    """The same while responses are awaited, since the task that takes the events may be the one waiting."""
    late: int = 4096
    """How many timed-out commands are remembered for their late responses."""
    secrets: int = 1024
    """How many secrets for authenticators are kept."""
    unasked: int | None = None
    """A router that says more than this that nobody asked for is left; None where events are expected."""


class HostChoice(Enum):
    """Which hosts of an address are tried, and in which order."""

    IN_ORDER = "in order"
    PUBLIC_FIRST = "public first"
    ONION_FIRST = "onion first"
    ONION_ONLY = "onion only"
    PUBLIC_ONLY = "public only"


@dataclass(frozen=True, slots=True)
class Options:
    """All that can be chosen for any router."""

    timing: Timing = BACKGROUND
    bounds: Bounds = field(default_factory=Bounds)
    network: Network = TCP
    onion_network: Network | None = None
    """The way to onion hosts, such as `SocksNetwork`; without one they are passed over."""
    hosts: HostChoice = HostChoice.IN_ORDER
    web_port_hosts: frozenset[str] = frozenset()
    """Hosts that are reached on port 443 when their address names no port."""
    gate: Gate | None = None
    """Decides how often which destination is tried; without one always."""
    is_known: bool = False
    """Whether the router was connected to before, so that it need not queue with strangers."""
    versions: VersionRange | None = None
    """To offer fewer than all known versions."""
    now: Now = time.time
    entropy: Entropy = system_entropy


@dataclass(frozen=True, slots=True)
class SmpOptions(Options):
    """What can be chosen for message routers."""

    service: tuple[ServiceRole, Credentials] | None = None
    proxy: bool = False
    """Whether this connection is that of a proxy to a relay."""
    offer_key: bool = True
    """Without a key blocks are not encrypted inside TLS."""


DEFAULT = Options()
DEFAULT_SMP = SmpOptions()
