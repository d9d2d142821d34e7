"""What goes into a client and what comes out of it: calls, their results, and events."""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

from blindpost.client.errors import ClientError
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.errors import TransportError
from blindpost.wire.frozen import dataclass
from blindpost.wire.smp.errors import SMPError
from blindpost.wire.value import Value

C = TypeVar("C", bound=Value)
"""The commands of one protocol."""
R = TypeVar("R", bound=Value)
"""Its responses."""
C_co = TypeVar("C_co", bound=Value, covariant=True)
R_co = TypeVar("R_co", bound=Value, covariant=True)
"""The same for values that hold one of them: a call of SUB is a call of some command."""


@dataclass(frozen=True, slots=True, repr=False)
class Call(Value, Generic[C_co]):
    """A command with what it is about and who authorizes it.

    A correlation id is drawn at random unless one is given, as NEW with link data needs it. A service
    subscription needs neither entity nor key: the connection has both.
    """

    command: C_co
    entity_id: bytes = b""
    key: PrivateKey | None = None
    corr_id: bytes | None = None
    timeout_s: float | None = None
    """How long to wait for the response, if not as long as for other commands."""


Failure: TypeAlias = ClientError | TransportError
"""Why a call has no response: the command failed, or the connection did."""


@dataclass(frozen=True, slots=True, repr=False)
class Garbled(Value):
    """A response that could not be read, and what is wrong with it."""

    error: SMPError


@dataclass(frozen=True, slots=True, repr=False)
class Push(Value, Generic[R_co]):
    """What a router sends unasked."""

    entity_id: bytes
    response: R_co


@dataclass(frozen=True, slots=True, repr=False)
class Late(Value, Generic[C_co, R_co]):
    """The response to a command whose caller no longer waits: it timed out or was cancelled."""

    command: C_co
    entity_id: bytes
    response: R_co


@dataclass(frozen=True, slots=True, repr=False)
class Unexpected(Value, Generic[R_co]):
    """A response that belongs to no command, is of another entity than its command, or is garbled."""

    entity_id: bytes
    response: R_co | Garbled


Event: TypeAlias = Push[R] | Late[C, R] | Unexpected[R]
