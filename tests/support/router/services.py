"""Connections of services: they sign twice where the protocol says so, or as a test wants it done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import NO_IDS, QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.undo import Undo
from blindpost.router.changes import Wanted
from blindpost.router.model import Domain, QueueRecord, ServiceRecord
from blindpost.router.view import View
from blindpost.transport.handshake import ServiceSession
from blindpost.transport.plans import smp_client_plan
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.commands import NEW, NKEY, NSUB, NSUBS, SUB, SUBS
from blindpost.wire.smp.credentials import RULES
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import ALLS, IDS, NID, SOKS, Response
from blindpost.wire.smp.transmissions import Received
from blindpost.wire.smp.values import QueueMode, QueueRequest, SubMode
from blindpost.wire.transmission import authorized_bytes
from blindpost.wire.versions import VersionRange
from tests.support.router.lines import NEWEST, Line, Queue, Said, client_of, open_line
from tests.support.router.routers import RunningRouter, new_key
from tests.support.transport.streams import connect

MESSAGING, NOTIFIER, PROXY = ServiceRole.MESSAGING, ServiceRole.NOTIFIER, ServiceRole.PROXY


def new_service() -> Credentials:
    """A certificate of a service that no router knows yet."""
    return make_service(int(time.time()), system_entropy)


class ServiceLine(Line):
    """A connection of a service: NEW, SUB and NSUB are signed twice unless `Said` brings its own."""

    @property
    def service(self) -> ServiceSession:
        service = self.stream.session.agreed.service
        assert service is not None
        return service

    @property
    def service_id(self) -> bytes:
        return self.service.service_id

    @property
    def session_key(self) -> PrivateKey:
        assert self.service.private is not None
        return self.service.private

    def written(self, said: Said) -> Writer:
        own_signatures = said.service_signature is not None or said.authorization is not None
        if own_signatures or said.key is None or isinstance(said.command, bytes):
            return super().written(said)
        if not RULES[type(said.command)].service_signed:
            return super().written(said)
        signed = self.signed(said.command, said.entity_id, said.corr_id)
        return self.vouched(said.key, signed, said.corr_id, self.service)

    def authorized(self, said: Said) -> bytes:
        """What a command's signatures cover, without the fingerprint."""
        return authorized_bytes(self.layout, self.signed(said.command, said.entity_id, said.corr_id))

    def subs_said(self, count: int = 0, ids_hash: bytes = NO_IDS, domain: Domain = Domain.MESSAGES) -> Said:
        command = SUBS(count, ids_hash) if domain is Domain.MESSAGES else NSUBS(count, ids_hash)
        return Said(command, self.service_id, self.session_key)

    async def subs(
        self, count: int = 0, ids_hash: bytes = NO_IDS, domain: Domain = Domain.MESSAGES
    ) -> QueueSet:
        """SUBS or NSUBS, and the count and hash of its SOKS."""
        (reply,) = await self.ask_many([self.subs_said(count, ids_hash, domain)])
        assert isinstance(reply, SOKS), reply
        return QueueSet(reply.count, reply.ids_hash)

    async def all_delivered(self) -> list[Received]:
        """Everything that came before ALLS, in order; ALLS must be there once."""
        alls = await self.event(b"")
        assert alls.response == ALLS()
        return self.left_over


async def open_service(
    running: RunningRouter,
    credentials: Credentials,
    role: ServiceRole = MESSAGING,
    version: int = NEWEST,
) -> ServiceLine:
    """A connection that presents this certificate at exactly this version."""
    plan = smp_client_plan(
        running.server.key_hash, versions=VersionRange(version, version), service=(role, credentials)
    )
    return ServiceLine(await connect(plan, "127.0.0.1", running.port, running.network))


async def add_notifier(line: Line, queue: Queue) -> bytes:
    """NKEY by a plain connection; the new notifier id."""
    reply = await queue.ask(line, NKEY(queue.ntf_creds))
    assert isinstance(reply, NID)
    queue.ids = replace(queue.ids, ntf_creds=reply.creds)
    return reply.creds.notifier_id


