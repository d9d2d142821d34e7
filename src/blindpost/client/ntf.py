"""A client of notification routers."""

from __future__ import annotations

from blindpost.client.connecting import client_limits, connect_any
from blindpost.client.connection import AnyClient
from blindpost.client.dialects import NtfDialect
from blindpost.client.hosts import NTF_PORT, places
from blindpost.client.options import DEFAULT, Options
from blindpost.transport.plan import SessionPlan
from blindpost.transport.plans import ntf_client_plan
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.commands import Command
from blindpost.wire.ntf.responses import Response
from blindpost.wire.ntf.versions import ALPN, NTF_VERSIONS


class NtfClient(AnyClient[Command, Response]):
    """One connection to one notification router."""

    @classmethod
    async def connect(cls, server: Server, options: Options = DEFAULT) -> NtfClient:
        """Connect to the first host that can be reached and proves the identity that `server` names."""

        def plan(alpn: bytes) -> SessionPlan:
            return ntf_client_plan(
                server.key_hash,
                versions=options.versions or NTF_VERSIONS,
                alpn=alpn,
                limits=client_limits(options.timing.limits),
                now=options.now,
            )

        found = places(server, options, NTF_PORT, ALPN)
        return await connect_any(found, server.key_hash, options, plan, lambda: cls(NtfDialect, options))
