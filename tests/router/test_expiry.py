"""What ages out: messages, and connections that nobody uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blindpost.router.config import RouterRules
from blindpost.router.events import Expire
from blindpost.router.expiry import EXPIRY_STEP
from blindpost.router.meters import Meter
from blindpost.router.records import message_key
from blindpost.router.tables import MESSAGES, LmdbTables
from blindpost.testing.clock import run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import ACK, GET, NSUB, PING, SEND, SUB
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.messages import QuotaMarker
from blindpost.wire.smp.responses import ERR, MSG, OK, PONG, SOK
from tests.support.router.lines import Line, Queue, Said, create, lines_of, open_line, pushed, quiet
from tests.support.router.routers import RunningRouter, running_router
from tests.support.router.services import new_service, open_service, set_of

TTL = 21 * 86_400
QUOTA = ERR(Code.QUOTA)


class Time:
    """A time of day that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000

    def __call__(self) -> float:
        return self.seconds + 0.9


@asynccontextmanager
async def at(folder: Path, now: Time, rules: RouterRules) -> AsyncIterator[RunningRouter]:
    async with running_router(folder, rules, now=now, network=MemoryNetwork()) as running:
        yield running


async def bodies(line: Line, queue: Queue) -> list[bytes]:
    """GET and acknowledge all there is."""
    found = []
    while isinstance(reply := await queue.ask(line, GET()), MSG):
        found.append(queue.body(reply))
        await queue.ask(line, ACK(queue.last_id))
    return found


async def test_messages_expire_from_the_head(tmp_path: Path) -> None:
    """Those older than the limit, to the second; the first that is not stops the walk."""
    now = Time()
    async with at(tmp_path, now, RouterRules()) as running:
        line = await open_line(running)
        queue, untouched, empty = [await create(line) for _ in range(3)]
        for body in (b"old", b"old too", b"new", b"newer"):
            await queue.send(line, body)
            now.seconds += 1 if body == b"old too" else 0
        await untouched.send(line, b"new")
        now.seconds += TTL - 1
        await running.router.expire_messages()
        assert running.router.plan.meters[Meter.EXPIRED] == 0
        now.seconds += 1
        await running.router.expire_messages()
        await line.settle()
        assert running.router.plan.meters[Meter.EXPIRED] == 2
        assert running.router.store.counts()["messages"] == 3
        assert await bodies(line, queue) == [b"new", b"newer"]
        assert await bodies(line, untouched) == [b"new"]
        assert await bodies(line, empty) == []


async def test_without_a_limit_messages_never_expire(tmp_path: Path) -> None:
    now = Time()
    async with at(tmp_path, now, RouterRules(message_ttl_s=None, expire_on_send=True)) as running:
        line = await open_line(running)
        queue = await create(line)
        await queue.send(line, b"old")
        now.seconds += 100 * TTL
        await running.router.expire_messages()
        await queue.send(line, b"new")
        assert await bodies(line, queue) == [b"old", b"new"]


async def test_a_marker_does_not_expire(tmp_path: Path) -> None:
    now = Time()
    async with at(tmp_path, now, RouterRules(quota=2)) as running:
        line = await open_line(running)
        queue = await create(line)
        for body in (b"one", b"two"):
            await queue.send(line, body)
        more = SEND(False, b"more")
        assert await line.ask(more, queue.sender_id) == QUOTA
        now.seconds += TTL + 1
        await running.router.expire_messages()
        await line.settle()
        assert running.router.plan.meters[Meter.EXPIRED] == 2
        assert await line.ask(more, queue.sender_id) == QUOTA
        assert isinstance(queue.opened(await queue.ask(line, GET())), QuotaMarker)
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
        await queue.send(line, b"more")


async def test_a_queue_emptied_by_expiry_accepts_messages(tmp_path: Path) -> None:
    now = Time()
    async with at(tmp_path, now, RouterRules(quota=2)) as running:
        line = await open_line(running)
        queue = await create(line)
        for body in (b"one", b"two"):
            await queue.send(line, body)
        now.seconds += TTL + 1
        await running.router.expire_messages()
        await line.settle()
        for body in (b"three", b"four"):
            await queue.send(line, body)
        assert await bodies(line, queue) == [b"three", b"four"]


