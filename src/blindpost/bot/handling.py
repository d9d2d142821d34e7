"""From an event to the author's handlers: decisions, routes, middleware; what they do goes into a draft."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from blindpost.agent import AgentError, Transaction
from blindpost.bot.chat import Chat, Outbox, States
from blindpost.bot.jobs import Job, due_prefix
from blindpost.bot.metrics import Metrics
from blindpost.bot.routes import Routes, called
from blindpost.bot.setting_aside import ASIDE, ASIDE_MAX, TEXT_MAX, SetAside, aside_bytes, reason_of
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
from blindpost.wire.frozen import dataclass

log = logging.getLogger("blindpost.bot")

SORRY = "Something went wrong here. Your message is kept, and somebody will look at it."
LIVE = "bot.live"
"""Messages that somebody is still typing."""
LIVE_MAX = 16
"""In one conversation, so that nobody fills the store with messages that are never completed."""


Step = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Work:
    """What one task comes to: all of it is committed together."""

    draft: Draft
    counts: Metrics
    states: States


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
        work = _Work(draft, counts, States(self._chats))
        for event in task.events:
            outbox = await self._one(event, work)
            if outbox is not None:
                outbox.into(draft)
                counts.sent += outbox.count
        work.states.into(draft)

    async def give_up(self, task: Task, failure: Exception, draft: Draft) -> None:
        """Tell the conversation, or the author's handler of failures, that a task cannot be handled."""
        conversation = next(
            (found for one in task.events if (found := self._place_of(one)) is not None), None
        )
        if conversation is None:
            return
        states = States(self._chats)
        chat = Chat(self._chats, self._now(), states, conversation)
        if self._routes.failed is not None:
            await called(self._routes.failed, chat, failure)
        elif isinstance(conversation, Contact):
            chat.reply(SORRY)
        chat.into(draft)
        states.into(draft)

    def put_aside(self, task: Task, failure: Exception, draft: Draft) -> None:
        """Keep what could not be handled, for somebody to look at."""
        now = self._now()
        record = SetAside("", task.key, now, task.text[:TEXT_MAX], reason_of(failure))
        when = f"{due_prefix(now)} {task.key}"

        def change(tx: Transaction) -> None:
            same = [
                int(key.rpartition(" ")[2]) for key, _ in tx.scan(ASIDE, after=f"{when} ", until=f"{when}!")
            ]
            key = f"{when} {max(same, default=-1) + 1:06d}"
            for oldest, _ in itertools.islice(tx.scan(ASIDE), max(0, 1 + tx.count(ASIDE) - ASIDE_MAX)):
                log.error("too much is set aside: the oldest is gone")
                tx.delete(ASIDE, oldest)
            tx.put(ASIDE, key, aside_bytes(record))

        draft.add(change)

    async def _one(self, event: ChatEvent | Job, work: _Work) -> Outbox | None:
        draft, counts = work.draft, work.counts
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
                return await self._job(event, work)
            case MessageReceived(conversation, message, member) if message.live:
                draft.add(_typing(conversation.id, _live_key(conversation, message)))
                return None
            case MessageEdited(conversation, message, member) if self._is_live(conversation, message):
                if message.live:
                    return None
                key = _live_key(conversation, message)
                draft.add(lambda tx: tx.delete(LIVE, key))
                counts.received += 1
                return await self._said(work, conversation, message, member)
            case MessageReceived(conversation, message, member):
                counts.received += 1
                return await self._said(work, conversation, message, member)
            case ContactConnected(contact, first):
                counts.connected += 1
                counts.contacts += 1
                counts.received += first is not None
                return await self._connected(work, event, contact, first)
            case ContactGone(contact):
                draft.add(lambda tx: _forget_live(tx, contact.id))
                counts.left += 1
                counts.contacts -= 1
        return await self._other(event, work)

    def _is_live(self, conversation: Conversation, message: Incoming) -> bool:
        """Whether somebody is still typing this message: it is handled once it is complete."""
        return self._chats.agent.records.get(LIVE, _live_key(conversation, message)) is not None

    async def _connected(
        self, work: _Work, event: ContactConnected, contact: Contact, first: Incoming | None
    ) -> Outbox | None:
        chat = Chat(self._chats, self._now(), work.states, contact, first)
        steps = self._listeners(event, chat)
        if self._welcome is not None:
            steps.insert(0, partial(_welcomed, chat, self._welcome))
        if first is not None:
            steps += self._route(chat, first)
        await self._around(chat, steps)
        return chat

    async def _said(
        self, work: _Work, conversation: Conversation, message: Incoming, member: Member | None
    ) -> Outbox:
        chat = Chat(self._chats, self._now(), work.states, conversation, message, member)
        await self._around(chat, self._route(chat, message))
        return chat

    def _route(self, chat: Chat, message: Incoming) -> list[Step]:
        found = self._routes.call(message, chat.group is not None)
        if found is None:
            return []
        if isinstance(found, str):
            return [partial(_replied, chat, found)]
        handler, arguments = found
        return [partial(called, handler, chat, *arguments)]

    async def _around(self, chat: Chat, steps: Sequence[Step]) -> None:
        """What is done about something, if anything is, wrapped in all middleware: the first registered is
        outermost."""
        if not steps:
            return

        async def proceed() -> None:
            for step in steps:
                await step()

        inner: Step = proceed
        for around in reversed(self._routes.middleware):
            inner = partial(around, chat, inner)
        await inner()

    async def _other(self, event: ChatEvent, work: _Work) -> Outbox | None:
        conversation = _conversation_of(event)
        if conversation is None:
            return None
        member, message = getattr(event, "member", None), getattr(event, "message", None)
        scope = getattr(event, "scope", None) if message is None else message.scope
        chat = Chat(self._chats, self._now(), work.states, conversation, member=member, scope=scope)
        await self._around(chat, self._listeners(event, chat))
        return chat

    def _listeners(self, event: ChatEvent, chat: Chat) -> list[Step]:
        """Handlers of events of this kind."""
        wanted = (handler for kind, handler in self._routes.events if isinstance(event, kind))
        return [partial(called, handler, chat, event) for handler in wanted]

    async def _job(self, job: Job, work: _Work) -> Outbox | None:
        handler = self._routes.jobs.get(job.name)
        conversation = self._place_of(job)
        if conversation is None:
            return None
        if handler is None:
            raise LookupError(f"there is no handler for the job {job.name}: register one with bot.job")
        chat = Chat(self._chats, self._now(), work.states, conversation)
        await self._around(chat, [partial(called, handler, chat, job.data)])
        work.counts.jobs += 1
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


async def _welcomed(chat: Chat, text: str) -> None:
    chat.welcome(text)


async def _replied(chat: Chat, text: str) -> None:
    chat.reply(text)


async def _decided(decision: Awaitable[bool] | bool) -> bool:
    return await decision if inspect.isawaitable(decision) else bool(decision)


def _conversation_of(event: ChatEvent) -> Conversation | None:
    for name in ("chat", "contact", "group"):
        found = getattr(event, name, None)
        if isinstance(found, Contact | Group):
            return found
    return None
