"""Every example at work, used the way its readers would use it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from blindpost.agent import Agent
from blindpost.chat import ContactConnected, MessageDeleted, MessageReceived, Reacted
from blindpost.chat.codec import events as e
from blindpost.chat.codec.content import Content
from blindpost.testing import Guest, World, virtual
from blindpost.wire.smp.commands import SUB, SUBS
from examples import broadcast_bot, directory_bot, echo_bot, moderation_bot, support_bot
from tests.support.agent.agents import address_of, quick_config
from tests.support.agent.network import commands_sent
from tests.support.chat.host import Host
from tests.support.chat.people import person
from tests.support.router.routers import running_router
from tests.support.serving.processes import ROOT
from tests.support.serving.programs import PATIENCE_S, line_with, program


@virtual
async def test_echo(world: World) -> None:
    bot = echo_bot.make(str(world.folder / "bot.db"), world.server, config=world.config())
    async with bot.open() as link:
        bob = await world.guest("Bob", link)
        assert await bob.hear() == "Say something!"
        assert await bob.ask("something") == "something"
        assert await bob.ask("/shout it") == "IT"


@virtual
async def test_broadcast(world: World) -> None:
    bot = broadcast_bot.make(str(world.folder / "bot.db"), world.server, password="p", config=world.config())
    async with bot.open() as link:
        ann, ben, cid = [await world.guest(name, link) for name in ("Ann", "Ben", "Cid")]
        for guest in (ann, ben, cid):
            assert "You get our news" in await guest.hear()
        assert await ben.ask("/stop") == "As you wish."
        assert await ann.ask("/news x") == "Only editors can do that."
        assert await ann.ask("/editor q") == "That is not the password."
        assert await ann.ask("/editor p") == "Write /news and your text."
        assert await ann.ask("/news it rains") == "Issue 1 is on its way."
        assert await cid.hear() == "it rains"
        heard = {await ann.hear(), await ann.hear()}
        assert heard == {"it rains", "Issue 1 went to 2 readers."}
        assert await ben.ask("/start") == "Welcome back."


@virtual
async def test_support_desk(world: World) -> None:
    bot = support_bot.make(str(world.folder / "bot.db"), world.server, password="p", config=world.config())
    async with bot.open() as link:
        desk, aide, bob, eve = [await world.guest(name, link) for name in ("Desk", "Aide", "Bob", "Eve")]
        for guest in (desk, aide, bob, eve):
            assert await guest.hear() == "What can we do for you?"
        for guest in (desk, aide):
            assert "on duty" in await guest.ask("/staff p")
        assert await bob.ask("/staff q") == "That is not the password."
        assert await bob.ask("/re 1 x") == "I do not know /re. /help shows what I know."
        numbers = await asyncio.gather(bob.ask("it is broken"), eve.ask("so is mine"))
        assert sorted(numbers) == [f"You are number {one}. Somebody will answer here." for one in (1, 2)]
        heard = sorted([await desk.hear(), await desk.hear()])
        asker = {text.split("] ")[1]: int(text[1]) for text in heard}
        assert set(asker) == {"it is broken", "so is mine"}
        assert await desk.ask("/re 7 x") == "There is no number 7."
        await desk.say(f"/re {asker['it is broken']} turn it off and on")
        assert await bob.hear() == "turn it off and on"
        assert (await desk.person.expect(Reacted)).emoji == "✅"
        await aide.person.expect(MessageReceived, lambda event: "answered" in event.message.text)
        await aide.say("/off")
        await aide.person.heard("Good night.")


@virtual
async def test_directory_is_a_service(world: World) -> None:
    store = world.folder / "bot.db"
    async with directory_bot.make(store, world.server, config=world.config()).open() as link:
        ann, ben = await world.guest("Ann", link), await world.guest("Ben", link)
        for guest in (ann, ben):
            assert "Welcome" in await guest.hear()
        assert await ann.ask("/join ann gardens and bees") == "You are listed as ann."
        assert await ben.ask("/find bees") == "ann: gardens and bees"
        assert await ben.ask("/join ann") == "That name is taken."
        assert await ann.ask("/join ann gardens") == "You are listed as ann."
    with commands_sent() as calls:
        async with directory_bot.make(store, world.server, config=world.config()).open():
            assert await ben.ask("/find gardens") == "ann: gardens"
            assert await ann.ask("/leave") == "You are not listed any more."
            assert await ben.ask("/find gardens") == "Nobody."
        kinds = [type(call.command) for call in calls]
        assert (kinds.count(SUBS), kinds.count(SUB)) == (1, 0)


@virtual
async def test_moderation_of_a_group(world: World) -> None:
    owner = await world.agent("host")
    bot = moderation_bot.make(str(world.folder / "b.db"), world.server, "casino", config=world.config())
    async with bot.open() as link:
        host = Host(owner)
        await host.invite_bot(link, "guard", "admin")
        for number in range(1, 4):
            said = e.Message(e.NewMessage(Content("Casino! Win!")), b"spam %d" % number)
            forwarded = e.GroupForwarded(b"mallory", said, "2026-11-15T21:19:00Z", "Mallory")
            await host.tell("guard", forwarded)
            deleted = await host.heard("guard")
            assert isinstance(deleted, e.DeleteMessage)
            assert (deleted.msg_id, deleted.member_id) == (b"spam %d" % number, b"mallory")
            if number == 3:
                assert await host.heard("guard") == e.MemberRemoved(b"mallory")
            answer = await host.heard("guard")
            assert isinstance(answer, e.NewMessage)
            assert ("removed" in answer.content.text) == (number == 3)
        await host.tell("guard", e.NewMessage(Content("a casinolike word is fine")))
        await host.tell("guard", e.NewMessage(Content("/warnings")))
        answer = await host.heard("guard")
        assert isinstance(answer, e.NewMessage)
        assert answer.content.text == "3 warnings so far."


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ("examples/broadcast_bot.py", ()),
        ("examples/support_bot.py", ()),
        ("examples/moderation_bot.py", ("casino",)),
    ],
)
async def test_each_example_runs_as_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("NEWS_PASSWORD", "p")
    monkeypatch.setenv("DESK_PASSWORD", "p")
    async with running_router(tmp_path / "router") as router:
        server = address_of(router.server)
        async with program(example, str(tmp_path / "bot.db"), server, *words) as bot:
            await line_with(bot, "https://")
            bot.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                assert await bot.wait() == 0


async def test_a_bot_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints its link, answers, restarts when told to, and ends on Ctrl-C; also with only the base package
    installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support" / "agent" / "hidden"))
    async with running_router(tmp_path / "router") as router:
        server = address_of(router.server)
        async with (
            Agent.open(tmp_path / "bob.db", [server], config=quick_config()) as agent,
            program("examples/echo_bot.py", str(tmp_path / "bot.db"), server) as bot,
        ):
            link = await line_with(bot, "https://")
            bob = person(agent, "Bob")
            bob.patience_s = PATIENCE_S
            await bob.chats.join(link)
            guest = Guest(bob, (await bob.expect(ContactConnected)).contact.id)
            assert await guest.hear() == "Say something!"
            assert await guest.ask("one") == "one"
            bot.send_signal(signal.SIGHUP)
            assert await line_with(bot, "https://") == link
            assert await guest.ask("two") == "two"
            bot.send_signal(signal.SIGINT)
            async with asyncio.timeout(PATIENCE_S):
                assert await bot.wait() == 0
        assert not [event for event in bob.aside if isinstance(event, MessageDeleted)]
