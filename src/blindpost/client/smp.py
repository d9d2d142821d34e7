"""A client of message routers."""

from __future__ import annotations

from blindpost.client.connecting import client_limits, connect_any
from blindpost.client.connection import AnyClient
from blindpost.client.dialects import SmpDialect
from blindpost.client.hosts import SMP_PORT, places
from blindpost.client.options import DEFAULT_SMP, SmpOptions
from blindpost.transport.plan import SessionPlan
from blindpost.transport.plans import SMP_ALPN, smp_client_plan
from blindpost.wire.addresses import Server
from blindpost.wire.smp.commands import Command
from blindpost.wire.smp.responses import Response
from blindpost.wire.smp.versions import SMP_VERSIONS


class SmpClient(AnyClient[Command, Response]):
    """One connection to one message router."""

    @classmethod
    async def connect(cls, server: Server, options: SmpOptions = DEFAULT_SMP) -> SmpClient:
        """Connect to the first host that can be reached and proves the identity that `server` names."""

        def plan(alpn: bytes) -> SessionPlan:
            return smp_client_plan(
                server.key_hash,
                versions=options.versions or SMP_VERSIONS,
                alpn=alpn,
                proxy=options.proxy,
                service=options.service,
                offer_key=options.offer_key,
                limits=client_limits(options.timing.limits),
                now=options.now,
                entropy=options.entropy,
            )

        found = places(server, options, SMP_PORT, SMP_ALPN)
        return await connect_any(found, server.key_hash, options, plan, lambda: cls(SmpDialect, options))
