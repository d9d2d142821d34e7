"""What people send who do not use the app, or not as it is meant: the bot goes on, and answers others."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from blindpost.agent import Agent, ContactRequested, Transaction
from blindpost.bot import Bot, Chat, handling, timing, working
from blindpost.bot.jobs import BACKLOG, Job, backlog_prefix, job_bytes, job_key
from blindpost.bot.setting_aside import TEXT_MAX
from blindpost.chat import Asked, ContactState, book, chats, drafts
from blindpost.chat.codec import events as e
from blindpost.chat.codec.bodies import write_body
from blindpost.chat.codec.compression import compressed_body
from blindpost.chat.codec.content import Content
from blindpost.chat.codec.envelopes import write_message
from blindpost.chat.codec.fields import Json, json_bytes
from blindpost.chat.ourselves import DESCRIPTION_MAX
from blindpost.testing import Guest, Person
from blindpost.wire.errors import WireError
from tests.support.bot.bots import BotWorld, with_echo
from tests.support.chat.host import Host
from tests.support.client.scripted_router import virtual

LONG: dict[str, Json] = {"displayName": "Eve", "fullName": "", "shortDescr": "x" * (DESCRIPTION_MAX + 1)}
NEWEST = 16


def raw(name: str, msg_id: str | None = None) -> bytes:
    """An event with a profile that we would not send."""
    head: dict[str, Json] = {"v": f"1-{NEWEST}", "event": name, "params": {"profile": LONG}}
    return json_bytes(head if msg_id is None else {**head, "msgId": msg_id})


async def batch(guest: Guest, *texts: str) -> None:
    """Several messages in one body, as the app sends them."""
    items = [e.Message(e.NewMessage(Content(text)), b"%012d" % n) for n, text in enumerate(texts)]
    conn = guest.person.chats.agent.connection(guest.contact_id)
    await conn.send(write_body(items, pq=True, version=NEWEST))


@virtual
async def test_who_asks_with_a_description_that_is_too_long_is_a_contact_like_others(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
        eve = await place.agent("Eve")
        joining = asyncio.create_task(eve.agent.join(link, raw("x.contact")))
        for _ in range(2):
            async with bot.open():
                await joining
                await asyncio.sleep(60)
                assert bot.broken is not None
                assert not bot.broken.done()
                assert await bob.ask("/echo hello") == "hello"
                assert sorted(one.name for one in bot.contacts()) == ["Bob", "Eve"]


@virtual
async def test_who_asks_and_never_comes_is_forgotten_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has a queue, a ratchet and a row: strangers could fill the store with those."""
    monkeypatch.setattr(chats, "UNFINISHED_S", 3 * 3600)
    monkeypatch.setattr(chats, "UNFINISHED_AT_ONCE", 2)
    async with BotWorld(tmp_path) as place:
        bot, theirs = with_echo(place.bot()), await place.add_router()

        @bot.on_request
        async def decide(asked: Asked) -> bool:
            if asked.profile.name != "Bob":
                await theirs.stop()  # the answer does not reach them any more
            return True

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            before = {conn.id for conn in bot.chats.agent.connections()}
            for known, name in enumerate(("Eve", "Mallory", "Trudy"), 1):
                stranger = await place.agent(name, servers=[theirs.address])
                await stranger.agent.join(link, raw("x.contact"))
                await asyncio.sleep(60)
                assert len(list(bot.chats.contacts())) == known + 1
                await stranger.agent.close()
                await theirs.start()
            states = Counter(one.state for one in bot.chats.contacts())
            assert states == {ContactState.CONNECTED: 1, ContactState.CONNECTING: 3}
        async with bot.open():
            await asyncio.sleep(2 * 3600)
            assert len(list(bot.chats.contacts())) == 4
            await asyncio.sleep(2 * 3600)
            assert [one.name for one in bot.chats.contacts()] == ["Bob"]
            assert {conn.id for conn in bot.chats.agent.connections()} == before
            assert list(bot.chats.agent.records.scan(book.ACCEPTED)) == []
            assert await bob.ask("/echo hello") == "hello"


