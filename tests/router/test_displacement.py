"""Who holds a queue: taking over, going away, and what the others are told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial

import pytest

from blindpost.engine.events import Gone
from blindpost.router.events import Commands, Event
from blindpost.router.state import RouterClient
from blindpost.transport.errors import TransportError
from blindpost.transport.session import Session
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import ACK, DEL, GET, NSUB, PING, SEND, SUB, Command
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import DELD, END, ERR, OK, PONG, SOK
from blindpost.wire.smp.transmissions import Received, Request, parse_responses
from tests.support.router.lines import Line, Said, client_of, create, lines_of, open_line, pushed, quiet
from tests.support.router.routers import RunningRouter
from tests.support.serving.waiting import until

NO_MSG = ERR(Code.NO_MSG)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-01")
@pytest.mark.claim("SUB-02")
@pytest.mark.claim("SUB-12")
async def test_the_last_subscriber_receives_and_the_previous_one_is_told(running: RunningRouter) -> None:
    one, two, sender = await lines_of(running, 3)
    queue = await create(one, subscribe=True)
    assert await queue.ask(two, SUB()) == SOK(None)
    # END left in the turn of that SUB: it is there before an answer to anything asked later.
    (end,) = await one.settle()
    assert (end.corr_id, end.entity_id, end.response) == (b"", queue.recipient_id, END())
    await one.event(queue.recipient_id)
    await queue.send(sender, b"hello")
    assert await pushed(two, queue) == b"hello"
    assert await queue.ask(one, SUB()) == SOK(None)
    assert await pushed(one, queue) == b"hello"
    assert (await two.event(queue.recipient_id)).response == END()
    await quiet(one, two, sender)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-11")
@pytest.mark.claim("SUB-12")
async def test_deleting_a_queue_tells_its_subscriber_at_once(running: RunningRouter) -> None:
    one, two = await lines_of(running, 2)
    queue = await create(one, subscribe=True)
    assert await queue.ask(two, DEL()) == OK()
    (deleted,) = await one.settle()
    assert (deleted.corr_id, deleted.entity_id, deleted.response) == (b"", queue.recipient_id, DELD())
    assert not len(client_of(running, one).subs), "nothing is kept for a queue that is gone"


async def test_many_displaced_queues_are_reported_in_one_batch(running: RunningRouter) -> None:
    one, two = await lines_of(running, 2)
    queues = [await create(one, subscribe=True) for _ in range(20)]
    assert await two.ask_many([queue.said(SUB()) for queue in queues]) == [SOK(None)] * 20
    payload = await one.stream.read_block()
    ends = parse_responses(Reader(payload), one.layout, one.version)
    assert [(end.entity_id, end.response) for end in ends if isinstance(end, Received)] == [
        (queue.recipient_id, END()) for queue in queues
    ]
    await quiet(one, two)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-12")
async def test_events_for_a_disconnected_client_are_dropped(running: RunningRouter) -> None:
    one, two = await lines_of(running, 2)
    queue = await create(one, subscribe=True)
    gone = client_of(running, one)
    await one.stream.close()
    assert await queue.ask(two, SUB()) == SOK(None)
    await until(lambda: gone.client_id not in running.router.connections)
    await quiet(two)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-04")
async def test_an_old_connection_that_closes_leaves_the_new_subscriber(running: RunningRouter) -> None:
    one, two, sender = await lines_of(running, 3)
    queue = await create(one, subscribe=True)
    gone = client_of(running, one)
    assert await queue.ask(two, SUB()) == SOK(None)
    await one.stream.close()
    running.router.engine.put_own(Gone(gone))
    await queue.send(sender, b"hello")
    assert await pushed(two, queue) == b"hello"
    registry = running.router.plan.state.queues
    registry.leave(queue.recipient_id, gone)
    assert registry.holder(queue.recipient_id) is client_of(running, two)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-03")
@pytest.mark.claim("SUB-46")
async def test_an_unacknowledged_message_is_delivered_again_first(running: RunningRouter) -> None:
    one, two, sender = await lines_of(running, 3)
    queue = await create(one, subscribe=True)
    for body in (b"in flight", b"second", b"third"):
        await queue.send(sender, body)
    assert await pushed(one, queue) == b"in flight"
    first = queue.last_id
    await one.stream.close()
    assert await queue.ask(two, SUB()) == SOK(None)
    assert await pushed(two, queue) == b"in flight"
    assert queue.last_id == first
    for body in (b"second", b"third"):
        assert queue.body(await queue.ask(two, ACK(queue.last_id))) == body
    assert await queue.ask(two, ACK(queue.last_id)) == OK()


def cut_before_deciding(
    running: RunningRouter, line: Line, command: type[Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut `line` after everything is loaded for the next `command` and before it is decided."""
    client = client_of(running, line)
    session = running.router.connections[client.client_id].session
    closed = asyncio.Event()
    prepare, hear_closed = running.router.plan.prepare, running.router.closed

    def closing(ended: Session, reason: TransportError) -> None:
        hear_closed(ended, reason)
        if ended is session:
            closed.set()

    async def prepared(batch: Sequence[Event]) -> None:
        await prepare(batch)
        items = [item for event in batch if isinstance(event, Commands) for item in event.items]
        if any(isinstance(item, Request) and isinstance(item.command, command) for item in items):
            session.abort()
            await closed.wait()

    monkeypatch.setattr(running.router, "closed", closing)
    monkeypatch.setattr(running.router.plan, "prepare", prepared)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-03")
