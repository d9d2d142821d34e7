"""People with the app: what they have heard so far, and what they say to a bot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from blindpost.chat import ChatEvent, Chats, Conversation, MessageReceived, Unit
from blindpost.testing.agents import PATIENCE_S, awaited

E = TypeVar("E")


class Person:
    """Takes events one by one; what is not waited for is put aside, and counts as handled."""

    def __init__(self, chats: Chats) -> None:
        self.chats = chats
        self.aside: list[ChatEvent] = []
        self.patience_s = PATIENCE_S
        self._units = chats.units()
        self._coming: asyncio.Future[Unit] | None = None

    async def unit(self) -> Unit:
        """The next one; it is not lost if nobody waits for it any longer."""
        coming = self._coming
        if coming is None:
            coming = self._coming = asyncio.ensure_future(anext(self._units))
            coming.add_done_callback(lambda done: done.cancelled() or done.exception())
        unit = await awaited(asyncio.shield(coming), self.patience_s)
        self._coming = None
        return unit

    async def unit_with(self, kind: type[ChatEvent]) -> Unit:
        """The next unit with an event of this kind, not yet done; those before it are."""
        while True:
            unit = await self.unit()
            if any(isinstance(event, kind) for event in unit.events):
                return unit
            await self.chats.agent.lasting(unit.done)

    async def expect(self, kind: type[E], where: Callable[[E], bool] = lambda _: True) -> E:
        """The next event of a kind, also one that was put aside before."""
        while True:
            for event in self.aside:
                if isinstance(event, kind) and where(event):
                    self.aside.remove(event)
                    return event
            unit = await self.unit()
            await self.chats.agent.lasting(unit.done)
            self.aside += unit.events

    async def heard(self, text: str) -> MessageReceived:
        return await self.expect(MessageReceived, lambda event: event.message.text == text)

    async def say(self, to: Conversation, text: str) -> tuple[int, ...]:
        fresh = self.chats.contact(to.id) or self.chats.group(to.id)
        assert fresh is not None
        return await self.chats.say(fresh, text)


@dataclass
class Guest:
    """Somebody who is connected to a bot."""

    person: Person
    contact_id: str

    async def say(self, text: str) -> None:
        contact = self.person.chats.contact(self.contact_id)
        assert contact is not None
        await self.person.chats.say(contact, text)

    async def hear(self) -> str:
        """The next message of the bot that was not heard yet."""
        return (await self.person.expect(MessageReceived)).message.text

    async def ask(self, text: str) -> str:
        """What the bot says next."""
        await self.say(text)
        return await self.hear()
