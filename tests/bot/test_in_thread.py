"""A bot in a program that is not async: it runs in its own thread and is called from any other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from blindpost.agent import Agent
from blindpost.agent.store.database import AgentStore
from blindpost.bot import Bot, Chat, InThread
from blindpost.chat import ContactConnected
from blindpost.engine.loop import StoreFailedError
from blindpost.testing import Guest
from tests.support.agent.agents import address_of, quick_config
from tests.support.chat.people import person
from tests.support.router.routers import running_router


async def test_a_bot_is_called_from_other_threads(tmp_path: Path) -> None:
    async with running_router(tmp_path / "router") as router:
        server = address_of(router.server)
        bot = Bot("Ada", servers=[server], store=tmp_path / "ada.db", config=quick_config())
        threads: list[threading.Thread] = []

        @bot.command("where")
        def where(chat: Chat) -> None:
            threads.append(threading.current_thread())
            chat.reply("in a thread of my own")

        running = await asyncio.to_thread(InThread(bot).__enter__)
        try:
            async with Agent.open(tmp_path / "bob.db", [server], config=quick_config()) as agent:
                bob = person(agent, "Bob")
                await bob.chats.join(running.link)
                guest = Guest(bob, (await bob.expect(ContactConnected)).contact.id)
                assert await guest.ask("/where") == "in a thread of my own"
                assert threads[0] not in (threading.main_thread(), threading.current_thread())
                (contact,) = await asyncio.to_thread(running.contacts)
                for _ in range(2):
                    await asyncio.to_thread(running.tell, contact, "once", key="k")
                assert await guest.hear() == "once"
                assert await asyncio.to_thread(lambda: running.broadcast("all", key="b")) == 1
                assert await guest.hear() == "all"
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)


def test_a_failure_to_start_is_raised_to_the_caller(tmp_path: Path) -> None:
    bot = Bot("Ada", servers=[], store=tmp_path)
    with pytest.raises(StoreFailedError, match="name a file"), InThread(bot):
        pass


def test_a_program_whose_store_cannot_be_used_ends_with_a_sentence(tmp_path: Path) -> None:
    with contextlib.closing(AgentStore.open(tmp_path / "used.db")):
        for store, told in (("used.db", "in use by another process"), ("none/ada.db", "Make the folder")):
            with pytest.raises(SystemExit, match=told):
                Bot("Ada", servers=[], store=tmp_path / store).run()
