"""Connections to notification routers: one for each, made when needed, kept while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from blindpost.agent.errors import AgentError, network_error
from blindpost.agent.failures import Kind
from blindpost.agent.notifications.errors import NtfError
from blindpost.agent.routers.sessions import SessionKey, SessionMode, circuit_name
from blindpost.agent.work.ground import Ground
from blindpost.client.calls import Call, Failure
from blindpost.client.errors import ClientError, RefusedError
from blindpost.client.ntf import NtfClient
from blindpost.client.options import Options
from blindpost.client.socks import SocksNetwork
from blindpost.transport.errors import TransportError, UnknownCaError
from blindpost.transport.network import Network
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.commands import Command
from blindpost.wire.ntf.responses import Response

NOBODY = 0
"""Notification routers are asked for the device, not for one of its users."""


def ntf_error(server: Server, failure: Failure) -> AgentError:
    """The failure of a call to a notification router as applications know it.

    A router whose identity does not match its address never will, so retrying is pointless.
    """
    if isinstance(failure, RefusedError):
        return NtfError(server, failure)
    error = network_error(server, failure)
    if isinstance(failure, UnknownCaError):
        error.kind = Kind.PERMANENT
    return error


class NtfRouters:
    """All of them."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._clients: dict[Server, NtfClient] = {}
        self._started_at = ground.now()

    async def send(self, server: Server, call: Call[Command]) -> Response:
        """The router's response; everything else is raised."""
        (result,) = await self.send_many(server, [call])
        if isinstance(result, AgentError):
            raise result
        return result

    async def send_many(self, server: Server, calls: Sequence[Call[Command]]) -> list[Response | AgentError]:
        """One result for each call; raises only when there is no connection."""
        client = await self._client(server)
        return [
            ntf_error(server, result) if isinstance(result, ClientError | TransportError) else result
            for result in await client.send_many(calls)
        ]

    async def _client(self, server: Server) -> NtfClient:
        async with self._ground.locked(("notification router", server)):
            client = self._clients.get(server)
            if client is None or client.closed_because is not None:
                try:
                    client = await NtfClient.connect(server, self._options(server))
                except TransportError as failure:
                    raise ntf_error(server, failure) from failure
                self._clients[server] = client
            return client

    def _options(self, server: Server) -> Options:
        """Those of message routers, on a separate circuit where there are circuits."""
        options = self._ground.config.sessions.client
        name = circuit_name(SessionKey(NOBODY, server), SessionMode.SERVER, self._started_at)

        def apart(network: Network) -> Network:
            return network.isolated(name, "") if isinstance(network, SocksNetwork) else network

        onion = options.onion_network
        return replace(
            options,
            network=apart(options.network),
            onion_network=None if onion is None else apart(onion),
            versions=None,
            service=None,
        )

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients.values()))