async def test_a_message_is_not_lost_when_its_subscriber_disconnects_meanwhile(
    running: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, sender = await lines_of(running, 3)
    queue = await create(one, subscribe=True)
    gone = client_of(running, one)
    cut_before_deciding(running, one, SEND, monkeypatch)
    await queue.send(sender, b"hello")
    await quiet(sender)
    assert (len(gone.subs), len(gone.waiting)) == (0, 0)
    assert await queue.ask(two, SUB()) == SOK(None)
    assert await pushed(two, queue) == b"hello"


@pytest.mark.both_stores
@pytest.mark.claim("SUB-09")
@pytest.mark.parametrize("command", [SUB(), DEL()])
async def test_a_client_that_disconnects_before_its_turn_still_displaces(
    running: RunningRouter, monkeypatch: pytest.MonkeyPatch, command: SUB | DEL
) -> None:
    one, two, sender = await lines_of(running, 3)
    queue = await create(one, subscribe=True)
    await quiet(two)
    gone = client_of(running, two)
    cut_before_deciding(running, two, type(command), monkeypatch)
    two.send([two.written(queue.said(command))])
    expected = END() if isinstance(command, SUB) else DELD()
    assert (await one.event(queue.recipient_id)).response == expected
    await quiet(one, sender)
    assert running.router.plan.state.queues.holder(queue.recipient_id) is None
    assert len(gone.subs) == 0


@pytest.mark.one_process
@pytest.mark.both_stores
@pytest.mark.claim("SUB-07")
async def test_the_later_of_two_subscribers_in_one_turn_holds_the_queue(running: RunningRouter) -> None:
    for _ in range(10):
        one, two, sender = await lines_of(running, 3)
        queue = await create(one)
        turns = running.router.engine.meters.turns
        for line in (one, two):
            line.send([line.written(Said(SUB(), queue.recipient_id, queue.key, b"sub"))])
        sender.send([sender.written(Said(PING(), corr_id=b"ping"))])
        for line in (one, two):
            assert (await line.reply(b"sub")).response == SOK(None)
        assert (await sender.reply(b"ping")).response == PONG()
        assert running.router.engine.meters.turns <= turns + 3
        assert (await one.event(queue.recipient_id)).response == END()
        await queue.send(sender, b"hello")
        assert await pushed(two, queue) == b"hello"
        await quiet(one, two)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-08")
async def test_connections_that_come_and_go_do_not_hold_up_a_registration(running: RunningRouter) -> None:
    """It is decided once, in one turn, whoever else connects or disconnects meanwhile."""
    one, two = await lines_of(running, 2)
    queue = await create(one, subscribe=True)
    state = running.router.plan.state
    attempts = []
    take_over = state.queues.take_over

    class Counted:
        def __getattr__(self, name: str) -> object:
            return getattr(registry, name)

        def take_over(self, entity_id: bytes, client: RouterClient) -> RouterClient | None:
            attempts.append(entity_id)
            return take_over(entity_id, client)

    registry = state.queues
    state.queues = Counted()  # type: ignore[assignment]  # counts, and is the registry otherwise

    async def churn() -> None:
        for _ in range(8):
            line = await open_line(running)
            line.stream.session.abort()

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(churn())
        assert await queue.ask(two, SUB()) == SOK(None)
    assert attempts == [queue.recipient_id]


@pytest.mark.both_stores
@pytest.mark.claim("SUB-10")
@pytest.mark.claim("SUB-56")
async def test_a_displaced_connection_holds_nothing_and_its_ack_does_nothing(
    running: RunningRouter,
) -> None:
    one, two, sender = await lines_of(running, 3)
    queue = await create(one, subscribe=True)
    await queue.send(sender, b"hello")
    assert await pushed(one, queue) == b"hello"
    loser = client_of(running, one)
    assert queue.recipient_id in loser.subs
    # The ACK of the old subscriber leaves before it can have seen any END.
    two.send([two.written(Said(SUB(), queue.recipient_id, queue.key, b"sub"))])
    assert (await two.reply(b"sub")).response == SOK(None)
    for msg_id in (queue.last_id, b"", os.urandom(24)):
        assert await queue.ask(one, ACK(msg_id)) == NO_MSG
    assert queue.recipient_id not in loser.subs
    assert queue.recipient_id not in loser.waiting
    assert await pushed(two, queue) == b"hello"
    assert await queue.ask(two, ACK(queue.last_id)) == OK()
    assert (await one.event(queue.recipient_id)).response == END()


@pytest.mark.both_stores
@pytest.mark.claim("SUB-15")
async def test_reading_with_get_displaces_nobody_and_gets_no_event(running: RunningRouter) -> None:
    one, reader, three = await lines_of(running, 3)
    queue = await create(one, subscribe=True)
    assert await queue.ask(reader, GET()) == OK()
    await quiet(one)
    await queue.send(reader, b"hello")
    assert await pushed(one, queue) == b"hello"
    assert queue.body(await queue.ask(reader, GET())) == b"hello"
    assert await queue.ask(three, SUB()) == SOK(None)
    assert (await one.event(queue.recipient_id)).response == END()
    assert await pushed(three, queue) == b"hello"
    assert await queue.ask(three, DEL()) == OK()
    await quiet(one, reader, three)


def is_forgotten(client: RouterClient) -> bool:
    tables = (client.subs, client.notifier_ids, client.waiting, client.waiting_notifiers)
    return not any(len(table) for table in tables)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-45")
async def test_a_closed_connection_leaves_nothing_behind(running: RunningRouter) -> None:
    sender = await open_line(running)
    router = running.router
    queue = await create(sender, notifier=True)
    await queue.send(sender, b"hello")
    for _ in range(25):
        line = await open_line(running)
        other = await create(line, subscribe=True, notifier=True)
        client = client_of(running, line)
        assert await line.ask(NSUB(), other.notifier_id, other.notifier_key) == SOK(None)
        assert await queue.ask(line, SUB()) == SOK(None)
        assert await queue.ask(sender, GET()) != OK()
        await line.event(queue.recipient_id)
        client.waiting.fill(queue.recipient_id, True)
        client.waiting_notifiers.fill(other.notifier_id, True)
        assert (len(client.subs), len(router.plan.state.queues)) == (2, 2)
        await line.stream.close()
        await until(partial(is_forgotten, client))
        await sender.settle()
        assert (len(router.plan.state.queues), len(router.plan.state.notifiers)) == (0, 0)
        assert list(router.connections) == [client_of(running, sender).client_id]
        assert len(router.by_session) == 1
        assert not router.engine._inbox._waiting
