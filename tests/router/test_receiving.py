"""SUB, GET and ACK: one message at a time, to whoever may have it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from nacl.bindings import crypto_box_beforenm, crypto_box_open_afternm
from nacl.exceptions import CryptoError

from blindpost.testing.network import MemoryNetwork
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import ACK, GET, SEND, SUB
from blindpost.wire.smp.errors import PROHIBITED, Code
from blindpost.wire.smp.responses import ERR, MSG, OK, SOK
from blindpost.wire.smp.transmissions import Received, parse_responses
from blindpost.wire.transmissions import Refused
from tests.support.router.lines import Said, client_of, create, error, in_flight, lines_of, pushed, quiet
from tests.support.router.routers import RunningRouter, running_router

NO_MSG = ERR(Code.NO_MSG)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-14")
async def test_get_and_sub_exclude_each_other_on_one_connection(running: RunningRouter) -> None:
    reader, subscriber = await lines_of(running, 2)
    queue = await create(reader)
    await queue.send(reader, b"hello")
    assert queue.body(await queue.ask(reader, GET())) == b"hello"
    assert error(await queue.ask(reader, SUB())) == PROHIBITED
    assert queue.body(await queue.ask(reader, GET())) == b"hello"
    assert await queue.ask(subscriber, SUB()) == SOK(None)
    assert await pushed(subscriber, queue) == b"hello"
    assert error(await queue.ask(subscriber, GET())) == PROHIBITED
    assert await queue.ask(subscriber, ACK(queue.last_id)) == OK()
    await queue.send(reader, b"next")
    assert await pushed(subscriber, queue) == b"next"
    assert queue.body(await queue.ask(reader, GET())) == b"next"
    assert error(await queue.ask(reader, SUB())) == PROHIBITED


async def test_get_and_sub_exclude_each_other_on_an_empty_queue_too(running: RunningRouter) -> None:
    one, two = await lines_of(running, 2)
    queue = await create(one, subscribe=True)
    assert error(await queue.ask(one, GET())) == PROHIBITED
    assert await queue.ask(two, GET()) == OK()
    assert error(await queue.ask(two, SUB())) == PROHIBITED
    await quiet(one, two)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-16")
async def test_one_message_is_in_flight_and_the_record_of_it_is_exact(tmp_path: Path) -> None:
    sent, now = 1_700_000_000, 1_700_000_000.5
    async with running_router(tmp_path, now=lambda: now, network=MemoryNetwork()) as running:
        line, sender = await lines_of(running, 2)
        queue = await create(line, subscribe=True)
        assert in_flight(running, line, queue) is None
        for body in (b"one", b"two", b"three"):
            await queue.send(sender, body)
        assert await pushed(line, queue) == b"one"
        await quiet(line)
        delivered = int(now)
        for body in (b"two", b"three"):
            record = in_flight(running, line, queue)
            assert record is not None
            assert (record.msg_id, record.seconds) == (queue.last_id, delivered)
            now += 100
            delivered = int(now)  # of the delivery, which the ACK causes long after the SEND
            assert queue.body(await queue.ask(line, ACK(queue.last_id))) == body
            await quiet(line)
        last = in_flight(running, line, queue)
        assert last is not None
        assert last.seconds == delivered == sent + 200
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
        assert in_flight(running, line, queue) is None


@pytest.mark.both_stores
@pytest.mark.claim("SUB-17")
async def test_sub_brings_the_first_message_in_its_batch_and_marks_it(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line)
    line.send([line.written(Said(SUB(), queue.recipient_id, queue.key, b"one"))])
    (alone,) = parse_responses(Reader(await line.stream.read_block()), line.layout, line.version)
    assert alone == Received(b"one", queue.recipient_id, SOK(None))
    await queue.send(sender, b"hello")
    assert await pushed(line, queue) == b"hello"
    line.send([line.written(Said(SUB(), queue.recipient_id, queue.key, b"two"))])
    block = await line.stream.read_block()
    answer, event = parse_responses(Reader(block), line.layout, line.version)
    assert answer == Received(b"two", queue.recipient_id, SOK(None))
    assert isinstance(event, Received)
    assert (event.corr_id, event.entity_id) == (b"", queue.recipient_id)
    assert queue.body(event.response) == b"hello"
    assert await queue.ask(line, ACK(os.urandom(24))) == NO_MSG
    assert await queue.ask(line, ACK(queue.last_id)) == OK()


@pytest.mark.both_stores
@pytest.mark.claim("SUB-18")
async def test_ack_removes_and_answers_with_the_next(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    assert await queue.ask(line, ACK(os.urandom(24))) == NO_MSG
    await queue.send(sender, b"one")
    await queue.send(sender, b"two")
    assert await pushed(line, queue) == b"one"
    first = queue.last_id
    for wrong in (os.urandom(24), first[:-1], first + b"x", b"x"):
        assert await queue.ask(line, ACK(wrong)) == NO_MSG
    reply = await queue.ask(line, ACK(first))
    assert isinstance(reply, MSG)
    assert queue.body(reply) == b"two"
    assert await queue.ask(line, ACK(first)) == NO_MSG
    assert await queue.ask(line, ACK(queue.last_id)) == OK()
    assert await queue.ask(line, ACK(queue.last_id)) == NO_MSG
    await quiet(line)
    assert running.router.store.counts()["messages"] == 0


@pytest.mark.both_stores
@pytest.mark.claim("SUB-19")
async def test_the_message_answering_an_ack_is_in_flight_and_the_first_is_gone(
    running: RunningRouter,
) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    for body in (b"one", b"two"):
        await queue.send(sender, body)
    assert await pushed(line, queue) == b"one"
    assert queue.body(await queue.ask(line, ACK(queue.last_id))) == b"two"
    record = in_flight(running, line, queue)
    assert record is not None
    assert record.msg_id == queue.last_id
    await line.stream.close()
    assert await queue.ask(sender, SUB()) == SOK(None)
    assert await pushed(sender, queue) == b"two"
    assert await queue.ask(sender, ACK(queue.last_id)) == OK()


async def test_an_empty_ack_gets_the_head_again(running: RunningRouter) -> None:
    line, reader = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    assert await queue.ask(line, ACK(b"")) == NO_MSG
    await queue.send(reader, b"one")
    assert await pushed(line, queue) == b"one"
    for _ in range(2):
        assert queue.body(await queue.ask(line, ACK(b""))) == b"one"
    assert queue.body(await queue.ask(reader, GET())) == b"one"
    assert await queue.ask(reader, ACK(b"")) == OK()
    assert await queue.ask(reader, ACK(b"")) == NO_MSG
    assert queue.body(await queue.ask(reader, GET())) == b"one"
    assert await queue.ask(line, ACK(queue.last_id)) == OK()


async def test_a_message_removed_by_another_connection_may_be_acknowledged(running: RunningRouter) -> None:
    line, reader = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    for body in (b"one", b"two"):
        await queue.send(reader, body)
    assert await pushed(line, queue) == b"one"
    assert queue.body(await queue.ask(reader, GET())) == b"one"
    first = queue.last_id
    assert await queue.ask(reader, ACK(first)) == OK()
    assert queue.body(await queue.ask(line, ACK(first))) == b"two"
    second = queue.last_id
    assert await queue.ask(line, ACK(second)) == OK()
    assert await queue.ask(reader, GET()) == OK()


async def test_get_gives_the_same_message_until_it_is_acknowledged(running: RunningRouter) -> None:
    (line,) = await lines_of(running, 1)
    queue = await create(line)
    for body in (b"one", b"two"):
        await queue.send(line, body)
    for body in (b"one", b"two"):
        ids = set()
        for _ in range(2):
            assert queue.body(await queue.ask(line, GET())) == body
            ids.add(queue.last_id)
        assert len(ids) == 1
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
    assert await queue.ask(line, GET()) == OK()
    assert await queue.ask(line, ACK(queue.last_id)) == NO_MSG


async def test_sub_again_delivers_again(running: RunningRouter) -> None:
    (line,) = await lines_of(running, 1)
    queue = await create(line, subscribe=True)
    await queue.send(line, b"one")
    assert await pushed(line, queue) == b"one"
    first = queue.last_id
    assert await queue.ask(line, SUB()) == SOK(None)
    assert await pushed(line, queue) == b"one"
    assert queue.last_id == first
    await quiet(line)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-20")
@pytest.mark.claim("SUB-21")
async def test_a_message_into_an_empty_queue_is_pushed_and_the_next_waits(running: RunningRouter) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    await queue.send(sender, b"one")
    event = await line.event(queue.recipient_id)
    assert (event.corr_id, queue.body(event.response)) == (b"", b"one")
    await queue.send(sender, b"two")
    await quiet(line)
    assert queue.body(await queue.ask(line, ACK(queue.last_id))) == b"two"


async def test_a_client_that_sends_to_itself_gets_the_message_before_the_answer(
    running: RunningRouter,
) -> None:
    (line,) = await lines_of(running, 1)
    queue = await create(line, subscribe=True)
    line.send([line.written(Said(SEND(False, b"hello"), queue.sender_id, corr_id=b"send"))])
    heard: list[Received | Refused] = []
    while len(heard) < 2:
        payload = Reader(await line.stream.read_block())
        heard += parse_responses(payload, line.layout, line.version)
    assert [type(one.response) for one in heard if isinstance(one, Received)] == [MSG, OK]


@pytest.mark.both_stores
@pytest.mark.claim("SUB-22")
async def test_without_subscriber_nothing_is_delivered(
    running: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, sender = await lines_of(running, 2)
    queue = await create(line)
    steps = []
    monkeypatch.setattr("blindpost.router.delivery.push_head", lambda *args: steps.append(args))
    await queue.send(sender, b"hello")
    assert steps == []
    monkeypatch.undo()
    assert await queue.ask(line, SUB()) == SOK(None)
    assert await pushed(line, queue) == b"hello"
    assert await queue.ask(line, ACK(queue.last_id)) == OK()
    monkeypatch.setattr("blindpost.router.delivery.push_head", lambda *args: steps.append(args))
    await queue.send(sender, b"hello")
    assert len(steps) == 1


@pytest.mark.both_stores
@pytest.mark.claim("SUB-24")
@pytest.mark.parametrize(
    ("mode", "pending", "flight", "pushes"),
    [
        ("push", False, False, True),
        ("push", False, True, False),
        ("push", True, False, False),
        ("get", False, False, False),
    ],
)
async def test_when_a_message_is_pushed(
    running: RunningRouter, mode: str, pending: bool, flight: bool, pushes: bool
) -> None:
    """Only to a pushing subscription with nothing due and nothing in flight."""
    line, sender = await lines_of(running, 2)
    queue = await create(line)
    assert await queue.ask(line, GET() if mode == "get" else SUB()) in (OK(), SOK(None))
    client = client_of(running, line)
    if flight:
        await queue.send(sender, b"before")
        assert await pushed(line, queue) == b"before"
    client.congested = pending
    if pending:
        await queue.send(sender, b"due")
        assert queue.recipient_id in client.waiting
    client.congested = False
    await queue.send(sender, b"hello")
    if pushes:
        assert await pushed(line, queue) == b"hello"
    await quiet(line)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-23")
async def test_a_push_and_its_record_are_one_step(
    running: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a message leaves for a connection, the record already says so; no task runs in between."""
    line, sender = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    client = client_of(running, line)
    tasks = len(asyncio.all_tasks())
    seen = []
    send = running.router.plan._send

    def observed(outbox: object) -> None:
        record = client.subs.get(queue.recipient_id)
        assert isinstance(outbox, list)
        for outgoing in outbox:
            if outgoing.client_id == client.client_id and outgoing.entity_id == queue.recipient_id:
                assert record is not None
                assert record.delivered is not None
                seen.append(record.delivered.msg_id)
        send(outbox)

    monkeypatch.setattr(running.router.plan, "_send", observed)
    await queue.send(sender, b"hello")
    assert await pushed(line, queue) == b"hello"
    assert seen == [queue.last_id]
    assert len(asyncio.all_tasks()) == tasks


