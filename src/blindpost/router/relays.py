"""The proxy's half of proxying: one connection to each relay, shared by all senders.

All of this takes time and may fail, so it happens outside the engine: a decision asks for it, and the
result comes back as an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from blindpost.client.errors import (
    ClientError,
    GarbledResponseError,
    NoHostError,
    RefusedError,
    ResponseTimeoutError,
    TalkativeRouterError,
    UnexpectedResponseError,
    error_text,
)
from blindpost.client.gate import CrowdedError, Gate
from blindpost.client.hosts import SMP_PORT, places
from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, reversed_nonce
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.router.state import RouterClient
from blindpost.router.turn import Forward, OpenRelay, RelayEffect
from blindpost.transport import errors
from blindpost.transport.plans import SMP_ALPN
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import decode_whole, encode
from blindpost.wire.smp.commands import RFWD
from blindpost.wire.smp.errors import (
    BROKER,
    NETWORK,
    PROTOCOL,
    PROXY,
    RESPONSE,
    TRANSPORT,
    UNEXPECTED,
    BrokerCode,
    BrokerError,
    Code,
    ProxyCode,
    SMPError,
    TransportCode,
)
from blindpost.wire.smp.messages import (
    ForwardedTransmission,
    read_forwarded_response,
    write_forwarded_transmission,
)
from blindpost.wire.smp.responses import ERR, PKEY, PRES, RRES, Response
from blindpost.wire.smp.values import NONCE_SIZE
from blindpost.wire.smp.versions import PROXIED_VERSIONS, PROXY_VERSION
from blindpost.wire.versions import VersionRange

RELAYS_MAX = 1000
"""How many relays a proxy may be connected to at once."""
RELAYS_OF_ONE = 100
"""How many relays one address may be the only user of."""
OPENING_OF_ONE = 8
"""How many sessions may be in the process of opening for one address."""
IDLE_S = 300.0
"""A session unused for this long makes room for others."""
UNASKED_MAX = 100
"""Relays have nothing to say to a proxy but answers: one that says more than this is left."""
_TEXT_MAX = 255

T = TypeVar("T")
log = logging.getLogger(__name__)

Answered = Callable[[RelayEffect, Response], None]
FAILURES = (ClientError, errors.TransportError, WireError, OSError)
"""What may go wrong with a relay."""


@dataclass(slots=True)
class _Relay:
    """A relay: the attempt to connect to it, its session once that succeeded, and who uses it."""

    opening: asyncio.Task[_Session]
    askers: set[Hashable]
    """At most two: all that matters is whether there is only one."""
    used_at: float
    under_way: int = 0

    @property
    def session(self) -> _Session | None:
        opening = self.opening
        opened = opening.done() and not opening.cancelled() and opening.exception() is None
        return opening.result() if opened else None

    def use(self, asker: Hashable, now: float) -> None:
        self.used_at = now
        if len(self.askers) == 1:
            self.askers.add(asker)

    def is_only_of(self, asker: Hashable) -> bool:
        return len(self.askers) == 1 and asker in self.askers


@dataclass(frozen=True, slots=True)
class _Session:
    server: Server
    client: SmpClient
    box: BoxKey
    pkey: PKEY


class Relays:
    """All relays of one proxy."""

    def __init__(
        self,
        options: SmpOptions,
        entropy: Entropy,
        answered: Answered,
        asker: Callable[[RouterClient], Hashable],
        relays_max: int = RELAYS_MAX,
    ) -> None:
        self._gate = options.gate or Gate()
        bounds = replace(options.bounds, unasked=UNASKED_MAX)
        self._options = replace(options, proxy=True, gate=self._gate, bounds=bounds)
        self._asker = asker
        """Whose account a connection's requests are charged to."""
        self._entropy = entropy
        self._answered = answered
        self._relays_max = relays_max
        self._relays: dict[Server, _Relay] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._attending: set[asyncio.Task[None]] = set()
        """The tasks that end when a connection does."""

    def __len__(self) -> int:
        """How many relays are connected."""
        return len(self._sessions)

    def perform(self, effect: RelayEffect) -> None:
        """Do what a decision asked for; the answer comes later, in whatever order."""
        self._start(self._perform(effect))

    async def close(self) -> None:
        """Abandon work in progress, leave all relays, and wait until the last socket is closed."""
        for task in self._tasks - self._attending:
            task.cancel()
        await asyncio.gather(*(self._tasks - self._attending), return_exceptions=True)
        await asyncio.gather(*(session.client.close() for session in tuple(self._sessions.values())))
        await asyncio.gather(*self._attending)
        self._relays.clear()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A failure is reported to the client that asked for the session; the task itself may go unawaited.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _perform(self, effect: RelayEffect) -> None:
        try:
            match effect:
                case OpenRelay():
                    response: Response = (await self._session(effect.relay, self._asker(effect.client))).pkey
                case Forward():
                    response = await self._forward(effect)
        except FAILURES as error:
            response = ERR(proxy_error(error))
        except Exception:
            log.exception("asking a relay failed")
            response = ERR(Code.INTERNAL)
        self._answered(effect, response)

    async def _session(self, server: Server, asker: Hashable) -> _Session:
        """The session with a relay, whichever request opens it."""
        now = asyncio.get_running_loop().time()
        relay = self._relays.get(server)
        if relay is None:
            self._make_room(asker, now)
            relay = self._relays[server] = _Relay(self._start(self._open(server)), {asker}, now)
            relay.opening.add_done_callback(lambda _: self._opened(server, relay))
        relay.use(asker, now)
        return await asyncio.shield(relay.opening)

    def _opened(self, server: Server, relay: _Relay) -> None:
        """A failed relay takes no place; the gate decides when it is tried again."""
        if relay.session is None and self._relays.get(server) is relay:
            del self._relays[server]

    async def _open(self, server: Server) -> _Session:
        client = await SmpClient.connect(server, self._options)
        try:
            session = _described(server, client)
        except errors.TransportError:
            await client.close()
            raise
        self._sessions[session.pkey.session_id] = session
        attending = self._start(self._attend(session))
        self._attending.add(attending)
        attending.add_done_callback(self._attending.discard)
        return session

    async def _attend(self, session: _Session) -> None:
        """Discard what a relay sends unasked or too late, so that it does not pile up, until the end."""
        with contextlib.suppress(errors.TransportError):
            while True:
                await session.client.next_event()
        because = session.client.closed_because
        if isinstance(because, TalkativeRouterError):
            for place in places(session.server, self._options, SMP_PORT, SMP_ALPN):
                self._gate.leave_alone(place.host, place.port, session.server.key_hash, because)
        del self._sessions[session.pkey.session_id]
        relay = self._relays.get(session.server)
        if relay is not None and relay.session is session:
            del self._relays[session.server]

    def _make_room(self, asker: Hashable, now: float) -> None:
        """Let one more relay in, or `CrowdedError`: nobody loses a session in use to somebody else's
        request, unless they hold many alone."""
        own = [server for server, relay in self._relays.items() if relay.is_only_of(asker)]
        if sum(not self._relays[server].opening.done() for server in own) >= OPENING_OF_ONE:
            raise CrowdedError
        if len(self._relays) < self._relays_max:
            if len(own) >= RELAYS_OF_ONE:
                self._leave_one(own)
            return
        idle = [server for server, relay in self._relays.items() if now - relay.used_at >= IDLE_S]
        if not (self._leave_one(idle, or_fail=False) or self._leave_one(own, or_fail=False)):
            self._leave_one(self._largest(len(own)))

    def _largest(self, own: int) -> list[Server]:
        """The relays held alone by the largest asker, if clearly more than `own`."""
        held: defaultdict[Hashable, list[Server]] = defaultdict(list)
        for server, relay in self._relays.items():
            if len(relay.askers) == 1:
                held[next(iter(relay.askers))].append(server)
        largest = max(held.values(), key=len, default=[])
        return largest if len(largest) > own + 1 else []

    def _leave_one(self, servers: Sequence[Server], *, or_fail: bool = True) -> bool:
        """Close the session that was used longest ago and does nothing now."""
        free = [
            (relay.used_at, number, session)
            for number, server in enumerate(servers)
            if not (relay := self._relays[server]).under_way and (session := relay.session) is not None
        ]
        if free:
            session = min(free)[2]
            del self._relays[session.server]
            self._start(session.client.close())
        elif or_fail:
            raise CrowdedError
        return bool(free)

    async def _forward(self, effect: Forward) -> Response:
        session = self._sessions.get(effect.session_id)
        if session is None:
            return ERR(PROXY(ProxyCode.NO_SESSION))
        relay = self._relays.get(session.server)
        if relay is None or relay.session is not session:
            return ERR(PROXY(ProxyCode.NO_SESSION))
        relay.use(self._asker(effect.client), asyncio.get_running_loop().time())
        relay.under_way += 1
        try:
            return await self._ask(session, effect)
        finally:
            relay.under_way -= 1

    async def _ask(self, session: _Session, effect: Forward) -> Response:
        command, nonce = effect.command, self._entropy(NONCE_SIZE)
        content = ForwardedTransmission(
            effect.corr_id, command.version, command.command_key, command.enc_transmission
        )
        sealed = session.box.seal(nonce, encode(content, write_forwarded_transmission))
        answer = await session.client.send(
            RFWD(sealed), corr_id=nonce, timeout_s=self._options.timing.forwarded_s
        )
        if not isinstance(answer, RRES):
            raise UnexpectedResponseError(answer)
        opened = session.box.open(reversed_nonce(nonce), answer.enc_forward_response)
        return PRES(decode_whole(opened, read_forwarded_response).enc_response)


