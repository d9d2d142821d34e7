"""NKEY, NDEL, NSUB and NMSG: who is told that a message came."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blindpost.router.config import RouterRules
from blindpost.router.meters import Meter
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, GET, NDEL, NKEY, NSUB, SEND
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import DELD, END, ERR, NID, NMSG, OK, SOK
from blindpost.wire.smp.values import NtfCreds, ServerNtfCreds
from tests.support.router.lines import Line, Queue, Said, client_of, create, lines_of, open_line, quiet
from tests.support.router.routers import RunningRouter, new_key, running_router
from tests.support.serving.waiting import until

AUTH = ERR(Code.AUTH)
DAY = 86_400


class Time:
    """A time of day that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def __call__(self) -> float:
        return self.seconds


@asynccontextmanager
async def at(folder: Path, now: Time, rules: RouterRules | None = None) -> AsyncIterator[RunningRouter]:
    async with running_router(folder, rules, now=now, network=MemoryNetwork()) as running:
        yield running


async def nsub(line: Line, queue: Queue) -> None:
    assert await line.ask(NSUB(), queue.notifier_id, queue.notifier_key) == SOK(None)


async def notices(line: Line, queue: Queue, count: int) -> list[bytes]:
    """Which messages the next notifications are about."""
    return [queue.noticed((await line.event(queue.notifier_id)).response).msg_id for _ in range(count)]


async def head_id(line: Line, queue: Queue) -> bytes:
    queue.opened(await queue.ask(line, GET()))
    return queue.last_id


async def test_a_notification_says_which_message_came_and_when(tmp_path: Path) -> None:
    now = Time()
    async with at(tmp_path, now) as running:
        line, notified = await lines_of(running, 2)
        queue = await create(line, notifier=True)
        await nsub(notified, queue)
        await queue.send(line, b"silent")
        await quiet(notified)
        msg_id = await head_id(line, queue)
        await queue.ask(line, ACK(msg_id))
        await queue.send(line, b"loud", notify=True)
        event = await notified.event(queue.notifier_id)
        assert event.corr_id == b""
        assert isinstance(event.response, NMSG)
        assert len(event.response.enc_meta) == 144
        meta = queue.noticed(event.response)
        assert (meta.msg_id, meta.seconds) == (await head_id(line, queue), int(now.seconds))
        await quiet(line, notified)


async def test_every_notification_has_its_own_nonce(running: RunningRouter) -> None:
    line, notified = await lines_of(running, 2)
    queue = await create(line, notifier=True)
    await nsub(notified, queue)
    nonces = set()
    for _ in range(5):
        await queue.send(line, b"loud", notify=True)
        response = (await notified.event(queue.notifier_id)).response
        assert isinstance(response, NMSG)
        nonces.add(response.nonce)
    assert len(nonces) == 5


async def test_nobody_is_notified_of_a_queue_without_credentials(running: RunningRouter) -> None:
    line, notified = await lines_of(running, 2)
    queue = await create(line)
    await queue.send(line, b"loud", notify=True)
    assert running.router.store.counts()["notifications"] == 0
    assert await notified.ask(NSUB(), queue.recipient_id, queue.notifier_key) == AUTH


async def test_nkey_replaces_and_tells_the_subscriber(running: RunningRouter) -> None:
    line, notified, other = await lines_of(running, 3)
    queue = await create(line, notifier=True)
    await nsub(notified, queue)
    await quiet(notified)
    replies = [await queue.ask(line, NKEY(queue.ntf_creds)) for _ in range(2)]
    found = [reply.creds for reply in replies if isinstance(reply, NID)]
    assert len({queue.notifier_id, *(creds.notifier_id for creds in found)}) == 3
    assert {len(creds.notifier_id) for creds in found} == {24}
    assert (await notified.event(queue.notifier_id)).response == DELD()
    assert await notified.ask(NSUB(), queue.notifier_id, queue.notifier_key) == AUTH
    creds = found[-1]
    assert await other.ask(NSUB(), creds.notifier_id, queue.notifier_key) == SOK(None)
    await queue.send(line, b"loud", notify=True)
    queue.noticed((await other.event(creds.notifier_id)).response, creds)
    await quiet(notified, other, line)
    assert running.router.store.counts()["notifiers"] == 1


