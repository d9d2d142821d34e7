"""The proxy's half of proxying: one connection to each relay, shared by all senders.

Everything here takes time and may fail, so that it happens outside the engine: a decision asks for it,
and its result comes back as an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from blindpost.client.errors import (
    ClientError,
    GarbledResponseError,
    NoHostError,
    RefusedError,
    ResponseTimeoutError,
    UnexpectedResponseError,
    error_text,
)
from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, reversed_nonce
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.router.turn import Forward, OpenRelay, RelayEffect
from blindpost.transport import errors
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
    TransportError,
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

FAILURE_REMEMBERED_S = 30.0
"""How long a relay that could not be reached is not tried again."""
RELAYS_MAX = 1000
"""How many relays a proxy is connected to at once; the one used longest ago makes room."""
_TEXT_MAX = 255

T = TypeVar("T")
log = logging.getLogger(__name__)

Answered = Callable[[RelayEffect, Response], None]
FAILURES = (ClientError, errors.TransportError, WireError, OSError)
"""What may go wrong with a relay."""


@dataclass(slots=True)
class _Relay:
    """A relay: the attempt to connect to it, its session once that succeeded, or when it failed."""

    opening: asyncio.Task[_Session]
    failed_at: float | None = None

    @property
    def session(self) -> _Session | None:
        opening = self.opening
        opened = opening.done() and not opening.cancelled() and opening.exception() is None
        return opening.result() if opened else None


@dataclass(frozen=True, slots=True)
class _Session:
    server: Server
    client: SmpClient
    box: BoxKey
    pkey: PKEY


class Relays:
    """All relays of one proxy."""

    def __init__(
        self, options: SmpOptions, entropy: Entropy, answered: Answered, relays_max: int = RELAYS_MAX
    ) -> None:
        self._options = replace(options, proxy=True)
        self._entropy = entropy
        self._answered = answered
        self._relays_max = relays_max
        self._relays: dict[Server, _Relay] = {}
        """The one used longest ago first."""
        self._sessions: dict[bytes, _Session] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._attending: set[asyncio.Task[None]] = set()
        """Those of the tasks that end when a connection does."""

    def __len__(self) -> int:
        """How many relays are connected."""
        return len(self._sessions)

    def perform(self, effect: RelayEffect) -> None:
        """Do what a decision asked for; the answer comes later, in whatever order."""
        self._start(self._perform(effect))

    async def close(self) -> None:
        """Give up what is under way, leave all relays, and wait until the last socket is gone."""
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
        # A failure is told to whoever asked for the session; nobody need have waited for it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _perform(self, effect: RelayEffect) -> None:
        try:
            match effect:
                case OpenRelay():
                    response: Response = (await self._session(effect.relay)).pkey
                case Forward():
                    response = await self._forward(effect)
        except FAILURES as error:
            response = ERR(proxy_error(error))
        except Exception:
            log.exception("asking a relay failed")
            response = ERR(Code.INTERNAL)
        self._answered(effect, response)

    async def _session(self, server: Server) -> _Session:
        """The session with a relay, whichever request opens it; a failure is remembered for a while."""
        now = asyncio.get_running_loop().time()
        relay = self._relays.pop(server, None)
        if (
            relay is not None
            and relay.failed_at is not None
            and now - relay.failed_at >= FAILURE_REMEMBERED_S
        ):
            relay = None
        if relay is None:
            relay = _Relay(self._start(self._open(server)))
        self._relays[server] = relay
        self._make_room()
        try:
            return await asyncio.shield(relay.opening)
        except FAILURES:
            if relay.failed_at is None:
                relay.failed_at = asyncio.get_running_loop().time()
            raise
        except asyncio.CancelledError:
            if not relay.opening.cancelled() or self._is_cancelled():
                raise
            raise errors.ConnectError("too many relays: this one had to make room") from None

    @staticmethod
    def _is_cancelled() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

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
        """Take what a relay says unasked, or too late, so that it does not pile up, until the end."""
        with contextlib.suppress(errors.TransportError):
            while True:
                await session.client.next_event()
        del self._sessions[session.pkey.session_id]
        relay = self._relays.get(session.server)
        if relay is not None and relay.session is session:
            del self._relays[session.server]

    def _make_room(self) -> None:
        while len(self._relays) > self._relays_max:
            relay = self._relays.pop(next(iter(self._relays)))
            if relay.session is not None:
                self._start(relay.session.client.close())
            else:
                relay.opening.cancel()

    async def _forward(self, effect: Forward) -> Response:
        session = self._sessions.get(effect.session_id)
        if session is None:
            return ERR(PROXY(ProxyCode.NO_SESSION))
        relay = self._relays.pop(session.server, None)
        if relay is not None:
            self._relays[session.server] = relay
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
    """What a sender must know of a relay, from what the relay proved to us."""
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

    wire = TransportError.NO_AUTH
    default = "the relay sent no session key"


def proxy_error(error: Exception) -> SMPError:
    """What a sender is told when its proxy failed to reach the relay, or the relay refused the proxy."""
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
        case NoHostError():
            return BrokerCode.HOST
        case errors.TransportError() if error.wire is not None:
            return TRANSPORT(error.wire)
        case errors.TransportError():
            return NETWORK()
        case _:
            return RESPONSE(str(error)[:_TEXT_MAX])
