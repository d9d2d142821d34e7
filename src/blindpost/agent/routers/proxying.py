"""Sending to the queues of others: directly, or through a proxy so that their router does not see us.

Whether a proxy is used depends on the policy, on whether the router is one of our own, and on whether the
network already hides where we are. Only when the proxy cannot reach the router as such, and the policy lets
it, the command is sent directly instead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from enum import Enum

from blindpost.agent.failures import Kind, kind_of
from blindpost.agent.routers.sessions import Session, SessionKey, Sessions, SmpCall
from blindpost.client.calls import Failure
from blindpost.client.errors import ClientError, ProxyFailedError
from blindpost.client.relay import Relay
from blindpost.client.socks import SocksNetwork
from blindpost.transport.errors import ClosedError, TransportError
from blindpost.wire.addresses import HostKind, RouterAddress, Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.smp.errors import PROXY, ProxyCode
from blindpost.wire.smp.responses import Response


class ProxyPolicy(Enum):
    """When to send through a proxy. A router is known if one of its hosts is configured for the user."""

    ALWAYS = "always"
    UNKNOWN = "unknown"
    UNPROTECTED = "unprotected"
    """To unknown routers, unless the network hides our address from them."""
    NEVER = "never"


class Fallback(Enum):
    """When to send directly although the policy wants a proxy, because the proxy cannot reach the router."""

    ALLOW = "allow"
    PROTECTED = "protected"
    PROHIBIT = "prohibit"


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """What can be chosen about proxies."""

    policy: ProxyPolicy = ProxyPolicy.NEVER
    fallback: Fallback = Fallback.ALLOW


@dataclass(frozen=True, slots=True)
class Answered:
    """A response, and the proxy it came through."""

    response: Response
    proxy: Server | None = None


class QueueSender:
    """Sends SEND, SKEY, LKEY, LGET and RSLV as the policy says."""

    def __init__(
        self,
        sessions: Sessions,
        routers_of: Callable[[int], Sequence[RouterAddress]],
        options: ProxyOptions | None = None,
        *,
        raised: Callable[[Server, Failure], Exception] = lambda _, failure: failure,
        chance: random.Random | None = None,
    ) -> None:
        self._sessions = sessions
        self._routers_of = routers_of
        self._options = options or ProxyOptions()
        self._raised = raised
        self._chance = chance or random.SystemRandom()
        self._proxies: dict[SessionKey, RouterAddress] = {}

    async def send_to_queue(
        self,
        user_id: int,
        server: Server,
        call: SmpCall,
        *,
        entity: str | None = None,
        is_durable: bool = False,
    ) -> Answered:
        """The response to a sender's command, all else is raised; `is_durable` as in `Sessions.send`."""
        if not self._wants_proxy(user_id, server) or not self._routers_of(user_id):
            response = await self._sessions.send(user_id, server, call, entity=entity, is_durable=is_durable)
            return Answered(response)
        try:
            return await self._through_proxy(self._sessions.key(user_id, server, entity), call)
        except (ClientError, TransportError) as failure:
            if kind_of(failure) is not Kind.HOST or not self._may_fall_back(server):
                raise self._raised(server, failure) from failure
        return Answered(await self._sessions.send(user_id, server, call, entity=entity))

    def _wants_proxy(self, user_id: int, server: Server) -> bool:
        match self._options.policy:
            case ProxyPolicy.ALWAYS:
                return True
            case ProxyPolicy.UNKNOWN:
                return not self._is_known(user_id, server)
            case ProxyPolicy.UNPROTECTED:
                return not self._is_known(user_id, server) and not self._is_protected(server)
            case ProxyPolicy.NEVER:
                return False

    def _may_fall_back(self, server: Server) -> bool:
        fallback = self._options.fallback
        return fallback is Fallback.ALLOW or (fallback is Fallback.PROTECTED and self._is_protected(server))

    def _is_known(self, user_id: int, server: Server) -> bool:
        known = {host for address in self._routers_of(user_id) for host in address.server.hosts}
        return not known.isdisjoint(server.hosts)

    def _is_protected(self, server: Server) -> bool:
        """Whether a direct connection would not show where we are."""
        client = self._sessions.options.client
        onion = any(host.kind is HostKind.ONION for host in server.hosts)
        return isinstance(client.network, SocksNetwork) or (onion and client.onion_network is not None)

    async def _through_proxy(self, destination: SessionKey, call: SmpCall) -> Answered:
        proxy = self._proxy_for(destination)
        key = self._sessions.key(destination.user_id, proxy.server, destination.entity)
        session = await self._sessions.session(key)
        for last in (False, True):
            relay = await self._relay(session, destination.server, proxy.password)
            try:
                response = await relay.send(call.command, call.entity_id, call.key)
            except ProxyFailedError as failure:
                if last or failure.error != PROXY(ProxyCode.NO_SESSION):
                    raise
                session.relays.pop(destination.server, None)
            else:
                return Answered(response, proxy.server)
        raise AssertionError("the second attempt answers or raises")

    def _proxy_for(self, destination: SessionKey) -> RouterAddress:
        """The same proxy for the same destination, and if possible another router than that one."""
        ours = self._routers_of(destination.user_id)
        chosen = self._proxies.get(destination)
        if chosen is None or chosen not in ours:
            theirs = set(destination.server.hosts)
            others = [address for address in ours if theirs.isdisjoint(address.server.hosts)]
            chosen = self._proxies[destination] = self._chance.choice(others or list(ours))
        return chosen

    async def _relay(self, session: Session, server: Server, password: bytes | None) -> Relay:
        """The session of this proxy with that router, opened once for concurrent callers."""
        opening = session.relays.get(server)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(_opened(session, server, password))
            session.relays[server] = opening
        await asyncio.wait([opening])
        if opening.cancelled():
            raise ClosedError
        result = opening.result()
        if not isinstance(result, Relay):
            if session.relays.get(server) is opening:
                del session.relays[server]
            raise result
        return result


async def _opened(session: Session, server: Server, password: bytes | None) -> Relay | Failure:
    try:
        return await Relay.open(session.client, server, password)
    except (ClientError, TransportError) as failure:
        return failure
