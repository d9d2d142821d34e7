"""Who a service is: its certificate, its id, its session key, and what its two signatures cover."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from blindpost.crypto.authorizers import with_fingerprint
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.inbox import Budget
from blindpost.engine.loop import StoreFailedError
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.bulk_postgres import PostgresBulk
from blindpost.router.changes import PutService, Wanted
from blindpost.router.meters import Meter
from blindpost.router.model import Domain
from blindpost.router.tables import LmdbTables
from blindpost.router.tables_postgres import PostgresTables
from blindpost.router.view import View
from blindpost.router.weights import SERVICE_BYTES
from blindpost.testing.network import MemoryNetwork
from blindpost.transport import errors
from blindpost.transport.plan import SessionPlan
from blindpost.transport.plans import SMP_ALPN, smp_client_plan
from blindpost.transport.tls import client_context
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    NDEL,
    NEW,
    NKEY,
    NSUB,
    NSUBS,
    OFF,
    PING,
    QUE,
    SEND,
    SUB,
    SUBS,
    Command,
)
from blindpost.wire.smp.errors import PROHIBITED, Code
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import ERR, IDS, OK, PONG, SOK, SOKS
from blindpost.wire.smp.values import SubMode
from tests.support.router.lines import Line, Queue, Said, create, error, open_line
from tests.support.router.routers import RunningRouter, new_credentials, new_key, running_router
from tests.support.router.services import (
    MESSAGING,
    NOTIFIER,
    PROXY,
    ServiceLine,
    add_notifier,
    members,
    new_service,
    nsub,
    open_service,
    queue_record,
    seen,
    service_record,
    sub,
)
from tests.support.serving.waiting import until
from tests.support.transport.streams import connect

SERVICE = ERR(Code.SERVICE)
AUTH = ERR(Code.AUTH)


async def known(running: RunningRouter, credentials: Credentials) -> bytes | None:
    """The id under which the store knows a certificate."""
    fingerprint = credentials.fingerprint
    return (await seen(running, Wanted(fingerprints={fingerprint}))).fingerprints.get(fingerprint)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-13")
async def test_a_certificate_keeps_its_id(tmp_path: Path) -> None:
    identity, network = new_credentials(), MemoryNetwork()
    first, second = new_service(), new_service()
    ids: list[list[bytes]] = []
    for _ in range(2):
        async with running_router(tmp_path, credentials=identity, network=network) as running:
            lines = [await open_service(running, one) for one in (first, second, first)]
            ids.append([line.service_id for line in lines])
            assert running.router.store.counts()["services"] == 2
            for line in lines:
                await line.stream.close()
    assert ids[0] == ids[1]
    assert ids[0][0] == ids[0][2] != ids[0][1]
    assert {len(service_id) for service_id in ids[0]} == {24}


@pytest.mark.both_stores
@pytest.mark.claim("SVC-14")
@pytest.mark.parametrize("batch_commands", [1, 1024], ids=["a batch each", "one batch"])
async def test_many_first_handshakes_at_once_make_one_service(tmp_path: Path, batch_commands: int) -> None:
    """The store holds the first batch until all have asked."""
    credentials, count, gate = new_service(), 8, asyncio.Event()
    budget = Budget(batch_commands=batch_commands)
    async with running_router(tmp_path, network=MemoryNetwork(), budget=budget) as running:
        store = running.router.store
        load = store.load

        async def held(wanted: Wanted, view: View) -> None:
            await gate.wait()
            await load(wanted, view)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "load", held)
            opening = [asyncio.create_task(open_service(running, credentials)) for _ in range(count)]
            await until(lambda: running.router.engine.waiting + running.router.engine.meters.events == count)
            gate.set()
            lines = await asyncio.gather(*opening)
        assert len({line.service_id for line in lines}) == 1
        assert store.counts()["services"] == 1
        if batch_commands == 1:
            assert running.router.engine.meters.turns >= count
        for line in lines:
            await line.stream.close()


@pytest.mark.both_stores
@pytest.mark.claim("SVC-10")
async def test_a_certificate_that_was_not_proven_in_tls_is_refused_and_not_remembered(
    running: RunningRouter, tmp_path: Path
) -> None:
    proven, claimed = new_service(), new_service()
    claiming = smp_client_plan(running.server.key_hash, service=(MESSAGING, claimed))
    context = client_context(SMP_ALPN, proven.chain, proven.key.for_certificates())
    plan = SessionPlan(
        context, claiming.check, claiming.handshake, claiming.block_size, False, claiming.limits
    )
    with pytest.raises(errors.HandshakeBadAuthError):
        await connect(plan, "127.0.0.1", running.port, running.network)
    assert running.router.store.counts()["services"] == 0
    assert await known(running, proven) is None
    assert await known(running, claimed) is None


@pytest.mark.both_stores
@pytest.mark.claim("SVC-75")
async def test_a_certificate_known_in_one_role_is_refused_in_another(
    running: RunningRouter, tmp_path: Path
) -> None:
    credentials = new_service()
    line = await open_service(running, credentials, MESSAGING)
    for role in (NOTIFIER, PROXY):
        with pytest.raises(errors.HandshakeBadServiceError):
            await open_service(running, credentials, role)
    again = await open_service(running, credentials, MESSAGING)
    assert again.service_id == line.service_id
    assert (await service_record(running, line.service_id)).role is MESSAGING
    assert running.router.store.counts()["services"] == 1


@pytest.mark.both_stores
@pytest.mark.claim("SVC-75")
async def test_a_plain_connection_cannot_subscribe_a_service(running: RunningRouter, tmp_path: Path) -> None:
    service, plain, key = await open_service(running, new_service()), await open_line(running), new_key()
    for command in (SUBS(0, bytes(16)), NSUBS(0, bytes(16))):
        assert await plain.ask(command, service.service_id, key) == SERVICE
    assert running.router.plan.state.services(Domain.MESSAGES).holder(service.service_id) is None


@pytest.mark.both_stores
@pytest.mark.claim("SVC-75")
async def test_a_counter_that_would_fall_below_zero_is_metered_and_logged(
    running: RunningRouter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = await open_service(running, new_service())
    queues = [await create(line, subscribe=True) for _ in range(2)]
    record = await service_record(running, line.service_id)
    await running.router.store.commit([PutService(replace(record, queues=QueueSet()))])
    assert await queues[0].ask(line, DEL()) == OK()
    assert running.router.plan.meters[Meter.SERVICE_FAULTS] == 1
    assert "audit" in caplog.text
    wrong = QueueSet(1, bytes(range(16)))
    await running.router.store.commit([PutService(replace(record, queues=wrong))])
    assert await queues[1].ask(line, DEL()) == OK()
    assert running.router.plan.meters[Meter.SERVICE_FAULTS] == 2


@pytest.mark.both_stores
@pytest.mark.claim("SVC-12")
async def test_the_certificates_key_signs_nothing_but_a_new_session_key_for_each_connection(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials, signed = new_service(), list[tuple[PrivateKey, bytes]]()
    sign = PrivateKey.sign

    def spied(key: PrivateKey, message: bytes) -> bytes:
        signed.append((key, bytes(message)))
        return sign(key, message)

    monkeypatch.setattr(PrivateKey, "sign", spied)
    lines = [await open_service(running, credentials) for _ in range(2)]
    for line in lines:
        queue = await create(line, subscribe=True)
        assert isinstance(await sub(line, queue), SOK)
        await line.subs()
        assert await queue.ask(line, QUE())
    keys = [line.session_key for line in lines]
    assert keys[0] != keys[1]
    assert all(key.algorithm is Algorithm.ED25519 for key in keys)
    by_certificate = [message for key, message in signed if key == credentials.key]
    assert len(by_certificate) == len(lines)
    for key, message in zip(keys, by_certificate, strict=True):
        assert message.endswith(key.public.raw), "the signed wrapper ends with the session key"


@pytest.mark.both_stores
@pytest.mark.claim("SVC-15")
async def test_only_the_session_key_authorizes_subs(running: RunningRouter, tmp_path: Path) -> None:
    credentials = new_service()
    line, other = await open_service(running, credentials), await open_service(running, credentials)
    stranger = await open_service(running, new_service())
    queue = await create(line, subscribe=True)
    state = running.router.plan.state
    holder = state.services(Domain.MESSAGES).holder(line.service_id)
    wrong = [queue.key, credentials.key, other.session_key, stranger.session_key, new_key(Algorithm.X25519)]
    for key in wrong:
        assert await other.ask(SUBS(1, bytes(16)), other.service_id, line.session_key) == SERVICE
        if key is not other.session_key:
            assert await other.ask(SUBS(1, bytes(16)), other.service_id, key) == SERVICE
    assert await other.ask(SUBS(1, bytes(16)), stranger.service_id, other.session_key) == SERVICE
    assert await other.ask(SUBS(1, bytes(16)), bytes(24), other.session_key) == SERVICE
    assert state.services(Domain.MESSAGES).holder(line.service_id) is holder, "nobody was registered"
    assert isinstance(await other.ask(SUBS(1, bytes(16)), other.service_id, other.session_key), SOKS)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-15")
async def test_only_the_session_key_authorizes_nsubs(running: RunningRouter, tmp_path: Path) -> None:
    credentials = new_service()
    line = await open_service(running, credentials, NOTIFIER)
    for key in (credentials.key, new_key(), new_key(Algorithm.ED448)):
        assert await line.ask(NSUBS(0, bytes(16)), line.service_id, key) == SERVICE
    assert running.router.plan.state.services(Domain.NOTIFICATIONS).holder(line.service_id) is None
    assert isinstance(await line.ask(NSUBS(0, bytes(16)), line.service_id, line.session_key), SOKS)


async def signed(
    line: ServiceLine, queue: Queue, *, fingerprint: bytes | None, service_covers_fingerprint: bool = False
) -> object:
    """The reply to a SUB whose signatures cover the given bytes."""
    said = Said(SUB(), queue.recipient_id, queue.key)
    authorized = line.authorized(said)
    covered = authorized if fingerprint is None else with_fingerprint(fingerprint, authorized)
    by_service = authorized
    if service_covers_fingerprint:
        by_service = with_fingerprint(line.service.fingerprint, authorized)
    said.authorization = queue.key.sign(covered)
    said.service_signature = line.session_key.sign(by_service)
    return (await line.ask_many([said]))[0]


@pytest.mark.both_stores
@pytest.mark.claim("SVC-17")
async def test_each_signature_covers_its_own_bytes_and_no_others(
    running: RunningRouter, tmp_path: Path
) -> None:
    line, owner = await open_service(running, new_service()), await open_line(running)
    queue = await create(owner)
    own = line.service.fingerprint
    assert await signed(line, queue, fingerprint=None) == AUTH
    assert await signed(line, queue, fingerprint=own, service_covers_fingerprint=True) == SERVICE
    assert await signed(line, queue, fingerprint=None, service_covers_fingerprint=True) == SERVICE
    assert (await queue_record(running, queue)).service_id is None
    assert await signed(line, queue, fingerprint=own) == SOK(line.service_id)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-18")
async def test_a_substituted_service_never_gains_a_queue(running: RunningRouter, tmp_path: Path) -> None:
    """What a queue's owner signed for service A is refused on a connection of service B."""
    service_a, service_b = new_service(), new_service()
    line_a, line_b = await open_service(running, service_a), await open_service(running, service_b)
    queue = await create(await open_line(running))
    assert await signed(line_b, queue, fingerprint=service_a.fingerprint) == AUTH
    assert (await queue_record(running, queue)).service_id is None
    assert await sub(line_a, queue) == SOK(line_a.service_id)
    assert await signed(line_b, queue, fingerprint=service_a.fingerprint) == AUTH
    assert (await queue_record(running, queue)).service_id == line_a.service_id
    assert (await members(running, line_b)).count == 0


