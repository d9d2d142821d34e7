"""Unknown id, wrong key, bad authorization: the same bytes, verifications and reads.

Nobody can learn from an answer or its timing which ids exist.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import pytest

from blindpost.crypto.authorizers import Check, SignatureCheck
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.verifying import OneByOne
from blindpost.engine.undo import Undo
from blindpost.router import tables
from blindpost.router.changes import DeleteQueue, PutQueue, Wanted
from blindpost.router.model import EMPTY, OWNERS_MAX, QueueRecord
from blindpost.router.records import queue_from_row
from blindpost.router.tables import LmdbTables
from blindpost.router.view import View
from blindpost.store.lmdb import Read
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    LDEL,
    LGET,
    LKEY,
    LSET,
    NDEL,
    NKEY,
    NSUB,
    OFF,
    QUE,
    RKEY,
    SEND,
    SKEY,
    SUB,
    Command,
)
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ERR, NID, OK
from blindpost.wire.smp.values import LinkData, NtfCreds, QueueMode
from tests.support.router.lines import Line, Queue, Said, create, open_line
from tests.support.router.routers import RunningRouter, new_key, running_router

KINDS = (Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519)
SIZES = {Algorithm.ED25519: 64, Algorithm.ED448: 114, Algorithm.X25519: 80}
DATA = LinkData(b"fixed", b"user")


class Counting(OneByOne):
    """A verifier that records what it was asked to verify."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def verify_many(self, checks: Sequence[Check]) -> list[bool]:
        self.checks += checks
        return super().verify_many(checks)


@dataclass(frozen=True)
class Cost:
    """What a command caused: the reply without its ids, verifications by algorithm, rows read."""

    reply: bytes
    verifications: tuple[tuple[str, int], ...]
    reads: int


@dataclass
class Measured:
    running: RunningRouter
    verifier: Counting

    async def cost(self, line: Line, said: Said) -> Cost:
        store = self.running.router.store
        assert isinstance(store, LmdbTables)
        self.verifier.checks.clear()
        before = store.reads
        line.send([line.written(said)])
        reply = bytes(await line.stream.read_block())
        for own in (said.corr_id, said.entity_id):
            assert reply.count(own) == 1
            reply = reply.replace(own, bytes(len(own)))
        kinds = Counter(
            check.key.algorithm.label if isinstance(check, SignatureCheck) else "authenticator"
            for check in self.verifier.checks
        )
        return Cost(reply, tuple(sorted(kinds.items())), store.reads - before)


@pytest.fixture
async def measured(tmp_path: Path) -> AsyncIterator[Measured]:
    verifier = Counting()
    async with running_router(tmp_path, verifier=verifier, network=MemoryNetwork()) as running:
        yield Measured(running, verifier)


@dataclass
class Party:
    """Whom a command comes from: the id it names and the key that would be right."""

    entity_id: bytes
    key: PrivateKey
    commands: list[Command]


async def parties(line: Line, kind: Algorithm) -> dict[str, Party]:
    """A queue with a key of this kind for each of its parties, and all their commands."""
    queue = await create(line, algorithm=kind, link=DATA)
    key, notifier, other = new_key(kind), new_key(kind), new_key()
    assert await queue.ask(line, KEY(key.public)) == OK()
    creds = NtfCreds(notifier.public, new_key(Algorithm.X25519).public)
    reply = await queue.ask(line, NKEY(creds))
    assert isinstance(reply, NID)
    recipient: list[Command] = [SUB(), GET(), ACK(bytes(24)), KEY(other.public), QUE()]
    recipient.append(RKEY((other.public,)))
    recipient += [LSET(os.urandom(24), DATA), LDEL(), NKEY(creds), NDEL(), OFF(), DEL()]
    return {
        "recipient": Party(queue.recipient_id, queue.key, recipient),
        "sender": Party(queue.sender_id, key, [SEND(True, b"hello"), SKEY(key.public)]),
        "notifier": Party(reply.creds.notifier_id, notifier, [NSUB()]),
        "link": Party(queue.link_id, key, [LKEY(key.public)]),
    }


