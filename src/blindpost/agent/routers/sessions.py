"""Transport sessions of one agent: who shares a connection, connecting once, and what comes in.

A session belongs to a user, a router and, in entity mode, one connection. Concurrent callers wait for one
attempt; a failed attempt is remembered for a moment, so that not every caller tries a router that is down.
What a router sends unasked is handed on in order and in bounded amounts: when nobody takes it, nothing more
is read from the router.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import field, replace
from enum import Enum
from hashlib import sha256
from itertools import count
from typing import Any, Protocol, TypeVarTuple

from blindpost.client.calls import Call, Event, Failure, Late, Push, Unexpected
from blindpost.client.errors import ClientError
from blindpost.client.options import DEFAULT_SMP, SmpOptions
from blindpost.client.relay import Relay
from blindpost.client.smp import SmpClient
from blindpost.client.socks import SocksNetwork
from blindpost.crypto.credentials import Credentials
from blindpost.engine.loop import StoreFailedError
from blindpost.transport.errors import ClosedHereError, TransportError
from blindpost.transport.handshake import ServiceSession
from blindpost.transport.network import Network
from blindpost.wire.addresses import Server, hosts_text
from blindpost.wire.frozen import dataclass
from blindpost.wire.smp.commands import Command
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import ALLS, MSG, Response
from blindpost.wire.text import b64

log = logging.getLogger(__name__)

Ts = TypeVarTuple("Ts")

_CLOSED = "the agent is closed"
ELSEWHERE = "speaks of a queue on a session that is not the queue's"
"""If we believed it, what we do next would show the router which queues belong to one program."""

SmpCall = Call[Command]
SmpEvent = Event[Response, Command]


class SessionMode(Enum):
    """Who shares a session: all of a user on a router, or one connection; the first three differ in the
    user name for a SOCKS proxy, so that it keeps circuits apart."""

    USER = "user"
    SESSION = "session"
    SERVER = "server"
    ENTITY = "entity"


class ReceiveQueue(Protocol):
    """A queue of ours, as far as its session cares."""

    @property
    def conn_id(self) -> str: ...

    @property
    def user_id(self) -> int: ...

    @property
    def server(self) -> Server: ...


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What one session is for."""

    user_id: int
    server: Server
    entity: str | None = None

    def carries(self, queue: ReceiveQueue) -> bool:
        """Whether a queue is subscribed and read here. On any other session nothing about it is believed: a
        router that spoke of it there would learn from what we do that both belong to one program."""
        place = queue.user_id, queue.server
        return place == (self.user_id, self.server) and self.entity in (None, queue.conn_id)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What can be chosen about sessions."""

    client: SmpOptions = DEFAULT_SMP
    mode: SessionMode = SessionMode.SESSION
    failure_kept_s: float = 3.0
    """For so long after a failed attempt nobody tries again; callers get the same error."""
    messages_at_once: int = 64
    """How many received messages of one session may be in processing before no more are taken."""


@dataclass(eq=False)
class Session:
    """One connection to a router, as long as it lasts. Its number is never used again."""

    number: int
    key: SessionKey
    client: SmpClient
    relays: dict[Server, asyncio.Task[Relay | Failure]] = field(default_factory=dict)
    """Sessions with other routers that this one, as a proxy, keeps for us."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing waits to be taken: who asks for more should wait for that."""
    _blamed: set[str] = field(default_factory=set)

    @property
    def session_id(self) -> bytes:
        """What TLS calls it; it names the session in the subscription table."""
        return self.client.agreement.session_id

    @property
    def service(self) -> ServiceSession | None:
        return self.client.service

    def blame(self, misdeed: str) -> None:
        """Log what its router does wrong, once: it could go on for as long as it likes."""
        if misdeed not in self._blamed:
            self._blamed.add(misdeed)
            log.warning("%s %s", self.key.server.hosts[0].text, misdeed)