async def test_a_client_that_replaces_its_own_notifier_is_not_told(running: RunningRouter) -> None:
    (line,) = await lines_of(running, 1)
    queue = await create(line, notifier=True)
    await nsub(line, queue)
    assert isinstance(await queue.ask(line, NKEY(queue.ntf_creds)), NID)
    assert await queue.ask(line, NDEL()) == OK()
    await quiet(line)
    assert len(client_of(running, line).notifier_ids) == 0


async def test_ndel_ends_notifications(running: RunningRouter) -> None:
    line, notified = await lines_of(running, 2)
    queue = await create(line, notifier=True)
    await queue.send(line, b"loud", notify=True)
    assert running.router.store.counts()["notifications"] == 1
    assert await line.ask(NDEL(), queue.recipient_id, queue.notifier_key) == AUTH
    for _ in range(2):
        assert await queue.ask(line, NDEL()) == OK()
    counts = running.router.store.counts()
    assert (counts["notifications"], counts["notifiers"]) == (0, 0)
    assert await notified.ask(NSUB(), queue.notifier_id, queue.notifier_key) == AUTH
    reply = await queue.ask(line, NKEY(queue.ntf_creds))
    assert isinstance(reply, NID)
    assert await notified.ask(NSUB(), reply.creds.notifier_id, queue.notifier_key) == SOK(None)
    await quiet(notified)
    assert await queue.ask(line, NDEL()) == OK()
    assert (await notified.event(reply.creds.notifier_id)).response == DELD()
    await queue.send(line, b"loud", notify=True)
    await quiet(notified)


@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519])
async def test_only_the_notifier_key_subscribes(running: RunningRouter, algorithm: Algorithm) -> None:
    line, notified = await lines_of(running, 2)
    queue, key = await create(line), new_key(algorithm)
    creds = NtfCreds(key.public, queue.notifier_dh_key.public)
    reply = await queue.ask(line, NKEY(creds))
    assert isinstance(reply, NID)
    notifier_id = reply.creds.notifier_id
    for wrong in (queue.key, queue.sender_key, new_key(algorithm)):
        assert await notified.ask(NSUB(), notifier_id, wrong) == AUTH
    for entity_id in (queue.recipient_id, queue.sender_id, os.urandom(24)):
        assert await notified.ask(NSUB(), entity_id, key) == AUTH
    for _ in range(2):
        assert await notified.ask(NSUB(), notifier_id, key) == SOK(None)
    await queue.send(line, b"loud", notify=True)
    queue.noticed((await notified.event(notifier_id)).response, reply.creds)


async def test_a_second_notifier_displaces_the_first(running: RunningRouter) -> None:
    line, one, two = await lines_of(running, 3)
    queue = await create(line, notifier=True)
    await nsub(one, queue)
    await nsub(two, queue)
    assert (await one.event(queue.notifier_id)).response == END()
    await queue.send(line, b"loud", notify=True)
    await notices(two, queue, 1)
    await quiet(one, two)
    await one.stream.close()
    await queue.send(line, b"loud", notify=True)
    await notices(two, queue, 1)


