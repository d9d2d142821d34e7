"""Device tokens of an agent at a real notification router: what is asked when, and crashes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.agent import AgentError, CommandError, PushMode, PushRefusedError
from blindpost.agent.failures import Kind
from blindpost.agent.notifications.errors import NtfError
from blindpost.agent.notifications.model import ACTIVE, CONFIRMED, REGISTERED, Action, ActionKind
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.store import ntf_tokens
from blindpost.client.calls import Call
from blindpost.client.errors import RefusedError
from blindpost.testing.apns import ACCEPTED, UNREGISTERED
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.commands import Command
from blindpost.wire.ntf.pushes import MessagePush, VerificationPush
from blindpost.wire.ntf.responses import Response
from blindpost.wire.smp.errors import Code
from tests.support.agent.phones import ONE, OTHER, Phone, World, phones

TOKEN_COMMANDS = ("TNEW", "TVFY", "TCHK", "TRPL", "TDEL", "TCRN", "SNEW", "SCHK", "SDEL", "NKEY", "NDEL")


async def settled(world: World, phone: Phone) -> None:
    """Wait until the router has been sent the push interval."""
    await phone.until(lambda: phone.token.period == 20)


@pytest.mark.claim("NTF-22")
async def test_a_new_device_token_replaces_the_old_and_keeps_all_subscriptions(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        await settled(world, phone)
        token_id, row = phone.token.token_id, phone.row(conn)
        world.asked.tags.clear()
        assert await phone.agent.register_push(OTHER) == REGISTERED
        with pytest.raises(PushRefusedError, match="earlier device token"):
            await phone.agent.push_received(await world.push(VerificationPush))
        assert phone.token.status == REGISTERED, "a code from before is worth nothing"
        await phone.agent.push_received(await world.push(VerificationPush, 1, OTHER))
        assert phone.token.status == ACTIVE
        await phone.restart(subscribe=False)
        await world.send(alice, b"to the new one")
        (news,) = await world.news(phone, 1, OTHER)
        assert world.asked.of(*TOKEN_COMMANDS) == ["TRPL", "TVFY"]
        assert (phone.token.token_id, phone.row(conn)) == (token_id, row)
        await news.fetch()
        await phone.got(b"to the new one")
        assert world.pushed(MessagePush, ONE) == []


async def test_calls_and_commands_of_a_registration(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        with pytest.raises(CommandError, match="register"):
            await phone.agent.check_push()
        assert await phone.agent.register_push(ONE) == REGISTERED
        first = phone.token
        assert await phone.agent.register_push(ONE) == REGISTERED, "asked again, as nothing is verified"
        assert (phone.token.token_id, phone.token.secret) == (first.token_id, first.secret)
        with pytest.raises(CommandError, match="another device token"):
            await phone.agent.check_push(OTHER)
        code = await world.push(VerificationPush)
        with pytest.raises(CommandError, match="another device token"):
            await phone.agent.verify_push(code, OTHER)
        assert await phone.agent.verify_push(code) == ACTIVE, "the first code is as good as the second"
        await settled(world, phone)
        assert await phone.agent.register_push(ONE) == ACTIVE
        assert await phone.agent.check_push(ONE) == ACTIVE
        await phone.until(lambda: world.asked.tags.count("TCRN") == 2)
        said = ["TNEW", "TNEW", "TVFY", "TCRN", "TCHK", "TCRN", "TCHK"]
        assert sorted(world.asked.of(*TOKEN_COMMANDS)) == sorted(said)


@pytest.mark.parametrize("tag", ["TNEW", "TVFY"])
@pytest.mark.parametrize("after", [False, True], ids=["not sent", "answer lost"])
async def test_a_crash_while_the_router_is_asked(tmp_path: Path, tag: str, after: bool) -> None:
    async with phones(tmp_path) as (world, phone):
        world.asked.hold(tag, after=after)
        if tag == "TNEW":
            asking = asyncio.create_task(phone.agent.register_push(ONE))
        else:
            await phone.agent.register_push(ONE)
            asking = asyncio.create_task(phone.agent.verify_push(await world.push(VerificationPush)))
        await world.asked.stuck.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await phone.restart()
        if tag == "TNEW":
            await phone.until(lambda: phone.token.status == REGISTERED)
            await phone.agent.push_received(await world.push(VerificationPush))
        await phone.until(lambda: phone.token.status == ACTIVE)
        assert await phone.agent.check_push() == ACTIVE
        assert not phone.errors


async def test_a_crash_while_the_device_token_is_replaced(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        await world.activate(phone)
        token_id = phone.token.token_id
        world.asked.hold("TRPL", after=True)
        asking = asyncio.create_task(phone.agent.register_push(OTHER))
        await world.asked.stuck.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await phone.restart()
        assert phone.token.device.text == ONE
        assert await phone.agent.register_push(OTHER) == REGISTERED
        await world.push(VerificationPush, 2, OTHER)
        await phone.agent.push_received(world.pushed(VerificationPush, OTHER)[-1])
        assert (phone.token.status, phone.token.token_id) == (ACTIVE, token_id)


async def test_a_token_that_apple_refuses_is_registered_again(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        world.apple.decide = lambda device: UNREGISTERED
        await world.send(alice, b"lost push")
        async with asyncio.timeout(20):
            await world.apple.until(
                lambda: any(each.reaction == UNREGISTERED for each in world.apple.received)
            )
        await world.ntf.settled()
        world.apple.decide = lambda device: ACCEPTED
        status = await phone.agent.register_push(ONE)
        assert status.text == "INVALID,UNREGISTERED"
        assert phone.token.action is None
        assert await phone.agent.register_push(ONE) == REGISTERED
        await world.push(VerificationPush, 2)
        await phone.agent.push_received(world.pushed(VerificationPush)[-1])
        assert phone.token.status == ACTIVE
        assert world.asked.of("SNEW", "NKEY") == ["NKEY", "SNEW"], "the subscription was kept"


async def test_a_token_the_router_forgot_is_recreated_with_its_subscriptions(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        await settled(world, phone)
        first, row = phone.token, phone.row(conn)
        with phone.rt.ground.transaction() as tx:
            ntf_tokens.doom(tx, first, tx.now)
        await phone.restart()
        await phone.until(lambda: "TDEL" in world.asked.tags)
        with pytest.raises(NtfError, match="NTF AUTH"):
            await phone.agent.check_push()
        assert phone.token == first, "that is only told"
        assert await phone.agent.register_push(OTHER) == REGISTERED
        assert phone.token.key != first.key
        await phone.agent.push_received(await world.push(VerificationPush, 1, OTHER))
        await phone.subscribed(conn)
        assert phone.row(conn) != row
        await phone.restart(subscribe=False)
        await world.send(alice, b"hello")
        (news,) = await world.news(phone, 1, OTHER)
        await news.fetch()
        await phone.got(b"hello")


async def test_a_wrong_code_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The router knows the token but not the code: the next push brings the right one."""
    async with phones(tmp_path) as (world, phone):
        await phone.agent.register_push(ONE)
        first, routers = phone.token, phone.rt.push._routers
        real = routers.send_many

        async def refusing(server: Server, calls: Sequence[Call[Command]]) -> list[Response | AgentError]:
            if calls[0].command.TAG == b"TVFY":
                return [NtfError(server, RefusedError(Code.AUTH))]
            return await real(server, calls)

        monkeypatch.setattr(routers, "send_many", refusing)
        push = await world.push(VerificationPush)
        with pytest.raises(NtfError, match="NTF AUTH"):
            await phone.agent.verify_push(push)
        assert phone.token.key == first.key
        monkeypatch.setattr(routers, "send_many", real)
        assert await phone.agent.verify_push(push) == ACTIVE


