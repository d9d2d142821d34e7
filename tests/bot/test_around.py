"""Middleware is around everything that a bot does, and what cannot be done is said where it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from blindpost.agent import AgentError
from blindpost.bot import Bot, Chat
from blindpost.chat import (
    AgentNews,
    Asked,
    ContactConnected,
    GroupOffered,
    MessageReceived,
    NotConnectedError,
    Reacted,
    Trouble,
)
from blindpost.testing import Guest
from tests.support.bot.bots import BotWorld, with_echo
from tests.support.client.scripted_router import virtual


async def react(guest: Guest) -> None:
    chats = guest.person.chats
    contact, draft = chats.contact(guest.contact_id), chats.draft()
    assert contact is not None
    draft.react(contact, b"some message", "👍")
    await chats.commit(draft)


@virtual
async def test_whom_middleware_does_not_let_through_hears_nothing_at_all(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, passed = with_echo(place.bot(welcome="Hello!")), []

        @bot.command("add")
        async def add(chat: Chat, number: int) -> None:
            await chat.reply("added")

        @bot.on(Reacted)
        async def thank(chat: Chat, event: Reacted) -> None:
            await chat.reply("thanks")

        @bot.on(ContactConnected)
        async def greet(chat: Chat, event: ContactConnected) -> None:
            await chat.reply("and welcome")

        @bot.middleware
        async def banned(chat: Chat, proceed: Callable[[], Awaitable[None]]) -> None:
            if chat.sender != "Eve":
                passed.append(chat.text)
                await proceed()

        async with bot.open() as link:
            bob, eve = await place.guest("Bob", link), await place.guest("Eve", link)
            for guest in (eve, bob):
                for text in ("/nonsense", "/add x", "/echo hello"):
                    await guest.say(text)
                await react(guest)
            heard = [await bob.hear() for _ in range(6)]
            assert heard[:2] == ["Hello!", "and welcome"]
            assert heard[4:] == ["hello", "thanks"]
            assert passed == ["", "/nonsense", "/add x", "/echo hello", ""], "once for each"
            eve.person.patience_s = 60
            with pytest.raises(AssertionError):
                await eve.hear()


@virtual
async def test_trouble_with_a_contact_is_an_event_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BotWorld(tmp_path) as place:
        bot, told = with_echo(place.bot()), asyncio.Queue[tuple[str, AgentError]]()

        @bot.on(Trouble)
        async def trouble(chat: Chat, event: Trouble) -> None:
            told.put_nowait((chat.sender, event.error))

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            monkeypatch.setattr("blindpost.chat.chats.receiving.told", _failing)
            await bob.say("/echo hello")
            sender, error = await told.get()
            assert sender == "Bob"
            assert "out of order" in str(error)


def _failing(*_: object) -> list[object]:
    raise ValueError("out of order")


@pytest.mark.parametrize("kind", [MessageReceived, Asked, GroupOffered, AgentNews])
def test_handlers_of_events_that_would_never_run_are_refused(
    kind: type[MessageReceived], tmp_path: Path
) -> None:
    bot = Bot("Ada", store=tmp_path / "ada.db")
    with pytest.raises(TypeError, match=f"do not get {kind.__name__}: "):
        bot.on(kind)


@virtual
async def test_a_text_with_a_key_is_not_lost_to_somebody_who_is_not_connected_yet(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()

        @bot.command("order")
        async def order(chat: Chat, to: str) -> None:
            chat.tell(to, "order 7", key="order 7")
            chat.tell("nobody", "order 7")

        async with bot.open() as link:
            bob, carl = await place.guest("Bob", link), await place.person("Carl")
            invited = str(await carl.chats.invite())
            await carl.chats.agent.suspend(1)
            contact = await bot.chats.join(invited)
            with pytest.raises(NotConnectedError):
                await bot.tell(contact, "too early")
            await bob.say(f"/order {contact.id}")
            await asyncio.sleep(60)
            assert bot.metrics.handled
            assert (bot.metrics.sent, bot.set_aside()) == (0, [])
            carl.chats.agent.resume()
            await carl.expect(ContactConnected)
            await asyncio.sleep(60)
            for _ in range(2):
                await bot.tell(contact, "order 7", key="order 7")
            await bot.tell(contact, "that was all")
            assert [(await carl.expect(MessageReceived)).message.text for _ in range(2)] == [
                "order 7",
                "that was all",
            ]
            with pytest.raises(LookupError, match="'nobody' is the id of no contact"):
                await bot.tell("nobody", "hello")
