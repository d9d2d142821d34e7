"""A handler that kills the whole program: after a few restarts its message is set aside, and no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from blindpost.agent import Agent
from blindpost.bot import Bot, Chat, deaths
from blindpost.bot.deaths import DEATHS_MAX, Deaths
from blindpost.bot.working import ALONE_S
from tests.support.bot.bots import BotWorld
from tests.support.client.scripted_router import virtual


class Lives:
    """A bot whose handlers never return, and whose every run ends as if it was killed."""

    def __init__(self, place: BotWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self._place = place
        self._patch = monkeypatch
        self.begun: list[str] = []

    def bot(self, *, deadly: bool) -> Bot:
        bot = self._place.bot(drain_s=0.0)

        @bot.message()
        async def handle(chat: Chat) -> None:
            self.begun.append(chat.text)
            if deadly and "die" in chat.text:
                await asyncio.Event().wait()
            await asyncio.sleep(1 if deadly else 0)
            await chat.reply(f"heard {chat.text}")

        return bot

    async def live(self, seconds: float) -> list[str]:
        """The messages begun in a run that is killed after this time."""
        self.begun.clear()
        with self._patch.context() as patch:
            async with self.bot(deadly=True).open():
                await asyncio.sleep(seconds)
                patch.setattr(Deaths, "end", lambda self, key: None)
        return list(self.begun)


@virtual
async def test_the_deadly_message_is_identified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with BotWorld(tmp_path) as place:
        lives = Lives(place, monkeypatch)
        async with lives.bot(deadly=True).open() as link:
            ann, bob = await place.guest("Ann", link), await place.guest("Bob", link)
        await ann.say("die")
        await bob.say("and this?")
        await bob.say("more")
        first = await lives.live(0.5)
        assert sorted(first) == ["and this?", "die"], "side by side"
        for _ in range(DEATHS_MAX):
            begun = await lives.live(30)
            assert "die" in begun
        async with lives.bot(deadly=True).open():
            assert (
                await ann.hear()
                == "Something went wrong here. Your message is kept, and somebody will look at it."
            )
            assert [await bob.hear(), await bob.hear()] == ["heard and this?", "heard more"]
            assert await ann.ask("and now?") == "heard and now?"
        bot = lives.bot(deadly=False)
        async with bot.open():
            (aside,) = bot.set_aside()
            assert aside.text == "die"
            assert "ended 5 times" in aside.error


@virtual
async def test_an_orderly_shutdown_is_not_counted_as_a_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BotWorld(tmp_path) as place:
        lives = Lives(place, monkeypatch)
        async with lives.bot(deadly=True).open() as link:
            ann = await place.guest("Ann", link)
        await ann.say("die")
        for _ in range(DEATHS_MAX + 2):
            async with lives.bot(deadly=True).open():
                await asyncio.sleep(5)
        bot = lives.bot(deadly=False)
        async with bot.open():
            assert await ann.hear() == "heard die"
            assert bot.set_aside() == []


def test_the_note_stays_small_while_something_is_always_being_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "TRUNCATED_BYTES", 1000)
    path = tmp_path / "handled"
    noted = Deaths(cast(Agent, None), path)  # what is noted needs no agent
    noted.begin("first")
    for number in range(100):
        noted.begin(f"{number}")
        noted.end(f"{number - 1}" if number else "never begun")
        assert path.stat().st_size <= 1100
    assert path.read_bytes().count(b"+") < 20
    left = deaths._left_in(path.read_bytes())
    assert left == {deaths._name("first"), deaths._name("99")}
    noted.close()


def test_what_comes_after_its_end_reaches_no_other_file(tmp_path: Path) -> None:
    """The system gives the number of a closed file to the next one: that was a store once."""
    noted = Deaths(cast(Agent, None), tmp_path / "handled")
    noted.begin("message")
    noted.close()
    with (tmp_path / "store").open("wb") as store:
        noted.close()
        with pytest.raises(ValueError, match="closed file"):
            noted.end("message")
        store.write(b"untouched")
    assert (tmp_path / "store").read_bytes() == b"untouched"
    assert (tmp_path / "handled").stat().st_mode & 0o777 == 0o600


def never_ending(place: BotWorld) -> Bot:
    bot = place.bot(drain_s=0.0)

    @bot.message()
    async def handle(chat: Chat) -> None:
        if chat.text == "never end":
            await asyncio.Event().wait()
        await chat.reply(f"heard {chat.text}")

    return bot


@virtual
async def test_who_is_handled_alone_and_never_ends_keeps_nobody_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BotWorld(tmp_path) as place:
        bot = never_ending(place)
        async with bot.open() as link:
            ann, bob = await place.guest("Ann", link), await place.guest("Bob", link)
            await ann.say("never end")
            await asyncio.sleep(5)
            monkeypatch.setattr(Deaths, "end", lambda self, key: None)  # as if it was killed
        monkeypatch.undo()
        async with bot.open():
            began = place.now()
            await asyncio.sleep(5)
            assert await bob.ask("hello") == "heard hello"
            assert ALONE_S <= place.now() - began < ALONE_S + 10


@pytest.mark.parametrize("at_once", [1, 2])
@virtual
async def test_who_is_to_be_handled_alone_does_not_wait_for_ever_for_others(
    tmp_path: Path, at_once: int
) -> None:
    """Nor does anybody else meanwhile. Where all places are taken for ever, nobody is handled."""
    async with BotWorld(tmp_path) as place:
        bot = never_ending(place)
        bot._at_once = at_once
        async with bot.open() as link:
            ann, bob = await place.guest("Ann", link), await place.guest("Bob", link)
            eve = await place.guest("Eve", link)
            await ann.say("never end")
            await asyncio.sleep(5)
            for contact in bot.contacts():
                if contact.name == "Bob":
                    bot._workers._deaths._suspects[deaths._name(contact.id)] = 0  # type: ignore[union-attr]
            began = place.now()
            await bob.say("hello")
            await asyncio.sleep(1)
            await eve.say("me too")
            if at_once == 1:
                await asyncio.sleep(3 * ALONE_S)
                assert len(bot._workers._running) == 3  # type: ignore[union-attr]  # it is open
            else:
                assert [await eve.hear(), await bob.hear()] == ["heard me too", "heard hello"]
                assert ALONE_S <= place.now() - began < ALONE_S + 10