async def test_a_message_expired_in_flight_makes_room_on_its_ack(tmp_path: Path) -> None:
    now = Time()
    async with at(tmp_path, now, RouterRules()) as running:
        line, sender = await lines_of(running, 2)
        queue = await create(line, subscribe=True)
        await queue.send(sender, b"old")
        assert await pushed(line, queue) == b"old"
        now.seconds += TTL + 1
        await running.router.expire_messages()
        await queue.send(sender, b"new")
        await quiet(line)
        assert queue.body(await queue.ask(line, ACK(queue.last_id))) == b"new"
        assert await queue.ask(line, ACK(queue.last_id)) == OK()


async def test_the_clock_may_move_between_finding_and_expiring(tmp_path: Path) -> None:
    """What the walk found goes; what has become too old since waits for the next walk."""
    now = Time()
    async with at(tmp_path, now, RouterRules()) as running:
        line = await open_line(running)
        queue = await create(line)
        for body in (b"one", b"two", b"three"):
            await queue.send(line, body)
            now.seconds += 1
        now.seconds += TTL - 2
        before = now.seconds - TTL
        found, following = await running.router.store.expired(before, b"", 10)
        assert (found, following) == ([(queue.recipient_id, 1)], None)
        now.seconds += 10
        running.router.engine.put_own(Expire(found, before))
        await line.settle()
        meters = running.router.plan.meters
        assert (meters[Meter.EXPIRED], meters[Meter.INTERNAL_ERRORS]) == (1, 0)
        assert running.router.engine.meters.events_failed == 0
        assert await bodies(line, queue) == [b"two", b"three"]


async def test_the_walk_continues_over_many_queues(tmp_path: Path) -> None:
    now = Time()
    async with at(tmp_path, now, RouterRules()) as running:
        line = await open_line(running)
        queues = [await create(line) for _ in range(EXPIRY_STEP + 10)]
        for queue in queues:
            await queue.send(line, b"old")
        now.seconds += TTL + 1
        await running.router.expire_messages()
        await line.settle()
        assert running.router.store.counts()["messages"] == 0
        assert running.router.plan.meters[Meter.EXPIRED] == EXPIRY_STEP + 10


async def test_expiry_on_send(tmp_path: Path) -> None:
    now = Time()
    for expire, expected in ((True, [b"new"]), (False, [b"old", b"older", b"new"])):
        rules = RouterRules(expire_on_send=expire, quota=2 if expire else 128)
        async with at(tmp_path, now, rules) as running:
            line = await open_line(running)
            queue, other = [await create(line) for _ in range(2)]
            for body in (b"old", b"older"):
                await queue.send(line, body)
            await other.send(line, b"old")
            now.seconds += TTL + 1
            await queue.send(line, b"new")
            assert await bodies(line, queue) == expected
            assert await bodies(line, other) == [b"old"]
            assert running.router.plan.meters[Meter.EXPIRED] == (2 if expire else 0)


async def test_a_message_into_a_queue_emptied_by_expiry_on_send_is_pushed(tmp_path: Path) -> None:
    now = Time()
    async with at(tmp_path, now, RouterRules(expire_on_send=True)) as running:
        line, sender = await lines_of(running, 2)
        queue = await create(line)
        await queue.send(sender, b"old")
        assert await queue.ask(line, SUB()) == SOK(None)
        assert await pushed(line, queue) == b"old"
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
        await queue.send(sender, b"next")
        assert await pushed(line, queue) == b"next"


