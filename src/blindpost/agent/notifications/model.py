"""What is kept about a device token and about the notifications of a connection, in the protocol's words."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from blindpost.agent.model import ConnId
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.status import TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.primitives import Reader, Writer, decode_whole
from blindpost.wire.smp.values import NtfCreds, ServerNtfCreds
from blindpost.wire.value import Value


class PushMode(Enum):
    """Whether a push comes for every message, or only one periodically that says to check."""

    PERIODIC = "PERIODIC"
    INSTANT = "INSTANT"


class ActionKind(Enum):
    """What is to be done next with a token."""

    REGISTER = "R"
    VERIFY = "V"
    CHECK = "C"
    DELETE = "D"


@dataclass(frozen=True, slots=True, repr=False)
class Action(Value):
    """The next action; the code of the router goes with VERIFY and only with it."""

    kind: ActionKind
    code: bytes | None = None

    @property
    def encoded(self) -> bytes:
        writer = Writer().raw(self.kind.value.encode("ascii"))
        return (writer if self.code is None else writer.short(self.code)).done()

    @classmethod
    def from_encoded(cls, data: bytes) -> Action:
        return decode_whole(data, _read_action)


def _read_action(reader: Reader) -> Action:
    kind = _KINDS.get(reader.take(1))
    if kind is None:
        raise WireError("the next action of a token expected")
    return Action(kind, reader.short() if kind is ActionKind.VERIFY else None)


_KINDS = {kind.value.encode("ascii"): kind for kind in ActionKind}
REGISTER = Action(ActionKind.REGISTER)
CHECK = Action(ActionKind.CHECK)

NEW = TokenStatus(TokenState.NEW)
REGISTERED = TokenStatus(TokenState.REGISTERED)
CONFIRMED = TokenStatus(TokenState.CONFIRMED)
ACTIVE = TokenStatus(TokenState.ACTIVE)
EXPIRED = TokenStatus(TokenState.EXPIRED)


SPENT_MAX = 16
"""So many codes of earlier device tokens are remembered."""


@dataclass(frozen=True, slots=True, repr=False)
class Token(Value):
    """The device token in use, its keys, and its progress at its notification router."""

    device: DeviceToken
    server: Server
    key: PrivateKey
    dh_key: PrivateKey
    mode: PushMode
    token_id: bytes | None = None
    secret: bytes | None = None
    status: TokenStatus = NEW
    action: Action | None = REGISTER
    period: int | None = None
    """How often the router was told to push without a message, in minutes; None until it was told."""
    returned: bytes | None = None
    """The digest of the code that was returned for this device token."""
    spent: tuple[bytes, ...] = ()
    """Digests of codes for earlier device tokens: pushing one of them again is a replay."""

    @property
    def is_active(self) -> bool:
        return self.status == ACTIVE

    def replaced(self, device: DeviceToken) -> Token:
        """The token for another device token, whose code is yet to come."""
        spent = self.spent if self.returned is None else (*self.spent, self.returned)[-SPENT_MAX:]
        return replace(self, device=device, status=REGISTERED, action=None, returned=None, spent=spent)

    @property
    def is_instant(self) -> bool:
        """Whether connections have subscriptions."""
        return self.is_active and self.mode is PushMode.INSTANT


@dataclass(frozen=True, slots=True, repr=False)
class DoomedToken(Value):
    """A token that the application gave up and whose router is not informed yet."""

    number: int
    server: Server
    token_id: bytes
    key: PrivateKey


class Step(Enum):
    """What is to be done next with the notifications of a connection: K and D with the router of its
    queue, N and C with the notification router."""

    KEY = "K"
    NEW = "N"
    CHECK = "C"
    DELETE = "D"


SMP_STEPS = frozenset({Step.KEY, Step.DELETE})


@dataclass(frozen=True, slots=True, repr=False)
class NtfSubscription(Value):
    """A row of the pipeline: one connection, the queue that notifies, and the next step, if any."""

    conn_id: ConnId
    smp_server: Server
    notifier_id: bytes | None
    ntf_server: Server
    subscription_id: bytes | None
    status: str
    step: Step | None

    def with_keys(self, creds: NotifierCreds) -> NtfSubscription:
        """The queue's router knows the notifier; the notification router is next."""
        return replace(self, notifier_id=creds.notifier_id, status="KEY", step=Step.NEW)


@dataclass(frozen=True, slots=True, repr=False)
class NotifierCreds(Value):
    """What a queue notifies with: the key that subscribes, and the secret of the metadata."""

    notifier_id: bytes
    key: PrivateKey
    secret: bytes


@dataclass(frozen=True, slots=True, repr=False)
class NotifierKeys(Value):
    """Our halves of what a queue is to notify with, until its router has answered."""

    key: PrivateKey
    dh_key: PrivateKey

    @classmethod
    def generate(cls, entropy: Entropy) -> NotifierKeys:
        return cls(
            PrivateKey.generate(Algorithm.ED25519, entropy), PrivateKey.generate(Algorithm.X25519, entropy)
        )

    @property
    def offered(self) -> NtfCreds:
        return NtfCreds(self.key.public, self.dh_key.public)

    def agreed(self, answer: ServerNtfCreds) -> NotifierCreds:
        return NotifierCreds(answer.notifier_id, self.key, self.dh_key.agree(answer.dh_key))