def damaged(line: Line, said: Said) -> Said:
    """The same, with one bit of its authorization changed."""
    raw = b"".join(bytes(part) for part in line.written(said).parts)
    size = raw[0]
    authorization = bytearray(raw[1 : 1 + size])
    authorization[size // 2] ^= 1
    return Said(said.command, said.entity_id, None, said.corr_id, None, bytes(authorization))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [7, 20])
async def test_refusals_are_indistinguishable(measured: Measured, kind: Algorithm, version: int) -> None:
    line = await open_line(measured.running, max(version, 15))
    found = await parties(line, kind)
    asker = await open_line(measured.running, version)
    for name, party in found.items():
        for command in party.commands:
            if name == "link" and version < 15:
                continue
            costs = {
                "unknown id": await measured.cost(asker, Said(command, os.urandom(24), party.key)),
                "wrong key": await measured.cost(asker, Said(command, party.entity_id, new_key(kind))),
                "bad": await measured.cost(asker, damaged(asker, Said(command, party.entity_id, party.key))),
                "again": await measured.cost(asker, Said(command, party.entity_id, new_key(kind))),
            }
            assert len(set(costs.values())) == 1, (name, command, costs)
            cost = costs["unknown id"]
            assert cost.reply.endswith(b"ERR AUTH")
            label = "authenticator" if kind is Algorithm.X25519 else kind.label
            assert cost.verifications == ((label, 1),)
            assert cost.reads > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offered", KINDS)
async def test_a_key_of_another_kind_is_verified_in_the_offered_kind(
    measured: Measured, kind: Algorithm, offered: Algorithm
) -> None:
    line = await open_line(measured.running)
    for party in (await parties(line, kind)).values():
        for command in party.commands:
            there = await measured.cost(line, Said(command, party.entity_id, new_key(offered)))
            unknown = await measured.cost(line, Said(command, os.urandom(24), new_key(offered)))
            assert there == unknown
            label = "authenticator" if offered is Algorithm.X25519 else offered.label
            assert there.verifications == ((label, 1),)


async def test_what_no_key_can_authorize_costs_one_verification(measured: Measured) -> None:
    """SKEY on a contact queue, LKEY on a contact link, a signed SEND to a queue that is not secured."""
    line, key = await open_line(measured.running), new_key()
    contact = await create(line, mode=QueueMode.CONTACT, link=DATA)
    unsecured = await create(line)
    for command, entity_id in (
        (SKEY(key.public), contact.sender_id),
        (LKEY(key.public), contact.link_id),
        (SEND(False, b"hello"), unsecured.sender_id),
    ):
        refused = await measured.cost(line, Said(command, entity_id, key))
        assert refused == await measured.cost(line, Said(command, os.urandom(24), key))
        assert refused.verifications == (("Ed25519", 1),)


async def test_an_unsigned_command_costs_no_verification(measured: Measured) -> None:
    """An unsigned SEND to a secured queue, LGET of a one-time link: no different from an unknown id."""
    line = await open_line(measured.running)
    queue = await create(line, link=DATA, secured=True)
    for command, entity_id in ((SEND(False, b"hello"), queue.sender_id), (LGET(), queue.link_id)):
        refused = await measured.cost(line, Said(command, entity_id))
        assert refused == await measured.cost(line, Said(command, os.urandom(24)))
        assert refused.verifications == ()
        assert refused.reply.endswith(b"ERR AUTH")


async def test_a_deleted_queue_looks_like_an_unknown_one(measured: Measured) -> None:
    line = await open_line(measured.running)
    found = await parties(line, Algorithm.ED25519)
    recipient = found["recipient"]
    assert await line.ask(DEL(), recipient.entity_id, recipient.key) == OK()
    for party in found.values():
        for command in party.commands:
            gone = await measured.cost(line, Said(command, party.entity_id, party.key))
            assert gone == await measured.cost(line, Said(command, os.urandom(24), party.key))
            assert gone.verifications == (("Ed25519", 1),)


async def test_refusals_change_nothing(measured: Measured) -> None:
    line = await open_line(measured.running)
    found = await parties(line, Algorithm.ED25519)
    store = measured.running.router.store
    before = store.counts()
    for party in found.values():
        for command in party.commands:
            assert await line.ask(command, party.entity_id, new_key()) == ERR(Code.AUTH)
    assert store.counts() == before
    recipient = found["recipient"]
    assert await line.ask(GET(), recipient.entity_id, recipient.key) == OK()


