"""Connections to a notification router that say exactly what a test wants said."""

from __future__ import annotations

from collections.abc import Sequence

from blindpost.crypto.keys import PrivateKey
from blindpost.transport.plans import ntf_client_plan
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.commands import Command
from blindpost.wire.ntf.responses import Response
from blindpost.wire.ntf.transmissions import Received, parse_responses
from blindpost.wire.ntf.versions import ALPN, MAX_VERSION, connection_layout
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.versions import VersionRange
from tests.support.ntf.routers import RunningNtf
from tests.support.transport.streams import BlockStream, connect
from tests.support.wire.speaking import Speaker


class NtfLine(Speaker):
    """One connection; replies wait in the order in which they came."""

    def __init__(self, stream: BlockStream) -> None:
        agreed = stream.session.agreed
        layout = connection_layout(agreed.version, agreed.session_id)
        super().__init__(agreed.version, layout, agreed.peer_key)
        self.stream = stream
        self._heard: list[Received] = []

    def send(self, *transmissions: Writer) -> None:
        packed = pack_transmissions(transmissions, self.version)
        assert not packed.oversize
        for payload in packed.payloads:
            self.stream.send_payload(payload)

    async def hear(self) -> Received:
        """The next reply."""
        while not self._heard:
            payload = await self.stream.read_block()
            for received in parse_responses(Reader(payload), self.layout, self.version):
                assert isinstance(received, Received), "the router sent something unreadable"
                self._heard.append(received)
        return self._heard.pop(0)

    async def ask(
        self, command: Command | bytes, entity_id: bytes = b"", key: PrivateKey | None = None
    ) -> Response:
        self.send(self.spoken(command, entity_id, key))
        return (await self.hear()).response

    async def hear_many(self, count: int) -> Sequence[Received]:
        return [await self.hear() for _ in range(count)]


async def open_ntf_line(
    running: RunningNtf, version: int = MAX_VERSION, *, alpn: bytes | None = ALPN
) -> NtfLine:
    plan = ntf_client_plan(running.server.key_hash, versions=VersionRange(1, version), alpn=alpn)
    return NtfLine(await connect(plan, "127.0.0.1", int(running.server.port), running.network))
