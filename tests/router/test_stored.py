"""A router takes what its store has room for, to the byte, and counts what it took."""

from __future__ import annotations

import os

import pytest

from blindpost.crypto.ids_hash import sender_id_of
from blindpost.engine.loop import StoreFailedError
from blindpost.router.meters import Meter
from blindpost.router.queues import FULL
from blindpost.router.weights import LINK_BYTES, MESSAGE_BYTES, QUEUE_BYTES
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import LSET, NEW, SEND
from blindpost.wire.smp.errors import STORE, Code
from blindpost.wire.smp.responses import ERR, IDS, OK
from blindpost.wire.smp.values import LinkData, NewLink, QueueMode, QueueRequest, SubMode
from tests.support.router.lines import create, error, lines_of, open_line, pushed, quiet
from tests.support.router.routers import RunningRouter, new_key

DATA = LinkData(b"fixed", b"user")


def leave_room(running: RunningRouter, size: int) -> None:
    stored = running.router.plan.stored
    stored.limit = 1 << 40
    stored.look(stored.limit - size)


def room(running: RunningRouter) -> int:
    stored = running.router.plan.stored
    return stored.limit - stored.total


@pytest.mark.parametrize(("link", "size"), [(None, QUEUE_BYTES), (DATA, QUEUE_BYTES + LINK_BYTES)])
async def test_a_new_queue_needs_room_for_itself_and_its_link(
    running: RunningRouter, link: LinkData | None, size: int
) -> None:
    line, key, corr_id = await open_line(running), new_key(), os.urandom(24)
    dh_key = new_key(Algorithm.X25519).public
    new_link = None if link is None else NewLink(sender_id_of(corr_id), link, os.urandom(24))
    request = QueueRequest(QueueMode.CONTACT, new_link)
    command = NEW(key.public, dh_key, None, SubMode.ONLY_CREATE, request, None)
    leave_room(running, size - 1)
    assert await line.ask(command, key=key, corr_id=corr_id) == FULL
    leave_room(running, size)
    assert isinstance(await line.ask(command, key=key, corr_id=corr_id), IDS)
    assert room(running) == 0


async def test_a_link_needs_room(running: RunningRouter) -> None:
    line, link_id = await open_line(running), os.urandom(24)
    queue = await create(line, mode=QueueMode.CONTACT)
    leave_room(running, LINK_BYTES - 1)
    assert await queue.ask(line, LSET(link_id, DATA)) == FULL
    leave_room(running, LINK_BYTES)
    assert await queue.ask(line, LSET(link_id, DATA)) == OK()
    assert room(running) == 0


async def test_a_message_needs_room(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line)
    meters = running.router.plan.meters
    leave_room(running, MESSAGE_BYTES - 1)
    assert await line.ask(SEND(False, b"hello"), queue.sender_id) == ERR(Code.QUOTA)
    assert (meters[Meter.SENT], meters[Meter.SENT_QUOTA]) == (0, 1)
    leave_room(running, MESSAGE_BYTES)
    assert await line.ask(SEND(False, b"hello"), queue.sender_id) == OK()
    assert (meters[Meter.SENT], meters[Meter.SENT_QUOTA]) == (1, 1)
    assert room(running) == 0


async def test_a_refused_commit_is_answered_once_and_nothing_of_it_is_pushed(
    running: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line, subscribe=True)

    async def fails(_: object) -> None:
        raise StoreFailedError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(running.router.plan._store, "commit", fails)
        refused = error(await sender.ask(SEND(False, b"hello"), queue.sender_id))
    assert isinstance(refused, STORE)
    await quiet(line, sender)
    await queue.send(sender, b"hello again")
    assert await pushed(line, queue) == b"hello again"
    await quiet(line, sender)
