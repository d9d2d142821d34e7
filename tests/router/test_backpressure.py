"""Connections that do not read: what is due to them waits in the store, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import blindpost
from blindpost.router.events import Serve
from blindpost.router.model import ID_SIZE, Domain
from blindpost.testing.network import MemoryNetwork
from blindpost.transport.errors import OutboxFullError
from blindpost.transport.plan import SessionLimits
from blindpost.wire.smp.commands import ACK, DEL, GET, NSUB, QUE, SEND, SUB
from blindpost.wire.smp.queue_info import SubThread
from blindpost.wire.smp.responses import DELD, END, INFO, MSG, NMSG, OK, SOK
from tests.support.router.lines import (
    Line,
    Queue,
    Said,
    client_of,
    create,
    in_flight,
    lines_of,
    open_line,
    pushed,
    quiet,
)
from tests.support.router.routers import RunningRouter, running_router
from tests.support.router.services import NOTIFIER, new_service, nsub, open_service
from tests.support.serving.waiting import until

pytestmark = pytest.mark.one_process
SOURCES = Path(blindpost.__file__).parent
BLOCK = 16384
LIMITS = SessionLimits(outbox_high=4 * BLOCK, outbox_low=2 * BLOCK, outbox_max=64 * BLOCK)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    """A router whose connections have short outboxes."""
    async with running_router(tmp_path, limits=LIMITS, network=MemoryNetwork()) as router:
        yield router


async def stuffed(running: RunningRouter, line: Line, sender: Line) -> list[Queue]:
    """Stop reading on `line` and push messages at it until the router holds back; the queues pushed."""
    client = client_of(running, line)
    queues = [await create(line, subscribe=True) for _ in range(60)]
    line.stream.session.pause_reading()
    used = []
    for queue in queues:
        if client.congested:
            break
        await queue.send(sender, b"stuffing")
        used.append(queue)
    assert client.congested
    assert len(used) < len(queues)
    return used


async def unstuffed(line: Line, queues: list[Queue]) -> None:
    """Read again; every message that was pushed arrives, once."""
    line.stream.session.resume_reading()
    for queue in queues:
        assert await pushed(line, queue) == b"stuffing"


@pytest.mark.both_stores
@pytest.mark.claim("SUB-25")
async def test_a_message_for_a_full_connection_waits_and_comes_once(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    client = client_of(running, line)
    stuffing = await stuffed(running, line, sender)
    tasks = len(asyncio.all_tasks())
    for body in (b"one", b"two", b"three"):
        await queue.send(sender, body)
    assert queue.recipient_id in client.waiting
    assert in_flight(running, line, queue) is None
    assert len(asyncio.all_tasks()) == tasks
    await unstuffed(line, stuffing)
    assert await pushed(line, queue) == b"one"
    assert queue.recipient_id not in client.waiting
    assert in_flight(running, line, queue) is not None
    await quiet(line)
    for body in (b"two", b"three"):
        assert queue.body(await queue.ask(line, ACK(queue.last_id))) == body
    assert await queue.ask(line, ACK(queue.last_id)) == OK()


async def test_que_shows_what_waits(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    client = client_of(running, line)
    client.congested = True
    await queue.send(sender, b"hello")
    info = await queue.ask(line, QUE())
    assert isinstance(info, INFO)
    assert info.info.sub is not None
    assert (info.info.sub.thread, info.info.sub.delivered) == (SubThread.PENDING, None)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-10")
@pytest.mark.claim("SUB-26")
async def test_a_waiting_delivery_is_not_made_to_a_displaced_connection(
    running: RunningRouter,
) -> None:
    line, sender, other = await lines_of(running, 3)
    queue = await create(line, subscribe=True)
    client = client_of(running, line)
    stuffing = await stuffed(running, line, sender)
    await queue.send(sender, b"hello")
    assert queue.recipient_id in client.waiting
    assert await queue.ask(other, SUB()) == SOK(None)
    assert await pushed(other, queue) == b"hello"
    assert queue.recipient_id not in client.waiting
    assert queue.recipient_id not in client.subs
    await unstuffed(line, stuffing)
    assert (await line.event(queue.recipient_id)).response == END()
    await quiet(line, other)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-26")
@pytest.mark.claim("SUB-54")
@pytest.mark.parametrize("meanwhile", ["taken by a reader", "deleted", "displaced", "in flight", "gone"])
async def test_a_waiting_delivery_is_decided_again(running: RunningRouter, meanwhile: str) -> None:
    """Whatever happened to the queue, nothing stays marked as due and the next message is delivered."""
    line, sender, other = await lines_of(running, 3)
    queue = await create(line, subscribe=True)
    client = client_of(running, line)
    client.congested = True
    await queue.send(sender, b"due")
    assert queue.recipient_id in client.waiting
    expected = b"due"
    match meanwhile:
        case "taken by a reader":
            assert queue.body(await queue.ask(other, GET())) == b"due"
            assert await queue.ask(other, ACK(queue.last_id)) == OK()
            expected = b"next"
        case "deleted":
            assert await queue.ask(other, DEL()) == OK()
        case "displaced":
            assert await queue.ask(other, SUB()) == SOK(None)
            assert await pushed(other, queue) == b"due"
        case "in flight":
            client.congested = False
            assert await queue.ask(line, SUB()) == SOK(None)
            assert await pushed(line, queue) == b"due"
            client.waiting.fill(queue.recipient_id, True)
    client.congested = False
    if meanwhile == "gone":
        await line.stream.close()
    running.router.engine.put_own(Serve(client))
    await sender.settle()
    assert queue.recipient_id not in client.waiting
    match meanwhile:
        case "taken by a reader":
            await queue.send(sender, b"next")
            assert await pushed(line, queue) == expected
        case "deleted":
            assert (await line.event(queue.recipient_id)).response == DELD()
            await quiet(line)
        case "displaced":
            assert (await line.event(queue.recipient_id)).response == END()
            await quiet(line, other)
        case "in flight":
            await quiet(line)
        case "gone":
            assert await queue.ask(other, SUB()) == SOK(None)
            assert await pushed(other, queue) == expected


@pytest.mark.both_stores
@pytest.mark.claim("SUB-54")
async def test_a_connection_that_is_full_again_keeps_what_is_due(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    client = client_of(running, line)
    client.congested = True
    await queue.send(sender, b"due")
    for _ in range(2):
        running.router.engine.put_own(Serve(client))
        await sender.settle()
        assert queue.recipient_id in client.waiting
    client.congested = False
    running.router.engine.put_own(Serve(client))
    assert await pushed(line, queue) == b"due"
    await quiet(line)


async def test_sub_and_ack_on_a_full_connection_deliver_later(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line)
    client = client_of(running, line)
    for body in (b"one", b"two"):
        await queue.send(sender, body)
    client.congested = True
    assert await queue.ask(line, SUB()) == SOK(None)
    await quiet(line)
    client.congested = False
    running.router.engine.put_own(Serve(client))
    assert await pushed(line, queue) == b"one"
    client.congested = True
    assert await queue.ask(line, ACK(queue.last_id)) == OK()
    await quiet(line)
    client.congested = False
    running.router.engine.put_own(Serve(client))
    assert await pushed(line, queue) == b"two"


async def test_a_notification_for_a_full_connection_waits(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(sender, notifier=True)
    assert await line.ask(NSUB(), queue.notifier_id, queue.notifier_key) == SOK(None)
    client = client_of(running, line)
    client.congested = True
    for _ in range(3):
        await queue.send(sender, b"loud", notify=True)
    await quiet(line)
    assert running.router.store.counts()["notifications"] == 3
    running.router.engine.put_own(Serve(client))
    await quiet(line)
    client.congested = False
    running.router.engine.put_own(Serve(client))
    ids = [queue.noticed((await line.event(queue.notifier_id)).response).msg_id for _ in range(3)]
    assert len(set(ids)) == 3
    await quiet(line)
    assert running.router.store.counts()["notifications"] == 0


@pytest.mark.both_stores
@pytest.mark.claim("SUB-13")
async def test_a_full_connection_does_not_delay_events_for_others(running: RunningRouter) -> None:
    full, other, taker, sender = await lines_of(running, 4)
    mine = await create(full, subscribe=True)
    theirs = await create(other, subscribe=True)
    stuffing = await stuffed(running, full, sender)
    assert await taker.ask_many([mine.said(SUB()), theirs.said(SUB())]) == [SOK(None)] * 2
    (end,) = await other.settle()
    assert (end.entity_id, end.response) == (theirs.recipient_id, END())
    await unstuffed(full, stuffing)
    assert (await full.event(mine.recipient_id)).response == END()


def held_by_us() -> int:
    """Bytes that our own code has allocated since tracing began and that are still in use."""
    gc.collect()
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"{SOURCES}/*")])
    return sum(trace.size for trace in ours.traces)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-59")
async def test_a_connection_that_never_reads_costs_little(running: RunningRouter) -> None:
    """However much is due: no task, no message in memory, one small entry per queue."""
    line, sender = await lines_of(running, 2)
    queues = [await create(line, subscribe=True) for _ in range(400)]
    await stuffed(running, line, sender)
    client = client_of(running, line)
    session = running.router.connections[client.client_id].session
    tasks, outbox = len(asyncio.all_tasks()), session.outbox_size
    tracemalloc.start()
    try:
        for queue in queues:
            await queue.send(sender, bytes(16000))
        held = held_by_us()
    finally:
        tracemalloc.stop()
    assert len(client.waiting) >= len(queues)
    assert len(asyncio.all_tasks()) == tasks
    assert session.outbox_size == outbox <= LIMITS.outbox_max
    assert len(queues) * 10 < held < len(queues) * 4000
    line.stream.session.abort()


@pytest.mark.both_stores
@pytest.mark.claim("SUB-59")
async def test_a_connection_that_never_reads_is_dropped_past_the_limit(running: RunningRouter) -> None:
    """What cannot be held back, such as END, fills its outbox; at the limit the connection is dropped."""
    line, taker, sender = await lines_of(running, 3)
    queues = [await create(line, subscribe=True) for _ in range(80)]
    client = client_of(running, line)
    session = running.router.connections[client.client_id].session
    await stuffed(running, line, sender)
    for queue in queues:
        assert await queue.ask(taker, SUB()) == SOK(None)
    await until(lambda: client.client_id not in running.router.connections)
    assert isinstance(session.reason, OutboxFullError)
    await until(lambda: (len(client.subs), len(client.waiting)) == (0, 0))


async def test_many_waiting_queues_are_served_in_steps(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    queues = [await create(line, subscribe=True) for _ in range(50)]
    client = client_of(running, line)
    client.congested = True
    for queue in queues:
        await queue.send(sender, queue.recipient_id)
    assert len(client.waiting) == 50
    client.congested = False
    running.router.engine.put_own(Serve(client))
    for queue in queues:
        assert await pushed(line, queue) == queue.recipient_id
    await quiet(line)
    assert len(client.waiting) == 0


async def test_a_full_connection_is_not_read_from(running: RunningRouter) -> None:
    """Its commands wait too, so their answers need no room; they run once it reads again."""
    line, sender = await lines_of(running, 2)
    queue = await create(line)
    stuffing = await stuffed(running, line, sender)
    line.send([line.written(Said(SEND(False, b"later"), queue.sender_id, corr_id=b"send"))])
    await sender.settle()
    await sender.settle()
    assert await queue.ask(sender, GET()) == OK()
    await unstuffed(line, stuffing)
    assert (await line.reply(b"send")).response == OK()
    reply = await queue.ask(sender, GET())
    assert isinstance(reply, MSG)
    assert len(reply.msg_id) == ID_SIZE


async def test_a_drained_connection_behaves_normally(running: RunningRouter) -> None:
    """A connection that was full is an ordinary one once it has read."""
    line, sender = await lines_of(running, 2)
    for _ in range(2):
        stuffing = await stuffed(running, line, sender)
        await unstuffed(line, stuffing)
        for queue in stuffing:
            assert await queue.ask(line, ACK(queue.last_id)) == OK()
    fresh = await open_line(running)
    queue = await create(fresh, subscribe=True)
    await queue.send(line, b"hello")
    assert await pushed(fresh, queue) == b"hello"


async def test_a_full_connection_of_a_notifying_service_is_served_by_a_walk(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    service = await open_service(running, new_service(), NOTIFIER)
    queue = await create(line, notifier=True)
    await nsub(service, queue)
    client = client_of(running, service)
    client.congested = True
    await queue.send(sender, b"due", notify=True)
    for again in (False, True):
        if again:
            await nsub(service, queue)
        assert Domain.NOTIFICATIONS in client.walks
        client.walks.pop(Domain.NOTIFICATIONS)
    await nsub(service, queue)
    client.congested = False
    running.router.engine.put_own(Serve(client))
    assert isinstance((await service.event(queue.notifier_id)).response, NMSG)
    await quiet(service)


async def test_a_connection_that_lost_a_notifier_gets_nothing_that_waits_for_it(
    running: RunningRouter,
) -> None:
    line, old, new = await lines_of(running, 3)
    queue = await create(line, notifier=True)
    for each in (old, new):
        await nsub(each, queue)
    assert (await old.event(queue.notifier_id)).response == END()
    loser, holder = client_of(running, old), client_of(running, new)
    assert queue.notifier_id not in loser.notifier_ids
    holder.congested = True
    await queue.send(line, b"due", notify=True)
    loser.waiting_notifiers.fill(queue.notifier_id, True)
    running.router.engine.put_own(Serve(loser))
    await quiet(old)
    assert queue.notifier_id not in loser.waiting_notifiers
    holder.congested = False
    running.router.engine.put_own(Serve(holder))
    assert isinstance((await new.event(queue.notifier_id)).response, NMSG)


async def test_a_queue_that_is_to_be_tried_again_waits_while_its_connection_is_full(
    running: RunningRouter,
) -> None:
    line, sender = await lines_of(running, 2)
    queue, other = await create(line, subscribe=True), await create(sender)
    client, engine = client_of(running, line), running.router.engine
    client.congested = True
    await queue.send(sender, b"due")
    client.waiting.pop(queue.recipient_id)
    running.router.plan.undo.forget()
    engine.put_own(Serve(client, (queue.recipient_id, other.recipient_id)))
    await sender.settle()
    assert client.waiting.first(2) == (queue.recipient_id,)
    client.congested = False
    engine.put_own(Serve(client))
    assert await pushed(line, queue) == b"due"
    await quiet(line)
