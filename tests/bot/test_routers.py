"""What a bot's operator hears of routers: one that is away, and one that has lost what it kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blindpost.agent import AgentError
from blindpost.agent.store import queues
from blindpost.bot import Bot
from blindpost.bot.bot import SHOW_S
from blindpost.client.calls import Call
from blindpost.wire.smp.commands import DEL
from tests.support.bot.bots import BotWorld, with_echo
from tests.support.client.scripted_router import virtual


async def lose(bot: Bot, *conn_ids: str) -> None:
    """The router forgets the queues of these connections, and the bot is not told."""
    agent = bot.chats.agent
    for conn_id in conn_ids:
        (queue,) = queues.rcv_queues(agent._ground.store.reading, conn_id)
        call = Call(DEL(), queue.rcv_id, queue.key)
        await agent._core.sessions.send(queue.user_id, queue.server, call, entity=conn_id)


def address_of(bot: Bot) -> str:
    assert bot.chats.address_id is not None
    return bot.chats.address_id


@virtual
async def test_a_lost_address_is_told_and_can_be_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            await lose(bot, address_of(bot))
        caplog.clear()
        bot = place.bot()
        async with bot.open() as dead:
            assert dead == link
            await asyncio.sleep(60)
            (told,) = (one.getMessage() for one in caplog.records if one.name == "blindpost.bot")
            assert told.startswith("nobody can reach the bot by its address: SMP AUTH")
            assert "bot.new_address()" in told
            fresh = await bot.new_address()
            assert fresh != link
            eve = await place.guest("Eve", fresh)
            assert "/help" in await eve.ask("/help")
            assert "/help" in await bob.ask("/help"), "contacts stay"
        async with bot.open() as again:
            assert again == fresh


@virtual
async def test_a_bot_whose_commands_changed_opens_although_its_address_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            await lose(bot, address_of(bot))
        bot = with_echo(place.bot())
        async with bot.open() as dead:
            assert dead == link
            assert await bob.ask("/echo hello") == "hello"
            assert "what the address shows cannot be changed yet: SMP AUTH" in caplog.text
            fresh = await bot.new_address()
            await asyncio.sleep(2 * SHOW_S)
            assert bot.broken is not None
            assert not bot.broken.done()
        async with with_echo(place.bot()).open() as again:
            assert again == fresh


@virtual
async def test_a_bot_whose_commands_changed_opens_although_its_router_is_away(tmp_path: Path) -> None:
    """What the address shows is changed when the router is back."""
    async with BotWorld(tmp_path) as place:
        async with place.bot().open() as link:
            pass
        bot = with_echo(place.bot())
        async with place.router.down():
            opening = bot.open()
            assert await opening.__aenter__() == link
        try:
            await asyncio.sleep(2 * SHOW_S)
            eve = await place.person("Eve")
            seen = await eve.chats.look(link)
            assert seen is not None
            assert seen.profile.preferences is not None
            assert len(seen.profile.preferences.commands or ()) == 2, "/help and /echo"
        finally:
            await opening.__aexit__(None, None, None)


@virtual
async def test_a_bot_without_an_address_says_that_its_router_is_away(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place, place.router.down():
        with pytest.raises(AgentError):
            async with place.bot().open():
                pass


@virtual
async def test_an_address_that_is_given_up_reaches_nobody(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        async with bot.open() as link:
            old = address_of(bot)
            async with place.router.down():
                with pytest.raises(AgentError):
                    await bot.new_address()
            assert address_of(bot) == old, "there is no other"
            await asyncio.sleep(60)
            await bot.new_address()
            await asyncio.sleep(60)
            assert old not in [one.id for one in bot.chats.agent.connections()]
            with pytest.raises(AgentError):
                await place.guest("Eve", link)


@virtual
async def test_a_contact_whose_queue_is_lost_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        async with bot.open() as link:
            await place.guest("Bob", link)
            (contact,) = bot.contacts()
            await lose(bot, contact.id)
        caplog.clear()
        async with place.bot().open():
            await asyncio.sleep(60)
        assert "cannot be heard any more, and have to connect again: 1. SMP AUTH" in caplog.text


@virtual
async def test_a_router_that_is_away_is_told_once_and_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start too: otherwise a bot that reaches nobody looks like one that nobody writes to."""
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        async with bot.open():
            await asyncio.sleep(60)
        async with place.router.down(), bot.open():
            await asyncio.sleep(1200)
            (told,) = caplog.messages
            assert "cannot be reached, and is tried again: BROKER NETWORK" in told
        caplog.clear()
        async with bot.open():
            await asyncio.sleep(10)
            async with place.router.down():
                await asyncio.sleep(600)
            await asyncio.sleep(600)
            away, back = caplog.messages
            assert away == told
            assert "is reached again" in back
