"""Replays of the recorded proxy conversations: through our proxy to our relay, and as a proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from blindpost.crypto.boxes import BoxKey, nonce_of, reversed_nonce
from blindpost.crypto.keys import PrivateKey
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Host, Server
from blindpost.wire.batch import unpack
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, decode_whole
from blindpost.wire.smp.commands import PFWD, PRXY, RFWD, SEND, SKEY, Command
from blindpost.wire.smp.messages import read_forwarded_response, read_forwarded_transmission
from blindpost.wire.smp.responses import ERR, OK, PKEY, PRES, RRES, Response
from blindpost.wire.smp.transmissions import (
    Received,
    Request,
    parse_forwarded_request,
    parse_requests,
    parse_response,
    parse_responses,
)
from blindpost.wire.smp.versions import forwarded_layout
from tests.support.router.forwarding import ProxyLine, Sender
from tests.support.router.lines import Line, Queue, create, open_line
from tests.support.router.routers import RunningRouter, new_key, running_router
from tests.support.wire.smp_transcripts import Transcript

RECORDED_RELAY_PORT = "16224"
GREETINGS = 2


@dataclass
class Recorded:
    """A forwarded command as recorded: who made it, and what is inside."""

    key: PrivateKey
    relay_key: PublicKey
    session_id: bytes
    corr_id: bytes
    version: int

    @property
    def box(self) -> BoxKey:
        return BoxKey.agreed(self.key, self.relay_key)

    def command(self, sealed: bytes | memoryview) -> Request:
        inner = self.box.open_padded(nonce_of(self.corr_id), sealed)
        request = parse_forwarded_request(Reader(inner), self.version, self.session_id)
        assert isinstance(request, Request)
        return request

    def response(self, sealed: bytes | memoryview) -> Response:
        inner = self.box.open_padded(reversed_nonce(nonce_of(self.corr_id)), sealed)
        (transmission,) = unpack(Reader(inner))
        received = parse_response(transmission, forwarded_layout(self.version, self.session_id), self.version)
        assert isinstance(received, Received)
        return received.response


def recorded_key(transcript: Transcript, public: PublicKey) -> PrivateKey:
    (found,) = (key for key in transcript.private_keys.values() if key.public == public)
    return found


def relay_key(transcript: Transcript, name: str) -> PublicKey:
    raw = transcript.secret(name)
    assert raw is not None
    return PublicKey(Algorithm.X25519, raw)


@asynccontextmanager
async def two_routers(tmp_path: Path) -> AsyncIterator[tuple[RunningRouter, RunningRouter]]:
    network = MemoryNetwork()
    async with (
        running_router(tmp_path / "relay", network=network) as relay,
        running_router(tmp_path / "proxy", network=network) as proxy,
    ):
        yield proxy, relay


class Through:
    """Transcript 18: one sender, one proxy, one relay with the queue q."""

    def __init__(self, transcript: Transcript, line: Line, relay: RunningRouter, queue: Queue) -> None:
        self.transcript = transcript
        self.line = line
        self.relay = relay
        self.queue = queue
        self.keys = {transcript.private_keys["snd_auth"].public: new_key(Algorithm.X25519)}
        self.pkey: PKEY | None = None
        self.sender: Sender | None = None
        self.said: Recorded | None = None
        self.known_server: Server | None = None

    async def replies(self, request: Request) -> Response:
        command = request.command
        if isinstance(command, PRXY):
            self.said = None
            return await self.line.ask(PRXY(self._server(command.relay), command.basic_auth))
        assert isinstance(command, PFWD)
        assert self.pkey is not None
        self.said = Recorded(
            recorded_key(self.transcript, command.command_key),
            relay_key(self.transcript, "relay_session_x25519_pub"),
            self.transcript.id("relay_session_id"),
            request.corr_id,
            command.version,
        )
        inner = self.said.command(command.enc_transmission)
        assert inner.entity_id == self.transcript.id("q.snd_id")
        self.sender = Sender.through(self.pkey, command.version)
        said, key = self._translated(inner.command), None
        if inner.authorization:
            key = self.keys[self.transcript.private_keys["snd_auth"].public]
        transmission = self.sender.transmission(said, self.queue.sender_id, key)
        return (await self.line.ask_many([self.sender.pfwd(transmission)]))[0]

    def _server(self, recorded: Server) -> Server:
        self.known_server = self.known_server or recorded
        ours = self.relay.server
        port = ours.port if recorded.port == RECORDED_RELAY_PORT else recorded.port
        known = recorded.key_hash == self.known_server.key_hash
        return Server((Host("127.0.0.1"),), port, ours.key_hash if known else recorded.key_hash)

    def _translated(self, command: Command) -> Command:
        if isinstance(command, SKEY):
            return SKEY(self.keys[command.key].public)
        assert isinstance(command, SEND)
        return command

    def same(self, recorded: Response, ours: Response) -> None:
        match recorded, ours:
            case PKEY(), PKEY():
                assert ours.versions == recorded.versions
                assert self.pkey in (None, ours), "the same session again"
                self.pkey = ours
            case PRES(), PRES():
                assert self.said is not None
                assert self.sender is not None
                inner = self.sender.opened(ours.enc_response)
                assert inner.response == self.said.response(recorded.enc_response) == OK()
                assert (inner.corr_id, inner.entity_id) == (self.sender.corr_id, self.queue.sender_id)
            case ERR(), ERR():
                assert ours == recorded
            case _:
                raise AssertionError(f"{recorded!r} recorded, {ours!r} heard")


async def test_our_proxy_and_our_relay_answer_as_recorded(tmp_path: Path) -> None:
    transcript = Transcript("18-proxy.json")
    layout, version = transcript.layout("P")
    async with two_routers(tmp_path) as (proxy, relay):
        owner = await open_line(relay)
        queue = await create(owner)
        through = Through(transcript, await open_line(proxy), relay, queue)
        events = transcript.events[GREETINGS:]
        bodies = 0
        for asked, answered in zip(events[::2], events[1::2], strict=True):
            (request,) = parse_requests(Reader(asked.payload), layout, version)
            (received,) = parse_responses(Reader(answered.payload), layout, version)
            assert isinstance(request, Request)
            assert isinstance(received, Received)
            through.same(received.response, await through.replies(request))
            bodies += "SEND" in asked.note
        assert relay.router.store.counts()["messages"] == bodies == 1
        await owner.stream.close()
        await through.line.stream.close()


async def test_our_relay_answers_a_proxy_as_recorded(tmp_path: Path) -> None:
    transcript = Transcript("19-rfwd-as-proxy.json")
    layout, version = transcript.layout("X")
    asked, answered = transcript.events[GREETINGS:]
    (request,) = parse_requests(Reader(asked.payload), layout, version)
    (received,) = parse_responses(Reader(answered.payload), layout, version)
    assert isinstance(request, Request)
    assert isinstance(request.command, RFWD)
    assert isinstance(received, Received)
    assert isinstance(received.response, RRES)
    router_key = relay_key(transcript, "X.server_session_x25519_pub")
    outer = BoxKey.agreed(transcript.private_keys["X.client_session_x25519"], router_key)
    nonce = nonce_of(request.corr_id)
    forwarded = decode_whole(outer.open(nonce, request.command.enc_forward), read_forwarded_transmission)
    said = Recorded(
        recorded_key(transcript, forwarded.command_key),
        router_key,
        layout.session_id,
        forwarded.corr_id,
        forwarded.version,
    )
    inner = said.command(forwarded.enc_transmission)
    opened = outer.open(reversed_nonce(nonce), received.response.enc_forward_response)
    recorded = said.response(decode_whole(opened, read_forwarded_response).enc_response)

    async with running_router(tmp_path) as relay:
        owner = await open_line(relay)
        queue = await create(owner)
        line = await ProxyLine.open(relay)
        sender = line.sender(forwarded.version)
        assert inner.entity_id == transcript.id("q.snd_id")
        assert not inner.authorization
        reply = await line.forward(sender, sender.transmission(inner.command, queue.sender_id))
        assert isinstance(reply, PRES)
        assert sender.opened(reply.enc_response).response == recorded == OK()
        assert relay.router.store.counts()["messages"] == 1
        for one in (owner, line.line):
            await one.stream.close()
