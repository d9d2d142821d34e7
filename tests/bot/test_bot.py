"""Bots as authors write them: commands, filters, state, schedules, broadcasts, failures."""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from blindpost.agent import CriticalError, Transaction
from blindpost.bot import Bot, Chat, Outbox
from blindpost.bot.handling import LIVE, LIVE_MAX
from blindpost.chat import (
    Asked,
    Contact,
    ContactConnected,
    ContactGone,
    MessageEdited,
    MessageReceived,
    ProfileChanged,
    Reacted,
    TooLongError,
)
from blindpost.chat.book import save_contact
from blindpost.chat.codec.bodies import write_info
from blindpost.chat.codec.events import ContactRequest, Info, Message
from blindpost.engine.loop import StoreFailedError
from blindpost.store import sqlite
from blindpost.store.contract import Durability
from blindpost.testing import Guest
from blindpost.wire.errors import WireError
from blindpost.wire.smp.commands import SUB, SUBS
from tests.support.agent.network import commands_sent
from tests.support.bot.bots import BotWorld, with_echo
from tests.support.chat.reader import read_link_data
from tests.support.client.scripted_router import virtual


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclass
class Notes:
    items: list[str] = field(default_factory=list)
    seen: int = 0
    colour: Colour | None = None


@virtual
async def test_commands_with_typed_arguments(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot(welcome="Hello!"))

        @bot.command("add", "add numbers")
        async def add(chat: Chat, first: int, second: float = 0.5) -> None:
            await chat.reply(f"{first + second}")

        @bot.command("paint")
        async def paint(chat: Chat, colour: Colour, how: Literal["thick", "thin"], wet: bool = False) -> None:
            await chat.reply(f"{colour.name} {how} {wet}")

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.hear() == "Hello!"
            assert await bob.ask("/echo hello  world") == "hello  world"
            assert await bob.ask("/ECHO hi") == "hi"
            assert await bob.ask("/add 2") == "2.5"
            assert await bob.ask("/add 2 3") == "5.0"
            assert (
                await bob.ask("/add two") == "first is a whole number, not two. Usage: /add <first> [second]"
            )
            assert await bob.ask("/add") == "<first> is missing. Usage: /add <first> [second]"
            assert await bob.ask("/add 1 2 3") == (
                "nothing was expected after it: 3. Usage: /add <first> [second]"
            )
            assert await bob.ask("/paint red thin yes") == "RED thin True"
            assert "is one of red, blue" in await bob.ask("/paint green thin")
            assert "is one of thick, thin" in await bob.ask("/paint red soft")
            assert await bob.ask("/nothing") == "I do not know /nothing. /help shows what I know."
            assert "/echo <text>  say it again" in await bob.ask("/help")


def test_wrong_handlers_are_refused_when_they_are_registered(tmp_path: Path) -> None:
    bot = Bot("Ada", store=tmp_path / "ada.db")

    async def wrong(chat: Chat, what: list[str]) -> None:
        pass

    with pytest.raises(TypeError, match="give what the type"):
        bot.command("wrong")(wrong)
    with pytest.raises(ValueError, match="no name of a command"):
        bot.command("two words")
    with pytest.raises(RuntimeError, match="not open"):
        bot.contacts()

    async def right(chat: Chat) -> None:
        pass

    async def lost() -> None:
        pass

    bot.command("right")(right)
    bot.command("help")(right)  # in place of the built-in one
    with pytest.raises(ValueError, match="already"):
        bot.command("Right")(right)
    with pytest.raises(TypeError, match="is the chat"):
        bot.command("lost")(lost)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ValueError, match="more than 0"):
        bot.every(0)
    with pytest.raises(TypeError, match="no event"):
        bot.on(int)  # type: ignore[type-var]  # the mistake
    for servers, error in (("smp://one", TypeError), (["smp://abc@host"], WireError)):
        with pytest.raises(error):
            Bot("Ada", servers=servers, store=tmp_path / "ada.db")
    with pytest.raises(TypeError, match="name"):
        Bot("", store=tmp_path / "ada.db")


