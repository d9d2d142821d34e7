"""A server's connections: which it accepts, when it reads, writes and closes them.

A connection's failure ends that connection. If a peer does not read, we stop reading from it; what waits for
all such peers together is bounded, and the one with the most waiting is closed first.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from blindpost.engine.containment import contained
from blindpost.serving.limits import AddressKeys, Limits, Sockets, account_of
from blindpost.transport import errors
from blindpost.transport.ends import Server
from blindpost.transport.handshake import FindService
from blindpost.transport.network import TCP, Network
from blindpost.transport.plan import Plan
from blindpost.transport.session import Handler, Session, Stage
from blindpost.wire.batch import Packed
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.errors import Code

log = logging.getLogger(__name__)

_LEAVING = 1024
BUFFERS_CHECK_S = 0.05
"""How often peers that do not read are checked, while there are any."""
OUTBOX = "outbox"
"""Why a connection is held whose peer does not read."""


class Held:
    """A source of the engine's inbox that is read from unless there is a reason to pause."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: set[str] = set()

    @property
    @abstractmethod
    def account(self) -> Hashable:
        """Whom it is counted under."""

    @abstractmethod
    def stop_reading(self) -> None: ...

    @abstractmethod
    def read_on(self) -> None: ...

    def hold(self, reason: str) -> None:
        """Take nothing more in."""
        self.held.add(reason)
        self.stop_reading()

    def let_go(self, reason: str) -> None:
        self.held.discard(reason)
        if not self.held:
            self.read_on()


class Numbered(Protocol):
    """A connection as the decisions of a room know it."""

    @property
    def client_id(self) -> int: ...


C_co = TypeVar("C_co", bound=Numbered, covariant=True)


class Connection(Held, Generic[C_co]):
    """One session that carries blocks, and the client that the decisions know."""

    __slots__ = ("client", "session")

    def __init__(self, session: Session, client: C_co) -> None:
        super().__init__()
        self.session = session
        self.client = client

    @property
    def account(self) -> Hashable:
        return self.session.account

    @property
    def congested(self) -> bool:
        return OUTBOX in self.held

    def stop_reading(self) -> None:
        self.session.pause_reading()

    def read_on(self) -> None:
        self.session.resume_reading()


class Answered(Protocol):
    """What is said to a client."""

    @property
    def client_id(self) -> int: ...


K = TypeVar("K", bound=Connection[Numbered])
SaidT = TypeVar("SaidT", bound=Answered)


