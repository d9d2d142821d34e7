"""KEY, SKEY and RKEY: whose key applies, and from when."""

from __future__ import annotations

import pytest

from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, GET, KEY, QUE, RKEY, SEND, SKEY, SUB
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ERR, INFO, MSG, OK, SOK
from blindpost.wire.smp.values import QueueMode
from tests.support.router.lines import Said, create, open_line
from tests.support.router.routers import RunningRouter, new_key

AUTH = ERR(Code.AUTH)
MODES = (None, *QueueMode)
AUTH_ALGORITHMS = (Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519)
SENT = SEND(False, b"hello")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algorithm", AUTH_ALGORITHMS)
async def test_key(running: RunningRouter, mode: QueueMode | None, algorithm: Algorithm) -> None:
    line = await open_line(running)
    queue, key, other = await create(line, mode=mode), new_key(algorithm), new_key(algorithm)
    assert await line.ask(SENT, queue.sender_id, key) == AUTH
    assert await line.ask(SENT, queue.sender_id) == OK()
    assert await line.ask(KEY(key.public), queue.recipient_id, other) == AUTH
    assert await line.ask(KEY(key.public), queue.sender_id, queue.key) == AUTH
    assert await line.ask(SENT, queue.sender_id) == OK()
    assert await queue.ask(line, KEY(key.public)) == OK()
    assert await queue.ask(line, KEY(key.public)) == OK()
    assert await queue.ask(line, KEY(other.public)) == AUTH
    assert await line.ask(SENT, queue.sender_id) == AUTH
    assert await line.ask(SENT, queue.sender_id, other) == AUTH
    assert await line.ask(SENT, queue.sender_id, queue.key) == AUTH
    assert await line.ask(SENT, queue.sender_id, key) == OK()
    info = await queue.ask(line, QUE())
    assert isinstance(info, INFO)
    assert (info.info.secured, info.info.size) == (True, 3)


@pytest.mark.parametrize("algorithm", AUTH_ALGORITHMS)
@pytest.mark.parametrize("version", [9, 15, 20])
async def test_skey(running: RunningRouter, algorithm: Algorithm, version: int) -> None:
    line = await open_line(running, version)
    queue, key, other = await create(line), new_key(algorithm), new_key(algorithm)
    secure = SKEY(key.public)
    assert await line.ask(secure, queue.sender_id, other) == AUTH
    assert await line.ask(secure, queue.recipient_id, key) == AUTH
    assert await line.ask(secure, queue.sender_id, queue.key) == AUTH
    assert await line.ask(SENT, queue.sender_id) == OK()
    assert await line.ask(secure, queue.sender_id, key) == OK()
    assert await line.ask(secure, queue.sender_id, key) == OK()
    assert await line.ask(SKEY(other.public), queue.sender_id, other) == AUTH
    assert await queue.ask(line, KEY(key.public)) == OK()
    assert await queue.ask(line, KEY(other.public)) == AUTH
    assert await line.ask(SENT, queue.sender_id) == AUTH
    assert await line.ask(SENT, queue.sender_id, key) == OK()


async def test_skey_after_key(running: RunningRouter) -> None:
    line, other = await open_line(running), new_key()
    queue = await create(line, secured=True)
    assert await line.ask(SKEY(other.public), queue.sender_id, other) == AUTH
    assert await line.ask(SKEY(queue.sender_key.public), queue.sender_id, queue.sender_key) == OK()


@pytest.mark.parametrize("mode", [None, QueueMode.CONTACT])
async def test_skey_only_in_messaging_mode(running: RunningRouter, mode: QueueMode | None) -> None:
    line, key = await open_line(running), new_key()
    queue = await create(line, mode=mode)
    assert await line.ask(SKEY(key.public), queue.sender_id, key) == AUTH
    await queue.secure(line)
    same = queue.sender_key
    assert await line.ask(SKEY(same.public), queue.sender_id, same) == AUTH


async def test_rkey_replaces_all_recipient_keys(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line, mode=QueueMode.CONTACT)
    ed448, x25519 = new_key(Algorithm.ED448), new_key(Algorithm.X25519)
    keys = (queue.key.public, ed448.public, x25519.public)
    assert await line.ask(RKEY((ed448.public,)), queue.recipient_id, ed448) == AUTH
    assert await queue.ask(line, RKEY(keys)) == OK()
    assert await queue.ask(line, RKEY(keys)) == OK()
    for key in (queue.key, ed448, x25519):
        assert await line.ask(GET(), queue.recipient_id, key) == OK()
    assert await line.ask(GET(), queue.recipient_id, new_key()) == AUTH
    assert await queue.ask(line, RKEY((x25519.public,))) == OK()
    for key in (queue.key, ed448):
        assert await line.ask(GET(), queue.recipient_id, key) == AUTH
    assert await line.ask(GET(), queue.recipient_id, x25519) == OK()


@pytest.mark.parametrize("mode", [None, QueueMode.MESSAGING])
async def test_rkey_only_in_contact_mode(running: RunningRouter, mode: QueueMode | None) -> None:
    line, key = await open_line(running), new_key()
    queue = await create(line, mode=mode)
    assert await queue.ask(line, RKEY((key.public,))) == AUTH
    assert await queue.ask(line, GET()) == OK()
    assert await line.ask(GET(), queue.recipient_id, key) == AUTH


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("by_sender", [True, False])
async def test_a_key_takes_effect_with_the_next_command_in_its_block(
    running: RunningRouter, by_sender: bool, before: bool
) -> None:
    """What the second command needs is loaded although it was not authorized when the block arrived."""
    line = await open_line(running)
    queue = await create(line)
    key = queue.sender_key
    await queue.send(line, b"first")
    by_recipient = queue.said(KEY(key.public))
    securing = Said(SKEY(key.public), queue.sender_id, key) if by_sender else by_recipient
    signed = Said(SEND(False, b"second"), queue.sender_id, key)
    unsigned = Said(SEND(False, b"third"), queue.sender_id)
    said = [unsigned, securing] if before else [securing, signed]
    assert await line.ask_many(said) == [OK(), OK()]
    assert await line.ask(SEND(False, b"third"), queue.sender_id) == AUTH
    bodies = []
    reply = await queue.ask(line, GET())
    while isinstance(reply, MSG):
        bodies.append(queue.body(reply))
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
        reply = await queue.ask(line, GET())
    assert bodies == [b"first", b"third" if before else b"second"]


async def test_a_recipient_key_takes_effect_with_the_next_command_in_its_block(
    running: RunningRouter,
) -> None:
    line, key = await open_line(running), new_key()
    queue = await create(line, mode=QueueMode.CONTACT)
    await queue.send(line, b"first")
    said = [queue.said(RKEY((key.public,))), Said(SUB(), queue.recipient_id, key)]
    assert await line.ask_many(said) == [OK(), SOK(None)]
    assert queue.body((await line.event(queue.recipient_id)).response) == b"first"
    assert await queue.ask(line, SUB()) == AUTH


async def test_a_recipient_key_does_not_apply_to_the_commands_before_it(running: RunningRouter) -> None:
    line, key = await open_line(running), new_key()
    queue = await create(line, mode=QueueMode.CONTACT)
    said = [Said(SUB(), queue.recipient_id, key), queue.said(RKEY((key.public,))), queue.said(SUB())]
    assert await line.ask_many(said) == [AUTH, OK(), AUTH]
