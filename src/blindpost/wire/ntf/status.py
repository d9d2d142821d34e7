"""States of device tokens and of subscriptions, as TKN and SUB report them and stores keep them."""

from __future__ import annotations

from enum import Enum

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.ntf.versions import INVALID_REASON_VERSION
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.value import Value

SUB_ERROR_MAX = 250
"""Longer error texts are cut: SUB has no length field and must fit into a block."""


class TokenState(Enum):
    """The state of a device token, without the reason that INVALID may have."""

    NEW = "NEW"
    REGISTERED = "REGISTERED"
    INVALID = "INVALID"
    CONFIRMED = "CONFIRMED"
    ACTIVE = "ACTIVE"
    EXPIRED = "EXPIRED"


class InvalidReason(Enum):
    """Why a push provider refused a token."""

    BAD = "BAD"
    TOPIC = "TOPIC"
    EXPIRED = "EXPIRED"
    UNREGISTERED = "UNREGISTERED"


_VERIFIABLE = frozenset({TokenState.REGISTERED, TokenState.CONFIRMED, TokenState.ACTIVE})
_MAY_SUBSCRIBE = frozenset({TokenState.INVALID, TokenState.ACTIVE, TokenState.EXPIRED})


@dataclass(frozen=True, slots=True, repr=False)
class TokenStatus(Value):
    """A token's state, with a reason only when it is INVALID."""

    state: TokenState
    reason: InvalidReason | None = None

    def __post_init__(self) -> None:
        if self.reason is not None and self.state is not TokenState.INVALID:
            raise WireError("only INVALID has a reason")

    @property
    def text(self) -> str:
        return self.state.value if self.reason is None else f"{self.state.value},{self.reason.value}"

    @classmethod
    def from_text(cls, text: str) -> TokenStatus:
        status = _TOKEN_STATUSES.get(text)
        if status is None:
            raise WireError("the status of a token expected")
        return status

    @property
    def verification_allowed(self) -> bool:
        """Whether TVFY may succeed; otherwise a repeated TNEW starts over."""
        return self.state in _VERIFIABLE

    @property
    def subscription_commands_allowed(self) -> bool:
        return self.state in _MAY_SUBSCRIBE


_TOKEN_STATUSES = {
    status.text: status
    for status in (
        *(TokenStatus(state) for state in TokenState),
        *(TokenStatus(TokenState.INVALID, reason) for reason in InvalidReason),
    )
}


def read_token_status(reader: Reader) -> TokenStatus:
    return TokenStatus.from_text(_ascii(reader))


def write_token_status(writer: Writer, status: TokenStatus, version: int) -> None:
    """Peers below version 3 do not know reasons and get a bare INVALID."""
    shown = status.text if version >= INVALID_REASON_VERSION else status.state.value
    writer.raw(shown.encode("ascii"))


class SubState(Enum):
    """The state of a subscription to a queue's notifications, without the text that ERR has."""

    NEW = "NEW"
    PENDING = "PENDING"
    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    END = "END"
    DELETED = "DELETED"
    AUTH = "AUTH"
    SERVICE = "SERVICE"
    ERR = "ERR"


_COUNTED = frozenset({SubState.NEW, SubState.PENDING, SubState.ACTIVE, SubState.INACTIVE})
_PLAIN_SUB_STATES = {state.value.encode("ascii"): state for state in SubState if state is not SubState.ERR}


@dataclass(frozen=True, slots=True, repr=False)
class SubStatus(Value):
    """A subscription's state; `error` is what the message router said, with ERR and only with it."""

    state: SubState
    error: bytes | None = None

    def __post_init__(self) -> None:
        if (self.error is not None) is not (self.state is SubState.ERR):
            raise WireError("ERR has an error text, and nothing else has")

    @classmethod
    def failed(cls, error: bytes) -> SubStatus:
        """ERR with a text that is sure to fit into a block."""
        return cls(SubState.ERR, error[:SUB_ERROR_MAX])

    @property
    def counted(self) -> bool:
        """Whether the router subscribes it again at start and counts it for its service."""
        return self.state in _COUNTED

    @property
    def encoded(self) -> bytes:
        name = self.state.value.encode("ascii")
        return name if self.error is None else name + b" " + self.error

    @classmethod
    def from_encoded(cls, data: bytes) -> SubStatus:
        name, space, error = data.partition(b" ")
        if name == b"ERR" and space:
            return cls(SubState.ERR, error)
        state = _PLAIN_SUB_STATES.get(data)
        if state is None:
            raise WireError("the status of a subscription expected")
        return cls(state)


def read_sub_status(reader: Reader) -> SubStatus:
    return SubStatus.from_encoded(bytes(reader.rest()))


def write_sub_status(writer: Writer, status: SubStatus) -> None:
    writer.raw(status.encoded)


def _ascii(reader: Reader) -> str:
    try:
        return str(reader.rest(), "ascii")
    except UnicodeDecodeError as error:
        raise WireError("the name of a status expected") from error