def _described(server: Server, client: SmpClient) -> _Session:
    """What a sender must know about a relay, from what the relay proved to us."""
    agreement = client.agreement
    if agreement.version < PROXY_VERSION:
        raise errors.HandshakeVersionError("the relay is too old to be reached through a proxy")
    proof, own, peer = agreement.router_proof, agreement.own_key, agreement.peer_key
    if proof is None or own is None or peer is None or agreement.offered is None:
        raise RelayKeyError
    # The highest version in common is the one agreed, which for an old relay is lower than it offers.
    versions = VersionRange(max(agreement.offered.low, PROXIED_VERSIONS.low), agreement.version)
    return _Session(server, client, BoxKey.agreed(own, peer), PKEY(agreement.session_id, versions, proof))


class RelayKeyError(errors.TransportError):
    """The relay gave no session key, so that nothing can be encrypted to it."""

    wire = TransportCode.NO_AUTH
    default = "the relay sent no session key"


def proxy_error(error: Exception) -> SMPError:
    """What the sender gets when the proxy could not reach the relay, or the relay refused the proxy."""
    match error:
        case RefusedError():
            return PROXY(PROTOCOL(error.error))
        case CryptoError():
            return Code.CRYPTO
        case OSError():
            return Code.INTERNAL
        case _:
            return PROXY(BROKER(_broker_error(error)))


def _broker_error(error: Exception) -> BrokerError:
    match error:
        case GarbledResponseError():
            return RESPONSE(error_text(error.error)[:_TEXT_MAX])
        case UnexpectedResponseError():
            return UNEXPECTED(type(error.response).__name__)
        case ResponseTimeoutError() | errors.StageTimeoutError():
            return BrokerCode.TIMEOUT
        case NoHostError() | errors.ForbiddenHostError():
            return BrokerCode.HOST
        case errors.TransportError() if error.wire is not None:
            return TRANSPORT(error.wire)
        case errors.TransportError():
            return NETWORK()
        case _:
            return RESPONSE(str(error)[:_TEXT_MAX])
