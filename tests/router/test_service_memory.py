"""Services that do not read, and services whose queues come and go: everything arrives, nothing leaks."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import pytest

from blindpost.testing.network import MemoryNetwork
from blindpost.transport.plan import SessionLimits
from blindpost.wire.smp.commands import ACK, DEL, GET, SEND
from blindpost.wire.smp.responses import ALLS, MSG, OK
from tests.support.router.lines import Line, Queue, Said, client_of, create, open_line, pushed, quiet
from tests.support.router.routers import running_router
from tests.support.router.services import (
    NOTIFIER,
    counter,
    new_service,
    nsub,
    open_service,
    service_queues,
    set_of,
)
from tests.support.serving.waiting import until

pytestmark = pytest.mark.one_process

SMALL = SessionLimits(outbox_high=48 * 1024, outbox_low=16 * 1024, release_after_s=3600.0)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-53")
async def test_messages_held_back_from_a_service_arrive_when_it_reads_again(tmp_path: Path) -> None:
    """The outbox is full, SENDs come, the outbox drains: every message arrives, without reconnecting."""
    network = MemoryNetwork()
    async with running_router(tmp_path, network=network, limits=SMALL) as running:
        line, sender = await open_service(running, new_service()), await open_line(running)
        queues = await service_queues(line, 60)
        line.stream.session.pause_reading()
        client = client_of(running, line)
        for queue in queues:
            await queue.send(sender, b"x" * 16_000)
        assert client.congested
        assert len(client.subs) < len(queues)
        assert len(client.waiting) == 0, "nothing is kept for each queue that waits"
        assert len(client.walks) == 1
        line.stream.session.resume_reading()
        for queue in queues:
            assert await pushed(line, queue) == b"x" * 16_000
        await until(lambda: not client.congested and len(client.walks) == 0)
        await quiet(line)
        for one in (line, sender):
            await one.stream.close()


async def test_notifications_of_a_service_wait_for_room_too(tmp_path: Path) -> None:
    async with running_router(tmp_path, network=MemoryNetwork(), limits=SMALL) as running:
        line, owner = await open_service(running, new_service(), NOTIFIER), await open_line(running)
        queues = [await create(owner, notifier=True) for _ in range(3)]
        for queue in queues:
            await nsub(line, queue)
        line.stream.session.pause_reading()
        client = client_of(running, line)
        sent = 0
        while not client.congested:
            await queues[sent % 3].send(owner, b"", notify=True)
            sent += 1
            if sent % 120 == 0:
                await _emptied(owner, queues)
        for queue in queues:
            await queue.send(owner, b"", notify=True)
        line.stream.session.resume_reading()
        received = 0
        while received < sent + 3:
            await line.event(queues[received % 3].notifier_id)
            received += 1
        await quiet(line)
        for one in (line, owner):
            await one.stream.close()


async def _emptied(owner: Line, queues: Sequence[Queue]) -> None:
    """Make room in the queues themselves."""
    for queue in queues:
        while isinstance(reply := await queue.ask(owner, GET()), MSG):
            await queue.ask(owner, ACK(reply.msg_id))


async def test_thousands_of_waiting_queues_cost_a_stalled_connection_no_memory(tmp_path: Path) -> None:
    async with running_router(tmp_path, network=MemoryNetwork(), limits=SMALL) as running:
        credentials, sender = new_service(), await open_line(running)
        line = await open_service(running, credentials)
        queues = await service_queues(line, 2000)
        await line.stream.close()
        for start in range(0, len(queues), 100):  # as many as fit into a block
            sends = [Said(SEND(False, b"waits"), queue.sender_id) for queue in queues[start : start + 100]]
            assert await sender.ask_many(sends) == [OK()] * len(sends)
        line = await open_service(running, credentials)
        await line.subs()
        line.stream.session.pause_reading()
        client = client_of(running, line)
        await until(lambda: client.congested)
        assert len(client.subs) < 200, "no more than the outbox and the network hold"
        assert (len(client.waiting), len(client.walks)) == (0, 1)
        line.stream.session.resume_reading()
        for queue in queues:
            assert await pushed(line, queue) == b"waits"
        assert (await line.event(b"")).response == ALLS()
        for one in (line, sender):
            await one.stream.close()


async def test_ten_thousand_queues_made_and_deleted_leave_nothing_behind(tmp_path: Path) -> None:
    """A service connection keeps only what is in flight."""
    async with running_router(tmp_path, network=MemoryNetwork()) as running:
        line, sender = await open_service(running, new_service()), await open_line(running)
        client, state = client_of(running, line), running.router.plan.state
        keep = await create(line, subscribe=True)
        for round_ in range(100):
            queues = await service_queues(line, 100)
            if round_ % 20 == 0:
                for queue in queues[:10]:
                    await queue.send(sender, b"deleted in flight")
            assert await line.ask_many([queue.said(DEL()) for queue in queues]) == [OK()] * 100
            for queue in queues[:10] if round_ % 20 == 0 else ():
                await line.event(queue.recipient_id)
        sizes = [len(table) for table in (client.subs, client.waiting, client.notifier_ids, client.walks)]
        assert sizes == [0, 0, 0, 0]
        assert len(client.waiting_notifiers) == 0
        assert (len(state.queues), len(state.notifiers)) == (0, 0)
        assert counter(running, line) == set_of([keep])
        assert len(running.router.plan.undo) == 0
        assert running.router.store.counts()["members"] == 1
        assert running.router.store.counts()["queues"] == 1
        for one in (line, sender):
            await one.stream.close()


async def test_turns_leave_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    """A reference cycle would keep whole turns, with message bodies, until the next collection."""
    async with running_router(tmp_path, network=MemoryNetwork()) as running:
        line, sender = await open_service(running, new_service()), await open_line(running)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                queues = await service_queues(line, 20)
                for queue in queues[:5]:
                    await queue.send(sender, b"a message")
                    assert await pushed(line, queue) == b"a message"
                    assert await queue.ask(line, ACK(queue.last_id)) == OK()
                assert await line.ask_many([queue.said(DEL()) for queue in queues]) == [OK()] * 20
            gc.collect()
            found = {type(one).__qualname__ for one in gc.garbage if _is_ours(one)}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert found == set()
        for one in (line, sender):
            await one.stream.close()


def _is_ours(one: object) -> bool:
    return type(one).__module__.startswith(("blindpost.router", "blindpost.engine", "blindpost.wire"))
