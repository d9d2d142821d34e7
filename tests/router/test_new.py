"""NEW: who may create which queue, what is answered, and what a repetition does."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from blindpost.crypto.keys import PrivateKey
from blindpost.router.config import RouterRules
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, GET, LGET, LKEY, LSET, NEW, PING, QUE, RKEY, SEND, SUB
from blindpost.wire.smp.errors import BLOCKED, PROHIBITED, BlockingReason, Code
from blindpost.wire.smp.responses import END, ERR, IDS, INFO, LNK, MSG, OK, PONG
from blindpost.wire.smp.values import LinkData, NewLink, NtfCreds, QueueMode, QueueRequest, SubMode
from tests.support.router.lines import Line, Said, create, error, open_line
from tests.support.router.operators import block
from tests.support.router.routers import RunningRouter, new_key, running_router

VERSIONS = (6, 8, 9, 14, 15, 16, 17, 20)
AUTH = ERR(Code.AUTH)
DATA = LinkData(b"fixed", b"user")


def a_new(key: PrivateKey, **fields: Any) -> NEW:
    fields.setdefault("dh_key", new_key(Algorithm.X25519).public)
    return NEW(key.public, **fields)


def linked(corr_id: bytes, *, link_id: bytes | None = None, data: LinkData = DATA) -> QueueRequest:
    """A queue with a short link, whose sender id is made as the protocol says."""
    sender_id = hashlib.sha3_384(corr_id).digest()[:24]
    mode = QueueMode.MESSAGING if link_id is None else QueueMode.CONTACT
    return QueueRequest(mode, NewLink(sender_id, data, link_id))


def expected_mode(version: int, mode: QueueMode | None) -> QueueMode | None:
    """What a version can say of a mode: nothing, messaging or not, or the mode."""
    if version < 9:
        return None
    if version < 15:
        return mode if mode is QueueMode.MESSAGING else QueueMode.CONTACT
    return mode


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_shape_at_every_version(running: RunningRouter, version: int) -> None:
    line = await open_line(running, version)
    seen = set()
    for mode in (None, *QueueMode):
        for subscribe in (True, False):
            for notifier in (True, False) if version >= 17 else (False,):
                queue = await create(line, mode=mode, subscribe=subscribe, notifier=notifier)
                ids = queue.ids
                assert (len(ids.recipient_id), len(ids.sender_id)) == (24, 24)
                assert ids.mode is expected_mode(version, mode)
                assert (ids.link_id, ids.service_id) == (None, None)
                assert (ids.ntf_creds is not None) == notifier
                seen |= {ids.recipient_id, ids.sender_id, ids.dh_key.raw}
                info = await queue.ask(line, QUE())
                assert isinstance(info, INFO)
                assert (info.info.sub is not None, info.info.notifier) == (subscribe, notifier)
                assert (info.info.secured, info.info.size, info.info.msg) == (False, 0, None)
    assert len(seen) == 3 * 3 * 2 * (2 if version >= 17 else 1)


@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519])
async def test_any_kind_of_recipient_key_works(running: RunningRouter, algorithm: Algorithm) -> None:
    line = await open_line(running)
    queue = await create(line, algorithm=algorithm, subscribe=True)
    await queue.send(line, b"hello")
    assert queue.body((await line.event(queue.recipient_id)).response) == b"hello"
    assert await queue.ask(line, ACK(queue.last_id)) == OK()


async def test_the_key_in_the_command_must_have_signed_it(running: RunningRouter) -> None:
    line = await open_line(running)
    assert await line.ask(a_new(new_key()), key=new_key()) == AUTH
    assert await line.ask(a_new(new_key()), key=new_key(Algorithm.X25519)) == AUTH
    assert running.router.store.counts()["queues"] == 0


@pytest.mark.parametrize("version", [6, 9, 15, 20])
@pytest.mark.parametrize("password", [None, b"secret"])
async def test_new_needs_the_password_if_one_is_set(
    tmp_path: Path, version: int, password: bytes | None
) -> None:
    rules = RouterRules(password=password)
    async with running_router(tmp_path, rules, network=MemoryNetwork()) as running:
        line = await open_line(running, version)
        for offered in (None, b"", b"secre", b"secret", b"secrets"):
            key = new_key()
            reply = await line.ask(a_new(key, basic_auth=offered), key=key)
            accepted = password is None or offered == password
            assert isinstance(reply, IDS) if accepted else reply == AUTH, offered


async def test_new_is_refused_where_it_is_disabled(tmp_path: Path) -> None:
    async with running_router(tmp_path, network=MemoryNetwork()) as running:
        old = await create(await open_line(running))
    rules = RouterRules(new_queues=False, password=b"secret")
    async with running_router(tmp_path, rules, network=MemoryNetwork()) as running:
        line, key = await open_line(running), new_key()
        assert await line.ask(a_new(key, basic_auth=b"secret"), key=key) == AUTH
        assert await old.ask(line, GET()) == OK()


@pytest.mark.parametrize("size", [1, 3, 24, 255])
async def test_a_sender_id_comes_from_the_correlation_id(running: RunningRouter, size: int) -> None:
    line, key, corr_id = await open_line(running), new_key(), os.urandom(size)
    other = linked(os.urandom(24))
    assert error(await line.ask(a_new(key, request=other), key=key, corr_id=corr_id)) == PROHIBITED
    ids = await line.ask(a_new(key, request=linked(corr_id)), key=key, corr_id=corr_id)
    assert isinstance(ids, IDS)
    assert ids.sender_id == hashlib.sha3_384(corr_id).digest()[:24]


async def test_an_empty_sender_id_harms_nobody(running: RunningRouter) -> None:
    line, key = await open_line(running), new_key()
    request = QueueRequest(QueueMode.MESSAGING, NewLink(b"", DATA))
    refused, pong = await line.ask_many([Said(a_new(key, request=request), key=key), Said(PING())])
    assert (error(refused), pong) == (PROHIBITED, PONG())


async def test_the_router_chooses_the_link_of_a_messaging_queue(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, link=DATA)
    assert len(queue.link_id) == 24
    assert queue.link_id not in (queue.recipient_id, queue.sender_id)
    assert await line.ask(LGET(), queue.link_id) == AUTH
    key = new_key()
    assert await line.ask(LKEY(key.public), queue.link_id, key) == LNK(queue.sender_id, DATA)


@pytest.mark.parametrize("link_id", [b"short", bytes(24), b"x" * 255])
async def test_the_client_chooses_the_link_of_a_contact_queue(running: RunningRouter, link_id: bytes) -> None:
    line, key, corr_id = await open_line(running), new_key(), os.urandom(24)
    request = linked(corr_id, link_id=link_id, data=LinkData(b"", b""))
    ids = await line.ask(a_new(key, request=request), key=key, corr_id=corr_id)
    assert isinstance(ids, IDS)
    assert (ids.mode, ids.link_id) == (QueueMode.CONTACT, link_id)
    assert await line.ask(LGET(), link_id) == LNK(ids.sender_id, LinkData(b"", b""))
    other, corr_id = new_key(), os.urandom(24)
    taken = a_new(other, request=linked(corr_id, link_id=link_id))
    assert await line.ask(taken, key=other, corr_id=corr_id) == AUTH
    assert running.router.store.counts()["queues"] == 1


async def test_an_empty_link_id_is_a_link_id(running: RunningRouter) -> None:
    """No LGET can name it, but it is harmless and can be taken once."""
    line = await open_line(running)
    first, second = [await create(line, mode=QueueMode.CONTACT) for _ in range(2)]
    said = [first.said(LSET(b"", DATA)), second.said(LSET(b"", DATA)), Said(PING())]
    assert await line.ask_many(said) == [OK(), AUTH, PONG()]
    assert await second.ask(line, LSET(b"", DATA)) == AUTH
    assert await first.ask(line, LSET(b"", LinkData(b"fixed", b"other"))) == OK()


class Repeat:
    """A NEW that can be said again."""

    def __init__(self, *, subscribe: bool = True) -> None:
        self.key, self.dh_key, self.corr_id = new_key(), new_key(Algorithm.X25519), os.urandom(24)
        self.mode = SubMode.SUBSCRIBE if subscribe else SubMode.ONLY_CREATE

    def said(self, *, key: PrivateKey | None = None, dh_key: PrivateKey | None = None) -> Said:
        key, dh_key = key or self.key, dh_key or self.dh_key
        request = linked(self.corr_id)
        command = NEW(key.public, dh_key.public, None, self.mode, request)
        return Said(command, b"", key, self.corr_id)

    async def on(self, line: Line) -> IDS:
        (ids,) = await line.ask_many([self.said()])
        assert isinstance(ids, IDS)
        return ids


async def test_a_repeated_new_gets_the_same_answer(tmp_path: Path) -> None:
    repeat = Repeat()
    async with running_router(tmp_path, network=MemoryNetwork()) as running:
        line = await open_line(running)
        first = await repeat.on(line)
        assert await repeat.on(line) == first
        assert await repeat.on(await open_line(running)) == first
        for other in (repeat.said(key=new_key()), repeat.said(dh_key=new_key(Algorithm.X25519))):
            assert await line.ask_many([other]) == [AUTH]
        assert running.router.store.counts()["queues"] == 1
    async with running_router(tmp_path, network=MemoryNetwork()) as running:
        assert await repeat.on(await open_line(running)) == first


async def test_new_twice_in_one_turn_creates_one_queue(running: RunningRouter) -> None:
    lines, repeat = [await open_line(running) for _ in range(2)], Repeat(subscribe=False)
    for line in lines:
        line.send([line.written(repeat.said())])
    first, second = [(await line.reply(repeat.corr_id)).response for line in lines]
    assert first == second
    assert running.router.store.counts()["queues"] == 1


async def test_a_repeated_new_is_refused_after_the_recipient_keys_changed(running: RunningRouter) -> None:
    line, key, corr_id = await open_line(running), new_key(), os.urandom(24)
    said = Said(a_new(key, request=linked(corr_id, link_id=b"link")), b"", key, corr_id)
    (ids,) = await line.ask_many([said])
    assert isinstance(ids, IDS)
    assert await line.ask(RKEY((key.public, new_key().public)), ids.recipient_id, key) == OK()
    assert await line.ask_many([said]) == [AUTH]


async def test_a_repeated_new_takes_over_subscription_and_message_in_flight(running: RunningRouter) -> None:
    first, second, repeat = await open_line(running), await open_line(running), Repeat()
    ids = await repeat.on(first)
    for body in (b"one", b"two"):
        assert await first.ask(SEND(False, body), ids.sender_id) == OK()
    before = (await first.event(ids.recipient_id)).response
    assert await repeat.on(second) == ids
    assert (await first.event(ids.recipient_id)).response == END()
    again = (await second.event(ids.recipient_id)).response
    assert isinstance(before, MSG)
    assert isinstance(again, MSG)
    assert again.msg_id == before.msg_id
    assert isinstance(await second.ask(ACK(again.msg_id), ids.recipient_id, repeat.key), MSG)
    assert error(await first.ask(ACK(before.msg_id), ids.recipient_id, repeat.key)) is Code.NO_MSG


async def test_a_repeated_new_that_only_creates_leaves_the_subscriber(running: RunningRouter) -> None:
    first, second, repeat = await open_line(running), await open_line(running), Repeat(subscribe=False)
    ids = await repeat.on(first)
    assert await first.ask(SEND(False, b"one"), ids.sender_id) == OK()
    await first.ask(SUB(), ids.recipient_id, repeat.key)
    await first.event(ids.recipient_id)
    assert await repeat.on(second) == ids
    assert await second.settle() == await first.settle() == []


async def test_a_repeated_new_does_not_subscribe_a_connection_that_used_get(running: RunningRouter) -> None:
    line, repeat = await open_line(running), Repeat(subscribe=False)
    ids = await repeat.on(line)
    assert await line.ask(SEND(False, b"one"), ids.sender_id) == OK()
    assert isinstance(await line.ask(GET(), ids.recipient_id, repeat.key), MSG)
    repeat.mode = SubMode.SUBSCRIBE
    assert await repeat.on(line) == ids
    assert await line.settle() == []
    assert error(await line.ask(SUB(), ids.recipient_id, repeat.key)) == PROHIBITED


async def test_a_repeated_new_of_a_blocked_queue_is_refused(running: RunningRouter) -> None:
    line, repeat = await open_line(running), Repeat(subscribe=False)
    ids = await repeat.on(line)
    blocked = BLOCKED(BlockingReason.SPAM)
    assert await block(running, ids.sender_id, blocked) == "blocked"
    assert await line.ask_many([repeat.said()]) == [ERR(blocked)]


async def test_notification_credentials_come_with_the_queue(running: RunningRouter) -> None:
    line, key, notifier = await open_line(running), new_key(), new_key()
    creds = NtfCreds(notifier.public, new_key(Algorithm.X25519).public)
    ids = await line.ask(a_new(key, ntf_creds=creds), key=key)
    assert isinstance(ids, IDS)
    assert ids.ntf_creds is not None
    assert len(ids.ntf_creds.notifier_id) == 24
    assert ids.ntf_creds.dh_key != ids.dh_key