@virtual
async def test_wrong_texts_are_refused_where_they_are_made(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()

        @bot.command("number")
        async def number(chat: Chat) -> None:
            chat.reply(5)  # type: ignore[arg-type]  # the mistake

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            for text, key, told in ((5, "k", "not int"), ("x", "", "needs a key")):
                with pytest.raises(TypeError, match=told):
                    await bot.broadcast(text, key=key)  # type: ignore[arg-type]  # the mistake
            with pytest.raises(TooLongError):
                await bot.broadcast(secrets.token_hex(16_000), key="k")
            assert "somebody will look" in await bob.ask("/number")
            assert "not int" in bot.set_aside()[0].error


@virtual
async def test_the_menu_is_in_the_profile(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place, with_echo(place.bot(description="repeats")).open() as link:
        bob = await place.guest("Bob", link)
        data = (await bob.person.chats.agent.read_link(link)).user_data
        profile = read_link_data(data)["profile"]
        assert (profile["peerType"], profile["shortDescr"]) == ("bot", "repeats")
        assert {"type": "command", "keyword": "echo", "label": "say it again", "params": "<text>"} in (
            profile["preferences"]["commands"]
        )


@virtual
async def test_filters_choose_the_handler(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()

        @bot.message(matches=r"(?i)hello")
        async def greet(chat: Chat) -> None:
            await chat.reply(f"hello {chat.sender}", quote=True)

        @bot.message(where=lambda message: message.text.isdigit())
        async def count(chat: Chat) -> None:
            await chat.reply("a number")

        @bot.message()
        def anything(chat: Chat) -> None:
            chat.reply("what?")

        async with bot.open() as link:
            bob = await place.guest("Bob", link, "Hello there")
            assert await bob.hear() == "hello Bob"
            assert await bob.ask("12") == "a number"
            assert await bob.ask("/what") == "what?"


@virtual
async def test_state_is_typed_and_survives(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:

        def made() -> Bot:
            bot = place.bot()

            @bot.command("note")
            def note(chat: Chat, text: str) -> None:
                notes = chat.state(Notes)
                notes.items.append(text)
                notes.seen += 1
                notes.colour = Colour.BLUE
                chat.reply(" ".join(notes.items))

            return bot

        bot = made()
        async with bot.open() as link:
            bob, eve = await place.guest("Bob", link), await place.guest("Eve", link)
            assert await bob.ask("/note one") == "one"
            assert await eve.ask("/note other") == "other"
        bot = made()
        async with bot.open() as again:
            assert again == link
            assert await bob.ask("/note two") == "one two"
            (known,) = [one for one in bot.contacts() if one.name == "Bob"]
            assert bot.state_of(known, Notes) == Notes(["one", "two"], 2, Colour.BLUE)


@virtual
async def test_a_failing_handler_is_retried_and_its_message_set_aside(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, tries = with_echo(place.bot()), 0

        @bot.command("fail")
        async def fail(chat: Chat, times: int) -> None:
            nonlocal tries
            chat.reply("never seen unless it ends well")
            chat.state(Notes).seen += 1
            tries += 1
            if tries <= times:
                raise ValueError("not yet")

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.ask("/fail 2") == "never seen unless it ends well"
            assert (tries, bot.metrics.retried) == (3, 2)
            (known,) = bot.contacts()
            assert bot.state_of(known, Notes).seen == 1
            tries = 0
            assert (await bob.ask("/fail 9")).startswith("Something went wrong here.")
            assert await bob.ask("/echo still here") == "still here"
            (aside,) = bot.set_aside()
            assert (aside.text, aside.error, aside.conversation) == (
                "/fail 9",
                "ValueError: not yet",
                known.id,
            )
            assert bot.state_of(known, Notes).seen == 1
            await bot.forget_aside(aside.key)
            assert bot.set_aside() == []
            assert bot.metrics.set_aside == 1
            assert "blindpost_bot_set_aside_total 1" in bot.metrics.text()


@virtual
async def test_shared_state_is_changed_by_one_handler_at_a_time(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()

        @bot.command("add")
        async def add(chat: Chat) -> None:
            notes = chat.shared(Notes)
            await asyncio.sleep(1)
            notes.seen += 1
            await chat.reply(str(notes.seen))

        async with bot.open() as link:
            guests = [await place.guest(name, link) for name in ("Ann", "Ben", "Cid")]
            answers = await asyncio.gather(*(guest.ask("/add") for guest in guests))
            assert sorted(answers) == ["1", "2", "3"]
            assert bot.shared_state(Notes).seen == 3


@virtual
async def test_a_full_disk_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            agent, full = bot.chats.agent, 5
            original = agent.transact

            async def transact(*arguments: object) -> object:
                nonlocal full
                if full:
                    full -= 1
                    raise StoreFailedError("the disk is full")
                return await original(*arguments)  # type: ignore[arg-type]  # as it was called

            monkeypatch.setattr(agent, "transact", transact)
            assert await bob.ask("/echo at last") == "at last"
            assert bot.set_aside() == []
        assert (full, bot.metrics.set_aside) == (0, 0)


@virtual
async def test_a_disk_that_lost_something_ends_the_bot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be waited out: whoever runs the bot starts it again, and then all is answered."""
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot(config=replace(place.config(), durability=Durability.FULL)))
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.ask("/echo one") == "one"

            def broken(_: int) -> None:
                raise OSError(5, "Input/output error")

            with monkeypatch.context() as patch:
                patch.setattr(sqlite, "_datasync", broken)
                await bob.say("/echo two")
                assert bot.broken is not None
                with pytest.raises(CriticalError, match="Input/output error"):
                    await bot.broken
        async with bot.open():
            assert await bob.hear() == "two"


@virtual
async def test_on_error_answers_in_its_own_words(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()

        @bot.message()
        async def fail(chat: Chat) -> None:
            raise LookupError("lost")

        @bot.on_error
        async def sorry(chat: Chat, error: Exception) -> None:
            await chat.reply(f"sorry: {error}")

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.ask("anything") == "sorry: lost"


@virtual
async def test_a_slow_handler_delays_only_its_own_contact(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, gate, order = with_echo(place.bot()), asyncio.Event(), []

        @bot.command("wait")
        async def wait(chat: Chat, number: int) -> None:
            order.append((chat.sender, number))
            await gate.wait()
            await chat.reply(f"done {number}")

        async with bot.open() as link:
            bob, eve = await place.guest("Bob", link), await place.guest("Eve", link)
            await bob.say("/wait 1")
            await bob.say("/wait 2")
            assert await eve.ask("/echo me first") == "me first"
            assert order == [("Bob", 1)]
            gate.set()
            assert [await bob.hear(), await bob.hear()] == ["done 1", "done 2"]


@virtual
async def test_middleware_wraps_every_handler(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, seen = with_echo(place.bot()), []

        @bot.middleware
        async def first(chat: Chat, proceed: Callable[[], Awaitable[None]]) -> None:
            seen.append("in")
            await proceed()
            seen.append("out")

        @bot.middleware
        async def no_swearing(chat: Chat, proceed: Callable[[], Awaitable[None]]) -> None:
            if "darn" in chat.text:
                chat.reply("mind your words")
            else:
                await proceed()

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.ask("/echo darn") == "mind your words"
            assert await bob.ask("/echo fine") == "fine"
            assert seen == ["in", "out"] * 2


@virtual
async def test_reminders_come_on_time_and_across_restarts(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:

        def made() -> Bot:
            bot = place.bot()

            @bot.command("remind")
            async def remind(chat: Chat, seconds: int, text: str) -> None:
                chat.remind(seconds, "ring", text)
                await chat.reply("I will")

            @bot.job("ring")
            async def ring(chat: Chat, text: str) -> None:
                await chat.reply(f"ring: {text}")

            return bot

        clock = asyncio.get_running_loop().time
        async with made().open() as link:
            bob = await place.guest("Bob", link)
            before = clock()
            assert await bob.ask("/remind 100 second") == "I will"
            assert await bob.ask("/remind 30 first") == "I will"
            assert await bob.hear() == "ring: first"
            assert clock() - before < 40
        await asyncio.sleep(200)
        async with made().open():
            assert await bob.hear() == "ring: second"
        async with made().open():
            assert await bob.ask("/remind 0 now") == "I will"
            assert await bob.hear() == "ring: now"


@virtual
async def test_periodic_work(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, count = place.bot(), 0

        @bot.every(600)
        async def hourly(out: Outbox) -> None:
            nonlocal count
            count += 1
            if count == 2:
                raise ValueError("once")
            for contact in bot.contacts():
                out.tell(contact, f"hour {count}")

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.hear() == "hour 3"
            assert count == 3


@virtual
async def test_a_key_makes_a_message_be_sent_once(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            (contact,) = bot.contacts()
            for _ in range(3):
                await bot.tell(contact, "your order is on its way", key="order 7")
            await bot.tell(contact.id, "another", key="order 8")
            assert [await bob.hear(), await bob.hear()] == ["your order is on its way", "another"]
            assert await bob.ask("/echo end") == "end"


@virtual
async def test_a_broadcast_reaches_everybody_once_across_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.bot.broadcasts.PART", 2)
    async with BotWorld(tmp_path) as place:

        def made() -> Bot:
            bot = with_echo(place.bot())

            @bot.audience("short")
            def short(contact: Contact) -> bool:
                return len(contact.name) < 4

            return bot

        bot = made()
        async with bot.open() as link:
            guests = [await place.guest(name, link) for name in ("Ann", "Ben", "Carol", "Dan", "Eve")]
            progress = await bot.broadcast("news", key="n1")
            await progress.changed()
            assert 0 < progress.sent < 5
        bot = made()
        async with bot.open():
            progress = await bot.broadcast("news", key="n1")
            await progress.finished()
            assert (progress.sent, progress.total) == (5, 5)
            for guest in guests:
                assert await guest.hear() == "news"
            few = await bot.broadcast("psst", key="n2", audience="short")
            await few.finished()
            assert (few.sent, few.passed) == (4, 1)
            with pytest.raises(LookupError, match="no audience"):
                await bot.broadcast("x", key="n3", audience="nobody")
            for guest in guests:
                heard = [await guest.ask("/echo end")]
                while heard[-1] != "end":
                    heard.append(await guest.hear())
                assert heard == (["end"] if guest is guests[2] else ["psst", "end"])


@virtual
async def test_requests_are_decided_and_departures_are_events(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, gone = with_echo(place.bot()), asyncio.Event()

        @bot.on_request
        def only_friends(asked: Asked) -> bool:
            return asked.profile.name != "Mallory"

        @bot.on(ContactGone)
        async def left(chat: Chat, event: ContactGone) -> None:
            chat.reply("nobody hears this")
            gone.set()

        async with bot.open() as link:
            mallory = await place.person("Mallory")
            await mallory.chats.join(link)
            bob = await place.guest("Bob", link)
            assert [one.name for one in bot.contacts()] == ["Bob"]
            draft = bob.person.chats.draft()
            theirs = bob.person.chats.contact(bob.contact_id)
            assert theirs is not None
            draft.leave(theirs)
            await bob.person.chats.commit(draft)
            await gone.wait()
            await bot.tell(next(bot.chats.contacts()), "hello?")
            await asyncio.sleep(1)  # what the handler decided is stored
            assert [conn.type.value for conn in bot.chats.agent.connections()] == ["contact"]
        assert bot.metrics.left == 1


@virtual
async def test_edits_reactions_and_live_messages(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, edited = place.bot(), asyncio.Event()

        @bot.message()
        async def work(chat: Chat) -> None:
            said = await chat.reply("working", live=True)
            chat.edit(said, "done")
            chat.react("🚀")

        @bot.on(MessageEdited)
        async def seen(chat: Chat, event: MessageEdited) -> None:
            edited.set()

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.ask("work") == "working"
            assert (await bob.person.expect(MessageEdited)).message.text == "done"
            assert (await bob.person.expect(Reacted)).emoji == "🚀"
            theirs = bob.person.chats.contact(bob.contact_id)
            assert theirs is not None
            draft = bob.person.chats.draft()
            draft.edit(theirs, b"some id", "changed my mind")
            await bob.person.chats.commit(draft)
            await edited.wait()


@virtual
async def test_a_changed_menu_is_sent_with_the_next_answer(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        async with with_echo(place.bot()).open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.ask("/echo one") == "one"
        bot = with_echo(place.bot())

        @bot.command("more", "another")
        async def more(chat: Chat) -> None:
            await chat.reply("more")

        async with bot.open():
            assert await bob.ask("/more") == "more"
            changed = await bob.person.expect(ProfileChanged)
            assert changed.contact.profile.preferences is not None
            names = [
                getattr(one, "keyword", "") for one in changed.contact.profile.preferences.commands or ()
            ]
            assert names == ["help", "echo", "more"]


@virtual
async def test_a_service_subscribes_all_contacts_with_one_subs(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        config = place.config()
        async with with_echo(place.bot(service=True, config=config)).open() as link:
            guests = [await place.guest(name, link) for name in ("Ann", "Ben", "Cid")]
        with commands_sent() as calls:
            async with with_echo(place.bot(service=True, config=config)).open():
                for guest in guests:
                    assert await guest.ask("/echo hi") == "hi"
            kinds = [type(call.command) for call in calls]
            assert (kinds.count(SUBS), kinds.count(SUB)) == (1, 0)


@virtual
async def test_nothing_is_lost_when_the_bot_stops_in_the_middle(tmp_path: Path) -> None:
    """What is running may end; what is waiting is answered after the restart."""
    async with BotWorld(tmp_path) as place:

        def made(gate: asyncio.Event) -> Bot:
            bot = place.bot(drain_s=1.0)

            @bot.message()
            async def slow(chat: Chat) -> None:
                chat.reply(f"got {chat.text}")
                await gate.wait()

            return bot

        async with made(asyncio.Event()).open() as link:
            bob: Guest = await place.guest("Bob", link)
            for number in range(3):
                await bob.say(str(number))
            await asyncio.sleep(5)
        gate = asyncio.Event()
        gate.set()
        async with made(gate).open():
            assert [await bob.hear() for _ in range(3)] == ["got 0", "got 1", "got 2"]
        assert not [event for event in bob.person.aside if isinstance(event, MessageReceived)]


@virtual
async def test_a_welcome_the_app_already_shows_is_not_repeated(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place, place.bot(welcome="Hello!").open() as link:
        bob = await place.person("Bob")
        request = ContactRequest(bob.chats.profile, welcome_id=b"as shown")
        info = write_info(Message(request), pq=True)
        reply = write_info(Message(Info(bob.chats.profile)), pq=True)

        def join(tx: Transaction) -> None:
            save_contact(tx, Contact(tx.join(link, info, reply=reply).id, bob.chats.profile))

        await bob.chats.agent.transact(join)
        shown = (await bob.expect(MessageEdited)).message
        assert (shown.text, shown.id) == ("Hello!", b"as shown")


@virtual
async def test_a_live_message_is_handled_when_it_is_complete(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place, with_echo(place.bot()).open() as link:
        bob = await place.guest("Bob", link)
        theirs = bob.person.chats.contact(bob.contact_id)
        assert theirs is not None
        draft = bob.person.chats.draft()
        typing = draft.say(theirs, "/echo o", live=True)
        draft.edit(theirs, typing, "/echo on", live=True)
        draft.edit(theirs, typing, "/echo once")
        draft.edit(theirs, typing, "/echo an edit is no command")
        await bob.person.chats.commit(draft)
        assert await bob.hear() == "once"
        assert await bob.ask("/echo end") == "end"


@virtual
async def test_who_begins_many_messages_and_completes_none_fills_no_store(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            bob, eve = await place.guest("Bob", link), await place.guest("Eve", link)
            for guest in (eve, bob):
                theirs = guest.person.chats.contact(guest.contact_id)
                assert theirs is not None
                draft = guest.person.chats.draft()
                for number in range(LIVE_MAX + 5 if guest is bob else 3):
                    draft.say(theirs, f"/echo {number}", live=True)
                await guest.person.chats.commit(draft)
                assert await guest.ask("/echo end") == "end"
            assert bot.chats.agent.records.count(LIVE) == LIVE_MAX + 3, "others type too"
            assert theirs is not None
            draft = bob.person.chats.draft()
            last = draft.say(theirs, "/echo o", live=True)
            draft.edit(theirs, last, "/echo once")
            await bob.person.chats.commit(draft)
            assert await bob.hear() == "once"
            draft = bob.person.chats.draft()
            draft.leave(theirs)
            await bob.person.chats.commit(draft)
            await asyncio.sleep(60)
            assert bot.chats.agent.records.count(LIVE) == 3


@virtual
async def test_a_handler_for_new_contacts(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()

        @bot.on(ContactConnected)
        async def welcome(chat: Chat, event: ContactConnected) -> None:
            await chat.reply(f"welcome {event.contact.name}")

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.hear() == "welcome Bob"