@virtual
async def test_a_contact_whose_new_description_is_too_long_is_still_answered(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            eve = await place.guest("Eve", link)
            await eve.person.chats.agent.connection(eve.contact_id).send(raw("x.info", "AAAA"))
            assert await eve.ask("/echo hello") == "hello"
            (ours,) = bot.contacts()
            assert ours.profile.description == LONG["shortDescr"]


def test_our_own_description_is_refused_where_it_is_made(tmp_path: Path) -> None:
    @virtual
    async def opened() -> None:
        async with BotWorld(tmp_path) as place:
            with pytest.raises(WireError, match="at most 160 characters"):
                async with place.bot(description="x" * (DESCRIPTION_MAX + 1)).open():
                    pass

    opened()


@virtual
async def test_a_request_that_cannot_be_kept_is_rejected_and_ends_no_bot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent has it still when the bot is started again."""
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())
        async with bot.open() as link:
            bob = await place.guest("Bob", link)
        eve = await place.agent("Eve")
        joining = asyncio.create_task(eve.agent.join(link, raw("x.contact")))
        monkeypatch.setattr("blindpost.chat.chats.notice_bytes", _refusing)
        async with Agent.open(bot.store, [place.server], config=place.config()) as agent:
            while not isinstance(await agent.next_event(), ContactRequested):
                pass
            await joining
        for _ in range(2):
            async with bot.open():
                await asyncio.sleep(60)
                assert bot.broken is not None
                assert not bot.broken.done()
                assert await bob.ask("/echo hello") == "hello"
                assert bot.chats.address_id is not None
                assert not bot.chats.agent.connection(bot.chats.address_id).requests()


def _refusing(*_: object) -> bytes:
    raise WireError("it cannot be kept")


@virtual
async def test_what_can_neither_be_handled_nor_set_aside_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot(handlers_at_once=1))
        async with bot.open() as link:
            eve, bob = await place.guest("Eve", link), await place.guest("Bob", link)
            monkeypatch.setattr("blindpost.chat.receiving.book.save_contact", _refusing)
            await eve.person.chats.agent.connection(eve.contact_id).send(raw("x.info", "AAAA"))
            await asyncio.sleep(60)
            assert await bob.ask("/echo hello") == "hello"


@dataclass
class Count:
    said: int = 0


@virtual
async def test_messages_of_one_body_share_what_is_remembered(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot, calls = place.bot(), 0

        @bot.message()
        async def count(chat: Chat) -> None:
            nonlocal calls
            calls += 1
            assert calls < 10, "it is not begun again and again"
            own, shared = chat.state(Count), chat.shared(Count)
            own.said += 1
            shared.said += 10
            await chat.reply(f"{own.said} {shared.said}")

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            assert await bob.ask("zero") == "1 10"
            await batch(bob, "one", "two", "three")
            assert [await bob.hear() for _ in range(3)] == ["2 20", "3 30", "4 40"]
            (ours,) = bot.contacts()
            assert (bot.state_of(ours, Count).said, bot.shared_state(Count).said) == (4, 40)
            assert calls == 4


def with_reminders(bot: Bot) -> Bot:
    @bot.command("wake")
    async def wake(chat: Chat, hours: float, name: str = "") -> None:
        chat.remind(hours * 3600, "ring", name)

    @bot.job("ring")
    async def ring(chat: Chat, data: str) -> None:
        await chat.reply(f"awake {data}")

    return with_echo(bot)


@virtual
async def test_who_has_many_reminders_and_reads_nothing_takes_no_place_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (working, drafts):
        monkeypatch.setattr(module, "UNREAD_MAX", 20)
    monkeypatch.setattr(working.Workers.__init__, "__kwdefaults__", {"most": 64, "waiting": 40})
    monkeypatch.setattr(timing, "MOVED_AT_ONCE", 7)
    async with BotWorld(tmp_path) as place:
        bot = with_reminders(place.bot())
        async with bot.open() as link:
            eve, bob = await place.guest("Eve", link), await place.guest("Bob", link)
            for start in range(0, 300, 100):
                await batch(eve, *(f"/wake 1 {n:03d}" for n in range(start, start + 100)))
            await asyncio.sleep(60)
            await eve.person.chats.agent.suspend(1)
            await bob.say("/wake 1.5 bob")
            await asyncio.sleep(2 * 3600)
            assert await bob.hear() == "awake bob"
            assert await bob.ask("/echo hello") == "hello"
            assert bot.metrics.waiting <= timing.AT_ONCE
        bot = with_reminders(place.bot())
        async with bot.open():
            assert await bob.ask("/echo again") == "again"
            eve.person.chats.agent.resume()
            heard = [await eve.hear() for _ in range(300)]
            assert sorted(heard) == [f"awake {n:03d}" for n in range(300)]
            assert await eve.ask("/echo end") == "end"
            assert bot.chats.agent.records.count("bot.backlog") == 0
            assert bot.chats.agent.records.count("bot.jobs") == 0


@virtual
async def test_no_reminder_is_handed_over_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation may be idle, busy and idle again before it is looked at."""
    async with BotWorld(tmp_path) as place:
        bot = with_reminders(place.bot())
        async with bot.open() as link:
            eve = await place.guest("Eve", link)
            (ours,) = bot.contacts()
            draft = bot.chats.draft()
            for number in range(20):
                job = Job(place.now(), ours.id, "ring", f"{number:03d}")
                key = backlog_prefix(ours.id) + job_key(job, f"{number:03d}")
                draft.add(partial(_put, BACKLOG, key, job_bytes(job)))
            await bot.chats.commit(draft)
        monkeypatch.setattr(timing, "_waiting", lambda records: [ours.id, ours.id])
        async with bot.open():
            assert [await eve.hear() for _ in range(20)] == [f"awake {number:03d}" for number in range(20)]
            assert await eve.ask("/echo end") == "end"


@virtual
async def test_reminders_that_cannot_be_read_are_set_aside(tmp_path: Path) -> None:
    """Also if they are all that was looked at."""
    async with BotWorld(tmp_path) as place:
        bot = with_reminders(place.bot())
        async with bot.open() as link:
            eve = await place.guest("Eve", link)
            (ours,) = bot.contacts()
            draft = bot.chats.draft()
            for number in range(timing.AT_ONCE + 2):
                job = Job(place.now(), ours.id, "ring", f"{number:03d}")
                key = backlog_prefix(ours.id) + job_key(job, f"{number:03d}")
                data = job_bytes(job) if number == timing.AT_ONCE else b"?"
                draft.add(partial(_put, BACKLOG, key, data))
            await bot.chats.commit(draft)
        async with bot.open():
            assert await eve.hear() == f"awake {timing.AT_ONCE:03d}"
            assert len(bot.set_aside()) == timing.AT_ONCE + 1
            assert bot.chats.agent.records.count(BACKLOG) == 0


def _put(space: str, key: str, value: bytes, tx: Transaction) -> None:
    tx.put(space, key, value)


async def listen(person: Person) -> None:
    while True:
        unit = await person.unit()
        await unit.done()


@virtual
async def test_a_group_is_answered_although_its_host_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (working, drafts):
        monkeypatch.setattr(module, "UNREAD_MAX", 5)
    async with BotWorld(tmp_path) as place:
        bot = place.bot(groups=True)

        @bot.command("echo", groups=True)
        async def echo(chat: Chat, text: str) -> None:
            await chat.reply(text)

        host, carol = Host(await place.agent("host")), await place.person("carol")
        async with bot.open() as link:
            await host.invite_bot(link, "bot", "member")
            await host.admit(carol, "carol")
            listening = asyncio.create_task(listen(carol))
            invited = await host.heard("carol")
            assert isinstance(invited, e.MemberInvited)
            await host.tell("bot", e.MemberForwarded(host.info("carol"), invited.link))
            await asyncio.sleep(60)
            listening.cancel()
            await host.party.agent.suspend(1)
            (group,) = carol.chats.groups()
            for number in range(160):  # the host's queue takes 128
                await carol.chats.say(group, f"/echo {number}")
                assert await carol.heard(str(number))


@virtual
async def test_what_is_repeated_to_somebody_is_short(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot())

        @bot.command("add")
        async def add(chat: Chat, number: int, sure: bool = True) -> None:
            await chat.reply("added")

        async with bot.open() as link:
            eve = await place.guest("Eve", link)
            conn, huge = eve.person.chats.agent.connection(eve.contact_id), "a" * 60_000
            for text in (f"/help {huge}", f"/{huge}", f"/add {huge}", f"/add 1 {huge}"):
                plain = json_bytes(write_message(e.Message(e.NewMessage(Content(text)), b"some id")))
                await conn.send(compressed_body(plain))
                assert len(await eve.hear()) < 300
            assert bot.set_aside() == []


@virtual
async def test_what_is_set_aside_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "ASIDE_MAX", 5)
    async with BotWorld(tmp_path) as place:
        bot = place.bot(patience=working.Patience(()))

        @bot.message()
        async def fail(chat: Chat) -> None:
            raise ValueError("never")

        async with bot.open() as link:
            eve = await place.guest("Eve", link)
            for number in range(8):
                await eve.say(f"{number} " + "x" * 2 * TEXT_MAX)
            await asyncio.sleep(60)
            kept = bot.set_aside()
            assert [one.text[:2] for one in kept] == [f"{number} " for number in range(3, 8)]
            assert {len(one.text) for one in kept} == {TEXT_MAX}
            assert [one.at for one in kept] == [kept[0].at] * 5, "also of those that fail at the same moment"