@pytest.mark.both_stores
@pytest.mark.claim("SVC-20")
async def test_sub_is_answered_according_to_who_asks(running: RunningRouter, tmp_path: Path) -> None:
    service, owner = await open_service(running, new_service()), await open_line(running)
    queue = await create(owner)
    assert await sub(service, queue) == SOK(service.service_id)
    for version in (16, 20):
        assert await sub(await open_line(running, version), queue) == SOK(None)
    for version in (6, 15):
        assert await sub(await open_line(running, version), queue) == OK()


async def test_a_service_signs_new_sub_and_nsub_twice_and_nothing_else(running: RunningRouter) -> None:
    service, notifier = (
        await open_service(running, new_service()),
        await open_service(running, new_service(), NOTIFIER),
    )
    queue = await create(service, subscribe=True)
    plain = await open_line(running)
    await add_notifier(plain, queue)
    single: list[tuple[ServiceLine, Command, bytes, PrivateKey]] = [
        (service, SUB(), queue.recipient_id, queue.key),
        (service, NEW(queue.key.public, queue.dh_key.public, None, SubMode.SUBSCRIBE), b"", queue.key),
        (notifier, NSUB(), queue.notifier_id, queue.notifier_key),
    ]
    for line, command, entity_id, key in single:
        assert await Line.ask(plain_of(line), command, entity_id, key) == SERVICE
    twice: list[Command] = [
        QUE(),
        GET(),
        ACK(b""),
        KEY(new_key().public),
        OFF(),
        NDEL(),
        NKEY(queue.ntf_creds),
        DEL(),
    ]
    for command in twice:
        said = Said(command, queue.recipient_id, queue.key)
        said.service_signature = service.session_key.sign(service.authorized(said))
        assert await service.ask_many([said]) == [SERVICE], command
        said = Said(command, queue.recipient_id, queue.key, service_signature=os.urandom(64))
        assert await plain.ask_many([said]) == [SERVICE], command
    said = Said(SUB(), queue.recipient_id, queue.key, service_signature=os.urandom(64))
    assert await plain.ask_many([said]) == [SERVICE], "no second signature on a plain connection"