async def sub(line: Line, queue: Queue) -> Response:
    return await queue.ask(line, SUB())


async def nsub(line: Line, queue: Queue) -> Response:
    return await line.ask(NSUB(), queue.notifier_id, queue.notifier_key)


NEWS_IN_BLOCK = 40


async def service_queues(line: ServiceLine, count: int) -> list[Queue]:
    """New queues of a service, many of them in one block."""
    queues: list[Queue] = []
    while len(queues) < count:
        keys = [
            (new_key(), new_key(Algorithm.X25519)) for _ in range(min(NEWS_IN_BLOCK, count - len(queues)))
        ]
        request = QueueRequest(QueueMode.MESSAGING)
        news = [NEW(key.public, dh_key.public, None, SubMode.SUBSCRIBE, request) for key, dh_key in keys]
        said = [Said(new, b"", key) for new, (key, _) in zip(news, keys, strict=True)]
        for ids, (key, dh_key) in zip(await line.ask_many(said), keys, strict=True):
            assert isinstance(ids, IDS)
            queues.append(Queue(ids, key, dh_key, BoxKey.agreed(dh_key, ids.dh_key)))
    return queues


def set_of(queues: Sequence[Queue]) -> QueueSet:
    return QueueSet.of(queue.recipient_id for queue in queues)


def notifiers_of(queues: Sequence[Queue]) -> QueueSet:
    return QueueSet.of(queue.notifier_id for queue in queues)


async def seen(running: RunningRouter, wanted: Wanted) -> View:
    """What the store says about these ids now."""
    view = View(Undo())
    await running.router.store.load(wanted, view)
    return view


async def service_record(running: RunningRouter, service_id: bytes) -> ServiceRecord:
    found = (await seen(running, Wanted(services={service_id}))).services.get(service_id)
    assert found is not None
    return found


async def members(running: RunningRouter, line: ServiceLine, domain: Domain = Domain.MESSAGES) -> QueueSet:
    """The set of a service, as stored."""
    return (await service_record(running, line.service_id)).members(domain)


async def queue_record(running: RunningRouter, queue: Queue) -> QueueRecord:
    found = (await seen(running, Wanted(recipients={queue.recipient_id}))).records.get(queue.recipient_id)
    assert found is not None
    return found


async def waiting_in(
    running: RunningRouter, service_id: bytes, domain: Domain = Domain.MESSAGES
) -> set[bytes]:
    """The queues of a service in which something waits, as the next walk finds them."""
    found: set[bytes] = set()
    start: bytes | None = b""
    while start is not None:
        page, start = await running.router.store.waiting(domain, service_id, start, 100)
        found.update(page)
    return found


def counter(running: RunningRouter, line: ServiceLine, domain: Domain = Domain.MESSAGES) -> QueueSet:
    """The queues that a connection serves, as the router counts them for this connection."""
    return client_of(running, line).service_sub(domain).members


def total(running: RunningRouter, domain: Domain = Domain.MESSAGES) -> int:
    """Queues subscribed through services on all connections."""
    clients = (connection.client for connection in running.router.connections.values())
    return sum(client.service_sub(domain).members.count for client in clients)


async def left(running: RunningRouter, bodies: Sequence[int]) -> tuple[Credentials, list[Queue]]:
    """A service that has gone, with so many messages in each of its queues."""
    credentials, sender = new_service(), await open_line(running)
    line = await open_service(running, credentials)
    queues = await service_queues(line, len(bodies))
    await line.stream.close()
    for queue, count in zip(queues, bodies, strict=True):
        for number in range(count):
            await queue.send(sender, b"%d" % number)
    await sender.stream.close()
    return credentials, queues


async def back(running: RunningRouter, credentials: Credentials) -> ServiceLine:
    return await open_service(running, credentials)
