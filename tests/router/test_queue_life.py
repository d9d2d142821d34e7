"""OFF, DEL, QUE, and what an operator may do to a queue."""

from __future__ import annotations

import os

import pytest

from blindpost.router.model import Status
from blindpost.router.operator import Action
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    LDEL,
    LGET,
    LKEY,
    LSET,
    NDEL,
    NKEY,
    NSUB,
    OFF,
    QUE,
    RKEY,
    SEND,
    SKEY,
    SUB,
    Command,
)
from blindpost.wire.smp.errors import BLOCKED, BlockingReason, Code, Notice
from blindpost.wire.smp.messages import QuotaMarker
from blindpost.wire.smp.queue_info import MessageType, SubThread
from blindpost.wire.smp.responses import DELD, ERR, INFO, LNK, MSG, OK, SOK
from blindpost.wire.smp.values import LinkData, NtfCreds, QueueMode
from tests.support.router.lines import Line, Queue, Said, client_of, create, open_line
from tests.support.router.operators import block, operate
from tests.support.router.routers import RunningRouter, new_key

AUTH = ERR(Code.AUTH)
DATA = LinkData(b"fixed", b"user")
SPAM = BLOCKED(BlockingReason.SPAM, Notice(3600))


def recipient_commands() -> list[Command]:
    """Every command that a recipient gives about a queue, DEL last."""
    key, dh_key = new_key(), new_key(Algorithm.X25519)
    creds = NtfCreds(key.public, dh_key.public)
    commands: list[Command] = [
        SUB(),
        GET(),
        ACK(bytes(24)),
        KEY(key.public),
        RKEY((key.public,)),
        LSET(b"link", DATA),
    ]
    return [*commands, LDEL(), NKEY(creds), NDEL(), QUE(), OFF(), DEL()]


async def test_off_refuses_messages_and_nothing_else(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, notifier=True)
    await queue.send(line, b"before")
    for _ in range(2):
        assert await queue.ask(line, OFF()) == OK()
    assert await line.ask(SEND(False, b"after"), queue.sender_id) == AUTH
    assert await line.ask(SEND(False, b"x" * 16049), queue.sender_id) == ERR(Code.LARGE_MSG)
    await queue.secure(line)
    assert await line.ask(SEND(False, b"after"), queue.sender_id, queue.sender_key) == AUTH
    assert await queue.ask(line, SUB()) == SOK(None)
    assert queue.body((await line.event(queue.recipient_id)).response) == b"before"
    assert await queue.ask(line, ACK(queue.last_id)) == OK()
    assert await line.ask(NSUB(), queue.notifier_id, queue.notifier_key) == SOK(None)
    assert await operate(running, Action.UNBLOCK, queue.sender_id) == (
        "error: the queue is not blocked, it is off"
    )
    assert await line.ask(SEND(False, b"after"), queue.sender_id, queue.sender_key) == AUTH


