"""A push to an agent from end to end: a message, both routers, Apple, and how the agent handles it."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import CommandError, MessageTaken, PushRefusedError
from blindpost.agent.messages.flows import SEEN_MIN
from blindpost.agent.notifications.model import REGISTERED
from blindpost.crypto.boxes import BoxKey
from blindpost.wire.ntf.pushes import (
    APPLE_PADDED_SIZE,
    CheckPush,
    MessagePush,
    PushItem,
    VerificationPush,
    decode_apns_body,
    encode_apns_body,
    encode_items,
)
from blindpost.wire.smp.responses import MSG
from tests.support.agent.phones import ONE, Phone, phones
from tests.support.ntf.routers import SMP


@pytest.mark.parametrize("flowing", [False, True])
async def test_a_message_is_announced_read_and_acknowledged(tmp_path: Path, flowing: bool) -> None:
    """Also where its router seemed to send one message after the other."""
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        assert await phone.agent.register_push(ONE) == REGISTERED
        assert (await phone.agent.verify_push(await world.push(VerificationPush), ONE)).text == "ACTIVE"
        await phone.subscribed(conn)
        await phone.restart(subscribe=False)
        await world.send(alice, b"hello")
        (news,) = await world.news(phone)
        await world.send(alice, b"again")
        assert news.conn.id == conn.id
        assert phone.bodies == [], "nothing but a name came with the push"
        if flowing:
            flow = phone.rt._calls._flows._flow
            flow.acknowledged(conn.id)
            for _ in range(SEEN_MIN):
                flow.answered(conn.id, MSG(b"id", b"body"), 0.0)
        fetched = await news.fetch()
        assert fetched is not None
        assert (fetched.broker_id, fetched.broker_ts) == (news.broker_id, news.broker_ts)
        await phone.got(b"hello")
        await phone.until(lambda: len(phone.of(MessageTaken)) == 1)
        (taken,) = phone.of(MessageTaken)
        assert (taken.broker_id, taken.broker_ts) == (fetched.broker_id, fetched.broker_ts)
        assert phone.bodies == [b"hello"], "one message for one reading"
        assert await news.fetch() is not None
        await phone.got(b"again")
        await phone.until(lambda: len(phone.of(MessageTaken)) == 2)
        assert await news.fetch() is None
        assert await news.fetch() is None, "and that can be asked again"
        assert not phone.errors


async def test_a_queue_is_read_by_one_at_a_time_and_never_while_subscribed(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        phone.acknowledges = False
        await world.send(alice, b"first")
        (news,) = await world.news(phone)
        with pytest.raises(CommandError, match="subscribed"):
            await news.fetch()
        await phone.restart(subscribe=False)
        (news,) = await world.news(phone)
        assert await news.fetch() is not None
        with pytest.raises(CommandError, match="acknowledged first"):
            await news.fetch()
        await phone.got(b"first")
        ((_, error),) = [told async for told in phone.agent.subscribe([news.conn])]
        assert error is not None, "what is read is not subscribed on the same session"


async def test_a_check_push_names_every_connection(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.send(alice, b"unannounced")
        await phone.restart(subscribe=False)
        (news,) = await phone.agent.push_received(encode_apns_body(CheckPush()))
        assert (news.conn.id, news.broker_id) == (conn.id, None)


@pytest.mark.claim("NTF-46")
async def test_forged_replayed_and_corrupted_pushes_change_nothing(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        await world.send(alice, b"hello")
        await phone.got(b"hello")
        body, code = await world.push(MessagePush), await world.push(VerificationPush)
        await phone.restart(subscribe=False)
        (real,) = await phone.agent.push_received(body)
        assert real.conn.id == conn.id
        phone.events.clear()
        before, asked = phone.snapshot(), len(world.asked.tags)
        for forged in (*_forged(body, code), _stranger(phone)):
            with pytest.raises(PushRefusedError):
                await phone.agent.push_received(forged)
        assert await phone.agent.push_received(code) == [], "a code that was returned before"
        assert phone.snapshot() == before
        assert len(world.asked.tags) == asked, "no router is asked because of any of them"
        (replayed,) = await phone.agent.push_received(body)
        assert await replayed.fetch() is None, "it can be looked for, and is not there any more"
        assert phone.snapshot() == before
        assert phone.of(MessageTaken) == []
        assert phone.bodies == []
        assert not phone.errors


def _stranger(phone: Phone) -> bytes:
    """A push from our own router about a queue that is not ours."""
    nonce, item = bytes(24), PushItem(SMP, b"n" * 24, 1_700_000_000, bytes(24), bytes(144))
    assert phone.token.secret is not None
    sealed = BoxKey(phone.token.secret).seal_padded(nonce, encode_items([item]), APPLE_PADDED_SIZE)
    return encode_apns_body(MessagePush(nonce, bytes(sealed)))


def _forged(body: bytes, code: bytes) -> list[bytes]:
    message, verification = decode_apns_body(body), decode_apns_body(code)
    assert isinstance(message, MessagePush)
    assert isinstance(verification, VerificationPush)
    changed = bytes([message.ciphertext[100] ^ 1])
    corrupted = message.ciphertext[:100] + changed + message.ciphertext[101:]
    return [
        b"",
        b"{}",
        b'{"aps": {"alert": "You have won"}}',
        body[:-20],
        encode_apns_body(MessagePush(message.nonce, corrupted)),
        encode_apns_body(MessagePush(message.nonce, b"")),
        encode_apns_body(MessagePush(bytes(24), message.ciphertext)),
        encode_apns_body(MessagePush(verification.nonce, verification.ciphertext)),
        encode_apns_body(VerificationPush(message.nonce, corrupted)),
        encode_apns_body(VerificationPush(bytes(24), verification.ciphertext)),
    ]
