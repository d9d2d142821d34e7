"""Clients that cost little: what they send is signed before the clock starts, and they keep no state."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.load import filling
from benchmarks.load.process import MeasuredRouter
from blindpost.client.authorizing import Authorizer
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.keys import PrivateKey
from blindpost.transport import errors
from blindpost.transport.ends import open_session
from blindpost.transport.handshake import ServiceSession
from blindpost.transport.plans import smp_client_plan
from blindpost.transport.session import Handler, Session
from blindpost.wire.batch import SMP_BATCH_LIMIT, pack
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.commands import ACK, SEND, SUB, Command
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import MSG, OK, SOK, Response
from blindpost.wire.smp.transmissions import Received, parse_responses
from blindpost.wire.smp.versions import connection_layout
from blindpost.wire.transmission import transmission_of
from blindpost.wire.transmissions import signed_request

WARM_UP_CYCLES = 50

R = TypeVar("R")

Hear = Callable[[Received], None]


class Line(Handler):
    """One connection; whoever listens hears every response."""

    def __init__(self) -> None:
        self.hear: Hear = _nobody
        self.blocks = 0
        """Sent and received."""
        self.session: Session
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, router: MeasuredRouter, service: Credentials | None = None) -> Line:
        line = cls()
        role = None if service is None else (ServiceRole.MESSAGING, service)
        plan = smp_client_plan(router.fingerprint, service=role)
        await open_session(plan, line, "127.0.0.1", router.port)
        return line

    def established(self, session: Session) -> None:
        self.session = session
        agreed = session.agreed
        assert agreed.encrypted
        self.version = agreed.version
        self.layout = connection_layout(agreed.version, agreed.session_id)
        self._authorizer = Authorizer(self.layout, agreed.peer_key, 1)

    def block_received(self, session: Session, payload: bytes) -> None:
        self.blocks += 1
        for received in parse_responses(Reader(payload), self.layout, self.version):
            assert isinstance(received, Received), "an unreadable response"
            self.hear(received)

    def closed(self, session: Session, reason: errors.TransportError) -> None:
        self._over.set_result(None)

    async def close(self) -> None:
        self.session.close()
        await self._over

    def transmission(
        self, command: Command, entity_id: bytes, key: PrivateKey, *, spoiled: bool = False
    ) -> Writer:
        """A command signed by `key`, or for something else if it is `spoiled`."""
        corr_id = os.urandom(24)
        signed = signed_request(corr_id, entity_id, command, self.version)
        if spoiled:
            return transmission_of(self.layout, signed, key.sign(b"something else"))
        return self._authorizer.plain(corr_id, signed, key)

    @property
    def service(self) -> ServiceSession:
        service = self.session.agreed.service
        assert service is not None, "a connection of a service"
        return service

    def vouched(self, command: Command, entity_id: bytes, key: PrivateKey) -> Writer:
        """A command of a service about one queue: signed by the queue's key and by the service."""
        corr_id = os.urandom(24)
        signed = signed_request(corr_id, entity_id, command, self.version)
        return self._authorizer.dual(corr_id, signed, key, self.service)

    def send(self, payload: bytes) -> None:
        self.blocks += 1
        self.session.send(payload)


def _nobody(received: Received) -> None:
    """Nobody listens."""


def payloads_of(transmissions: Sequence[Writer]) -> list[bytes]:
    """Payloads that are as full as they can be."""
    return [payload.done() for payload in pack(transmissions, SMP_BATCH_LIMIT).payloads]


class UnexpectedError(Exception):
    """The router said something that ends the measurement."""


def refuse(waiting: asyncio.Future[None], response: Response) -> None:
    """Whoever waits hears that this was not expected."""
    if not waiting.done():
        waiting.set_exception(UnexpectedError(repr(response)))


def subscriptions(line: Line, numbers: Sequence[int]) -> list[bytes]:
    """The blocks that subscribe to these queues."""
    return payloads_of(
        [line.transmission(SUB(), filling.recipient_id(n), filling.recipient_key(n)) for n in numbers]
    )


async def exchanged(line: Line, payloads: Sequence[bytes], kind: type[object], window: int = 4) -> None:
    """Send blocks, a few ahead of their answers, and wait for all answers, which must be of one kind."""
    await conversed(line, payloads, kind, window)


