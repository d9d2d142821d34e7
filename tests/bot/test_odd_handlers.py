"""Handlers that do what no author means to do, and what strangers type: only their own message suffers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from blindpost.bot import Bot, Chat, working
from blindpost.bot.chat import Outbox
from blindpost.chat.codec import events as e
from blindpost.chat.codec.bodies import BATCH_VERSION, write_body
from blindpost.chat.codec.content import Content
from blindpost.testing import World, virtual

SORRY = "Something went wrong here. Your message is kept, and somebody will look at it."


def odd_bot(store: Path, world: World) -> Bot:
    bot = Bot("Odd", servers=[world.server], store=store, config=world.config())

    @bot.command("echo")
    async def echo(chat: Chat, text: str) -> None:
        await chat.reply(text)

    @bot.command("cancelled")
    async def cancelled(chat: Chat) -> None:
        gone = asyncio.create_task(asyncio.sleep(60))
        gone.cancel()
        await gone

    @bot.command("nobody")
    async def nobody(chat: Chat) -> None:
        bot.chats.agent.connection("of nobody")

    @bot.command("unspeakable")
    async def unspeakable(chat: Chat) -> None:
        raise FileNotFoundError("\udcff" * 5_000)

    @bot.command("wake")
    async def wake(chat: Chat, seconds: float) -> None:
        chat.remind(seconds, "ring")

    @bot.job("ring")
    async def ring(chat: Chat, data: str) -> None:
        await chat.reply("awake")

    return bot


async def put(bot: Bot, space: str, key: str, value: bytes) -> None:
    draft = bot.chats.draft()
    draft.add(lambda tx: tx.put(space, key, value))
    await bot.chats.commit(draft)


@virtual
async def test_the_next_message_is_answered_whatever_the_last_one_did(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "blindpost.bot")  # workers cannot report a log that is not UTF-8
    bot = odd_bot(world.folder / "odd.db", world)
    async with bot.open() as link:
        bob = await world.guest("Bob\n<b>", link)
        odd = ["/cancelled", "/nobody", "/unspeakable", "/wake 1e300"]
        for line in odd:
            assert await bob.ask(line) == SORRY
            assert await bob.ask(f"/echo after {line}") == f"after {line}"
        for number in ("nan", "inf", "-inf", "1e999"):
            assert f"seconds is a number, not {number}" in str(await bob.ask(f"/wake {number}"))
        assert await bob.ask("/wake 3") == "awake"
        assert [one.text for one in bot.set_aside()] == [
            "/cancelled",
            "/nobody",
            "/unspeakable",
            "/wake 1e300",
        ]


async def cancelled() -> None:
    """What somebody waited for ends so."""
    gone = asyncio.create_task(asyncio.sleep(60))
    gone.cancel()
    await gone


@virtual
async def test_the_next_message_is_answered_although_telling_of_a_failure_was_cancelled(world: World) -> None:
    bot = odd_bot(world.folder / "odd.db", world)

    @bot.on_error
    async def failed(chat: Chat, failure: Exception) -> None:
        await cancelled()

    async with bot.open() as link:
        bob = await world.guest("Bob", link)
        await bob.say("/cancelled")
        assert await bob.ask("/echo after it") == "after it"
        assert [one.text for one in bot.set_aside()] == ["/cancelled"]


@virtual
async def test_repeated_work_goes_on_although_what_it_waited_for_was_cancelled(world: World) -> None:
    bot, rounds = odd_bot(world.folder / "odd.db", world), asyncio.Queue[float]()

    @bot.every(60)
    async def noted(outbox: Outbox) -> None:
        rounds.put_nowait(world.now())
        await cancelled()

    async with bot.open():
        async with asyncio.timeout(200):
            for _ in range(3):
                await rounds.get()


@virtual
async def test_who_asks_much_and_reads_nothing_fills_no_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are answered meanwhile, and so is everything once it is read."""
    monkeypatch.setattr(working, "UNREAD_MAX", 50)
    bot = odd_bot(world.folder / "odd.db", world)
    async with bot.open() as link:
        eve, bob = await world.guest("Eve", link), await world.guest("Bob", link)
        conn = eve.person.chats.agent.connection(eve.contact_id)
        items = [e.Message(e.NewMessage(Content(f"/echo {n}")), b"%d" % n) for n in range(60)]
        for _ in range(6):
            await conn.send(write_body(items, pq=True, version=BATCH_VERSION))
        await asyncio.sleep(1200)
        (ours,) = (one for one in bot.contacts() if one.name == "Eve")
        assert 50 <= bot.chats.agent.connection(ours.id).waiting < 50 + len(items)
        assert await bob.ask("/echo hello") == "hello"
        for _ in range(6):
            assert [await eve.hear() for _ in items] == [str(n) for n in range(len(items))]
        assert await eve.ask("/echo end") == "end"


@virtual
async def test_a_stored_reminder_that_cannot_be_read_does_not_end_the_bot(world: World) -> None:
    bot = odd_bot(world.folder / "odd.db", world)
    async with bot.open() as link:
        bob = await world.guest("Bob", link)
        for due in ("1" + "0" * 300, "9" * 300):
            await put(bot, "bot.jobs", f"{due} mark", b"{}")
    async with bot.open():
        assert bot.broken is not None
        assert await bob.ask("/wake 3") == "awake"
        assert not bot.broken.done()
        assert [one.text for one in bot.set_aside()] == ["{}"], "the other one is due later"


@virtual
async def test_work_goes_on_although_the_clock_was_years_ahead(world: World) -> None:
    bot, rounds = odd_bot(world.folder / "odd.db", world), asyncio.Queue[float]()

    @bot.every(60)
    async def noted(outbox: Outbox) -> None:
        rounds.put_nowait(world.now())

    async with bot.open():
        await rounds.get()
        await put(bot, "bot.every", "noted", str(world.now() + 1e9).encode())
    async with bot.open():
        async with asyncio.timeout(120):
            await rounds.get()


def test_wrong_arguments_are_told_where_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Patience expected"):
        Bot("Ada", store=tmp_path / "ada.db", patience=(0.5, 5.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at least 1"):
        Bot("Ada", store=tmp_path / "ada.db", handlers_at_once=0)
    bot = Bot("Ada", store=tmp_path / "ada.db")
    with pytest.raises(TypeError, match="a command has a name"):
        bot.command(lambda chat: None)  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="no message routers are configured"):
        bot.run()


def test_what_is_registered_twice_is_refused(tmp_path: Path) -> None:
    """The second would silently take the place of the first, or share its record."""
    bot = Bot("Ada", servers=[], store=tmp_path / "ada.db")

    def handler(*_: object) -> Any:
        pass

    for register, told in (
        (bot.command("again"), "a command again"),
        (bot.job("again"), "a job again"),
        (bot.audience("again"), "an audience again"),
        (bot.every(60), "repeated work called handler"),
    ):
        register(handler)
        with pytest.raises(ValueError, match=f"there is {told} already"):
            register(handler)
    with pytest.raises(TypeError, match="needs one"):
        bot.every(60)(lambda outbox: None)
