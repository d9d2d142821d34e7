"""From an event to the author's handlers: decisions, routes, middleware; what they do goes into a draft."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from blindpost.agent import AgentError, Transaction
from blindpost.bot.chat import Chat, Outbox
from blindpost.bot.jobs import Job, due_prefix
from blindpost.bot.metrics import Metrics
from blindpost.bot.routes import Middleware, Routes, called
from blindpost.bot.setting_aside import ASIDE, SetAside, aside_bytes, reason_of
from blindpost.bot.working import Task
from blindpost.chat import (
    Asked,
    ChatEvent,
    Chats,
    Contact,
    ContactConnected,
    ContactGone,
    Conversation,
    Draft,
    Group,
    GroupOffered,
    Incoming,
    Member,
    MessageEdited,
    MessageReceived,
)

SORRY = "Something went wrong here. Your message is kept, and somebody will look at it."
LIVE = "bot.live"
"""Messages that somebody is still typing."""
LIVE_MAX = 16
"""In one conversation, so that nobody fills the store with messages that are never completed."""


class Handling:
    """Handles tasks with what an author has registered."""

    def __init__(
        self,
        chats: Chats,
        routes: Routes,
        now: Callable[[], float],
        *,
        welcome: str | None,
        groups: bool,
    ) -> None:
        """`groups`: invitations to groups are accepted."""
        self._chats = chats
        self._routes = routes
        self._now = now
        self._welcome = welcome
        self._groups = groups

    async def handle(self, task: Task, draft: Draft, counts: Metrics) -> None:
        """Handle everything in a task; what is done about it goes into the draft, and is counted if that is
        committed."""
        for event in task.events:
            outbox = await self._one(event, draft, counts)
            if outbox is not None:
                outbox.into(draft)
                counts.sent += outbox.count

    async def give_up(self, task: Task, failure: Exception, draft: Draft) -> None:
        """Tell the conversation, or the author's handler of failures, that a task cannot be handled."""
        conversation = next(
            (found for one in task.events if (found := self._place_of(one)) is not None), None
        )
        if conversation is None:
            return
        chat = Chat(self._chats, self._now(), conversation)
        if self._routes.failed is not None:
            await called(self._routes.failed, chat, failure)
        elif isinstance(conversation, Contact):
            chat.reply(SORRY)
        chat.into(draft)

    def put_aside(self, task: Task, failure: Exception, draft: Draft) -> None:
        """Keep what could not be handled, for somebody to look at."""
        now = self._now()
        record = SetAside("", task.key, now, task.text, reason_of(failure))
        key = f"{due_prefix(now)} {task.key}"
        draft.add(lambda tx: tx.put(ASIDE, key, aside_bytes(record)))

    async def _one(self, event: ChatEvent | Job, draft: Draft, counts: Metrics) -> Outbox | None:
        match event:
            case Asked():
                if self._routes.asked is None or await _decided(self._routes.asked(event)):
                    draft.accept(event)
                else:
                    draft.reject(event)
                return None
            case GroupOffered():
                wanted = self._groups
                if self._routes.offered is not None:
                    wanted = await _decided(self._routes.offered(event))
                if wanted:
                    draft.enter(event, passing=(AgentError,))  # an invalid link needs nobody's attention
                return None
            case Job():
                return await self._job(event, counts)
            case MessageReceived(conversation, message, member) if message.live:
                draft.add(_typing(conversation.id, _live_key(conversation, message)))
                return None
            case MessageEdited(conversation, message, member) if self._is_live(conversation, message):
                if message.live:
                    return None
                key = _live_key(conversation, message)
                draft.add(lambda tx: tx.delete(LIVE, key))
                counts.received += 1
                return await self._said(conversation, message, member)
            case MessageReceived(conversation, message, member):
                counts.received += 1
                return await self._said(conversation, message, member)
            case ContactConnected(contact, first):
                counts.connected += 1
                counts.contacts += 1
                counts.received += first is not None
                return await self._connected(event, contact, first)
            case ContactGone(contact):
                draft.add(lambda tx: _forget_live(tx, contact.id))
                counts.left += 1
                counts.contacts -= 1
        return await self._other(event)

    def _is_live(self, conversation: Conversation, message: Incoming) -> bool:
        """Whether somebody is still typing this message: it is handled once it is complete."""
        return self._chats.agent.records.get(LIVE, _live_key(conversation, message)) is not None

    async def _connected(
        self, event: ContactConnected, contact: Contact, first: Incoming | None
    ) -> Outbox | None:
        chat = Chat(self._chats, self._now(), contact, first)
        if self._welcome is not None:
            chat.welcome(self._welcome)
        await self._tell_handlers(event, chat)
        if first is not None:
            await self._route(chat, first)
        return chat

    async def _said(self, conversation: Conversation, message: Incoming, member: Member | None) -> Outbox:
        chat = Chat(self._chats, self._now(), conversation, message, member)
        await self._route(chat, message)
        return chat

    async def _route(self, chat: Chat, message: Incoming) -> None:
        found = self._routes.call(message, chat.group is not None)
        if isinstance(found, str):
            chat.reply(found)
        elif found is not None:
            handler, arguments = found
            await self._around(chat, lambda: called(handler, chat, *arguments))

    async def _around(self, chat: Chat, handler: Callable[[], Awaitable[None]]) -> None:
        """The handler wrapped in all middleware, the first registered outermost."""
        for around in reversed(self._routes.middleware):
            handler = _wrapped(around, chat, handler)
        await handler()

    async def _other(self, event: ChatEvent) -> Outbox | None:
        conversation = _conversation_of(event)
        if conversation is None:
            return None
        chat = Chat(self._chats, self._now(), conversation, member=getattr(event, "member", None))
        await self._tell_handlers(event, chat)
        return chat

    async def _tell_handlers(self, event: ChatEvent, chat: Chat) -> None:
        for kind, handler in self._routes.events:
            if isinstance(event, kind):
                await called(handler, chat, event)

    async def _job(self, job: Job, counts: Metrics) -> Outbox | None:
        handler = self._routes.jobs.get(job.name)
        conversation = self._place_of(job)
        if conversation is None:
            return None
        if handler is None:
            raise LookupError(f"there is no handler for the job {job.name}: register one with bot.job")
        chat = Chat(self._chats, self._now(), conversation)
        await self._around(chat, lambda: called(handler, chat, job.data))
        counts.jobs += 1
        return chat

    def _place_of(self, event: ChatEvent | Job) -> Conversation | None:
        if isinstance(event, Job):
            return self._chats.contact(event.conversation) or self._chats.group(event.conversation)
        return _conversation_of(event)


def _live_key(conversation: Conversation, message: Incoming) -> str:
    return f"{conversation.id} {(message.id or b'').hex()}"


def _typing(conversation: str, key: str) -> Callable[[Transaction], None]:
    def change(tx: Transaction) -> None:
        _forget_live(tx, conversation, LIVE_MAX - 1)
        tx.put(LIVE, key, b"")

    return change


def _forget_live(tx: Transaction, conversation: str, kept: int = 0) -> None:
    """Forget what is being typed in a conversation, except for so many messages."""
    rows = [key for key, _ in tx.scan(LIVE, after=f"{conversation} ", until=f"{conversation}!")]
    for key in rows[: max(0, len(rows) - kept)]:
        tx.delete(LIVE, key)


def _wrapped(
    around: Middleware, chat: Chat, inner: Callable[[], Awaitable[None]]
) -> Callable[[], Awaitable[None]]:
    return lambda: around(chat, inner)


async def _decided(decision: Awaitable[bool] | bool) -> bool:
    return await decision if inspect.isawaitable(decision) else bool(decision)


def _conversation_of(event: ChatEvent) -> Conversation | None:
    for name in ("chat", "contact", "group"):
        found = getattr(event, name, None)
        if isinstance(found, Contact | Group):
            return found
    return None