async def test_notifications_wait_for_a_subscriber_in_their_order(tmp_path: Path) -> None:
    """Also across a restart; receiving the message does not cancel them; NSUB delivers each once."""
    now = Time()
    async with at(tmp_path, now) as running:
        line = await open_line(running)
        queue = await create(line, notifier=True)
        ids = []
        for number in range(3):
            await queue.send(line, b"loud", notify=True)
            await queue.send(line, b"silent")
            for _ in range(2):
                msg_id = await head_id(line, queue)
                ids.append(msg_id)
                await queue.ask(line, ACK(msg_id))
            now.seconds += number
        assert running.router.plan.meters[Meter.NTF_NO_SUB] == 3
    async with at(tmp_path, now) as running:
        one, two = await lines_of(running, 2)
        await nsub(one, queue)
        assert await notices(one, queue, 3) == ids[::2]
        await nsub(one, queue)
        await quiet(one)
        await nsub(two, queue)
        assert (await one.event(queue.notifier_id)).response == END()
        await quiet(one, two)
        assert running.router.store.counts()["notifications"] == 0
        assert running.router.plan.meters[Meter.NTFS] == 3


async def test_a_disconnected_notifier_leaves_notifications_waiting(running: RunningRouter) -> None:
    line, one, two = await lines_of(running, 3)
    queue = await create(line, notifier=True)
    await nsub(one, queue)
    gone = client_of(running, one)
    await one.stream.close()
    await until(lambda: gone.client_id not in running.router.connections)
    await queue.send(line, b"loud", notify=True)
    await nsub(two, queue)
    assert await notices(two, queue, 1) == [await head_id(line, queue)]


@pytest.mark.parametrize(("age", "kept"), [(DAY, True), (DAY + 1, False)])
async def test_notifications_expire(tmp_path: Path, age: int, kept: bool) -> None:
    now = Time()
    async with at(tmp_path, now) as running:
        line = await open_line(running)
        queue = await create(line, notifier=True)
        await queue.send(line, b"loud", notify=True)
        old = await head_id(line, queue)
        await queue.ask(line, ACK(old))
        now.seconds += age
        await queue.send(line, b"loud", notify=True)
        new = await head_id(line, queue)
        await nsub(line, queue)
        expected = [old, new] if kept else [new]
        assert await notices(line, queue, len(expected)) == expected
        await quiet(line)
        assert running.router.plan.meters[Meter.NTF_EXPIRED] == (0 if kept else 1)
        assert running.router.store.counts()["notifications"] == 0


async def test_only_the_newest_notifications_wait(tmp_path: Path) -> None:
    """A notifier that never comes costs bounded room: of 300 notifications the last 256 are kept."""
    async with at(tmp_path, Time(), RouterRules(quota=1000)) as running:
        line, notified = await lines_of(running, 2)
        queue = await create(line, notifier=True)
        for _ in range(3):
            said = [Said(SEND(True, b""), queue.sender_id) for _ in range(100)]
            assert await line.ask_many(said) == [OK()] * 100
        assert running.router.store.counts()["notifications"] == 256
        ids = []
        for _ in range(300):
            ids.append(await head_id(line, queue))
            await queue.ask(line, ACK(queue.last_id))
        await nsub(notified, queue)
        assert await notices(notified, queue, 256) == ids[-256:]
        await quiet(notified)


async def test_notifications_of_a_queue_die_with_it_and_leave_others(running: RunningRouter) -> None:
    line, notified = await lines_of(running, 2)
    one, two = [await create(line, notifier=True) for _ in range(2)]
    for queue in (one, two):
        await queue.send(line, b"loud", notify=True)
    assert await one.ask(line, NDEL()) == OK()
    await nsub(notified, two)
    assert await notices(notified, two, 1) == [await head_id(line, two)]


async def test_notifier_credentials_in_new_and_nkey_differ(running: RunningRouter) -> None:
    (line,) = await lines_of(running, 1)
    queue = await create(line, notifier=True)
    reply = await queue.ask(line, NKEY(queue.ntf_creds))
    assert isinstance(reply, NID)
    first, second = queue.ids.ntf_creds, reply.creds
    assert isinstance(first, ServerNtfCreds)
    assert first.dh_key != second.dh_key
    assert first.notifier_id != second.notifier_id
