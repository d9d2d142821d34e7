"""A bot whose disk is full for a while: nothing ends, nobody is forgotten, nothing is done twice."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from pathlib import Path

import pytest

from blindpost.agent import Connection, ConnError, StoreFailedError
from blindpost.bot import Bot, Chat, Outbox
from blindpost.bot.deaths import Deaths, _left_in
from blindpost.chat import ContactConnected, ContactGone, MessageReceived
from blindpost.chat.codec import events as e
from blindpost.chat.codec.content import Content
from blindpost.store.sqlite import SqliteStore
from tests.support.bot.bots import BotWorld, with_echo
from tests.support.chat.host import Host
from tests.support.client.scripted_router import virtual


class Disk:
    """The disk of one bot, which has room or not."""

    def __init__(self) -> None:
        self.full = False
        self.refuse_next = 0
        """How many commits have no room, if it is not full for longer."""
        self.room: int | None = None
        """If known: after how many commits it is full."""
        self.file = "Ada.db"
        """Which one has no room; all others do."""
        self.refused = 0

    def refuses(self, file: SqliteStore) -> bool:
        if file.path.name != self.file:
            return False
        self.refuse_next -= (is_next := self.refuse_next > 0)
        if self.room is not None:
            self.room -= (has_room := self.room > 0)
            return not has_room
        return self.full or is_next


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    original, disk = SqliteStore.commit, Disk()

    def commit(file: SqliteStore) -> None:
        if disk.refuses(file):
            disk.refused += 1
            file.rollback()
            raise file.failed(sqlite3.OperationalError("database or disk is full"))
        original(file)

    monkeypatch.setattr(SqliteStore, "commit", commit)
    return disk


@virtual
async def test_a_full_disk_ends_no_work(tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    """No commit comes about for a minute: what was under way goes on, a broadcast too."""
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            progress, disk.full = await bot.broadcast("news", key="n"), True
            await bob.say("/echo later")
            await asyncio.sleep(60)
            disk.full = False
            assert sorted([await bob.hear(), await bob.hear()]) == ["later", "news"]
            await progress.finished()
            assert await bob.ask("/echo again") == "again"
            assert bot.metrics.set_aside == 0
    assert "the store takes nothing" in caplog.text
    assert "work in the background failed" not in caplog.text


@virtual
async def test_who_comes_while_the_disk_is_full_is_welcomed_later(tmp_path: Path, disk: Disk) -> None:
    """Whichever commit of the bot is the first that has no room."""
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot(welcome="welcome"))
        async with bot.open() as link:
            for number in itertools.count(1):
                disk.refused, disk.room = 0, number - 1
                coming = asyncio.create_task(place.guest(f"Bob {number}", link))
                await asyncio.sleep(60)
                disk.room = None
                bob = await coming
                assert await bob.hear() == "welcome"
                assert await bob.ask("/echo here") == "here"
                assert bot.broken is not None
                assert not bot.broken.done()
                assert (bot.metrics.connected, bot.metrics.contacts) == (number, number)
                if not disk.refused:
                    break
            assert number > 5


@virtual
async def test_a_group_is_entered_although_the_disk_was_full(tmp_path: Path, disk: Disk) -> None:
    """Whichever commit of the bot is the first that has no room, from the contact to its answer there."""
    async with BotWorld(tmp_path) as place:
        bot = place.bot(groups=True)

        @bot.command("echo", groups=True)
        async def echo(chat: Chat, text: str) -> None:
            await chat.reply(text)

        async with bot.open() as link:
            host = Host(await place.agent("host"))
            for number in itertools.count(1):
                disk.refused, disk.room = 0, number - 1

                async def entered(name: str) -> e.AnyEvent:
                    await host.invite_bot(link, name, "member")
                    await host.tell(name, e.NewMessage(Content("/echo here")), name.encode())
                    return await host.heard(name)

                entering = asyncio.create_task(entered(f"bot {number}"))
                await asyncio.sleep(60)
                disk.room = None
                answer = await entering
                assert isinstance(answer, e.NewMessage)
                assert answer.content.text == "here"
                assert bot.broken is not None
                assert not bot.broken.done()
                if not disk.refused:
                    break
            assert number > 10


@virtual
async def test_repeated_work_is_done_once_whatever_the_disk_says(tmp_path: Path, disk: Disk) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        done: list[float] = []

        @bot.every(3600)
        async def hourly(outbox: Outbox) -> None:
            done.append(asyncio.get_running_loop().time())
            for contact in bot.contacts():
                outbox.tell(contact, f"hour {len(done)}")

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            await asyncio.sleep(3500)
            disk.full = True
            await asyncio.sleep(600)
            assert len(done) == 2
            disk.full = False
            assert await bob.hear() == "hour 2"
            assert await bob.hear() == "hour 3"
            assert len(done) == 3
            assert bot.broken is not None
            assert not bot.broken.done()


@virtual
async def test_a_reminder_is_not_late_because_it_could_not_be_stored_at_once(
    tmp_path: Path, disk: Disk
) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()

        @bot.command("later")
        async def later(chat: Chat) -> None:
            chat.remind(2, "ring")

        @bot.job("ring")
        async def ring(chat: Chat, data: str) -> None:
            await chat.reply("ring")

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            disk.full = True
            await bob.say("/later")
            await asyncio.sleep(20)
            disk.full = False
            freed = asyncio.get_running_loop().time()
            assert await bob.hear() == "ring"
            assert asyncio.get_running_loop().time() - freed < 20


@virtual
async def test_who_left_while_the_disk_is_full_is_handled_once(tmp_path: Path, disk: Disk) -> None:
    """What follows from a commit may fail; the commit has happened, and is not made again."""
    async with BotWorld(tmp_path) as place:
        bot, told = place.bot(), []

        @bot.command("go")
        async def go(chat: Chat) -> None:
            told.append("go")
            chat.leave()

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            agent = bot.chats.agent
            original = agent.transact

            async def transact(*arguments: object) -> object:
                done: object = await original(*arguments)  # type: ignore[arg-type]  # as it was called
                disk.refuse_next = "go" in told and not disk.refused
                return done

            agent.transact = transact  # type: ignore[method-assign, assignment]
            await bob.say("/go")
            await bob.person.expect(ContactGone)
            await asyncio.sleep(60)
            assert disk.refused
            eve = await place.guest("Eve", link)  # the next commit deletes what was left
            await eve.ask("/help")
            assert told == ["go"]
            with pytest.raises(ConnError):
                agent.connection(next(one.id for one in bot.chats.contacts() if one.name == "Bob"))


@virtual
async def test_a_program_that_only_listens_waits_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    """`Chats.events` acknowledges by itself: a full disk must not end it."""
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            chats, heard = bob.person.chats, []
            listening = chats.events()

            async def listen() -> None:
                async for event in listening:
                    if isinstance(event, MessageReceived):
                        heard.append(event.message.text)
                        disk.full = event.message.text == "one"

            disk.file = "Bob.db"
            task = asyncio.create_task(listen())
            for text in ("one", "two"):
                await bob.say(f"/echo {text}")
            await asyncio.sleep(30)
            assert heard == ["one"]
            disk.full = False
            await asyncio.sleep(30)
            assert heard == ["one", "two"]
            task.cancel()
            await asyncio.wait([task])


@virtual
async def test_nobody_is_left_unanswered_because_a_note_has_no_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert bot._workers is not None
            noted = bot._workers._deaths
            kept = noted._file
            with open("/dev/full", "ab+", buffering=0) as noted._file:  # noqa: ASYNC230  # it is no disk
                assert await bob.ask("/echo one") == "one"
            noted._file = kept
            assert await bob.ask("/echo two") == "two"
            assert not _left_in((tmp_path / "Ada.db-handled").read_bytes())
    assert "cannot be noted: No space left on device" in caplog.text


def test_a_torn_line_names_nobody() -> None:
    whole = "ab" * 16
    assert _left_in(f"+{whole[:7]}\n+{whole}\n".encode()) == {whole}


@virtual
async def test_who_was_suspected_and_is_done_with_is_handled_once(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BotWorld(tmp_path) as place:
        heard: list[str] = []

        def made() -> Bot:
            bot = place.bot(drain_s=0.0)

            @bot.message()
            async def handle(chat: Chat) -> None:
                heard.append(chat.text)
                await asyncio.sleep(1)
                await chat.reply("answer")

            return bot

        async with made().open() as link:
            bob = await place.guest("Bob", link)
        await bob.say("one")
        with monkeypatch.context() as patch:
            async with made().open():
                await asyncio.sleep(0.5)
                patch.setattr(Deaths, "end", lambda self, key: None)
        heard.clear()
        bot = made()
        original = Deaths.acquit

        async def acquit(deaths: Deaths, key: str) -> None:
            disk.refuse_next = not disk.refused
            await original(deaths, key)

        monkeypatch.setattr(Deaths, "acquit", acquit)
        async with bot.open():
            assert await bob.hear() == "answer"
            await asyncio.sleep(30)
            assert disk.refused
            assert await bob.ask("two") == "answer"
            assert heard == ["one", "two"]
            assert not bot._workers._deaths._suspects  # type: ignore[union-attr]  # it is open


@virtual
async def test_a_note_that_cannot_be_opened_is_told_in_one_sentence(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        (tmp_path / "Ada.db-handled").mkdir()
        with pytest.raises(Exception, match=r"Ada\.db-handled cannot be opened: Is a directory"):
            async with place.bot().open():
                pass


@virtual
async def test_what_is_tried_again_is_counted_once(tmp_path: Path, disk: Disk) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        failures = 2

        @bot.message()
        async def handle(chat: Chat) -> None:
            nonlocal failures
            await chat.reply("answer")
            if failures or chat.text == "never":
                failures -= 1
                raise LookupError

        @bot.on(ContactConnected)
        async def connected(chat: Chat, _: ContactConnected) -> None:
            raise LookupError

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert "went wrong" in await bob.hear()
            assert await bob.ask("one") == "answer"
            disk.full = True
            await bob.say("two")
            await asyncio.sleep(12)
            disk.full = False
            assert await bob.hear() == "answer"
            assert "went wrong" in await bob.ask("never")
            counted = bot.metrics
            assert (counted.received, counted.set_aside) == (3, 2)
            assert (counted.connected, counted.contacts, counted.sent) == (1, 1, 2)


@virtual
async def test_who_writes_while_the_disk_cannot_be_read_is_answered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever look at the connection fails; one is whether its answers are read."""
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            find, looks = bot.chats.agent.connection, 0

            def connection(conn_id: str) -> Connection:
                nonlocal looks
                looks += 1
                if looks == failing:
                    raise StoreFailedError("the disk cannot be read")
                return find(conn_id)

            monkeypatch.setattr(bot.chats.agent, "connection", connection)
            for failing in itertools.count(1):
                looks = 0
                assert await bob.ask("/echo here") == "here"
                if looks < failing:
                    break
            assert failing > 1
