"""A client of a router that was started."""

from __future__ import annotations

from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.wire.addresses import Host, Server
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.text import unb64
from tests.support.router.services import new_service
from tests.support.serving.commands import StartedRouter

CREDENTIALS = new_service()


async def connected(router: StartedRouter) -> SmpClient:
    key_hash = unb64(str(router.status["fingerprint"]))
    server = Server((Host("127.0.0.1"),), str(router.status["ports"][0]), key_hash)
    return await SmpClient.connect(server, SmpOptions(service=(ServiceRole.MESSAGING, CREDENTIALS)))