class Connections(Handler, Generic[K, SaidT]):
    """The established sessions of one server, and what is sent to them."""

    def __init__(self, buffers: int) -> None:
        self.connections: dict[int, K] = {}
        self.by_session: dict[Session, K] = {}
        self._ids = itertools.count(1)
        self._buffers = buffers
        """What may wait for all peers that do not read, in bytes."""
        self._congested: dict[K, None] = {}
        self._looked_at = 0.0

    # --- what a room says about its own

    @abstractmethod
    def new_connection(self, session: Session, client_id: int) -> K:
        """A connection for a session that has just been established."""

    @abstractmethod
    def left(self, connection: K) -> None:
        """A connection has ended."""

    def relieved(self, connection: K) -> None:
        """A peer that did not read has caught up."""

    def lags(self, connection: K) -> None:
        """A peer does not read: nothing more is sent to it unasked."""

    @abstractmethod
    def written(self, client: Any, said: SaidT) -> Writer:
        """What is said, as a transmission."""

    @abstractmethod
    def in_place(self, client: Any, said: SaidT, code: Code) -> Writer:
        """What is said where an answer cannot be: it could not be made, or is too long for a block."""

    @abstractmethod
    def pack(self, client: Any, transmissions: Sequence[Writer]) -> Packed: ...

    def unwritten(self) -> None:
        """An answer could not be written: count it."""

    # --- sessions

    def established(self, session: Session) -> None:
        connection = self.new_connection(session, next(self._ids))
        self.connections[connection.client.client_id] = connection
        self.by_session[session] = connection

    def drained(self, session: Session) -> None:
        connection = self.by_session.get(session)
        if connection is not None and connection.congested:
            self._congested.pop(connection, None)
            connection.let_go(OUTBOX)
            self.relieved(connection)

    def closed(self, session: Session, reason: errors.TransportError) -> None:
        connection = self.by_session.pop(session, None)
        if connection is not None:
            del self.connections[connection.client.client_id]
            self._congested.pop(connection, None)
            self.left(connection)

    def close_silent(self, ttl_s: float, keep: Callable[[K], bool] = lambda connection: False) -> int:
        """Close connections on which neither side sent anything for this long; returns how many."""
        before = asyncio.get_running_loop().time() - ttl_s
        silent = [
            connection.session
            for connection in self.connections.values()
            if max(connection.session.last_received, connection.session.last_sent) < before
            and not keep(connection)
        ]
        for session in silent:
            contained("closing a connection", session.close)
        return len(silent)

    # --- saying

    def send(self, outbox: Sequence[SaidT]) -> None:
        """Everything that one turn says, in the fewest blocks for each connection."""
        by_client: defaultdict[int, list[SaidT]] = defaultdict(list)
        for outgoing in outbox:
            by_client[outgoing.client_id].append(outgoing)
        for client_id, said in by_client.items():
            connection = self.connections.get(client_id)
            if connection is not None and not contained(
                "answering a connection", self._say, connection, said
            ):
                connection.session.abort()

    def _say(self, connection: K, said: Sequence[SaidT]) -> None:
        session, client = connection.session, connection.client
        transmissions = []
        for one in said:
            try:
                transmissions.append(self.written(client, one))
            except Exception:
                # A row that cannot be written only affects the client that asked for it.
                log.exception("an answer could not be written")
                self.unwritten()
                transmissions.append(self.in_place(client, one, Code.INTERNAL))
        packed = self.pack(client, transmissions)
        if packed.oversize:
            for place in packed.oversize:
                transmissions[place] = self.in_place(client, said[place], Code.LARGE_MSG)
            packed = self.pack(client, transmissions)
        try:
            session.send_now(packed.payloads)
        except errors.TransportError:
            return
        if session.congested:
            self._lag(connection)

    def _lag(self, connection: K) -> None:
        if not connection.congested:
            self._congested[connection] = None
            connection.hold(OUTBOX)
            self.lags(connection)
        now = asyncio.get_running_loop().time()
        if now - self._looked_at >= BUFFERS_CHECK_S:
            self._looked_at = now
            self._free_buffers()

    def _free_buffers(self) -> None:
        """Close connections, most waiting first, until the total is within its bound."""
        sizes = {lagging: lagging.session.outbox_size for lagging in self._congested}
        waiting = sum(sizes.values())
        while waiting > self._buffers:
            slowest = max(sizes, key=lambda lagging: sizes[lagging])
            waiting -= sizes.pop(slowest)
            self._congested.pop(slowest, None)
            slowest.session.abort(errors.OutboxFullError())


class _Door(Handler):
    """Follows a session until its handshake is complete, then hands it to the room."""

    def __init__(self, room: Handler, limits: Limits) -> None:
        self._room = room
        self._limits = limits

    def established(self, session: Session) -> None:
        self._limits.established(session)
        session.handler = self._room
        self._room.established(session)

    def service_requested(self, session: Session, request: FindService) -> None:
        self._room.service_requested(session, request)


class LimitedServer(Server):
    """Accepts sessions within the limits, and tells a room of those that are established."""

    def __init__(self, plan: Plan, room: Handler, limits: Limits, keys: AddressKeys) -> None:
        # The limits count; those whom they close are still here for a moment.
        super().__init__(plan, _Door(room, limits), 2 * limits.sizes.connections + _LEAVING)
        self._limits = limits
        self._keys = keys

    @property
    def handshakes(self) -> int:
        """How many sessions have not completed their handshake."""
        return self._limits.handshakes

    async def listen(self, host: str | None, port: int, network: Network = TCP) -> int:
        chosen = await super().listen(host, port, network)
        self._limits.meters.sockets.setdefault(chosen, Sockets())
        return chosen

    def opened(self, session: Session) -> None:
        limits = self._limits
        limits.meters.sockets.setdefault(session.own_port, Sockets()).accepted += 1
        key = self._keys.of(session.peer_host)
        session.account = account_of(key)
        is_admitted = limits.admit(session, key, lambda why: session.abort(errors.RefusedError(why)))
        super().opened(session)
        if not is_admitted and session.stage is Stage.TLS:
            session.abort(errors.RefusedError("too many connections, or too many of one address"))

    def closed(self, session: Session) -> None:
        super().closed(session)
        self._limits.meters.sockets[session.own_port].closed += 1
        self._limits.gone(session, is_failure=not isinstance(session.reason, errors.DivertedError))