def plain_of(line: ServiceLine) -> Line:
    """The same connection, without the second signature."""
    return Line(line.stream)


ROLES: dict[str, set[str]] = {
    "M": {"NSUB", "NSUBS"},
    "N": {"NEW", "SUB", "SUBS", "SEND", "ACK", "GET", "QUE", "DEL", "OFF", "KEY", "NKEY", "NDEL"},
    "P": {"NEW", "SUB", "SUBS", "SEND", "NSUB", "NSUBS", "ACK", "GET", "QUE", "DEL"},
}


@pytest.mark.parametrize("role", [MESSAGING, NOTIFIER, PROXY], ids=lambda role: role.name)
async def test_a_role_may_send_only_its_own_commands(running: RunningRouter, role: ServiceRole) -> None:
    line = await open_service(running, new_service(), role)
    owner = await open_line(running)
    queue = await create(owner, notifier=True)
    key = new_key()
    commands: dict[str, Said] = {
        "NEW": Said(NEW(key.public, queue.dh_key.public, None, SubMode.SUBSCRIBE), b"", key),
        "SUB": queue.said(SUB()),
        "SUBS": line.subs_said(),
        "NSUBS": line.subs_said(domain=Domain.NOTIFICATIONS),
        "NSUB": Said(NSUB(), queue.notifier_id, queue.notifier_key),
        "SEND": Said(SEND(False, b"hi"), queue.sender_id),
        "ACK": queue.said(ACK(b"")),
        "GET": queue.said(GET()),
        "QUE": queue.said(QUE()),
        "OFF": queue.said(OFF()),
        "KEY": queue.said(KEY(key.public)),
        "NKEY": queue.said(NKEY(queue.ntf_creds)),
        "NDEL": queue.said(NDEL()),
        "DEL": queue.said(DEL()),
    }
    forbidden = ROLES[role.value.decode()]
    for name in sorted(forbidden):
        assert await line.ask_many([commands[name]]) == [ERR(PROHIBITED)], name
    unknown = Said(SUB(), bytes(24), key)
    assert await line.ask_many([unknown]) == [AUTH], "that a queue is unknown comes first"
    assert await line.ask(PING()) == PONG()
    assert (await queue_record(running, queue)).service_id is None
    for name in commands.keys() - forbidden if role is not PROXY else ():
        (reply,) = await line.ask_many([commands[name]])
        assert reply not in (ERR(PROHIBITED), SERVICE), name
        await line.settle()
        if name in ("SUB", "DEL", "GET"):
            queue = await create(owner, notifier=True)
            commands |= {
                other: queue.said(said.command)
                for other, said in commands.items()
                if said.key is not None
                and said.entity_id
                and other not in ("SUBS", "NSUBS", "NSUB")
                and not isinstance(said.command, bytes)
            }


