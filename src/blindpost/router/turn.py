"""What the decisions of one batch share: state, rules, what was loaded, and what they answer.

Answers are sent after the commit, so that nothing is acknowledged before it is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from blindpost.crypto.entropy import Entropy
from blindpost.crypto.secret import Secret
from blindpost.engine import turn as engine
from blindpost.router.config import RouterRules
from blindpost.router.forwarding import ForwardedAnswer
from blindpost.router.meters import Meter, RouterMeters
from blindpost.router.model import Domain, StoredMessage, day_of
from blindpost.router.state import RouterClient, RouterState
from blindpost.router.view import View
from blindpost.serving.stored import Stored
from blindpost.wire.addresses import Server
from blindpost.wire.smp.commands import PFWD
from blindpost.wire.smp.responses import Response
from blindpost.wire.value import Value, shown


class Delivery(NamedTuple):
    """A message to be encrypted to its recipient and sent as MSG."""

    secret: Secret
    message: StoredMessage

    def __repr__(self) -> str:
        return shown(self)


@dataclass(frozen=True, slots=True, repr=False)
class OpenRelay(Value):
    """Open a session with a relay and report it to the connection."""

    client: RouterClient
    corr_id: bytes
    relay: Server


@dataclass(frozen=True, slots=True, repr=False)
class Forward(Value):
    """Hand an encrypted command to the relay of the session, and its answer to the connection."""

    client: RouterClient
    corr_id: bytes
    session_id: bytes
    command: PFWD


RelayEffect = OpenRelay | Forward


class Outgoing(NamedTuple):
    """A response, or an event if `corr_id` is empty, for one connection."""

    client_id: int
    corr_id: bytes
    entity_id: bytes
    response: Response | Delivery | ForwardedAnswer

    def __repr__(self) -> str:
        return shown(self)


class Turn(engine.Turn[Meter]):
    """One batch, as the decisions see it."""

    def __init__(
        self,
        state: RouterState,
        rules: RouterRules,
        meters: RouterMeters,
        entropy: Entropy,
        now: int,
        view: View,
        stored: Stored,
    ) -> None:
        super().__init__(state.undo, meters)
        self.state = state
        self.rules = rules
        self.meters = meters
        self.entropy = entropy
        self.now = now
        self.today = day_of(now)
        self.view = view
        self.stored = stored
        self.outbox: list[Outgoing] = []
        self._unanswer = (self.outbox.pop,)
        self.outcomes: list[tuple[Callable[[str], None], str]] = []
        """What operators are answered after the commit."""
        self.found: list[tuple[Callable[[bytes | None], None], bytes | None]] = []
        """The service of a connection, or None if refused: reported after the commit."""
        self.effects: list[RelayEffect] = []
        """What must be asked of relays; the answers are events of later turns."""
        self.in_use: list[tuple[bytes, bool]] = []
        """Queues whose messages came or went, each with whether that message asked for a notification."""
        self.compared: list[tuple[bytes, Domain, bool]] = []
        """Services that subscribed, and whether their count and hash matched."""
        self.to_serve: list[RouterClient] = []
        """Connections with something waiting, which a separate turn hands over."""

    def answer(
        self,
        client: RouterClient,
        corr_id: bytes,
        entity_id: bytes,
        response: Response | Delivery | ForwardedAnswer,
    ) -> None:
        self.outbox.append(Outgoing(client.client_id, corr_id, entity_id, response))
        self._add_undo(self._unanswer)

    def push(self, client: RouterClient, entity_id: bytes, event: Response | Delivery) -> None:
        self.outbox.append(Outgoing(client.client_id, b"", entity_id, event))
        self._add_undo(self._unanswer)

    def tell(self, operator: Callable[[str], None], outcome: str) -> None:
        self.append(self.outcomes, (operator, outcome))

    def tell_service(self, asked: Callable[[bytes | None], None], service_id: bytes | None) -> None:
        self.append(self.found, (asked, service_id))

    def ask(self, effect: RelayEffect) -> None:
        self.append(self.effects, effect)

    def serve(self, client: RouterClient) -> None:
        self.append(self.to_serve, client)

    def used(self, recipient_id: bytes, notify: bool) -> None:
        """A message was put into a queue or taken from it."""
        self.append(self.in_use, (recipient_id, notify))

    def compare(self, service_id: bytes, domain: Domain, agreed: bool) -> None:
        """A service reported its count and hash of its queues."""
        self.append(self.compared, (service_id, domain, agreed))

    def acknowledged(self, after_s: int) -> None:
        """Record how long after its delivery a message was acknowledged."""
        self.observe(self.meters.ack_s, after_s)