Receive = Callable[["Session", bytes, MSG], Awaitable[None]]
"""Takes one message of one queue. Called for several queues at a time, never twice at once for one queue;
while too many of these are unfinished, nothing more is read from the router."""


class Watcher(Protocol):
    """Who cares about the sessions themselves: the subscriptions."""

    def credentials(self, user_id: int, server: Server) -> Credentials | None:
        """The service to present, if this user has one at this router."""

    def connected(self, session: Session, offered: Credentials | None) -> None:
        """A session is there; nobody has used it yet."""

    def connect_failed(self, key: SessionKey, failure: TransportError) -> None: ...

    def disconnected(self, session: Session, reason: TransportError) -> None:
        """Called once for each session that was connected, at once when it ends."""

    async def received(self, session: Session, event: SmpEvent) -> None:
        """Something else than a message came that no caller waits for."""


@dataclass(eq=False)
class _Slot:
    """The place of a session: being connected, connected, or failed a moment ago."""

    number: int
    key: SessionKey
    attempt: asyncio.Task[Session | TransportError]
    is_settled: bool = False
    """Those who waited for the attempt have gone on: nobody who comes now overtakes them."""


class Sessions:
    """All sessions of an agent."""

    def __init__(
        self,
        receive: Receive,
        watcher: Watcher,
        options: SessionOptions | None = None,
        *,
        durable: Callable[[], Awaitable[None]] | None = None,
        raised: Callable[[Server, Failure], Exception] = lambda _, failure: failure,
    ) -> None:
        self._durable = durable
        self.options = options or SessionOptions()
        self._receive = receive
        self._watcher = watcher
        self._raised = raised
        self._slots: dict[SessionKey, _Slot] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._retired: set[Session] = set()
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._messages: set[asyncio.Task[None]] = set()
        """Those that process what came."""
        self._paused: set[str] = set()
        self._receiving = asyncio.Event()
        self._receiving.set()
        self._closed = False
        self._started_at = self.options.client.now()

    # Sessions

    def key(self, user_id: int, server: Server, entity: str | None = None) -> SessionKey:
        """Which session a command about `entity`, a connection id, belongs to."""
        return SessionKey(user_id, server, entity if self.options.mode is SessionMode.ENTITY else None)

    def current(self, key: SessionKey) -> Session | None:
        """The session that is connected now."""
        slot = self._slots.get(key)
        if slot is None or not slot.attempt.done():
            return None
        result = slot.attempt.result()
        return result if isinstance(result, Session) else None

    def is_current(self, session: Session) -> bool:
        """Whether the session is still the one that callers get."""
        return self.current(session.key) is session

    async def session(self, key: SessionKey, *, is_durable: bool = False) -> Session:
        """The session, connected if need be; `TransportError` if that fails, or has just failed. What its
        caller has read and is about to send is durable when this returns, or was already, as it says."""
        if self._durable is not None and not is_durable:
            try:
                await self._durable()
            except StoreFailedError as error:
                raise ClosedHereError(f"nothing was sent, for it could not be stored: {error}") from error
        slot = self._slots.get(key)
        if slot is None:
            if self._closed:
                raise ClosedHereError(_CLOSED)
            slot = self._slots[key] = self._open(key)
        if not slot.is_settled:
            await asyncio.wait([slot.attempt])
            slot.is_settled = True
        if slot.attempt.cancelled():
            raise ClosedHereError(_CLOSED)
        result = slot.attempt.result()
        if isinstance(result, TransportError):
            raise result.again()
        return result

    def _open(self, key: SessionKey) -> _Slot:
        number = next(self._numbers)
        attempt = asyncio.get_running_loop().create_task(self._attempt(number, key))
        return _Slot(number, key, attempt)

    async def _attempt(self, number: int, key: SessionKey) -> Session | TransportError:
        try:
            session = await self._connect(number, key)
        except Exception as error:
            failure = error if isinstance(error, TransportError) else ClosedHereError(str(error))
            if not isinstance(error, TransportError | StoreFailedError):
                log.exception("a session could not be opened")
            loop = asyncio.get_running_loop()
            self._timers[number] = loop.call_later(self.options.failure_kept_s, self._forget, key, number)
            loop.call_soon(self._watcher.connect_failed, key, failure)
            return failure
        self._spawn(self._pump(session))
        self._spawn(self._await_end(session))
        return session

    async def _connect(self, number: int, key: SessionKey) -> Session:
        offered = self._watcher.credentials(key.user_id, key.server)
        chosen = replace(
            self.options.client,
            network=self._network(key, self.options.client.network),
            onion_network=self._onion_network(key),
            service=None if offered is None else (ServiceRole.MESSAGING, offered),
        )
        session = Session(number, key, await SmpClient.connect(key.server, chosen))
        try:
            self._watcher.connected(session, offered)
        except BaseException:
            await session.client.close()
            raise
        return session

    def _forget(self, key: SessionKey, number: int) -> None:
        """Free the place, unless another attempt has taken it since."""
        self._timers.pop(number, None)
        slot = self._slots.get(key)
        if slot is not None and slot.number == number:
            del self._slots[key]

    async def _await_end(self, session: Session) -> None:
        reason = await session.client.wait_closed()
        self._forget(session.key, session.number)
        self._retired.discard(session)
        for opening in session.relays.values():
            opening.cancel()
        session.relays.clear()
        self._watcher.disconnected(session, reason)

    async def drop(self, session: Session) -> None:
        """End one session, so that the next caller gets a new one."""
        self._forget(session.key, session.number)
        await session.client.close()

    def retire(self, key: SessionKey) -> Session | None:
        """Let the next caller get a new session; the present one stays until it is dismissed."""
        session = self.current(key)
        if session is not None:
            self._forget(key, session.number)
            self._retired.add(session)
        return session

    def dismiss(self, session: Session) -> None:
        """End a session that was retired."""

        async def close() -> None:
            await session.client.close()

        self._spawn(close())

    async def close(self) -> None:
        """End all sessions; nothing comes in any more when this returns. A message that could not be stored
        yet is still with its router."""
        self._closed = True
        self._receiving.set()
        for timer in self._timers.values():
            timer.cancel()
        for slot in tuple(self._slots.values()):
            if not slot.attempt.done():
                slot.attempt.cancel()
                await asyncio.wait([slot.attempt])
            elif isinstance(session := slot.attempt.result(), Session):
                await session.client.close()
        for session in tuple(self._retired):
            await session.client.close()
        while running := self._tasks | self._messages:
            for task in self._messages:
                task.cancel()
            await asyncio.wait(running)
        self._slots.clear()

    # Commands

    async def send(
        self,
        user_id: int,
        server: Server,
        call: SmpCall,
        *,
        entity: str | None = None,
        is_durable: bool = False,
    ) -> Response:
        """The router's response; everything else is raised. `is_durable`: nothing of it has to be waited for,
        for the caller has done so."""
        (result,) = await self.send_many(user_id, server, [call], entity=entity, is_durable=is_durable)
        if isinstance(result, ClientError | TransportError):
            raise self._raised(server, result)
        return result

    async def send_many(
        self,
        user_id: int,
        server: Server,
        calls: Sequence[SmpCall],
        *,
        entity: str | None = None,
        is_durable: bool = False,
    ) -> list[Response | Failure]:
        """One result for each call; raises only when there is no connection."""
        session = await self._session_or_raise(self.key(user_id, server, entity), is_durable=is_durable)
        return await session.client.send_many(calls)

    async def _session_or_raise(self, key: SessionKey, *, is_durable: bool) -> Session:
        try:
            return await self.session(key, is_durable=is_durable)
        except TransportError as failure:
            raise self._raised(key.server, failure) from failure

    # What comes in

    def pause_receiving(self, reason: str) -> None:
        """Take nothing that routers send unasked until no reason to pause is left."""
        self._paused.add(reason)
        self._receiving.clear()

    def resume_receiving(self, reason: str) -> None:
        """This reason is gone."""
        self._paused.discard(reason)
        if not self._paused:
            self._receiving.set()

    async def hand_over(
        self, session: Session, messages: Sequence[tuple[bytes, MSG]], *, subscribed: bool = True
    ) -> None:
        """Messages that came as replies, and wait until they are processed, so many at a time. Where nothing
        is subscribed no other session brings them."""
        at_once, take = self.options.messages_at_once, self._bring if subscribed else self._receive
        for start in range(0, len(messages), at_once):
            await self._receiving.wait()
            part = messages[start : start + at_once]
            handed = [self._guarded(take, session, rcv_id, msg) for rcv_id, msg in part]
            if len(handed) == 1:
                await handed[0]
            else:
                await asyncio.gather(*handed)

    async def _pump(self, session: Session) -> None:
        """Hand on what comes, until the session has ended and everything is taken."""
        handing: set[asyncio.Task[None]] = set()
        session.idle.set()
        try:
            while True:
                event = await session.client.next_event()
                if session.client.events_waiting:
                    session.idle.clear()
                await self._receiving.wait()
                if self._closed:
                    return
                await self._take(session, event, handing)
                if not session.client.events_waiting:
                    session.idle.set()
        except TransportError:
            return
        finally:
            session.idle.set()

    async def _take(self, session: Session, event: SmpEvent, handing: set[asyncio.Task[None]]) -> None:
        """One event: messages are processed side by side, up to a limit, all else in its turn."""
        match event:
            case Push(rcv_id, MSG() as msg) | Late(_, rcv_id, MSG() as msg):
                if len(handing) >= self.options.messages_at_once:
                    await asyncio.wait(handing, return_when=asyncio.FIRST_COMPLETED)
                task = self._spawn(self._guarded(self._bring, session, rcv_id, msg), self._messages)
                handing.add(task)
                task.add_done_callback(handing.discard)
                if isinstance(event, Late):
                    await self._guarded(self._watcher.received, session, event)
            case Unexpected():
                session.blame("sent a response that belongs to no command")
            case _:
                if handing and isinstance(event, Push) and isinstance(event.response, ALLS):
                    await asyncio.wait(handing)
                await self._guarded(self._watcher.received, session, event)

    async def _bring(self, session: Session, rcv_id: bytes, msg: MSG) -> None:
        """Process a message, unless its session has ended and another has taken its place: the router gives
        the new one all that was not acknowledged, and what waited here since may be out of date."""
        current = self.current(session.key)
        if session.client.closed_because is None or current is None or current is session:
            await self._receive(session, rcv_id, msg)

    async def _guarded(self, take: Callable[[*Ts], Awaitable[None]], *what: *Ts) -> None:
        """A bug in one message must not stop those behind it."""
        try:
            await take(*what)
        except Exception:
            log.exception("processing what a router sent failed")

    def _spawn(
        self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]] | None = None
    ) -> asyncio.Task[None]:
        tasks = self._tasks if among is None else among
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    # Keeping circuits apart

    def _onion_network(self, key: SessionKey) -> Network | None:
        network = self.options.client.onion_network
        return None if network is None else self._network(key, network)

    def _network(self, key: SessionKey, network: Network) -> Network:
        if not isinstance(network, SocksNetwork):
            return network
        return network.isolated(circuit_name(key, self.options.mode, self._started_at), "")


def circuit_name(key: SessionKey, mode: SessionMode, started_at: float) -> str:
    """The user name for a SOCKS proxy: equal for sessions that may share a circuit, and no others;
    it reveals nothing else."""
    name = str(key.user_id)
    if mode is not SessionMode.USER:
        name += f":{started_at}"
    if mode in (SessionMode.SERVER, SessionMode.ENTITY):
        name += f"@{b64(key.server.key_hash)}@{hosts_text(key.server.hosts)}:{key.server.port}"
    if mode is SessionMode.ENTITY:
        name += "/" + (key.entity or "")
    return b64(sha256(name.encode()).digest())
