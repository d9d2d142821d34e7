"""Connections of services: they sign twice where the protocol says so, or as a test wants it done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blindpost.crypto.authorizers import authorize_dual
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import NO_IDS, QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.router.model import Domain, QueueRecord, ServiceRecord
from blindpost.router.records import queue_from_row, service_from_row, service_prefix
from blindpost.router.tables import MEMBERS, PENDING, QUEUES, SERVICES, LmdbTables
from blindpost.transport.ends import connect
from blindpost.transport.handshake import ServiceSession
from blindpost.transport.plans import smp_client_plan
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.commands import NKEY, NSUB, NSUBS, SUB, SUBS
from blindpost.wire.smp.credentials import SERVICE_SIGNED_COMMANDS
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import ALLS, NID, SOKS, Response
from blindpost.wire.smp.transmissions import Received
from blindpost.wire.transmission import authorized_bytes, start_signed, transmission_of
from blindpost.wire.versions import VersionRange
from tests.support.lines import NEWEST, Line, Queue, Said, create
from tests.support.routers import RunningRouter

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
        if own_signatures or said.key is None or type(said.command) not in SERVICE_SIGNED_COMMANDS:
            return super().written(said)
        assert not isinstance(said.command, bytes)
        signed = start_signed(said.corr_id, said.entity_id)
        said.command.write(signed, self.version)
        authorized = authorized_bytes(self.layout, signed)
        dual = authorize_dual(
            said.key, self.session_key, self.service.fingerprint, authorized, said.corr_id, self.router_key
        )
        return transmission_of(self.layout, signed, dual.authorization, dual.service_signature)

    def authorized(self, said: Said) -> bytes:
        """What a command's signatures cover, without the fingerprint."""
        assert not isinstance(said.command, bytes)
        signed = start_signed(said.corr_id, said.entity_id)
        said.command.write(signed, self.version)
        return authorized_bytes(self.layout, signed)

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


async def service_queues(line: ServiceLine, count: int) -> list[Queue]:
    return [await create(line, subscribe=True) for _ in range(count)]


def set_of(queues: Sequence[Queue]) -> QueueSet:
    return QueueSet.of(queue.recipient_id for queue in queues)


def notifiers_of(queues: Sequence[Queue]) -> QueueSet:
    return QueueSet.of(queue.notifier_id for queue in queues)


@dataclass(frozen=True)
class Stored:
    """What the store holds about services, read in one transaction."""

    services: dict[bytes, ServiceRecord]
    members: frozenset[tuple[Domain, bytes, bytes]]
    pending: frozenset[tuple[Domain, bytes, bytes]]
    records: dict[bytes, QueueRecord]


def stored(tables: LmdbTables) -> Stored:
    """Everything of a small store, by a reader of its own."""
    with tables.store.read() as read:
        services = {key: service_from_row(row) for key, row in read.page(SERVICES, b"", 10_000).rows}
        records = {key: queue_from_row(row) for key, row in read.page(QUEUES, b"", 100_000).rows}
        rows: list[frozenset[tuple[Domain, bytes, bytes]]] = []
        for table in (MEMBERS, PENDING):
            found = set()
            for domain in Domain:
                for service_id in services:
                    prefix = service_prefix(domain, service_id)
                    keys = read.keys(table, prefix)
                    found |= {(domain, service_id, key[len(prefix) :]) for key in keys}
            assert len(found) == read.count(table), f"rows of {table} that belong to no service"
            rows.append(frozenset(found))
    return Stored(services, rows[0], rows[1], records)