async def test_a_deleted_queue_leaves_nothing_behind(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, mode=QueueMode.CONTACT, link=DATA, notifier=True)
    other = await create(line, link=DATA, notifier=True)
    for kept in (queue, other):
        await kept.send(line, b"waits", notify=True)
    assert await line.ask(DEL(), queue.recipient_id, new_key()) == AUTH
    assert await line.ask(DEL(), queue.sender_id, queue.key) == AUTH
    before = running.router.store.counts()
    assert await queue.ask(line, DEL()) == OK()
    after = running.router.store.counts()
    assert set(before.items()) >= {("queues", 2), ("messages", 2), ("notifications", 2)}
    assert after == {table: count // 2 for table, count in before.items()}
    for command in recipient_commands():
        assert await queue.ask(line, command) == AUTH, command
    key = new_key()
    for said in (
        Said(SEND(False, b"late"), queue.sender_id),
        Said(SKEY(key.public), queue.sender_id, key),
        Said(LGET(), queue.link_id),
        Said(NSUB(), queue.notifier_id, queue.notifier_key),
    ):
        assert await line.ask_many([said]) == [AUTH]
    assert other.body(await other.ask(line, GET())) == b"waits"


async def test_del_tells_the_subscribers_but_not_the_deleter(running: RunningRouter) -> None:
    one, two, notified = [await open_line(running) for _ in range(3)]
    queue = await create(one, subscribe=True, notifier=True)
    assert await notified.ask(NSUB(), queue.notifier_id, queue.notifier_key) == SOK(None)
    assert await queue.ask(two, DEL()) == OK()
    assert (await one.event(queue.recipient_id)).response == DELD()
    assert (await notified.event(queue.notifier_id)).response == DELD()
    own = await create(one, subscribe=True, notifier=True)
    assert await one.ask(NSUB(), own.notifier_id, own.notifier_key) == SOK(None)
    assert await own.ask(one, DEL()) == OK()
    for line in (one, two, notified):
        assert await line.settle() == []


async def test_deleting_a_queue_that_is_being_read_keeps_no_entry(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line)
    assert await queue.ask(line, GET()) == OK()
    assert queue.recipient_id in client_of(running, line).subs
    assert await queue.ask(line, DEL()) == OK()
    assert len(client_of(running, line).subs) == 0


async def _info(line: Line, queue: Queue) -> INFO:
    info = await queue.ask(line, QUE())
    assert isinstance(info, INFO)
    return info


async def test_que_tells_the_state_of_queue_and_subscription(running: RunningRouter) -> None:
    line, other = await open_line(running), await open_line(running)
    queue = await create(line)
    assert (await _info(line, queue)).info.sub is None
    await queue.send(line, b"one")
    await queue.send(line, b"two")
    info = (await _info(line, queue)).info
    assert (info.sub, info.size, info.secured, info.notifier) == (None, 2, False, False)
    assert info.msg is not None
    assert info.msg.type is MessageType.MESSAGE
    assert queue.body(await queue.ask(line, GET())) == b"one"
    info = (await _info(line, queue)).info
    assert info.msg is not None
    assert info.msg.msg_id == queue.last_id
    assert info.sub is not None
    assert (info.sub.thread, info.sub.delivered) == (SubThread.PROHIBITED, queue.last_id)
    await queue.secure(line)
    await queue.ask(line, NKEY(queue.ntf_creds))
    assert await queue.ask(other, SUB()) == SOK(None)
    info = (await _info(other, queue)).info
    assert (info.secured, info.notifier, info.size) == (True, True, 2)
    assert info.sub is not None
    assert (info.sub.thread, info.sub.delivered) == (SubThread.NO_SUB, queue.last_id)
    assert await queue.ask(line, ACK(queue.last_id)) == OK()
    info = (await _info(line, queue)).info
    assert info.sub is not None
    assert (info.sub.thread, info.sub.delivered, info.size) == (SubThread.PROHIBITED, None, 1)


@pytest.mark.parametrize("version", [6, 11, 12, 15, 17, 18, 20])
async def test_a_blocked_queue_at_every_version(running: RunningRouter, version: int) -> None:
    """BLOCKED exists from version 12, notices from version 18."""
    line = await open_line(running, version)
    queue = await create(line, subscribe=True)
    assert await block(running, queue.sender_id, SPAM) == "blocked"
    seen = ERR(SPAM if version >= 18 else BLOCKED(SPAM.reason) if version >= 12 else Code.AUTH)
    assert (await line.event(queue.recipient_id)).response == seen
    assert await line.ask(SEND(False, b"hello"), queue.sender_id) == seen
    assert await queue.ask(line, SUB()) == seen


async def test_what_a_blocked_queue_refuses_and_allows(running: RunningRouter) -> None:
    line, key = await open_line(running), new_key()
    queue = await create(line, mode=QueueMode.CONTACT, link=DATA, notifier=True)
    messaging = await create(line, link=DATA)
    for one in (queue, messaging):
        await one.send(line, b"before")
        assert await block(running, one.sender_id, SPAM) == "blocked"
    for command in recipient_commands()[:-2]:
        assert await queue.ask(line, command) == ERR(SPAM), command
    assert await line.ask(LGET(), queue.link_id) == ERR(SPAM)
    assert await line.ask(SKEY(key.public), messaging.sender_id, key) == ERR(SPAM)
    assert await line.ask(LKEY(key.public), messaging.link_id, key) == ERR(SPAM)
    assert await line.ask(SEND(False, b"after"), queue.sender_id) == ERR(SPAM)
    assert await line.ask(SEND(False, b"x" * 16049), queue.sender_id) == ERR(Code.LARGE_MSG)
    assert await line.ask(SEND(False, b"after"), queue.sender_id, key) == AUTH
    assert await line.ask(SUB(), queue.recipient_id, key) == AUTH
    assert await line.ask(NSUB(), queue.notifier_id, queue.notifier_key) == SOK(None)
    assert await messaging.ask(line, DEL()) == OK()
    assert await queue.ask(line, OFF()) == OK()
    assert await line.ask(SEND(False, b"after"), queue.sender_id) == AUTH
    assert await queue.ask(line, SUB()) == SOK(None)


async def test_unblocking_restores_everything(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, subscribe=True, link=DATA)
    assert await block(running, queue.link_id, BLOCKED(BlockingReason.CONTENT)) == "blocked"
    assert (await line.event(queue.recipient_id)).response == ERR(BLOCKED(BlockingReason.CONTENT))
    assert await operate(running, Action.STATUS, queue.sender_id) == "blocked, reason content"
    assert await operate(running, Action.UNBLOCK, queue.link_id) == "unblocked"
    assert await operate(running, Action.STATUS, queue.sender_id) == Status.ACTIVE.value
    await queue.send(line, b"again")
    assert queue.body((await line.event(queue.recipient_id)).response) == b"again"
    key = new_key()
    assert await line.ask(LKEY(key.public), queue.link_id, key) == LNK(queue.sender_id, DATA)


async def test_an_operator_needs_a_reason_to_block_and_an_existing_queue(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line)
    outcome = await operate(running, Action.BLOCK, queue.sender_id)
    assert outcome == "error: a reason is needed to block a queue: spam or content"
    for action in Action:
        for unknown in (os.urandom(24), queue.recipient_id, b""):
            outcome = await operate(running, action, unknown, SPAM)
            assert outcome == "error: no queue with this sender or link id"
    assert await operate(running, Action.STATUS, queue.sender_id) == "active"
    await queue.ask(line, OFF())
    assert await operate(running, Action.STATUS, queue.sender_id) == "off"


async def test_an_operator_deletes_a_queue_with_everything_in_it(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, subscribe=True, notifier=True, link=DATA)
    await queue.send(line, b"one", notify=True)
    await queue.send(line, b"two", notify=True)
    assert queue.body((await line.event(queue.recipient_id)).response) == b"one"
    assert await line.ask(NSUB(), queue.notifier_id, queue.notifier_key) == SOK(None)
    assert await operate(running, Action.DELETE, queue.sender_id) == "deleted, with 2 messages"
    assert (await line.event(queue.recipient_id)).response == DELD()
    for _ in range(2):
        queue.noticed((await line.event(queue.notifier_id)).response)
    assert (await line.event(queue.notifier_id)).response == DELD()
    assert await queue.ask(line, ACK(queue.last_id)) == AUTH
    assert set(running.router.store.counts().values()) == {0}


async def test_the_marker_is_shown_as_such(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line)
    said = [Said(SEND(False, b"fill"), queue.sender_id) for _ in range(129)]
    assert await line.ask_many(said) == [OK()] * 128 + [ERR(Code.QUOTA)]
    for _ in range(128):
        assert queue.body(await queue.ask(line, GET())) == b"fill"
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
    info = (await _info(line, queue)).info
    assert info.msg is not None
    assert (info.size, info.msg.type) == (1, MessageType.QUOTA)
    marker = await queue.ask(line, GET())
    assert isinstance(marker, MSG)
    assert isinstance(queue.opened(marker), QuotaMarker)
