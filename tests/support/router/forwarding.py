"""Both boxes of a forwarded command, made and opened by hand: as its sender, and as a proxy."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from blindpost.crypto.boxes import BoxKey, nonce_of, reversed_nonce
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.batch import pack, unpack
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.smp.commands import PFWD, RFWD, Command
from blindpost.wire.smp.messages import (
    ForwardedTransmission,
    read_forwarded_response,
    write_forwarded_transmission,
)
from blindpost.wire.smp.responses import PKEY, PRES, RRES, Response
from blindpost.wire.smp.transmissions import Received, parse_response
from blindpost.wire.smp.versions import FORWARDED_PADDED_SIZE, forwarded_layout
from tests.support.router.lines import Line, Said, open_line_as_proxy
from tests.support.router.routers import RunningRouter, new_key
from tests.support.wire.speaking import Speaker

ROOMY = 1 << 15


@dataclass
class Sender:
    """One command on its way through a proxy to the relay with the session."""

    session_id: bytes
    relay_key: PublicKey
    version: int = 20
    corr_id: bytes = field(default_factory=lambda: os.urandom(24))
    command_key: PrivateKey = field(default_factory=lambda: new_key(Algorithm.X25519))

    @classmethod
    def through(cls, pkey: PKEY, version: int = 20) -> Sender:
        return cls(pkey.session_id, pkey.cert_key.signed_key.key, version)

    @property
    def secret(self) -> BoxKey:
        return BoxKey.agreed(self.command_key, self.relay_key)

    def transmission(
        self, command: Command | bytes, entity_id: bytes = b"", key: PrivateKey | None = None
    ) -> Writer:
        speaker = Speaker(self.version, forwarded_layout(self.version, self.session_id), self.relay_key)
        return speaker.spoken(command, entity_id, key, self.corr_id)

    def sealed(self, *transmissions: Writer) -> bytes:
        """The inner box of a batch of these; of an empty batch if there are none."""
        content = b"\0"
        if transmissions:
            (payload,) = pack(transmissions, ROOMY).payloads
            content = payload.done()
        return bytes(self.secret.seal_padded(nonce_of(self.corr_id), content, FORWARDED_PADDED_SIZE))

    def pfwd(self, *transmissions: Writer) -> Said:
        command = PFWD(self.version, self.command_key.public, self.sealed(*transmissions))
        return Said(command, self.session_id, corr_id=self.corr_id)

    def opened(self, sealed: bytes | memoryview) -> Received:
        """What the relay says to the sender."""
        content = self.secret.open_padded(reversed_nonce(nonce_of(self.corr_id)), sealed)
        (transmission,) = unpack(Reader(content))
        layout = forwarded_layout(self.version, self.session_id)
        received = parse_response(transmission, layout, self.version)
        assert isinstance(received, Received), received
        return received


class ProxyLine:
    """A connection to a relay that acts as a proxy does."""

    def __init__(self, line: Line) -> None:
        self.line = line
        agreed = line.stream.session.agreed
        assert agreed.own_key is not None
        assert agreed.peer_key is not None
        self.session_id, self.relay_key = agreed.session_id, agreed.peer_key
        self.box = BoxKey.agreed(agreed.own_key, agreed.peer_key)

    @classmethod
    async def open(cls, running: RunningRouter) -> ProxyLine:
        return cls(await open_line_as_proxy(running))

    def sender(self, version: int = 20) -> Sender:
        return Sender(self.session_id, self.relay_key, version)

    async def forward(self, sender: Sender, *transmissions: Writer) -> Response:
        """RFWD with what a PFWD of this sender would hold; the response, opened if it is RRES."""
        content = ForwardedTransmission(
            sender.corr_id, sender.version, sender.command_key.public, sender.sealed(*transmissions)
        )
        return await self.forward_raw(encode(content, write_forwarded_transmission))

    async def forward_raw(self, content: bytes) -> Response:
        corr_id = os.urandom(24)
        reply = await self.line.ask(RFWD(self.box.seal(nonce_of(corr_id), content)), corr_id=corr_id)
        if not isinstance(reply, RRES):
            return reply
        opened = self.box.open(reversed_nonce(nonce_of(corr_id)), reply.enc_forward_response)
        return PRES(decode_whole(opened, read_forwarded_response).enc_response)
