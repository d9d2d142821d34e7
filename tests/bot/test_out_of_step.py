"""Contacts whose ratchets are not in step with the bot's: nothing is set aside, all that is said waits."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from blindpost.agent import (
    Agent,
    AgentConfig,
    CommandCode,
    CommandError,
    Connection,
    OutOfStepError,
    RatchetSync,
    SyncState,
)
from blindpost.bot import Bot, Chat, Outbox
from blindpost.chat import ContactConnected, holding
from blindpost.chat.codec.bodies import write_body
from blindpost.chat.codec.content import Content
from blindpost.chat.codec.events import Message, NewMessage
from blindpost.testing import Guest, Person
from tests.support.bot.bots import BotWorld
from tests.support.chat.people import person
from tests.support.client.scripted_router import virtual


def made(place: BotWorld) -> Bot:
    bot = place.bot()

    @bot.command("echo")
    async def echo(chat: Chat, text: str) -> None:
        await chat.reply(text)

    @bot.command("later")
    async def later(chat: Chat) -> None:
        chat.remind(1, "ring")

    @bot.job("ring")
    async def ring(chat: Chat, data: str) -> None:
        await chat.reply("ring")

    return bot


def replaced(folder: Path) -> None:
    """The store of the bot, by its backup."""
    for file in folder.glob("Ada.db*"):
        file.unlink()
    shutil.copy(folder / "copy.db", folder / "Ada.db")


def files_of(folder: Path) -> dict[Path, bytes]:
    """Everything of Bob's, as a snapshot of his machine has it."""
    return {file: file.read_bytes() for file in folder.glob("Bob.db*")}


async def restored(place: BotWorld, folder: Path, *said: str) -> tuple[Bot, Guest]:
    """A bot that goes back to a backup, and somebody who has written since. They are away when it begins."""
    bot = made(place)
    async with bot.open() as link:
        bob = await place.guest("Bob", link)
        assert await bob.ask("/echo before") == "before"
        await asyncio.sleep(5)
        bot.chats.agent.backup(folder / "copy.db")
    for text in said:
        await bob.say(text)
    await asyncio.sleep(5)
    replaced(folder)
    assert await bob.person.chats.agent.suspend()
    return made(place), bob


def state_of(bot: Bot) -> SyncState:
    (contact,) = bot.contacts()
    return bot.chats.agent.connection(contact.id).stats.sync_state


