"""Which handler is for what: commands, messages that match, and events of any other kind."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import field
from functools import partial

from blindpost.bot.chat import Chat
from blindpost.bot.threads import THREADS
from blindpost.bot.typed import Argument, ArgumentError, read_arguments, shortened
from blindpost.chat import Asked, GroupOffered, Incoming, MenuCommand
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

Outcome = Awaitable[None] | None
"""Handlers are async; a plain function runs in a thread of its own, so that it may block."""
Middleware = Callable[[Chat, Callable[[], Awaitable[None]]], Awaitable[None]]
Where = Callable[[Incoming], bool]

Call = tuple[Callable[..., Outcome], list[object]]

COMMAND = re.compile(r"/(\w+)(?:@\S+)?\s*(.*)", re.DOTALL)
NAME = re.compile(r"\w{1,32}")


async def called(handler: Callable[..., Outcome], *arguments: object) -> None:
    """Run an async handler here, a plain one in a thread of its own."""
    if inspect.iscoroutinefunction(handler):
        await handler(*arguments)
        return
    work = partial(contextvars.copy_context().run, handler, *arguments)
    outcome = await asyncio.get_running_loop().run_in_executor(THREADS, work)
    if inspect.isawaitable(outcome):
        await outcome


@dataclass(frozen=True, slots=True)
class Command:
    """`/name arguments`, with what the menu shows."""

    name: str
    label: str
    handler: Callable[..., Outcome]
    arguments: tuple[Argument, ...]
    groups: bool
    moderators: bool
    hidden: bool

    def takes(self, message: Incoming, in_group: bool) -> bool:
        """Whether it works where this was said."""
        return (self.groups or not in_group) and (self.moderators or message.scope is None)

    @property
    def usage(self) -> str:
        return " ".join([f"/{self.name}", *(one.shown for one in self.arguments)])

    @property
    def entry(self) -> MenuCommand:
        params = " ".join(one.shown for one in self.arguments)
        return MenuCommand(self.name, self.label or self.name, params or None)


@dataclass(frozen=True, slots=True)
class MessageRoute:
    """A handler of messages that are not commands."""

    handler: Callable[[Chat], Outcome]
    matches: re.Pattern[str] | None
    kinds: frozenset[str]
    where: Where | None
    groups: bool
    moderators: bool

    def takes(self, message: Incoming, in_group: bool) -> bool:
        return (
            in_group == self.groups
            and self.moderators == (message.scope is not None)
            and (not self.kinds or message.kind in self.kinds)
            and (self.matches is None or self.matches.search(message.text) is not None)
            and (self.where is None or self.where(message))
        )


@dataclass(slots=True)
class Routes:
    """Everything that an author has registered."""

    commands: dict[str, Command] = field(default_factory=dict)
    messages: list[MessageRoute] = field(default_factory=list)
    events: list[tuple[type[Value], Callable[..., Outcome]]] = field(default_factory=list)
    jobs: dict[str, Callable[[Chat, str], Outcome]] = field(default_factory=dict)
    middleware: list[Middleware] = field(default_factory=list)
    asked: Callable[[Asked], Awaitable[bool] | bool] | None = None
    offered: Callable[[GroupOffered], Awaitable[bool] | bool] | None = None
    failed: Callable[[Chat, Exception], Outcome] | None = None

    def hears(self, kind: type[Value]) -> bool:
        """Whether there is a handler for events of this kind."""
        return any(issubclass(kind, wanted) for wanted, _ in self.events)

    def menu(self) -> tuple[MenuCommand, ...]:
        """The commands that the app offers to tap."""
        return tuple(one.entry for one in self.commands.values() if not one.hidden)

    def help(self) -> str:
        shown = [one for one in self.commands.values() if not one.hidden]
        return "\n".join(f"{one.usage}  {one.label}".rstrip() for one in shown)

    def call(
        self, message: Incoming, in_group: bool
    ) -> tuple[Callable[..., Outcome], list[object]] | str | None:
        """The handler of a message and its arguments; or a reply to send instead; or nothing."""
        found = COMMAND.fullmatch(message.text.strip())
        if found is not None:
            command = self.commands.get(found[1].lower())
            if command is not None and command.takes(message, in_group):
                try:
                    return command.handler, read_arguments(command.arguments, found[2])
                except ArgumentError as error:
                    return f"{error}. Usage: {command.usage}"
            if not in_group and not any(route.takes(message, in_group) for route in self.messages):
                return f"I do not know /{shortened(found[1])}. /help shows what I know."
        for route in self.messages:
            if route.takes(message, in_group):
                return route.handler, []
        return None
