"""A notification router of few words: real TLS, handshake and codecs, answers that the test dictates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from blindpost.client.ntf import NtfClient
from blindpost.client.options import Options
from blindpost.testing.network import MemoryNetwork
from blindpost.transport.session import Handler, Session
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.responses import Response
from blindpost.wire.ntf.transmissions import Request, parse_requests
from blindpost.wire.ntf.versions import NTF_VERSIONS, connection_layout
from blindpost.wire.primitives import Reader
from blindpost.wire.transmission import Layout
from blindpost.wire.transmissions import Refused, response_transmission
from blindpost.wire.versions import VersionRange
from tests.support.client.scripted_router import listening, server_at
from tests.support.transport.sessions import at_now, ntf_router


class ScriptedNtf(Handler):
    """Records what devices send, and answers with whatever `answer` returns."""

    def __init__(self, answer: Callable[[Request], Response | None]) -> None:
        self.answer = answer
        self.payloads: list[bytes] = []
        self.blocks: list[list[Request | Refused]] = []
        self.changed = asyncio.Event()
        self.session: Session

    @property
    def version(self) -> int:
        return self.session.agreed.version

    @property
    def layout(self) -> Layout:
        return connection_layout(self.version, self.session.agreed.session_id)

    @property
    def requests(self) -> list[Request]:
        return [request for block in self.blocks for request in block if isinstance(request, Request)]

    def established(self, session: Session) -> None:
        self.session = session

    def block_received(self, session: Session, payload: bytes) -> None:
        self.payloads.append(bytes(payload))
        block = parse_requests(Reader(payload), self.layout, self.version)
        self.blocks.append(block)
        self.changed.set()
        self.say(
            *(
                (request.corr_id, request.entity_id, response)
                for request in block
                if isinstance(request, Request) and (response := self.answer(request)) is not None
            )
        )

    def say(self, *answers: tuple[bytes, bytes, Response]) -> None:
        written = [response_transmission(self.layout, self.version, *answer) for answer in answers]
        for payload in pack_transmissions(written, self.version).payloads:
            self.session.send_payload(payload)

    async def until_requests(self, count: int) -> list[Request]:
        while len(self.requests) < count:
            self.changed.clear()
            await self.changed.wait()
        return self.requests


@asynccontextmanager
async def ntf_pair(
    answer: Callable[[Request], Response | None] = lambda request: None,
    *,
    versions: VersionRange = NTF_VERSIONS,
    **options: Any,
) -> AsyncIterator[tuple[NtfClient, ScriptedNtf]]:
    """A device connected to a scripted notification router over a network in memory."""
    network = MemoryNetwork()
    router = ScriptedNtf(answer)
    chosen = Options(network=network, now=at_now, **options)
    async with (
        listening(router, ntf_router(versions=versions), network) as port,
        await NtfClient.connect(server_at(port), chosen) as client,
    ):
        yield client, router
