"""LSET, LDEL, LKEY and LGET: short links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blindpost.testing.network import MemoryNetwork
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import DEL, KEY, LDEL, LGET, LKEY, LSET, SEND, SKEY
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ERR, LNK, OK
from blindpost.wire.smp.values import LinkData, QueueMode
from tests.support.router.lines import Queue, Said, create, open_line
from tests.support.router.routers import RunningRouter, new_key, running_router

AUTH = ERR(Code.AUTH)
DATA = LinkData(b"fixed", b"user")
LONG = LinkData(os.urandom(2048), os.urandom(13824))


async def test_a_contact_link_can_be_read_repeatedly_by_anyone(running: RunningRouter) -> None:
    line, reader = await open_line(running), await open_line(running)
    queue = await create(line, mode=QueueMode.CONTACT, link=LONG)
    for _ in range(2):
        assert await reader.ask(LGET(), queue.link_id) == LNK(queue.sender_id, LONG)
    key = new_key()
    assert await reader.ask(LKEY(key.public), queue.link_id, key) == AUTH
    await queue.secure(line)
    await queue.send(line, b"a request", signed=True)
    assert await reader.ask(LGET(), queue.link_id) == LNK(queue.sender_id, LONG)


async def test_lset_changes_user_data_and_nothing_else(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, mode=QueueMode.CONTACT, link=DATA)
    changed = LinkData(DATA.fixed, b"other user data")
    assert await queue.ask(line, LSET(queue.link_id, changed)) == OK()
    assert await queue.ask(line, LSET(b"other link", changed)) == AUTH
    assert await queue.ask(line, LSET(queue.link_id, LinkData(b"other", b"user"))) == AUTH
    assert await line.ask(LSET(queue.link_id, DATA), queue.recipient_id, new_key()) == AUTH
    assert await line.ask(LGET(), queue.link_id) == LNK(queue.sender_id, changed)
    assert await line.ask(LGET(), b"other link") == AUTH


@pytest.mark.parametrize("mode", [None, *QueueMode])
async def test_lset_gives_a_queue_its_link(running: RunningRouter, mode: QueueMode | None) -> None:
    line, link_id = await open_line(running), os.urandom(24)
    queue, other = await create(line, mode=mode), await create(line, mode=mode)
    assert await queue.ask(line, LSET(link_id, DATA)) == OK()
    assert await other.ask(line, LSET(link_id, DATA)) == AUTH
    assert await queue.ask(line, LSET(link_id, LinkData(b"not fixed", b""))) == AUTH
    found = LNK(queue.sender_id, DATA)
    assert await line.ask(LGET(), link_id) == (AUTH if mode is QueueMode.MESSAGING else found)


@pytest.mark.parametrize("mode", [None, *QueueMode])
async def test_lset_on_a_secured_queue(running: RunningRouter, mode: QueueMode | None) -> None:
    line, link_id = await open_line(running), os.urandom(24)
    queue = await create(line, mode=mode, secured=True)
    expected = OK() if mode is QueueMode.CONTACT else AUTH
    assert await queue.ask(line, LSET(link_id, DATA)) == expected


async def test_a_queue_without_mode_is_a_contact_queue_until_it_is_secured(running: RunningRouter) -> None:
    line, link_id, key = await open_line(running), os.urandom(24), new_key()
    queue = await create(line, mode=None)
    assert await queue.ask(line, LSET(link_id, DATA)) == OK()
    assert await line.ask(LGET(), link_id) == LNK(queue.sender_id, DATA)
    assert await line.ask(LKEY(key.public), link_id, key) == AUTH
    await queue.secure(line)
    assert await line.ask(LGET(), link_id) == AUTH
    await queue.send(line, b"kept", signed=True)
    assert await queue.ask(line, LSET(link_id, DATA)) == AUTH


async def test_ldel(running: RunningRouter) -> None:
    line = await open_line(running)
    queue, other = [await create(line, mode=QueueMode.CONTACT, link=DATA) for _ in range(2)]
    assert await line.ask(LDEL(), queue.recipient_id, new_key()) == AUTH
    for _ in range(2):
        assert await queue.ask(line, LDEL()) == OK()
    assert await line.ask(LGET(), queue.link_id) == AUTH
    assert await other.ask(line, LSET(queue.link_id, DATA)) == AUTH
    again = LinkData(b"other fixed data", b"user")
    assert await queue.ask(line, LSET(queue.link_id, again)) == OK()
    assert await line.ask(LGET(), queue.link_id) == LNK(queue.sender_id, again)
    assert await line.ask(LGET(), other.link_id) == LNK(other.sender_id, DATA)


async def test_an_abandoned_link_id_is_free_for_others(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, mode=QueueMode.CONTACT, link=DATA)
    other = await create(line, mode=QueueMode.CONTACT)
    said = [queue.said(LDEL()), other.said(LSET(queue.link_id, LONG)), Said(LGET(), queue.link_id)]
    assert await line.ask_many(said) == [OK(), OK(), LNK(other.sender_id, LONG)]
    assert await other.ask(line, DEL()) == OK()
    assert await line.ask(LGET(), queue.link_id) == AUTH
    assert await queue.ask(line, LSET(queue.link_id, DATA)) == OK()


@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519])
async def test_lkey_secures_and_reads(running: RunningRouter, algorithm: Algorithm) -> None:
    line, key, other = await open_line(running), new_key(algorithm), new_key(algorithm)
    queue = await create(line, link=DATA)
    found = LNK(queue.sender_id, LinkData(DATA.fixed, b"changed"))
    assert await queue.ask(line, LSET(queue.link_id, found.data)) == OK()
    assert await line.ask(LKEY(key.public), queue.link_id, other) == AUTH
    assert await line.ask(SEND(False, b"unsecured"), queue.sender_id) == OK()
    for _ in range(2):
        assert await line.ask(LKEY(key.public), queue.link_id, key) == found
    assert await line.ask(LKEY(other.public), queue.link_id, other) == AUTH
    assert await line.ask(SKEY(key.public), queue.sender_id, key) == OK()
    assert await queue.ask(line, KEY(other.public)) == AUTH
    assert await queue.ask(line, LSET(queue.link_id, DATA)) == AUTH
    assert await line.ask(SEND(False, b"hello"), queue.sender_id) == AUTH


async def test_the_first_message_to_a_secured_queue_removes_the_link(running: RunningRouter) -> None:
    line, key = await open_line(running), new_key()
    queue = await create(line, link=DATA)
    found = LNK(queue.sender_id, DATA)
    await queue.send(line, b"unsecured: the link stays")
    assert await line.ask(LKEY(key.public), queue.link_id, key) == found
    assert await line.ask(SEND(False, b"x" * 16049), queue.sender_id, key) == ERR(Code.LARGE_MSG)
    assert await line.ask(LKEY(key.public), queue.link_id, key) == found
    assert await line.ask(SEND(False, b"secured"), queue.sender_id, key) == OK()
    assert await line.ask(LKEY(key.public), queue.link_id, key) == AUTH
    assert await queue.ask(line, LDEL()) == OK()
    assert running.router.store.counts()["links"] == 0


async def test_links_survive_a_restart(tmp_path: Path) -> None:
    queues: list[Queue] = []
    async with running_router(tmp_path, network=MemoryNetwork()) as running:
        line = await open_line(running)
        queues = [await create(line, mode=mode, link=LONG) for mode in QueueMode]
    async with running_router(tmp_path, network=MemoryNetwork()) as running:
        line, key = await open_line(running), new_key()
        messaging, contact = queues
        assert await line.ask(LGET(), contact.link_id) == LNK(contact.sender_id, LONG)
        assert await line.ask(LKEY(key.public), messaging.link_id, key) == LNK(messaging.sender_id, LONG)