async def test_a_forwarding_proxy_is_refused_where_its_role_does_not_fit(running: RunningRouter) -> None:
    for role in (MESSAGING, NOTIFIER):
        line = await open_service(running, new_service(), role)
        assert await line.ask(b"RFWD " + bytes(64)) == ERR(PROHIBITED)
    line = await open_service(running, new_service(), PROXY)
    assert await line.ask(b"RFWD " + bytes(64)) == ERR(Code.CRYPTO)


async def test_a_service_cannot_create_a_queue_without_subscribing(running: RunningRouter) -> None:
    line, key = await open_service(running, new_service()), new_key()
    command = NEW(key.public, new_key(Algorithm.X25519).public, None, SubMode.ONLY_CREATE)
    assert await line.ask(command, key=key) == ERR(PROHIBITED)
    assert running.router.store.counts()["queues"] == 0


@pytest.mark.parametrize("version", [16, 18, 19, 20])
async def test_notification_services_begin_with_version_16(running: RunningRouter, version: int) -> None:
    """Below 19 NSUBS and SOKS carry no hash; below 16 there are no services."""
    owner = await open_line(running)
    queue = await create(owner, notifier=True)
    line = await open_service(running, new_service(), NOTIFIER, version)
    assert await nsub(line, queue) == SOK(line.service_id)
    reply = await line.subs(domain=Domain.NOTIFICATIONS)
    expected = await members(running, line, Domain.NOTIFICATIONS)
    assert reply.count == expected.count == 1
    assert reply.ids_hash == (expected.ids_hash if version >= 19 else bytes(16))
    meter = Meter.NTF_DRIFT_OK if version < 19 else Meter.NTF_DRIFT_MORE
    assert running.router.plan.meters[meter] == 1, "without parameters drift is not evaluated"


