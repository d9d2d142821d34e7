"""SEND: sizes, quota and marker, and what a sender is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blindpost.router.config import RouterRules
from blindpost.router.meters import Meter
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import ACK, GET, OFF, SEND, SUB
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.messages import Message, QuotaMarker
from blindpost.wire.smp.responses import ERR, MSG, OK, SOK
from tests.support.router.lines import Line, Queue, Said, create, open_line
from tests.support.router.routers import RunningRouter, new_key, running_router

AUTH, QUOTA, LARGE = ERR(Code.AUTH), ERR(Code.QUOTA), ERR(Code.LARGE_MSG)
SIZES = {6: 16088, 7: 16088, 8: 16064, 10: 16064, 11: 16048, 15: 16048, 20: 16048}


async def taken(line: Line, queue: Queue) -> bytes | None:
    """GET the head message and acknowledge it; None if there is none."""
    reply = await queue.ask(line, GET())
    if not isinstance(reply, MSG):
        assert reply == OK()
        return None
    body = queue.body(reply)
    assert await queue.ask(line, ACK(queue.last_id)) == OK()
    return body


@pytest.mark.parametrize(("version", "most"), SIZES.items())
async def test_the_largest_body_of_every_version(running: RunningRouter, version: int, most: int) -> None:
    line = await open_line(running, version)
    queue = await create(line)
    body = os.urandom(most)
    assert await line.ask(SEND(False, body + b"x"), queue.sender_id) == LARGE
    await queue.send(line, body)
    await queue.send(line, b"")
    assert [await taken(line, queue) for _ in range(3)] == [body, b"", None]


async def test_the_size_is_checked_only_after_the_key(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, secured=True)
    large = SEND(False, bytes(16049))
    assert await line.ask(large, queue.sender_id) == AUTH
    assert await line.ask(large, queue.sender_id, new_key()) == AUTH
    assert await line.ask(large, os.urandom(24)) == AUTH
    assert await line.ask(large, queue.sender_id, queue.sender_key) == LARGE
    assert await queue.ask(line, OFF()) == OK()
    assert await line.ask(large, queue.sender_id, queue.sender_key) == LARGE


@pytest.mark.both_stores
@pytest.mark.claim("SUB-28")
async def test_the_router_carries_any_bytes(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line)
    bodies = [b"", b" ", b"QUOTA 12345678", b"END", bytes(100), os.urandom(16048), bytes(range(256))]
    for body in bodies:
        await queue.send(line, body)
    assert [await taken(line, queue) for _ in bodies] == bodies


async def test_flags_and_time_reach_the_recipient(tmp_path: Path) -> None:
    now = 1_700_000_000.75
    async with running_router(tmp_path, now=lambda: now, network=MemoryNetwork()) as running:
        line = await open_line(running)
        queue = await create(line)
        for notify in (True, False):
            await queue.send(line, b"hello", notify=notify)
            assert queue.opened(await queue.ask(line, GET())) == Message(int(now), notify, b"hello")
            await queue.ask(line, ACK(queue.last_id))


async def test_only_senders_send(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, notifier=True)
    for entity_id in (queue.recipient_id, queue.notifier_id, os.urandom(24), b"x"):
        assert await line.ask(SEND(False, b"hello"), entity_id) == AUTH
    assert await taken(line, queue) is None


async def fill(line: Line, queue: Queue, count: int) -> None:
    said = [Said(SEND(True, b"%d" % number), queue.sender_id) for number in range(count)]
    assert await line.ask_many(said) == [OK()] * count


async def test_the_quota_and_its_marker(tmp_path: Path) -> None:
    rules = RouterRules(quota=4)
    async with running_router(tmp_path, rules, network=MemoryNetwork()) as running:
        line, sender = await open_line(running), await open_line(running)
        queue = await create(line, notifier=True)
        await fill(line, queue, 4)
        more = SEND(True, b"more")
        meters = running.router.plan.meters
        noticed = meters[Meter.SENT_NTF]
        assert [await sender.ask(more, queue.sender_id) for _ in range(3)] == [QUOTA] * 3
        assert running.router.store.counts()["messages"] == 5
        assert (meters[Meter.SENT], meters[Meter.SENT_QUOTA]) == (4, 3)
        assert meters[Meter.SENT_NTF] == noticed
        assert await queue.ask(line, SUB()) == SOK(None)
        reply = (await line.event(queue.recipient_id)).response
        for number in range(4):
            assert queue.body(reply) == b"%d" % number
            assert await sender.ask(more, queue.sender_id) == QUOTA
            reply = await queue.ask(line, ACK(queue.last_id))
        assert isinstance(queue.opened(reply), QuotaMarker)
        assert await sender.ask(more, queue.sender_id) == QUOTA
        received = meters[Meter.RECEIVED]
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
        assert meters[Meter.RECEIVED] == received == 4
        await fill(sender, queue, 4)
        assert await sender.ask(more, queue.sender_id) == QUOTA
        assert queue.body((await line.event(queue.recipient_id)).response) == b"0"


async def test_a_full_queue_accepts_again_unless_it_refused_a_message(tmp_path: Path) -> None:
    """Only a refused message closes a queue; one that was merely full continues when there is room."""
    async with running_router(tmp_path, RouterRules(quota=2), network=MemoryNetwork()) as running:
        line = await open_line(running)
        queue = await create(line)
        await fill(line, queue, 2)
        assert await taken(line, queue) == b"0"
        await queue.send(line, b"2")
        assert await line.ask(SEND(False, b"3"), queue.sender_id) == QUOTA
        assert [await taken(line, queue) for _ in range(2)] == [b"1", b"2"]
        assert await line.ask(SEND(False, b"3"), queue.sender_id) == QUOTA


async def test_a_full_queue_stays_full_over_a_restart(tmp_path: Path) -> None:
    rules = RouterRules(quota=2)
    async with running_router(tmp_path, rules, network=MemoryNetwork()) as running:
        line = await open_line(running)
        queue = await create(line)
        await fill(line, queue, 2)
        assert await line.ask(SEND(False, b"more"), queue.sender_id) == QUOTA
        assert await taken(line, queue) == b"0"
    async with running_router(tmp_path, rules, network=MemoryNetwork()) as running:
        line = await open_line(running)
        assert await line.ask(SEND(False, b"more"), queue.sender_id) == QUOTA
        assert await taken(line, queue) == b"1"
        assert isinstance(queue.opened(await queue.ask(line, GET())), QuotaMarker)
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
        await queue.send(line, b"more")


@pytest.mark.both_stores
@pytest.mark.claim("SUB-29")
async def test_message_ids_are_never_used_again(tmp_path: Path) -> None:
    """Not within a queue, after emptying it or after a restart, even with identical entropy."""
    seen: list[bytes] = []
    queue = None
    for _ in range(3):
        async with running_router(tmp_path, network=MemoryNetwork()) as running:
            line = await open_line(running)
            queue = queue or await create(line)
            running.router.plan._entropy = bytes
            for _ in range(20):
                await queue.send(line, b"hello")
                await queue.send(line, b"hello")
                for _ in range(2):
                    assert await taken(line, queue) == b"hello"
                    seen.append(queue.last_id)
    assert len(seen) == len(set(seen)) == 120
    assert {len(msg_id) for msg_id in seen} == {24}


async def test_message_ids_cannot_be_guessed(running: RunningRouter) -> None:
    line = await open_line(running)
    queues = [await create(line) for _ in range(8)]
    for queue in queues:
        await queue.send(line, b"hello")
        assert await taken(line, queue) == b"hello"
    assert len({queue.last_id[:16] for queue in queues}) == 8