@pytest.mark.parametrize("damage", [b"", b"short", bytes(8) + b"\x18" + bytes(24) + b"?"])
async def test_an_unreadable_message_stops_its_own_queue_only(tmp_path: Path, damage: bytes) -> None:
    """The walk continues with the other queues, and senders see no error."""
    now = Time()
    async with at(tmp_path, now, RouterRules(expire_on_send=True)) as running:
        line = await open_line(running)
        queues = [await create(line) for _ in range(3)]
        for queue in queues:
            await queue.send(line, b"old")
            await queue.send(line, b"old too")
        bad, *good = queues
        store = running.router.store
        assert isinstance(store, LmdbTables)
        for number in (0, 1):
            store.store.commit([(MESSAGES, message_key(queues[2 * number].recipient_id, number), damage)])
        now.seconds += TTL + 1
        sends = [Said(SEND(False, b"new"), queue.sender_id) for queue in queues]
        assert await line.ask_many(sends) == [OK()] * 3
        assert running.router.plan.meters[Meter.INTERNAL_ERRORS] == 0
        await running.router.expire_messages()
        assert await line.ask(PING()) == PONG()
        assert await bodies(line, good[0]) == [b"new"]
        assert running.router.plan.meters[Meter.EXPIRED] == 3
        assert await bad.ask(line, GET()) == ERR(Code.INTERNAL)


def test_a_service_that_was_taken_over_is_closed_when_it_is_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        rules, who = RouterRules(idle_ttl_s=3600), new_service()
        async with running_router(tmp_path, rules, network=MemoryNetwork()) as running:
            old, new = [await open_service(running, who) for _ in range(2)]
            for line in (old, new):
                assert await line.subs() == set_of([])
            await asyncio.sleep(3601)
            assert running.router.close_idle() == 1
            await asyncio.shield(old.stream._over)
            assert await new.ask(PING()) == PONG()

    run_virtual(scenario())


def test_silent_connections_without_subscription_are_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        rules = RouterRules(idle_ttl_s=3600)
        async with running_router(tmp_path, rules, network=MemoryNetwork()) as running:
            silent, reader, subscribed, notified, busy = await lines_of(running, 5)
            queue = await create(subscribed, subscribe=True, notifier=True)
            assert await queue.ask(reader, GET()) == OK()
            assert await notified.ask(NSUB(), queue.notifier_id, queue.notifier_key) == SOK(None)
            assert await silent.ask(PING()) == PONG()
            await asyncio.sleep(3599)
            assert await busy.ask(PING()) == PONG()
            assert running.router.close_idle() == 0
            await asyncio.sleep(2)
            assert running.router.close_idle() == 2
            for line in (silent, reader):
                await asyncio.shield(line.stream._over)
            for line in (subscribed, notified, busy):
                assert await line.ask(PING()) == PONG()

    run_virtual(scenario())


async def test_uncollected_notifications_expire(tmp_path: Path) -> None:
    """Those that are too old, to the second; the others of each notifier still arrive in order."""
    now, ttl = Time(), 86_400
    async with at(tmp_path, now, RouterRules(notification_ttl_s=ttl)) as running:
        line, notified = await lines_of(running, 2)
        queues = [await create(line, notifier=True) for _ in range(3)]
        for queue in queues[:2]:
            await queue.send(line, b"old", notify=True)
        now.seconds += 1
        for queue in queues[1:]:
            await queue.send(line, b"new", notify=True)
        now.seconds += ttl - 1
        await running.router.expire_notifications()
        await line.ask(PING())
        assert running.router.store.counts()["notifications"] == 4
        now.seconds += 1
        await running.router.expire_notifications()
        await line.ask(PING())
        assert running.router.store.counts()["notifications"] == 2
        assert running.router.plan.meters[Meter.NTF_EXPIRED] == 2
        for queue, count in zip(queues, (0, 1, 1), strict=True):
            assert await notified.ask(NSUB(), queue.notifier_id, queue.notifier_key) == SOK(None)
            for _ in range(count):
                await notified.event(queue.notifier_id)
        await quiet(notified)


async def test_the_walk_over_notifiers_goes_in_steps_and_misses_none(tmp_path: Path) -> None:
    now = Time()
    async with at(tmp_path, now, RouterRules()) as running:
        line = await open_line(running)
        queues = [await create(line, notifier=True) for _ in range(5)]
        for queue in queues:
            for _ in range(2):
                await queue.send(line, b"loud", notify=True)
        found: list[bytes] = []
        start: bytes | None = b""
        steps = 0
        while start is not None:
            notifiers, start = await running.router.store.notified(start, 2)
            found += notifiers
            steps += 1
        assert found == sorted(queue.notifier_id for queue in queues)
        assert steps == 3
