"""Broadcasts that stand still: nobody gets what was not meant for them, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blindpost.bot import Bot
from blindpost.bot.broadcasts import BROADCASTS
from blindpost.chat import Contact
from tests.support.bot.bots import BotWorld
from tests.support.client.scripted_router import virtual


def named(place: BotWorld, audience: str) -> Bot:
    """A bot whose friends, under this name, are all but Eve."""
    bot = place.bot()

    @bot.audience(audience)
    def friends(contact: Contact) -> bool:
        return contact.name != "Eve"

    return bot


@virtual
async def test_an_audience_that_is_gone_is_not_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The program was changed while a broadcast was under way: it stands still until the audience is back."""
    monkeypatch.setattr("blindpost.bot.broadcasts.PART", 1)
    async with BotWorld(tmp_path) as place:
        bot = named(place, "friends")
        async with bot.open() as link:
            guests = {name: await place.guest(name, link) for name in ("Ann", "Eve", "Bob")}
            progress = await bot.broadcast("psst", key="k", audience="friends")
            await progress.changed()
            assert not progress.done
        async with named(place, "allies").open():
            await asyncio.sleep(60)
        assert "there is no audience friends" in caplog.text
        bot = named(place, "friends")
        async with bot.open():
            progress = await bot.broadcast("psst", key="k", audience="friends")
            await progress.finished()
            assert (progress.sent, progress.passed) == (2, 1)
            assert [await guests[name].hear() for name in ("Ann", "Bob")] == ["psst", "psst"]
            assert "/help" in await guests["Eve"].ask("/help"), "nothing came before it"


@virtual
async def test_a_contact_whose_connection_was_deleted_holds_up_nobody(tmp_path: Path) -> None:
    """By the program itself, behind the back of the chats."""
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        async with bot.open() as link:
            guests = {name: await place.guest(name, link) for name in ("Ann", "Eve", "Bob")}
            (eve,) = (one for one in bot.contacts() if one.name == "Eve")
            await bot.chats.agent.connection(eve.id).delete()
            progress = await bot.broadcast("psst", key="k")
            await progress.finished()
            assert (progress.sent, progress.passed, bot.metrics.sent) == (2, 1, 2)
            assert [await guests[name].hear() for name in ("Ann", "Bob")] == ["psst", "psst"]


@virtual
async def test_an_audience_that_fails_is_told_to_whoever_waits(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()

        @bot.audience("odd")
        def odd(contact: Contact) -> bool:
            raise ZeroDivisionError

        async with bot.open() as link:
            await place.guest("Ann", link)
            progress = await bot.broadcast("psst", key="k", audience="odd")
            for _ in range(2):
                with pytest.raises(ZeroDivisionError):
                    await progress.finished()
            assert bot.broken is not None
            assert not bot.broken.done()


@virtual
async def test_who_waits_for_a_broadcast_learns_that_the_bot_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.bot.broadcasts.PART", 1)
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        async with bot.open() as link:
            for name in ("Ann", "Bob"):
                await place.guest(name, link)
            progress = await bot.broadcast("news", key="k")
            waits = asyncio.create_task(progress.finished())
            await progress.changed()
        with pytest.raises(RuntimeError, match="goes on after its next start"):
            await waits
        async with bot.open():
            await (await bot.broadcast("news", key="k")).finished()


@virtual
async def test_a_broadcast_that_cannot_be_read_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        async with bot.open() as link:
            ann = await place.guest("Ann", link)
            await bot.chats.agent.transact(lambda tx: tx.put(BROADCASTS, "a", b"{"))
            with monkeypatch.context() as patch:
                patch.setattr("blindpost.bot.broadcasts.Broadcasts._run", lambda *_: asyncio.sleep(0))
                await bot.broadcast("news", key="b")
        async with bot.open():
            assert await ann.hear() == "news"
            assert bot.broken is not None
            assert not bot.broken.done()
    assert "the broadcast a cannot be read" in caplog.text
