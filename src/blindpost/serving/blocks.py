"""Connections that carry blocks, as those of message routers and notification routers do."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from blindpost.engine.containment import contained
from blindpost.serving.connections import Connection, Connections
from blindpost.serving.limits import Limits, Sockets
from blindpost.transport import errors
from blindpost.transport.ends import Server
from blindpost.transport.handshake import FindService
from blindpost.transport.network import TCP, Network
from blindpost.transport.plan import SessionPlan
from blindpost.transport.session import Handler, Session, Stage
from blindpost.wire.batch import Packed
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.errors import Code

log = logging.getLogger(__name__)

_LEAVING = 1024

ClientT = TypeVar("ClientT")


class BlockConnection(Connection, Generic[ClientT]):
    """One session, and the client that the decisions know."""

    __slots__ = ("client", "session")

    def __init__(self, number: int, account: Hashable, session: Session, client: ClientT) -> None:
        super().__init__(number, account)
        self.session = session
        self.client = client

    @property
    def waiting(self) -> int:
        return self.session.outbox_size

    def stop_reading(self) -> None:
        self.session.pause_reading()

    def read_on(self) -> None:
        self.session.resume_reading()

    def close(self) -> None:
        self.session.close()

    def cut(self) -> None:
        self.session.abort(errors.OutboxFullError())


class Answered(Protocol):
    """What is sent to a client."""

    @property
    def client_id(self) -> int:
        """The number of its connection."""


K = TypeVar("K", bound=BlockConnection[Any])
SaidT = TypeVar("SaidT", bound=Answered)


class BlockConnections(Connections[K], Handler, Generic[K, SaidT]):
    """The established sessions of one server, and what is sent to them."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.by_session: dict[Session, K] = {}

    # --- what a room says about its own

    @abstractmethod
    def new_connection(self, number: int, account: Hashable, session: Session) -> K:
        """A connection for a session that has just been established."""

    @abstractmethod
    def written(self, client: Any, said: SaidT) -> Writer:
        """An answer as a transmission."""

    @abstractmethod
    def in_place(self, client: Any, said: SaidT, code: Code) -> Writer:
        """What replaces an answer that could not be made or is too long for a block."""

    @abstractmethod
    def pack(self, client: Any, transmissions: Sequence[Writer]) -> Packed: ...

    def unwritten(self) -> None:
        """An answer could not be written: count it."""

    # --- sessions

    def established(self, session: Session) -> None:
        connection = self.new_connection(next(self.numbers), self.limits.account(session), session)
        self.by_session[session] = connection
        self.join(connection)

    def drained(self, session: Session) -> None:
        connection = self.by_session.get(session)
        if connection is not None:
            self.relieve(connection)

    def closed(self, session: Session, reason: errors.TransportError) -> None:
        connection = self.by_session.pop(session, None)
        if connection is not None:
            self.leave(connection)

    def close_silent(self, ttl_s: float, keep: Callable[[K], bool] = lambda connection: False) -> int:
        """Close connections on which neither side sent anything for this long; returns how many."""
        before = asyncio.get_running_loop().time() - ttl_s

        def is_silent(connection: K) -> bool:
            session = connection.session
            return max(session.last_received, session.last_sent) < before and not keep(connection)

        return self.close_if(is_silent)

    # --- saying

    def send(self, outbox: Sequence[SaidT]) -> None:
        """Send all answers of one turn, in the fewest blocks for each connection."""
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
            self.lag(connection)


class _Door(Handler):
    """Follows a session until its handshake is complete, then hands it to the server."""

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
    """Accepts sessions within a server's limits, and reports the established ones to it."""

    def __init__(self, plan: SessionPlan, room: BlockConnections[Any, Any]) -> None:
        self._limits = limits = room.limits
        # The limits count; those whom they close are still here for a moment.
        super().__init__(plan, _Door(room, limits), 2 * limits.sizes.connections + _LEAVING)

    async def listen(self, host: str | None, port: int, network: Network = TCP) -> int:
        chosen = await super().listen(host, port, network)
        self._limits.meters.sockets.setdefault(chosen, Sockets())
        return chosen

    def opened(self, session: Session) -> None:
        limits = self._limits
        limits.meters.sockets.setdefault(session.own_port, Sockets()).accepted += 1
        is_admitted = limits.admit_host(
            session, session.peer_host, lambda why: session.abort(errors.RefusedError(why))
        )
        super().opened(session)
        if not is_admitted and session.stage is Stage.TLS:
            session.abort(errors.RefusedError("too many connections, or too many of one address"))

    def closed(self, session: Session) -> None:
        super().closed(session)
        self._limits.meters.sockets[session.own_port].closed += 1
        self._limits.gone(session, is_failure=not isinstance(session.reason, errors.DivertedError))
