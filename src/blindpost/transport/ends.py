"""The two ends of connections: a server that accepts sessions, and a client that opens one."""

from __future__ import annotations

import asyncio
import logging

from blindpost.transport import errors
from blindpost.transport.keeper import Keeper
from blindpost.transport.network import TCP, HostRefusedError, Listener, Network
from blindpost.transport.plan import SessionPlan
from blindpost.transport.session import Handler, Session

logger = logging.getLogger(__name__)


async def open_session(
    plan: SessionPlan, handler: Handler, host: str, port: int, network: Network = TCP
) -> Session:
    """Connect and shake hands. The session is established, or a `TransportError` says why it is not.

    `handler` is called for everything that follows, including `closed` for a session that was never
    established.
    """
    opening = _Opening(handler)
    keeper = Keeper(plan.limits.release_after_s)
    try:
        async with asyncio.timeout(plan.limits.connect_timeout_s):
            session = await network.connect(lambda: Session(plan, opening, keeper), host, port)
    except TimeoutError as error:
        raise errors.ConnectTimeoutError from error
    except HostRefusedError as error:
        raise errors.ForbiddenHostError from error
    except OSError as error:
        raise errors.ConnectError(f"the host could not be reached: {error.strerror or error}") from error
    try:
        await opening.outcome
    except asyncio.CancelledError:
        session.abort()
        await keeper.emptied()
        raise
    return session


class _Opening(Handler):
    """Waits for the handshake, then hands the session over to its real handler."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def established(self, session: Session) -> None:
        session.handler = self._handler
        self._handler.established(session)
        if not self.outcome.done():
            self.outcome.set_result(None)

    def closed(self, session: Session, reason: errors.TransportError) -> None:
        self._handler.closed(session, reason)
        if not self.outcome.done():
            self.outcome.set_exception(reason.again())
            self.outcome.exception()  # retrieved here: a cancelled caller will not


class Server(Keeper):
    """Accepts sessions and hands all of them to one handler."""

    def __init__(self, plan: SessionPlan, handler: Handler, connections_max: int) -> None:
        super().__init__(plan.limits.release_after_s)
        self._plan = plan
        self._handler = handler
        self._connections_max = connections_max
        self._listeners: list[Listener] = []
        self._old_tls_told = False
        self._stopping = False

    async def listen(self, host: str | None, port: int, network: Network = TCP) -> int:
        """Accept connections here too; returns the port, which the system chooses if 0."""
        listener = await network.listen(self._accept, host, port)
        self._listeners.append(listener)
        return listener.ports[0]

    async def stop_listening(self) -> None:
        """Accept no more; existing sessions continue."""
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()

    async def stop(self) -> None:
        """Accept no more, close every session, and return when all sockets are gone."""
        self._stopping = True
        await self.stop_listening()
        for session in tuple(self.sessions):
            session.close()
        await self.emptied()

    async def wait_empty(self, timeout_s: float) -> None:
        """Close every session; those whose peers do not read in time are aborted."""
        stopping = asyncio.ensure_future(self.stop())
        done, _ = await asyncio.wait([stopping], timeout=timeout_s)
        if not done:
            for session in tuple(self.sessions):
                session.abort()
        await stopping

    def renew(self, plan: SessionPlan) -> None:
        """New sessions follow `plan`, for example with new certificates; existing ones stay as they are."""
        self._plan = plan

    def opened(self, session: Session) -> None:
        super().opened(session)
        if self._stopping:
            session.abort(errors.RefusedError("the server is stopping"))
        elif len(self.sessions) > self._connections_max:
            session.abort(errors.RefusedError())

    def closed(self, session: Session) -> None:
        super().closed(session)
        if isinstance(session.reason, errors.TlsVersionError):
            level = logging.DEBUG if self._old_tls_told else logging.WARNING
            self._old_tls_told = True
            logger.log(level, "a client was refused: it offers no TLS 1.3, which this router requires")

    def _accept(self) -> Session:
        return Session(self._plan, self._handler, self)


async def listen(
    plan: SessionPlan,
    handler: Handler,
    host: str | None,
    port: int,
    network: Network = TCP,
    connections_max: int = 100_000,
) -> tuple[Server, int]:
    """Start a server at one place; the server and the port it listens on."""
    server = Server(plan, handler, connections_max)
    return server, await server.listen(host, port, network)
