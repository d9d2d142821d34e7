"""The clients of a simulated router: connections that say commands, with keys they can all use.

Any connection may speak for any queue, so that connections fight for queues as devices do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from blindpost.client.authorizing import Authorizer
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.handshake import Agreement, FindService, ServiceSession
from blindpost.transport.session import Handler
from blindpost.wire.batch import SMP_BATCH_LIMIT, pack
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import Command
from blindpost.wire.smp.credentials import RULES
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.messages import Message, read_message
from blindpost.wire.smp.responses import MSG, Response
from blindpost.wire.smp.transmissions import Received, parse_responses
from blindpost.wire.smp.versions import MAX_VERSION, connection_layout
from blindpost.wire.transmissions import signed_request
from tests.support.simulation.promises import Violation
from tests.support.simulation.sessions import MemorySession

SESSION_ID_SIZE = 32
CORR_ID_SIZE = 24


def new_key(algorithm: Algorithm, entropy: Entropy) -> PrivateKey:
    return PrivateKey.generate(algorithm, entropy)


@dataclass(eq=False)
class Keyring:
    """A queue as its owner knows it."""

    key: PrivateKey
    dh_key: PrivateKey
    notifier_key: PrivateKey
    label: str
    recipient_id: bytes = b""
    sender_id: bytes = b""
    notifier_id: bytes | None = None
    secret: BoxKey | None = None
    deleted: bool = False

    def opened(self, msg: MSG) -> bytes | None:
        """The body of a message; None for the marker of a full queue."""
        assert self.secret is not None
        message = read_message(Reader(self.secret.open_padded(nonce_of(msg.msg_id), msg.enc_body)))
        return bytes(message.body) if isinstance(message, Message) else None


@dataclass(eq=False)
class Identity:
    """A service: its certificate, as far as a router looks at it, and the id that the router gave it."""

    role: ServiceRole
    fingerprint: bytes
    service_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """One command on its way."""

    command: Command
    entity_id: bytes = b""
    key: PrivateKey | None = None
    keyring: Keyring | None = None
    forged: bool = False


Hear = Callable[["Caller", Said | None, Received], None]


@dataclass(eq=False)
class Caller:
    """One connection, seen from the client."""

    number: int
    entropy: Entropy
    hear: Hear
    identity: Identity | None = None
    asked: dict[bytes, Said] = field(default_factory=dict)
    unacked: dict[bytes, bytes] = field(default_factory=dict)
    """By recipient id, the message that was received last and not acknowledged."""
    heard: list[Received] = field(default_factory=list)
    ready: bool = False
    alive: bool = True
    session: MemorySession = field(init=False)

    def connect(self, handler: Handler, sent: Callable[[], None], delay_s: float) -> None:
        """Shake hands; a service is ready once the router has found it."""
        self._session_id = self.entropy(SESSION_ID_SIZE)
        self._own_key = new_key(Algorithm.X25519, self.entropy)
        self._router_key = new_key(Algorithm.X25519, self.entropy)
        self._layout = connection_layout(MAX_VERSION, self._session_id)
        self._authorizer = Authorizer(self._layout, self._router_key.public, 16)
        self._service: ServiceSession | None = None
        self._handler = handler
        self.session = MemorySession(handler, self._received, self._found, sent, delay_s)
        if self.identity is None:
            self._establish()
        else:
            chain = (self.identity.fingerprint,)
            request = FindService(self.identity.role, self.identity.fingerprint, chain)
            handler.service_requested(self.session, request)

    def _found(self, service_id: bytes | None) -> None:
        identity = self.identity
        assert identity is not None
        if service_id is None:
            return
        if identity.service_id not in (None, service_id):
            raise Violation("a service was given another id")
        identity.service_id = service_id
        key = new_key(Algorithm.ED25519, self.entropy)
        self._service = ServiceSession(identity.role, service_id, identity.fingerprint, key.public, key)
        self._establish()

    def _establish(self) -> None:
        self.session.agreement = Agreement(
            MAX_VERSION, self._session_id, self._router_key, self._own_key.public, service=self._service
        )
        self.ready = True
        self._handler.established(self.session)

    def say(self, *sayings: Said) -> list[bytes]:
        """Send commands in as few blocks as they fit in; their correlation ids."""
        corr_ids, transmissions = [], []
        for said in sayings:
            corr_id = self.entropy(CORR_ID_SIZE)
            signed = signed_request(corr_id, said.entity_id, said.command, MAX_VERSION)
            key = said.key
            if said.forged and key is not None:
                key = new_key(key.algorithm, self.entropy)
            elif key is None and self._service is not None and said.entity_id == self._service.service_id:
                key = self._service.private
            if self._service is not None and RULES[type(said.command)].service_signed:
                assert key is not None
                transmissions.append(self._authorizer.dual(corr_id, signed, key, self._service))
            else:
                transmissions.append(self._authorizer.plain(corr_id, signed, key))
            self.asked[corr_id] = said
            corr_ids.append(corr_id)
        for payload in pack(transmissions, SMP_BATCH_LIMIT).payloads:
            self.session.arrive(payload.done())
        return corr_ids

    def close(self) -> None:
        self.alive = self.ready = False

    def _received(self, payload: bytes) -> None:
        for received in parse_responses(Reader(payload), self._layout, MAX_VERSION):
            if not isinstance(received, Received):
                raise Violation(f"the router sent something unreadable: {received!r}")
            if received.corr_id and received.corr_id not in self.asked:
                raise Violation("a reply to nothing, or a second one")
            said = self.asked.pop(received.corr_id) if received.corr_id else None
            if isinstance(received.response, MSG):
                self.unacked[received.entity_id] = received.response.msg_id
            self.heard.append(received)
            self.hear(self, said, received)


def name_of(response: Response) -> str:
    return type(response).__name__
