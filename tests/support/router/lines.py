"""Connections that say exactly what a test wants said, and keep all that the router says.

Commands of one call go in one block and are decided in one turn; what comes back waits under its
correlation id or, for events, under its entity id.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.keys import PrivateKey
from blindpost.router.state import Delivered, RouterClient
from blindpost.transport.plans import SMP_ALPN, smp_client_plan
from blindpost.wire.batch import pack
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.commands import KEY, NEW, PING, SEND, Command
from blindpost.wire.smp.errors import SMPError
from blindpost.wire.smp.messages import Message, NMsgMeta, ReceivedMessage, read_message, read_nmsg_meta
from blindpost.wire.smp.responses import ERR, IDS, MSG, NMSG, OK, PONG, Response
from blindpost.wire.smp.transmissions import Received, parse_responses
from blindpost.wire.smp.values import (
    LinkData,
    NewLink,
    NtfCreds,
    QueueMode,
    QueueRequest,
    ServerNtfCreds,
    SubMode,
)
from blindpost.wire.smp.versions import SMP_VERSIONS, connection_layout
from blindpost.wire.versions import VersionRange
from tests.support.router.routers import RunningRouter, new_key
from tests.support.transport.streams import BlockStream, connect
from tests.support.wire.speaking import Speaker

ALPN_VERSION = 7
"""Older clients name no protocol, and get version 6."""
ROOMY = 1 << 15
"""Whatever a test says in one call goes in one block, or fails to."""


@dataclass
class Said:
    """One command on its way: about what, by whose key, under which correlation id."""

    command: Command | bytes
    entity_id: bytes = b""
    key: PrivateKey | None = None
    corr_id: bytes = field(default_factory=lambda: os.urandom(24))
    service_signature: bytes | None = None
    authorization: bytes | None = None
    """Offered as it is, instead of what `key` would make."""


class Line(Speaker):
    """One connection to our router; what arrives waits under its correlation id or its entity id."""

    def __init__(self, stream: BlockStream) -> None:
        agreed = stream.session.agreed
        layout = connection_layout(agreed.version, agreed.session_id)
        super().__init__(agreed.version, layout, agreed.peer_key)
        self.stream = stream
        self._replies: dict[bytes, Received] = {}
        self._events: dict[bytes, deque[Received]] = defaultdict(deque)

    @property
    def left_over(self) -> list[Received]:
        events = [event for waiting in self._events.values() for event in waiting]
        return [*self._replies.values(), *events]

    async def reply(self, corr_id: bytes) -> Received:
        while corr_id not in self._replies:
            await self._read()
        return self._replies.pop(corr_id)

    async def event(self, entity_id: bytes) -> Received:
        while not self._events[entity_id]:
            await self._read()
        return self._events[entity_id].popleft()

    async def _read(self) -> None:
        payload = await self.stream.read_block()
        for received in parse_responses(Reader(payload), self.layout, self.version):
            assert isinstance(received, Received), f"the router sent something unreadable: {received!r}"
            if received.corr_id:
                assert received.corr_id not in self._replies, "a second reply to one command"
                self._replies[received.corr_id] = received
            else:
                self._events[received.entity_id].append(received)

    def send(self, transmissions: list[Writer]) -> None:
        (payload,) = pack(transmissions, ROOMY).payloads
        self.stream.send_payload(payload)

    async def ask(
        self,
        command: Command | bytes,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        corr_id: bytes | None = None,
    ) -> Response:
        """The reply to one command."""
        said = Said(command, entity_id, key, corr_id or os.urandom(24))
        return (await self.ask_many([said]))[0]

    async def ask_many(self, said: Sequence[Said]) -> list[Response]:
        """The replies to commands of one block, in the order of the commands."""
        self.send([self.written(one) for one in said])
        return [(await self.reply(one.corr_id)).response for one in said]

    def written(self, said: Said) -> Writer:
        """The transmission of one command."""
        return self.spoken(
            said.command,
            said.entity_id,
            said.key,
            said.corr_id,
            authorization=said.authorization,
            service_signature=said.service_signature,
        )

    async def message(self, queue: Queue) -> ReceivedMessage:
        """What the next MSG event of a queue says; its id is kept for `ack`."""
        return queue.opened((await self.event(queue.recipient_id)).response)

    async def settle(self) -> list[Received]:
        """Everything that came unasked, once the router has answered whatever it was asked before."""
        assert await self.ask(PING()) == PONG()
        return self.left_over


NEWEST = SMP_VERSIONS.high


async def open_line(running: RunningRouter, version: int = NEWEST, *, offer_key: bool = True) -> Line:
    """A connection at exactly this version."""
    plan = smp_client_plan(
        running.server.key_hash,
        versions=VersionRange(version, version),
        alpn=SMP_ALPN if version >= ALPN_VERSION else None,
        offer_key=offer_key,
    )
    line = Line(await connect(plan, "127.0.0.1", running.port, running.network))
    assert line.version == version
    return line


async def open_line_as_proxy(running: RunningRouter) -> Line:
    """A connection with the flag of proxies: its blocks are not encrypted inside TLS."""
    plan = smp_client_plan(running.server.key_hash, proxy=True)
    return Line(await connect(plan, "127.0.0.1", running.port, running.network))


@dataclass
class Queue:
    """A queue as its creator knows it, with the keys of all parties."""

    ids: IDS
    key: PrivateKey
    dh_key: PrivateKey
    box: BoxKey
    notifier_key: PrivateKey = field(default_factory=new_key)
    notifier_dh_key: PrivateKey = field(default_factory=lambda: new_key(Algorithm.X25519))
    sender_key: PrivateKey = field(default_factory=new_key)
    last_id: bytes = b""
    """Of the message that was opened last."""

    @property
    def recipient_id(self) -> bytes:
        return self.ids.recipient_id

    @property
    def sender_id(self) -> bytes:
        return self.ids.sender_id

    @property
    def link_id(self) -> bytes:
        assert self.ids.link_id is not None
        return self.ids.link_id

    @property
    def notifier_id(self) -> bytes:
        assert self.ids.ntf_creds is not None
        return self.ids.ntf_creds.notifier_id

    @property
    def ntf_creds(self) -> NtfCreds:
        return NtfCreds(self.notifier_key.public, self.notifier_dh_key.public)

    def said(self, command: Command) -> Said:
        """A command of the recipient."""
        return Said(command, self.recipient_id, self.key)

    async def ask(self, line: Line, command: Command) -> Response:
        """A command of the recipient, and its reply."""
        return (await line.ask_many([self.said(command)]))[0]

    async def secure(self, line: Line) -> None:
        assert await self.ask(line, KEY(self.sender_key.public)) == OK()

    async def send(self, line: Line, body: bytes, *, notify: bool = False, signed: bool = False) -> None:
        """A SEND that must be accepted."""
        key = self.sender_key if signed else None
        assert await line.ask(SEND(notify, body), self.sender_id, key) == OK()

    def opened(self, response: Response) -> ReceivedMessage:
        """What a MSG of this queue says."""
        assert isinstance(response, MSG)
        self.last_id = response.msg_id
        return read_message(Reader(self.box.open_padded(nonce_of(response.msg_id), response.enc_body)))

    def body(self, response: Response) -> bytes:
        """The body of a MSG that is no marker."""
        message = self.opened(response)
        assert isinstance(message, Message)
        return bytes(message.body)

    def noticed(self, response: Response, creds: ServerNtfCreds | None = None) -> NMsgMeta:
        """Which message an NMSG of this queue is about."""
        creds = creds or self.ids.ntf_creds
        assert isinstance(response, NMSG)
        assert creds is not None
        box = BoxKey.agreed(self.notifier_dh_key, creds.dh_key)
        return read_nmsg_meta(Reader(box.open_padded(response.nonce, response.enc_meta)))


async def create(
    line: Line,
    *,
    mode: QueueMode | None = QueueMode.MESSAGING,
    subscribe: bool = False,
    algorithm: Algorithm = Algorithm.ED25519,
    link: LinkData | None = None,
    notifier: bool = False,
    secured: bool = False,
) -> Queue:
    """A new queue; with link data it has a short link."""
    key, dh_key, corr_id = new_key(algorithm), new_key(Algorithm.X25519), os.urandom(24)
    notifier_key, notifier_dh_key = new_key(), new_key(Algorithm.X25519)
    new_link = None
    if link is not None:
        new_link = NewLink(sender_id_of(corr_id), link, os.urandom(24) if mode is QueueMode.CONTACT else None)
    command = NEW(
        key.public,
        dh_key.public,
        None,
        SubMode.SUBSCRIBE if subscribe else SubMode.ONLY_CREATE,
        None if mode is None else QueueRequest(mode, new_link),
        NtfCreds(notifier_key.public, notifier_dh_key.public) if notifier else None,
    )
    ids = await line.ask(command, key=key, corr_id=corr_id)
    assert isinstance(ids, IDS)
    box = BoxKey.agreed(dh_key, ids.dh_key)
    queue = Queue(ids, key, dh_key, box, notifier_key, notifier_dh_key)
    if secured:
        await queue.secure(line)
    return queue


def error(response: Response) -> SMPError:
    """Which error a reply is."""
    assert isinstance(response, ERR)
    return response.error


async def lines_of(running: RunningRouter, count: int) -> list[Line]:
    return [await open_line(running) for _ in range(count)]


async def pushed(line: Line, queue: Queue) -> bytes:
    """The body of the next MSG event."""
    return queue.body((await line.event(queue.recipient_id)).response)


async def quiet(*lines: Line) -> None:
    """Nothing came that nobody asked for."""
    for line in lines:
        assert await line.settle() == []


def client_of(running: RunningRouter, line: Line) -> RouterClient:
    """What the decisions know about a connection."""
    session_id = line.stream.session.agreed.session_id
    (found,) = (
        connection.client
        for connection in running.router.connections.values()
        if connection.session.agreed.session_id == session_id
    )
    return found


def in_flight(running: RunningRouter, line: Line, queue: Queue) -> Delivered | None:
    sub = client_of(running, line).subs.get(queue.recipient_id)
    return None if sub is None else sub.delivered
