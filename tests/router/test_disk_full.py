"""A full disk: what does not fit is refused, what was accepted stays, and free space restores everything."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

from blindpost.client.calls import Call
from blindpost.client.errors import RefusedError
from blindpost.client.smp import SmpClient
from blindpost.wire.smp.commands import ACK, GET, KEY, PING, SUB, Command
from blindpost.wire.smp.errors import STORE
from blindpost.wire.smp.messages import Message
from blindpost.wire.smp.responses import MSG, OK, PONG, SOK
from blindpost.wire.smp.values import SubMode
from tests.support.router.routers import Queue, a_message, new_queue, pushed
from tests.support.serving.disks import fill, small_disk
from tests.support.serving.processes import RouterInProcess, router_in_process

SPACE = 2 << 20
PLENTY = 64 << 20
QUEUES = 10
ROUNDS_FULL = 5
"""How often each queue is sent to, and each other command tried, while the disk is full."""

Accepted = dict[bytes, list[bytes]]
"""What was answered OK, by queue, in order."""


class Sender:
    """Sends numbered messages and remembers which of them the router took."""

    def __init__(self, queues: list[Queue]) -> None:
        self.queues = queues
        self.accepted: Accepted = {queue.recipient_id: [] for queue in queues}
        self._numbers = iter(range(1 << 30))

    async def send(self, client: SmpClient, queue: Queue) -> bool:
        """Whether the router took one more message for this queue; if not, it must say STORE."""
        body = b"%d " % next(self._numbers) + bytes(15_000)
        if not await done(client, Call(a_message(body), queue.sender_id, queue.sender_key)):
            return False
        self.accepted[queue.recipient_id].append(body)
        return True

    async def fill(self, client: SmpClient) -> None:
        """Send until something is refused."""
        for _ in range(PLENTY // 15_000 // QUEUES):
            for queue in self.queues:
                if not await self.send(client, queue):
                    return
        raise AssertionError("the disk does not get full")


async def done(client: SmpClient, call: Call[Command]) -> bool:
    """Whether the answer is OK; the only other one is STORE."""
    (result,) = await client.send_many([call])
    if isinstance(result, RefusedError):
        assert isinstance(result.error, STORE), f"answered {result}"
        return False
    assert result == OK(), f"answered {result}"
    return True


async def received(client: SmpClient, queue: Queue) -> list[bytes]:
    """All messages of a queue, acknowledged."""
    bodies: list[bytes] = []
    while isinstance(got := await client.send(GET(), queue.recipient_id, queue.key), MSG):
        message = queue.opened(got)
        assert isinstance(message, Message)
        bodies.append(bytes(message.body))
        assert await client.send(ACK(got.msg_id), queue.recipient_id, queue.key) == OK()
    assert got == OK()
    return bodies


async def use_while_full(client: SmpClient, sender: Sender) -> None:
    """Reading works; a message whose ACK is refused stays; every answer is OK or STORE."""
    assert await client.send(PING()) == PONG()
    queue = sender.queues[0]
    assert await client.send(SUB(), queue.recipient_id, queue.key) == SOK(None)
    event = await pushed(client)
    assert isinstance(event.response, MSG)
    message: MSG | None = event.response
    for _ in range(ROUNDS_FULL):
        for other in sender.queues:
            await sender.send(client, other)
        if message is None:
            continue
        call: Call[Command] = Call(ACK(message.msg_id), queue.recipient_id, queue.key)
        (answer,) = await client.send_many([call])
        if isinstance(answer, RefusedError):
            assert isinstance(answer.error, STORE)
        else:
            del sender.accepted[queue.recipient_id][0]
            message = answer if isinstance(answer, MSG) else None


async def refuses_then_heals(
    router: RouterInProcess, limit: Callable[[], None], heal: Callable[[], None], *, restart: bool
) -> None:
    await router.start()
    async with await router.connect() as client:
        queues = [await new_queue(client, secured=True, sub_mode=SubMode.ONLY_CREATE) for _ in range(QUEUES)]
        late = await new_queue(client, sub_mode=SubMode.ONLY_CREATE)
        sender = Sender(queues)
        limit()
        await sender.fill(client)
        await use_while_full(client, sender)
        secured = await done(client, Call(KEY(late.sender_key.public), late.recipient_id, late.key))
    if restart:
        assert await router.end() == -signal.SIGKILL
        await router.start()
    async with await router.connect() as client:
        for queue in queues:
            await sender.send(client, queue)
        heal()
        for queue in queues:
            assert await sender.send(client, queue), "there is space again"
        assert secured or await done(client, Call(a_message(b"open"), late.sender_id))
        assert await done(client, Call(KEY(late.sender_key.public), late.recipient_id, late.key))
        for queue in queues:
            assert await received(client, queue) == sender.accepted[queue.recipient_id]
    status = await router.ask("status")
    assert (status["queues"], status["messages"]) == (QUEUES + 1, 0 if secured else 1)
    assert await router.end(signal.SIGTERM) == 0
    assert b"the store refused" in router.log
    assert b"unexpected" not in router.log


async def test_a_file_size_limit(tmp_path: Path) -> None:
    """Writes end in the middle of a page: the nastiest way to run out of space."""
    async with router_in_process(tmp_path / "router") as router:

        def limit(size: int) -> None:
            resource.prlimit(router.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        await refuses_then_heals(
            router, lambda: limit(SPACE), lambda: limit(resource.RLIM_INFINITY), restart=False
        )


async def test_a_full_disk_while_running_and_at_start(tmp_path: Path) -> None:
    """Killed and started again while the disk is full, and given more space while it runs."""
    disk = tmp_path / "disk"
    with small_disk(disk, SPACE) as resize:
        async with router_in_process(disk / "router") as router:

            def limit() -> None:
                free = os.statvfs(disk).f_bavail
                assert free, "there must be something left to fill"

            await refuses_then_heals(router, limit, lambda: resize(PLENTY), restart=True)
            assert b"the disk is full" in router.log


async def test_a_router_on_a_full_disk_stops_cleanly(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, SPACE) as resize:
        async with router_in_process(disk / "router") as router:
            await router.start()
            async with await router.connect() as client:
                queue = await new_queue(client, secured=True, sub_mode=SubMode.ONLY_CREATE)
                sender = Sender([queue])
                await sender.fill(client)
            fill(disk)
            assert await router.end(signal.SIGTERM) == 0
            resize(PLENTY)
            await router.start()
            async with await router.connect() as client:
                assert await received(client, queue) == sender.accepted[queue.recipient_id]
