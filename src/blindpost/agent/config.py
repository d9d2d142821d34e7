"""What can be chosen about an agent; the defaults are the protocol's."""

from __future__ import annotations

import random
import time
from dataclasses import field

from blindpost.agent.errors import prohibited
from blindpost.agent.routers.proxying import ProxyOptions
from blindpost.agent.routers.sessions import SessionMode, SessionOptions
from blindpost.agent.subscriptions.options import SubscriptionOptions
from blindpost.agent.versions import Versions
from blindpost.agent.work.key_pairs import PairMaker
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.store.contract import Durability
from blindpost.transport.certificates import Now
from blindpost.wire.frozen import dataclass

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are tried or kept, in seconds."""

    undelivered_s: int = 2 * DAY_S
    """A message that no router took."""
    quota_s: int = 7 * DAY_S
    """A message for a queue that is full."""
    remembered_s: int = 21 * DAY_S
    """Hashes of received messages, sent messages that wait for a receipt, hashes of ratchet keys."""
    dropped_after_s: int = DAY_S
    dropped_attempts: int = 8
    """A message that the application never acknowledges is given up after both."""
    cleanup_first_s: float = 30.0
    cleanup_every_s: float = 300.0
    cleanup_rows: int = 10_000


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All that can be chosen."""

    pq: bool = True
    """Whether new connections are to be post-quantum."""
    versions: Versions = field(default_factory=Versions)
    retention: Retention = field(default_factory=Retention)
    sessions: SessionOptions = field(default_factory=SessionOptions)
    subscriptions: SubscriptionOptions = field(default_factory=SubscriptionOptions)
    service: bool = False
    """Whether the agent is a service at its routers: one command subscribes all of its queues there. Routers
    then know which queues are of one client; for a program with very many connections."""
    subscribe: bool = True
    """Whether all connections are subscribed when the agent is opened. Without it messages are only read
    when a push announces them, as in an app extension that is started for a push."""
    proxy: ProxyOptions = field(default_factory=ProxyOptions)
    durability: Durability = Durability.FULL
    events_max: int = 1024
    """How many events may wait for the application before no more messages are taken from routers."""
    key_pairs: int = 4
    """How many KEM key pairs are kept ready."""
    pair_maker: PairMaker | None = None
    now: Now = time.time
    entropy: Entropy = system_entropy
    chance: random.Random = field(default_factory=random.SystemRandom)
    """For choices that are not secret: one of several routers, the length of a pause."""

    def __post_init__(self) -> None:
        if self.service and self.sessions.mode is SessionMode.ENTITY:
            raise prohibited("a service has one session for all of its connections, not one for each")