async def conversed(line: Line, payloads: Sequence[bytes], kind: type[R], window: int = 4) -> list[R]:
    """As `exchanged`; the answers, in the order in which they came."""
    answers: list[R] = []
    done = asyncio.get_running_loop().create_future()
    waiting, sizes = iter(payloads), iter([payload[0] for payload in payloads])
    missing, left = sum(payload[0] for payload in payloads), next(sizes)

    def more() -> None:
        payload = next(waiting, None)
        if payload is not None:
            line.send(payload)

    def hear(received: Received) -> None:
        nonlocal missing, left
        if not isinstance(received.response, kind):
            refuse(done, received.response)
            return
        answers.append(received.response)
        missing, left = missing - 1, left - 1
        if not missing:
            done.set_result(None)
        elif not left:
            left = next(sizes)
            more()

    line.hear = hear
    for _ in range(window):
        more()
    await done
    line.hear = _nobody
    return answers


class Cycles:
    """SEND, its OK, MSG, ACK, its OK: again and again on each of many queues at once."""

    def __init__(self, senders: Sequence[Line], recipients: Sequence[Line], queues: range) -> None:
        self.lines = {*senders, *recipients}
        self.latencies_ns: list[int] = []
        self._ways = [
            _Way(senders[place % len(senders)], recipients[place % len(recipients)], number)
            for place, number in enumerate(queues)
        ]

    @classmethod
    async def open(cls, router: MeasuredRouter, connections: int, queues: range) -> Cycles:
        """Half of the connections send and half receive; a single one does both."""
        lines = [await Line.open(router) for _ in range(connections)]
        half = max(1, connections // 2)
        return cls(lines[:half], lines[-half:], queues)

    async def subscribe(self) -> None:
        """Subscribe each recipient to its queues, which other connections may have taken over meanwhile."""
        for way in self._ways:
            await exchanged(way.recipient, subscriptions(way.recipient, [way.number]), SOK)

    async def warm_up(self) -> None:
        """A few cycles before it counts."""
        await self.subscribe()
        self.prepare(WARM_UP_CYCLES)
        await self.run()

    @property
    def blocks(self) -> int:
        return sum(line.blocks for line in self.lines)

    def prepare(self, count: int) -> None:
        """Sign the SENDs of about `count` cycles."""
        for way in self._ways:
            way.prepare(-(-count // len(self._ways)))

    async def run(self) -> int:
        """Do all that was prepared; how many cycles."""
        loop = asyncio.get_running_loop()
        by_queue = {filling.recipient_id(way.number): way for way in self._ways}
        by_queue |= {filling.sender_id(way.number): way for way in self._ways}
        for line in self.lines:
            line.hear = lambda received: by_queue[received.entity_id].hear(received)
        self.latencies_ns.clear()
        count = sum(way.prepared for way in self._ways)
        await asyncio.gather(*(way.start(loop.create_future(), self.latencies_ns) for way in self._ways))
        for line in self.lines:
            line.hear = _nobody
        return count

    async def close(self) -> None:
        for line in self.lines:
            await line.close()


class _Way:
    """One queue, from its sender to its recipient."""

    def __init__(self, sender: Line, recipient: Line, number: int) -> None:
        self.sender = sender
        self.recipient = recipient
        self.number = number
        self._sender_id = filling.sender_id(number)
        self._recipient_id = filling.recipient_id(number)
        self._key = filling.recipient_key(number)
        self._sends: list[bytes] = []
        self._missing = 0
        self._began = 0
        self._latencies: list[int] = []
        self._done: asyncio.Future[None]

    @property
    def prepared(self) -> int:
        return len(self._sends)

    def prepare(self, count: int) -> None:
        send, sender = SEND(True, filling.BODY), self.sender
        self._sends = [
            payloads_of([sender.transmission(send, self._sender_id, self._key)])[0] for _ in range(count)
        ]

    async def start(self, done: asyncio.Future[None], latencies: list[int]) -> None:
        self._done, self._latencies = done, latencies
        self._next()
        await done

    def hear(self, received: Received) -> None:
        response = received.response
        if isinstance(response, MSG):
            ack = self.recipient.transmission(ACK(response.msg_id), self._recipient_id, self._key)
            self.recipient.send(payloads_of([ack])[0])
            return
        if not isinstance(response, OK):
            refuse(self._done, response)
            return
        self._missing -= 1
        if not self._missing:
            self._latencies.append(time.perf_counter_ns() - self._began)
            self._next()

    def _next(self) -> None:
        if not self._sends:
            self._done.set_result(None)
            return
        self._missing = 2
        self._began = time.perf_counter_ns()
        self.sender.send(self._sends.pop())
