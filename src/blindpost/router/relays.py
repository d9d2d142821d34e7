"""The proxy's half of proxying: one connection to each relay, shared by all senders.

Everything here takes time and may fail, so that it happens outside the engine: a decision asks for it,
and its result comes back as an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

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
from blindpost.wire.smp.versions import PROXIED_VERSIONS, PROXY_VERSION, SMP_VERSIONS

FAILURE_REMEMBERED_S = 30.0
"""How long a relay that could not be reached is not tried again."""
RELAYS_MAX = 1000
"""How many relays a proxy is connected to at once; the one used longest ago makes room."""
_TEXT_MAX = 255

Answered = Callable[[RelayEffect, Response], None]


@dataclass(slots=True)
class _Relay:
    """A relay: the attempt to connect to it, and its session once that succeeded."""

    opening: asyncio.Task[_Session]
    failed_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Session:
    client: SmpClient
    box: BoxKey
    pkey: PKEY


class Relays:
    """All relays of one proxy."""

    def __init__(self, options: SmpOptions, entropy: Entropy, answered: Answered) -> None:
        self._options = replace(options, proxy=True)
        self._entropy = entropy
        self._answered = answered
        self._relays: dict[Server, _Relay] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def perform(self, effect: RelayEffect) -> None:
        """Do what a decision asked for; the answer comes later, in whatever order."""
        task = asyncio.get_running_loop().create_task(self._perform(effect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is under way and leave all relays."""
        for task in (*self._tasks, *(relay.opening for relay in self._relays.values())):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(relay.opening for relay in self._relays.values()), return_exceptions=True)
        await asyncio.gather(*(session.client.close() for session in self._sessions.values()))
        self._relays.clear()
        self._sessions.clear()

    async def _perform(self, effect: RelayEffect) -> None:
        try:
            match effect:
                case OpenRelay():
                    response: Response = (await self._session(effect.relay)).pkey
                case Forward():
                    response = await self._forward(effect)
        except (ClientError, errors.TransportError, WireError, OSError) as error:
            response = ERR(proxy_error(error))
        self._answered(effect, response)

    async def _session(self, server: Server) -> _Session:
        """The session with a relay, whichever request opens it; a failure is remembered for a while."""
        now = asyncio.get_running_loop().time()
        relay = self._relays.get(server)
        if (
            relay is not None
            and relay.failed_at is not None
            and now - relay.failed_at >= FAILURE_REMEMBERED_S
        ):
            relay = None
        if relay is None:
            relay = self._relays[server] = _Relay(_started(self._open(server)))
            self._make_room()
        try:
            return await asyncio.shield(relay.opening)
        except (ClientError, errors.TransportError, WireError, OSError):
            if relay.failed_at is None:
                relay.failed_at = asyncio.get_running_loop().time()
            raise

    async def _open(self, server: Server) -> _Session:
        client = await SmpClient.connect(server, self._options)
        try:
            session = _described(client)
        except errors.TransportError:
            await client.close()
            raise
        self._sessions[session.pkey.session_id] = session
        _started(self._forget_when_closed(server, session))
        return session

    async def _forget_when_closed(self, server: Server, session: _Session) -> None:
        await session.client.wait_closed()
        self._sessions.pop(session.pkey.session_id, None)
        relay = self._relays.get(server)
        if relay is not None and relay.opening.done() and not relay.opening.cancelled():
            opened = relay.opening.exception() is None and relay.opening.result() is session
            if opened:
                del self._relays[server]

    def _make_room(self) -> None:
        if len(self._relays) > RELAYS_MAX:
            oldest = next(iter(self._relays))
            relay = self._relays.pop(oldest)
            relay.opening.cancel()

    async def _forward(self, effect: Forward) -> Response:
        session = self._sessions.get(effect.session_id)
        if session is None:
            return ERR(PROXY(ProxyCode.NO_SESSION))
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


def _started(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.get_running_loop().create_task(work)
    # A failure is told to whoever asked for the session; nobody need have waited for it.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def _described(client: SmpClient) -> _Session:
    """What a sender must know of a relay, from what the relay proved to us."""
    agreement = client.agreement
    if agreement.version < PROXY_VERSION:
        raise errors.HandshakeVersionError("the relay is too old to be reached through a proxy")
    proof, own, peer = agreement.router_proof, agreement.own_key, agreement.peer_key
    if proof is None or own is None or peer is None or agreement.offered is None:
        raise RelayKeyError
    common = agreement.offered.common(SMP_VERSIONS)
    versions = None if common is None else common.common(PROXIED_VERSIONS)
    if versions is None:
        raise errors.HandshakeVersionError("the relay is too old to be reached through a proxy")
    return _Session(client, BoxKey.agreed(own, peer), PKEY(agreement.session_id, versions, proof))


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