async def test_a_stored_code_that_is_not_taken_any_more_is_no_failure(tmp_path: Path) -> None:
    """The token was replaced since, and nobody heard of it. The agent returns the code when it starts, and
    another push brings the right one."""
    async with phones(tmp_path) as (world, phone):
        await phone.agent.register_push(ONE)
        push = await world.push(VerificationPush)
        with phone.rt.ground.transaction() as tx:
            stored = replace(phone.token, status=CONFIRMED, action=Action(ActionKind.VERIFY, bytes(32)))
            ntf_tokens.put(tx, stored)
        await phone.restart()
        await phone.until(lambda: world.asked.of("TVFY", "TCHK") == ["TVFY", "TCHK"])
        await phone.until(lambda: phone.token.action is None)
        await phone.agent.push_received(push)
        assert phone.token.is_active
        assert not phone.errors


async def test_a_token_unknown_to_the_router_gets_new_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with phones(tmp_path) as (world, phone):
        await phone.agent.register_push(ONE)
        first, routers = phone.token, phone.rt.push._routers
        real = routers.send_many

        async def refusing(server: Server, calls: Sequence[Call[Command]]) -> list[Response | AgentError]:
            if calls[0].command.TAG in (b"TVFY", b"TCHK"):
                return [NtfError(server, RefusedError(Code.AUTH))]
            return await real(server, calls)

        monkeypatch.setattr(routers, "send_many", refusing)
        with pytest.raises(NtfError, match="NTF AUTH"):
            await phone.agent.verify_push(await world.push(VerificationPush))
        assert phone.token.status == REGISTERED
        assert phone.token.key != first.key
        monkeypatch.setattr(routers, "send_many", real)
        await world.push(VerificationPush, 2)
        assert await phone.agent.verify_push(world.pushed(VerificationPush)[-1]) == ACTIVE