@virtual
async def test_answers_wait_until_the_ratchets_are_in_step(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, bob = await restored(place, tmp_path, "/echo one", "/later", "/echo two")
        async with bot.open():
            progress = await bot.broadcast("news", key="k")
            (contact,) = bot.contacts()
            await bot.tell(contact, "told")
            await asyncio.sleep(3600)
            assert state_of(bot).send_prohibited
            await progress.finished()
            bob.person.chats.agent.resume()
            heard = [await bob.hear() for _ in range(5)]
            assert sorted(heard[:2]) == ["news", "told"], "they were said first"
            assert [text for text in heard if text in ("one", "two")] == ["one", "two"]
            assert sorted(heard) == ["news", "one", "ring", "told", "two"]
            assert await bob.ask("/echo now") == "now"
            assert (bot.set_aside(), bot.metrics.retried) == ([], 0)
            assert list(holding.held(bot.chats.agent.records)) == []


@virtual
async def test_what_waits_survives_a_restart_and_keeps_its_place(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, bob = await restored(place, tmp_path)
        async with bot.open():
            (contact,) = bot.contacts()
            for text in ("one", "two"):
                await bot.tell(contact, text)
        bot = made(place)
        async with bot.open():
            await bot.tell(contact, "three")
            bob.person.chats.agent.resume()
            assert [await bob.hear() for _ in range(3)] == ["one", "two", "three"]


@virtual
async def test_who_crashed_after_the_ratchets_agreed_sends_what_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event is lost; the next start looks, and a message that comes first sends it too."""
    async with BotWorld(tmp_path) as place:
        bot, bob = await restored(place, tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr("blindpost.chat.chats.Chats._release", lambda *_: asyncio.sleep(0))
            async with bot.open():
                (contact,) = bot.contacts()
                await bot.tell(contact, "one")
                bob.person.chats.agent.resume()
                hearing = asyncio.create_task(bob.hear())
                await asyncio.sleep(600)
                assert state_of(bot) is SyncState.OK
                assert list(holding.held(bot.chats.agent.records)) == [contact.id]
                await bot.tell(contact, "two")
                assert [await hearing, await bob.hear()] == ["one", "two"]
                row = f"{contact.id} {7:012d}"
                await bot.chats.agent.transact(lambda tx: tx.put(holding.HELD, row, KEPT))
        async with made(place).open():
            assert await bob.hear() == "kept"


KEPT = b"+" + write_body([Message(NewMessage(Content("kept")), b"kept id")], pq=True)


@virtual
async def test_not_everything_is_kept_for_ever(tmp_path: Path) -> None:
    """A bound for somebody who never comes back, and nothing is left of a contact who is deleted."""
    async with BotWorld(tmp_path) as place:
        bot, bob = await restored(place, tmp_path)
        async with bot.open():
            (contact,) = bot.contacts()
            for number in range(holding.HELD_MAX):
                await bot.tell(contact, str(number))
            with pytest.raises(OutOfStepError):
                await bot.tell(contact, "too much")
            draft = bot.chats.draft()
            draft.leave(contact)
            await bot.chats.commit(draft)
            await asyncio.sleep(60)
            assert list(holding.held(bot.chats.agent.records)) == []
            bob.person.chats.agent.resume()


@virtual
async def test_repeated_work_reaches_everybody_else_at_once(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, bob = await restored(place, tmp_path)

        @bot.every(60)
        async def minutely(outbox: Outbox) -> None:
            for contact in bot.contacts():
                outbox.tell(contact, "tick", key="once")

        async with bot.open() as link:
            eve = await place.guest("Eve", link)
            assert await eve.hear() == "tick"
            bob.person.chats.agent.resume()
            assert await bob.hear() == "tick"


@asynccontextmanager
async def somebody(place: BotWorld) -> AsyncIterator[Person]:
    """Bob's phone, while it is on."""
    async with Agent.open(place.folder / "Bob.db", [place.server], config=place.config()) as agent:
        yield person(agent, "Bob")


@virtual
async def test_a_bot_offers_new_keys_to_a_contact_who_cannot_be_read(tmp_path: Path) -> None:
    """A phone whose machine went back to a snapshot does not know it, and nobody is at the bot to press a
    button. Without new keys the two would never understand each other again."""
    async with BotWorld(tmp_path) as place:
        bot = made(place)
        async with bot.open() as link:
            async with somebody(place) as bob:
                await bob.chats.join(link)
                contact = (await bob.expect(ContactConnected)).contact
                await Guest(bob, contact.id).ask("/echo one")
            snapshot = files_of(tmp_path)
            async with somebody(place) as bob:
                for _ in range(3):
                    await Guest(bob, contact.id).ask("/echo two")
            for file, content in snapshot.items():
                file.write_bytes(content)
            async with somebody(place) as bob:
                guest = Guest(bob, contact.id)
                await guest.say("/echo three")
                await asyncio.sleep(60)
                assert state_of(bot) is SyncState.OK
                await guest.say("/echo four")
                assert await guest.hear() == "four"


async def test_new_keys_are_offered_once_an_hour(tmp_path: Path) -> None:
    """Somebody who sends what nobody can read must not keep the bot busy with keys."""
    now, offered = 1_000_000.0, 0
    bot = Bot("Ada", servers=[], store=tmp_path / "ada.db", config=AgentConfig(now=lambda: now))

    class Silent:
        id = "silent"

        async def synchronize(self) -> None:
            nonlocal offered
            offered += 1
            raise CommandError(CommandCode.PROHIBITED, "it is too old")

    for later_s, in_all in ((0.0, 1), (3599.0, 1), (3601.0, 2), (-9999.0, 3)):
        now = 1_000_000.0 + later_s
        await bot._repair(RatchetSync(cast(Connection, Silent()), SyncState.REQUIRED))
        assert offered == in_all
    await bot._repair(RatchetSync(cast(Connection, Silent()), SyncState.ALLOWED))
    assert offered == 3
