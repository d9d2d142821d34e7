"""A bot in a program that is not async: it runs in its own thread and is called from any other."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import Agent, CriticalError
from blindpost.agent.store.database import AgentStore
from blindpost.bot import Bot, Chat, InThread
from blindpost.chat import ContactConnected
from blindpost.engine.loop import StoreFailedError
from blindpost.store import sqlite
from blindpost.store.contract import Durability
from blindpost.testing import Guest
from tests.support.agent.agents import address_of, quick_config
from tests.support.chat.people import person
from tests.support.router.routers import running_router


@contextlib.asynccontextmanager
async def bot_of_a_thread(folder: Path, **options: Any) -> AsyncIterator[tuple[Bot, InThread, Guest]]:
    """A bot in its thread, and somebody who talks to it. Whoever takes it ends it."""
    async with running_router(folder / "router") as router:
        server = address_of(router.server)
        bot = Bot("Ada", servers=[server], store=folder / "ada.db", config=quick_config(**options))
        running = await asyncio.to_thread(InThread(bot).__enter__)
        try:
            async with Agent.open(folder / "bob.db", [server], config=quick_config()) as agent:
                bob = person(agent, "Bob")
                await bob.chats.join(running.link)
                yield bot, running, Guest(bob, (await bob.expect(ContactConnected)).contact.id)
        finally:
            with contextlib.suppress(CriticalError):
                await asyncio.to_thread(running.__exit__, None, None, None)


async def test_a_bot_is_called_from_other_threads(tmp_path: Path) -> None:
    async with bot_of_a_thread(tmp_path) as (bot, running, guest):
        threads: list[threading.Thread] = []

        @bot.command("where")
        def where(chat: Chat) -> None:
            threads.append(threading.current_thread())
            chat.reply("in a thread of my own")

        assert await guest.ask("/where") == "in a thread of my own"
        assert threads[0] not in (threading.main_thread(), threading.current_thread())
        (contact,) = await asyncio.to_thread(running.contacts)
        for _ in range(2):
            await asyncio.to_thread(running.tell, contact, "once", key="k")
        assert await guest.hear() == "once"
        assert await asyncio.to_thread(lambda: running.broadcast("all", key="b")) == 1
        assert await guest.hear() == "all"


@pytest.mark.parametrize("of_the_block", [None, ValueError("the program's own")])
async def test_a_bot_that_cannot_go_on_says_so_to_whoever_asks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_the_block: ValueError | None
) -> None:
    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    async with bot_of_a_thread(tmp_path, durability=Durability.FULL) as (_, running, guest):
        (thread,) = (one for one in threading.enumerate() if one.name == "bot")
        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "_datasync", broken)
            await guest.say("anything")
            await asyncio.to_thread(thread.join)
        with pytest.raises(CriticalError, match="Input/output error"):
            running.contacts()
        if of_the_block is None:
            with pytest.raises(CriticalError, match="Input/output error"):
                running.__exit__(None, None, None)
        else:
            running.__exit__(ValueError, of_the_block, None)
            (note,) = of_the_block.__notes__
            assert "Input/output error" in note


async def test_what_is_under_way_when_the_bot_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the bot has begun with it or not: nobody waits for ever."""
    begun = threading.Event()

    async def endless(*_: object, **__: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with bot_of_a_thread(tmp_path) as (bot, running, _):
        monkeypatch.setattr(bot, "tell", endless)
        waits = asyncio.create_task(asyncio.to_thread(running.tell, "anybody", "hello"))
        await asyncio.to_thread(begun.wait)
        late: concurrent.futures.Future[None] = concurrent.futures.Future()
        begun.clear()

        def too_late(*_: object) -> concurrent.futures.Future[None]:
            begun.set()
            return late

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "run_coroutine_threadsafe", too_late)
            never = asyncio.create_task(asyncio.to_thread(running.tell, "anybody", "hello"))
            await asyncio.to_thread(begun.wait)
        await asyncio.to_thread(running.__exit__, None, None, None)
        for one in (waits, never):
            with pytest.raises(RuntimeError, match="not running"):
                await one


async def test_a_bot_that_ends_this_very_moment_is_not_running(tmp_path: Path) -> None:
    """Its loop is closed, and its thread has not yet said so."""
    async with bot_of_a_thread(tmp_path) as (_, running, _):
        await asyncio.to_thread(running.__exit__, None, None, None)
        running._has_ended = False
        with pytest.raises(RuntimeError, match="not running"):
            running.contacts()


async def test_an_async_handler_does_not_wait_for_its_own_thread(tmp_path: Path) -> None:
    async with bot_of_a_thread(tmp_path) as (bot, running, guest):

        @bot.command("stuck")
        async def stuck(chat: Chat) -> None:
            with pytest.raises(RuntimeError, match="cannot wait for itself"):
                running.tell(chat.conversation, "hello")
            chat.reply("not stuck")

        assert await guest.ask("/stuck") == "not stuck"


def test_nothing_is_asked_of_a_bot_that_does_not_run(tmp_path: Path) -> None:
    running = InThread(Bot("Ada", servers=[], store=tmp_path / "ada.db"))
    for ask in (lambda: running.link, running.contacts):
        with pytest.raises(RuntimeError, match="not running"):
            ask()


def test_a_failure_to_start_is_raised_to_the_caller(tmp_path: Path) -> None:
    bot = Bot("Ada", servers=[], store=tmp_path)
    with pytest.raises(StoreFailedError, match="name a file"), InThread(bot):
        pass


def test_a_program_whose_store_cannot_be_used_ends_with_a_sentence(tmp_path: Path) -> None:
    with contextlib.closing(AgentStore.open(tmp_path / "used.db")):
        for store, told in (("used.db", "in use by another process"), ("none/ada.db", "Make the folder")):
            with pytest.raises(SystemExit, match=told):
                Bot("Ada", servers=[], store=tmp_path / store).run()