@pytest.mark.parametrize(("role", "version"), [(NOTIFIER, 15), (MESSAGING, 18), (MESSAGING, 15)])
async def test_below_the_version_of_services_a_service_is_a_plain_client(
    running: RunningRouter, role: ServiceRole, version: int
) -> None:
    line = await open_service(running, new_service(), role, version)
    assert line.stream.session.agreed.service is None
    assert running.router.store.counts()["services"] == 0
    key = new_key()
    reply = await Line.ask(
        plain_of(line), NEW(key.public, new_key(Algorithm.X25519).public, None, SubMode.SUBSCRIBE), b"", key
    )
    assert isinstance(reply, IDS)
    assert reply.service_id is None


async def test_a_client_may_retry_after_its_service_could_not_be_stored(
    running: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials, store = new_service(), running.router.store

    async def failing(changes: object) -> None:
        raise StoreFailedError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", failing)
        with pytest.raises(errors.HandshakeBadServiceError):
            await open_service(running, credentials)
    line = await open_service(running, credentials)
    assert await known(running, credentials) == line.service_id
    assert error(await line.ask(SUB(), bytes(24), new_key())) is Code.AUTH


@pytest.mark.both_stores
@pytest.mark.claim("SVC-13")
async def test_a_service_that_never_had_a_queue_is_forgotten_after_a_day(tmp_path: Path) -> None:
    """Anyone who presents a certificate becomes a service: strangers must not leave permanent rows."""
    day, now = 86_400, [1_700_000_000.0]
    async with running_router(tmp_path, now=lambda: now[0]) as running:
        store = running.router.store
        bulk = (
            LmdbBulk(store)
            if isinstance(store, LmdbTables)
            else PostgresBulk(cast(PostgresTables, store).store)
        )
        stranger, owner, waiting = new_service(), new_service(), new_service()
        for credentials in (owner, stranger):
            line = await open_service(running, credentials)
            before = line.service_id
            if credentials is owner:
                await create(line, subscribe=True)
            await line.stream.close()
        connected = await open_service(running, waiting)
        await until(lambda: len(running.router.connections) == 1)

        async def left() -> list[bool]:
            await running.router.expire_services(bulk)
            assert await connected.ask(PING()) == PONG()
            return [await known(running, one) is not None for one in (stranger, owner, waiting)]

        assert await left() == [True, True, True]
        now[0] += 3 * day
        assert await left() == [False, True, True], "neither with a queue nor while it is connected"
        again = await open_service(running, stranger)
        assert again.service_id == before, "the same certificate, the same id"
        assert await again.ask(PING()) == PONG()


async def test_a_full_store_takes_no_new_services_and_knows_the_old_ones(tmp_path: Path) -> None:
    async with running_router(tmp_path) as running:
        stored, known_one = running.router.plan.stored, new_service()
        line = await open_service(running, known_one)
        service_id = line.service_id
        await line.stream.close()
        stored.limit = 1 << 20
        stored.look(stored.limit)
        with pytest.raises(errors.HandshakeBadServiceError):
            await open_service(running, new_service())
        assert stored.refused == 1
        again = await open_service(running, known_one)
        assert again.service_id == service_id
        stored.look(stored.limit - SERVICE_BYTES)
        assert (await open_service(running, new_service())).service_id != service_id
        assert stored.total == stored.limit