@pytest.mark.both_stores
@pytest.mark.claim("SUB-27")
async def test_every_way_of_delivery_encrypts_under_the_queue_secret(running: RunningRouter) -> None:
    """Decrypted here with the plain primitive, using nonce and secret as the protocol derives them."""
    line, other = await lines_of(running, 2)
    queue = await create(line, subscribe=True)
    secret = crypto_box_beforenm(queue.ids.dh_key.raw, queue.dh_key.raw)
    for body in (b"one", b"two"):
        await queue.send(other, body)
    push = (await line.event(queue.recipient_id)).response
    assert await queue.ask(other, SUB()) == SOK(None)
    sub = (await other.event(queue.recipient_id)).response
    get = await queue.ask(line, GET())
    assert isinstance(sub, MSG)
    ack = await queue.ask(other, ACK(sub.msg_id))
    for response, body in ((push, b"one"), (sub, b"one"), (get, b"one"), (ack, b"two")):
        assert isinstance(response, MSG)
        sealed = bytes(response.enc_body)
        assert len(sealed) == 16122
        plain = crypto_box_open_afternm(sealed, response.msg_id, secret)
        size = int.from_bytes(plain[:2], "big")
        assert plain[10 : 2 + size] == b"F " + body
        for broken in (0, 15, 16, len(sealed) - 1):
            changed = bytearray(sealed)
            changed[broken] ^= 1
            with pytest.raises(CryptoError):
                crypto_box_open_afternm(bytes(changed), response.msg_id, secret)


@pytest.mark.both_stores
@pytest.mark.claim("SUB-55")
async def test_a_message_that_races_with_the_sub_is_never_missed(running: RunningRouter) -> None:
    """In either order within one turn; then nothing more is pushed until it is acknowledged."""
    for sub_first in (True, False):
        line, sender = await lines_of(running, 2)
        queue = await create(line)
        sub = (line, line.written(Said(SUB(), queue.recipient_id, queue.key, b"sub")))
        send = (sender, sender.written(Said(SEND(False, b"hello"), queue.sender_id, corr_id=b"send")))
        for one, said in (sub, send) if sub_first else (send, sub):
            one.send([said])
        assert (await line.reply(b"sub")).response == SOK(None)
        assert (await sender.reply(b"send")).response == OK()
        assert await pushed(line, queue) == b"hello"
        await quiet(line)