async def test_an_authenticator_secret_is_cached_only_after_it_verified(measured: Measured) -> None:
    """Otherwise a second try on a known queue would be quicker than one on an unknown."""
    line = await open_line(measured.running)
    queue: Queue = await create(line, algorithm=Algorithm.X25519)
    client = next(iter(measured.running.router.connections.values())).client
    fresh = await open_line(measured.running)
    assert await fresh.ask(GET(), queue.recipient_id, new_key(Algorithm.X25519)) == ERR(Code.AUTH)
    other = max(measured.running.router.connections.values(), key=lambda one: one.client.client_id).client
    assert queue.key.public.raw not in other.secrets._kept
    assert await queue.ask(fresh, GET()) == OK()
    assert queue.key.public.raw in other.secrets._kept
    assert queue.key.public.raw in client.secrets._kept


async def test_a_refusal_does_not_tell_how_many_owners_there_are(measured: Measured) -> None:
    """One verification of the offered kind for each owner that a queue may have, however many it has."""
    line = await open_line(measured.running)
    queue = await create(line, mode=QueueMode.CONTACT)
    owners = [new_key(), new_key(), new_key(Algorithm.ED448)]
    assert await queue.ask(line, RKEY(tuple(key.public for key in owners))) == OK()
    for kind, expected in (
        (Algorithm.ED25519, (("Ed25519", OWNERS_MAX),)),
        (Algorithm.ED448, (("Ed448", OWNERS_MAX),)),
        (Algorithm.X25519, (("authenticator", OWNERS_MAX),)),
    ):
        wrong = await measured.cost(line, Said(QUE(), queue.recipient_id, new_key(kind)))
        assert wrong.verifications == expected
        assert wrong.reply.endswith(b"ERR AUTH")
    for owner in owners:
        assert not isinstance(await line.ask(QUE(), queue.recipient_id, owner), ERR)


async def test_an_unknown_id_costs_the_same_as_a_queue_not_used_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row read and one decoded at first, none when the same is tried again."""
    network, folder = MemoryNetwork(), tmp_path / "store"
    async with running_router(folder, network=network) as running:
        line = await open_line(running)
        queues = [await create(line, secured=True) for _ in range(2)]
        await line.stream.close()
    work: list[str] = []
    get_many = Read.get_many

    def decoded(row: bytes) -> QueueRecord:
        work.append("decoded")
        return queue_from_row(row)

    def read(self: Read, table: str, keys: Set[bytes]) -> dict[bytes, bytes]:
        if table == tables.QUEUES:
            work.extend("read" for _ in keys)
        return get_many(self, table, keys)

    monkeypatch.setattr(tables, "queue_from_row", decoded)
    monkeypatch.setattr(Read, "get_many", read)
    async with running_router(folder, network=network) as running:
        line = await open_line(running)
        first, second = queues
        tried: list[tuple[bytes, Command]] = [(first.recipient_id, SUB())]
        for entity_id, command in (*tried, (second.sender_id, SEND(False, b"hello"))):
            for named in (entity_id, os.urandom(24)):
                for expected in (["read", "decoded"], []):
                    work.clear()
                    assert await line.ask(command, named, new_key()) == ERR(Code.AUTH)
                    assert work == expected
        await line.stream.close()


async def test_an_id_that_was_unknown_can_become_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its record is not kept any more."""
    monkeypatch.setattr(tables, "CACHE_MAX", 1)
    store, record = LmdbTables(tmp_path), queue_from_row(tables.STRANGER)
    other = record._replace(recipient_id=b"other recipient", sender_id=b"other sender")

    async def known() -> bool:
        view = View(Undo())
        await store.load(Wanted(recipients={record.recipient_id}), view)
        return record.recipient_id in view.records

    assert not await known()
    await store.commit([PutQueue(record, None), PutQueue(other, None)])
    assert await known()
    await store.commit([DeleteQueue(record, EMPTY)])
    assert not await known()
    assert (await known(), store.loaded) == (False, 0)
    store.close()