async def test_deleting_a_token(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        with pytest.raises(CommandError, match="no device token"):
            await phone.agent.delete_push()
        _, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        world.asked.hold("TDEL", after=False)
        await phone.agent.delete_push()
        assert phone.agent.push_token is None
        await world.asked.stuck.wait()
        await phone.until(lambda: phone.row(conn) is None)
        assert "NDEL" in world.asked.tags
        await phone.restart()
        await phone.until(lambda: not ntf_tokens.doomed(phone.rt.ground.store.reading))
        assert world.asked.tags.count("TDEL") == 2
        with pytest.raises(CommandError, match="register"):
            await phone.agent.check_push()
        assert not phone.errors


async def test_changing_the_push_mode(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.activate(phone, PushMode.PERIODIC)
        assert phone.row(conn) is None, "nothing tells of single messages"
        await phone.agent.register_push(ONE, PushMode.INSTANT)
        await phone.subscribed(conn)
        await phone.agent.register_push(ONE, PushMode.PERIODIC)
        await phone.until(lambda: phone.row(conn) is None)
        await phone.agent.register_push(ONE, PushMode.INSTANT)
        await phone.subscribed(conn)
        assert phone.token.mode is PushMode.INSTANT
        await phone.restart(subscribe=False)
        await world.send(alice, b"hello")
        (news,) = await world.news(phone)
        assert news.conn.id == conn.id
        assert world.asked.of("NKEY", "NDEL") == ["NKEY", "NDEL", "NKEY"]


async def test_a_token_stays_with_its_router(tmp_path: Path) -> None:
    async with phones(tmp_path, ntfs=3) as (_, phone):
        await phone.agent.register_push(ONE)
        first = phone.token.server
        for _ in range(3):
            await phone.restart()
            await phone.agent.register_push(ONE)
            assert phone.token.server == first


def all_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("phone.db*"))


async def test_keys_secrets_and_codes_are_sealed(tmp_path: Path) -> None:
    async with phones(tmp_path, passphrase="correct horse") as (world, phone):
        _, conn = await world.friend(phone)
        await phone.agent.register_push(ONE)
        world.asked.hold("TVFY", after=False)
        asking = asyncio.create_task(phone.agent.verify_push(await world.push(VerificationPush)))
        await world.asked.stuck.wait()
        action = phone.token.action
        asking.cancel()
        await asyncio.wait([asking])
        await phone.restart()
        await phone.until(lambda: phone.agent.push_token is not None and phone.token.is_active)
        await phone.subscribed(conn)
        primary = rows.primary(phone.rt.ground.store.reading, conn.id)
        token = phone.token
        assert primary is not None
        assert primary.creds is not None
        assert action is not None
        secrets = [token.key.pkcs8, token.dh_key.pkcs8, token.secret, action.code]
        secrets += [primary.creds.key.pkcs8, primary.creds.secret]
        await phone.agent.delete_push()
        await phone.stop()
        stored = all_bytes(tmp_path)
        assert token.token_id is not None
        for secret in secrets:
            assert secret is not None
            assert secret[-32:] not in stored


async def test_a_router_with_the_wrong_identity_is_not_asked_again(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        world.ntf.server = replace(world.ntf.server, key_hash=bytes(32))
        await phone.restart()
        with pytest.raises(AgentError, match="fingerprint") as refused:
            await phone.agent.register_push(ONE)
        assert (refused.value.word, refused.value.kind) == ("BROKER NETWORK", Kind.PERMANENT)
        await phone.restart()
        await phone.until(lambda: bool(phone.errors))
        assert [error.kind for error in phone.errors] == [Kind.PERMANENT]


async def test_no_router_to_register_with(tmp_path: Path) -> None:
    async with phones(tmp_path, ntfs=0) as (_, phone):
        with pytest.raises(AgentError, match="no notification routers"):
            await phone.agent.register_push(ONE)
        assert phone.agent.push_token is None
