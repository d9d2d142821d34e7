"""What the decisions of one batch share: state, rules, what was loaded, and what they answer.

Answers are sent after the commit, so that nobody is told what is not durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from blindpost.crypto.entropy import Entropy
from blindpost.crypto.secret import Secret
from blindpost.router.config import RouterRules
from blindpost.router.forwarding import ForwardedAnswer
from blindpost.router.meters import Meter, RouterMeters
from blindpost.router.model import Domain, StoredMessage, day_of
from blindpost.router.state import Client, State
from blindpost.router.view import View
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
    """Have a session with a relay and tell the connection about it."""

    client: Client
    corr_id: bytes
    relay: Server


@dataclass(frozen=True, slots=True, repr=False)
class Forward(Value):
    """Hand an encrypted command to the relay of the session, and its answer to the connection."""

    client: Client
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


class Turn:
    """One batch, as the decisions see it."""

    def __init__(
        self,
        state: State,
        rules: RouterRules,
        meters: RouterMeters,
        entropy: Entropy,
        now: int,
        view: View,
    ) -> None:
        self.state = state
        self.rules = rules
        self.meters = meters
        self.entropy = entropy
        self.now = now
        self.today = day_of(now)
        self.view = view
        self._undo = state.undo.steps
        self.outbox: list[Outgoing] = []
        self._unanswer = (self.outbox.pop,)
        self.outcomes: list[tuple[Callable[[str], None], str]] = []
        """What operators are told once the commit is done."""
        self.found: list[tuple[Callable[[bytes | None], None], bytes | None]] = []
        """Which service a connection is of, or None if it may not be: told once the commit is done."""
        self.effects: list[RelayEffect] = []
        """What must be asked of relays; the answers are events of later turns."""
        self.in_use: list[tuple[bytes, bool]] = []
        """Queues whose messages came or went, each with whether that message asked for a notification."""
        self.compared: list[tuple[bytes, Domain, bool]] = []
        """Services that subscribed, and whether what they believed is what is stored."""
        self.to_serve: list[Client] = []
        """Connections for which something waits that a turn of its own will hand over."""

    def answer(
        self,
        client: Client,
        corr_id: bytes,
        entity_id: bytes,
        response: Response | Delivery | ForwardedAnswer,
    ) -> None:
        self.outbox.append(Outgoing(client.client_id, corr_id, entity_id, response))
        self._undo.append(self._unanswer)

    def push(self, client: Client, entity_id: bytes, event: Response | Delivery) -> None:
        self.outbox.append(Outgoing(client.client_id, b"", entity_id, event))
        self._undo.append(self._unanswer)

    def tell(self, operator: Callable[[str], None], outcome: str) -> None:
        self.outcomes.append((operator, outcome))
        self._undo.append((self.outcomes.pop,))

    def tell_service(self, asked: Callable[[bytes | None], None], service_id: bytes | None) -> None:
        self.found.append((asked, service_id))
        self._undo.append((self.found.pop,))

    def ask(self, effect: RelayEffect) -> None:
        self.effects.append(effect)
        self._undo.append((self.effects.pop,))

    def serve(self, client: Client) -> None:
        self.to_serve.append(client)
        self._undo.append((self.to_serve.pop,))

    def count(self, meter: Meter, by: int = 1) -> None:
        """Count something that happened; it did not happen if the batch is taken back."""
        add = self.meters.add
        add(meter, by)
        self._undo.append((add, meter, -by))

    def used(self, recipient_id: bytes, notify: bool) -> None:
        """A message was put into a queue or taken from it."""
        self.in_use.append((recipient_id, notify))
        self._undo.append((self.in_use.pop,))

    def compare(self, service_id: bytes, domain: Domain, agreed: bool) -> None:
        """A service said which queues it believes to have."""
        self.compared.append((service_id, domain, agreed))
        self._undo.append((self.compared.pop,))

    def acknowledged(self, after_s: int) -> None:
        """A delivery was acknowledged so long after it."""
        self.meters.ack_s.observe(after_s)
        self._undo.append((self.meters.ack_s.forget, after_s))
