"""What members of a group say to its moderators only: nobody else hears of it through a bot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from blindpost.bot import Bot, Chat
from blindpost.chat import Content, MessageEdited, Reacted, Scope
from blindpost.chat.codec import events as e
from blindpost.testing import Person
from examples import moderation_bot
from tests.support.bot.bots import BotWorld
from tests.support.chat.host import Host
from tests.support.client.scripted_router import virtual
from tests.support.wire.vectors import vectors


def recorded() -> list[bytes]:
    """What the app sent: a report, and a question."""
    bodies = [
        bytes.fromhex(one["bytes"]) for one in vectors("chat/05-group.json") if one["tags"] == ["x.msg.new"]
    ]
    found = {body for body in bodies if body[:1] == b"{" and "scope" in json.loads(body)["params"]}
    assert {json.loads(body)["params"]["content"]["type"] for body in found} == {"report", "text"}
    return sorted(found)


@asynccontextmanager
async def group(place: BotWorld, bot: Bot) -> AsyncIterator[tuple[Host, Person]]:
    """The bot is a moderator of a group, and Carol a member; each reaches the other."""
    host, carol = Host(await place.agent("host")), await place.person("carol")
    async with bot.open() as link:
        await host.invite_bot(link, "bot", "admin")
        await host.admit(carol, "carol")
        listening = asyncio.create_task(carol.heard("never said"))
        invited = await host.heard("carol")
        assert isinstance(invited, e.MemberInvited)
        await host.tell("bot", e.MemberForwarded(host.info("carol"), invited.link))
        await asyncio.sleep(60)
        listening.cancel()
        yield host, carol


async def heard_by(host: Host, name: str) -> e.AnyEvent:
    """Leaving out that members were reached."""
    while isinstance(event := await host.heard(name), e.MemberConnected | e.MemberInvited):
        pass
    return event


@virtual
async def test_a_report_of_spam_is_no_spam(tmp_path: Path) -> None:
    """The example that keeps a group civil would warn whoever reports, before everybody."""
    async with BotWorld(tmp_path) as place:
        words = ("spam", "admins", "forbidden")
        bot = moderation_bot.make(str(tmp_path / "b.db"), place.server, *words, config=place.config())
        async with group(place, bot) as (host, _):
            for body in recorded():
                await host.conns["bot"].send(body)
            await host.tell("bot", e.NewMessage(Content("something forbidden")), b"the id")
            deleted = await heard_by(host, "bot")
            assert isinstance(deleted, e.DeleteMessage)
            assert (deleted.msg_id, deleted.scope) == (b"the id", None)
            warned = await heard_by(host, "bot")
            assert isinstance(warned, e.NewMessage)
            assert "Warning 1" in warned.content.text
        assert bot.metrics.set_aside == 0


def a_clerk(place: BotWorld) -> Bot:
    bot = place.bot(groups=True)

    @bot.message(moderators=True)
    async def noted(chat: Chat) -> None:
        said = chat.reply(f"noted: {chat.text}", quote=True)
        chat.edit(said, "noted")
        chat.react("👍")
        chat.send("see you")
        chat.delete(said)

    @bot.command("status", groups=True, moderators=True)
    async def status(chat: Chat) -> None:
        await chat.reply("all is well")

    @bot.command("public", groups=True)
    async def public(chat: Chat) -> None:
        await chat.reply("for everybody")

    @bot.on(Reacted)
    async def thank(chat: Chat, event: Reacted) -> None:
        await chat.reply("thanks")

    @bot.on(MessageEdited)
    async def again(chat: Chat, event: MessageEdited) -> None:
        await chat.reply("edited")

    return bot


@virtual
async def test_an_answer_to_what_was_said_to_moderators_goes_to_them_and_the_member(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place, group(place, a_clerk(place)) as (host, _):
        dave = Scope(b"dave's id")
        for event in (
            e.NewMessage(Content("question"), scope=dave),
            e.NewMessage(Content("/status"), scope=dave),
            e.React(b"some id", "👍", True, scope=dave),
            e.EditMessage(b"some id", Content("changed"), scope=dave),
            e.NewMessage(Content("/public"), scope=dave),
        ):
            await host.tell("bot", event)
        answers = [await heard_by(host, "bot") for _ in range(9)]
        kinds = [type(one).__name__ for one in answers]
        assert kinds[:5] == ["NewMessage", "EditMessage", "React", "NewMessage", "DeleteMessage"]
        assert [getattr(one, "scope", None) for one in answers] == [dave] * 9
        texts = [one.content.text for one in answers if isinstance(one, e.NewMessage)]
        assert texts == ["noted: question", "see you", "all is well", "thanks", "edited", "noted: /public"]


@virtual
async def test_other_members_hear_nothing_of_it(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place, group(place, a_clerk(place)) as (host, carol):
        await host.tell("bot", e.NewMessage(Content("/status"), scope=Scope(b"dave's id")))
        await host.tell("bot", e.NewMessage(Content("/status"), scope=Scope(host.member_id("carol"))))
        await host.tell("bot", e.NewMessage(Content("/public")))
        first = await carol.heard("all is well")
        assert first.message.scope == Scope(host.member_id("carol"))
        assert (await carol.heard("for everybody")).message.scope is None
        assert not [one for one in carol.aside if getattr(one, "message", None) is not None]


@virtual
async def test_a_report_from_an_older_app_is_for_moderators_too(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place, group(place, a_clerk(place)) as (host, _):
        await host.tell("bot", e.NewMessage(Content("this is spam", "report")))
        answer = await heard_by(host, "bot")
        assert isinstance(answer, e.NewMessage)
        assert answer.content.text == "noted: this is spam"
        assert answer.scope is not None
