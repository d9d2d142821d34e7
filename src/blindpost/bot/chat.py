"""What a handler works with: one conversation, and everything it does there in one transaction."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from typing import TypeVar

from blindpost.agent import Transaction
from blindpost.bot.jobs import JOBS, Job, checked_pause, job_bytes, job_key
from blindpost.bot.typed import dump_state, load_state
from blindpost.chat import (
    Chats,
    Contact,
    ContactState,
    Conversation,
    Draft,
    Group,
    GroupState,
    Incoming,
    Member,
    NotConnectedError,
    Quote,
)
from blindpost.chat.codec.bodies import write_body
from blindpost.chat.codec.content import Content, Scope
from blindpost.chat.codec.events import (
    AnyEvent,
    DeleteMessage,
    EditMessage,
    Message,
    NewMessage,
    React,
)
from blindpost.chat.drafts import ID_SIZE
from blindpost.crypto.entropy import system_entropy
from blindpost.wire.frozen import dataclass

log = logging.getLogger("blindpost.bot")

STATES = "bot.states"
KEYS = "bot.keys"
EVERYBODY = "*"
"""Whose state is shared."""

T = TypeVar("T")


class StateChangedError(Exception):
    """Another handler changed the state since this one read it: this one starts over."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message that is sent when the handler has ended. It may be awaited, but need not be."""

    id: bytes

    def __await__(self) -> Generator[None, None, Said]:
        return self
        yield


class Outbox:
    """Collects what goes out, for a handler of any kind; nothing happens before the handler has ended."""

    def __init__(self, chats: Chats, now: float) -> None:
        self._chats = chats
        self._now = now
        self._intents: list[Callable[[Draft], None]] = []
        self.count = 0

    def tell(
        self, to: Conversation | str, text: str, *, key: str | None = None, ttl: int | None = None
    ) -> Said:
        """A text to a contact, a group, or the id of one. With a `key` it is sent once to each, however often
        this is called. A conversation that has ended, or has not begun, is skipped."""
        return self._event(to, NewMessage(Content(text), ttl=ttl), key)

    def _event(self, to: Conversation | str, event: AnyEvent, key: str | None = None) -> Said:
        msg_id = system_entropy(ID_SIZE)
        write_body([Message(event, msg_id)], pq=True)  # what does not fit is refused here
        target = to if isinstance(to, str) else to.id

        def intent(draft: Draft) -> None:
            chat = self._chats.contact(target) or self._chats.group(target)
            if chat is None:
                log.warning("something is not sent: its target is the id of no contact and no group")
                return
            if chat.state not in (ContactState.CONNECTED, GroupState.JOINED):
                return
            self.count += 1
            if key is None:
                draft.send(chat, event, msg_id=msg_id, passing=(NotConnectedError,))
                return
            mark, now = f"{target} {key}", str(int(self._now)).encode()
            inner = self._chats.draft()
            inner.send(chat, event, msg_id=msg_id)
            inner.add(lambda tx: tx.put(KEYS, mark, now))
            draft.when(lambda tx: tx.get(KEYS, mark) is None, inner, passing=(NotConnectedError,))

        self._intents.append(intent)
        return Said(msg_id)

    def later(self, seconds: float, job: str, data: str = "", *, to: Conversation | str) -> None:
        """Run the handler of this job after so many seconds, even if the bot is restarted meanwhile."""
        target = to if isinstance(to, str) else to.id
        due = Job(self._now + checked_pause(seconds), target, job, data)
        mark = f"{len(self._intents):06d} {system_entropy(6).hex()}"
        key, value = job_key(due, mark), job_bytes(due)
        self._intents.append(lambda draft: draft.add(lambda tx: tx.put(JOBS, key, value)))

    def into(self, draft: Draft) -> None:
        """Everything, in order."""
        for intent in self._intents:
            intent(draft)


class States:
    """What handlers remember: read once for all that is done in one transaction, and stored with it."""

    def __init__(self, chats: Chats) -> None:
        self._chats = chats
        self._known: dict[str, tuple[object, bytes | None, bytes]] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def get(self, owner: str, kind: type[T]) -> T:
        key = state_key(owner, kind)
        found = self._known.get(key)
        if found is None:
            data = self._read(key)
            value = kind() if data is None else load_state(kind, data)
            self._known[key] = (value, data, dump_state(value))
            return value
        known = found[0]
        assert isinstance(known, kind)
        return known

    def _read(self, key: str) -> bytes | None:
        """Read a record, even from a handler in its own thread."""
        records = self._chats.agent.records
        if threading.get_ident() == self._thread:
            return records.get(STATES, key)

        async def read() -> bytes | None:
            return records.get(STATES, key)

        return asyncio.run_coroutine_threadsafe(read(), self._loop).result()

    def into(self, draft: Draft) -> None:
        """All that was changed; `StateError` for what could not be read again."""
        for key, (value, stored, before) in self._known.items():
            data = dump_state(value)
            if data != before:
                load_state(type(value), data)
                draft.add(_storing(key, stored, data))


class Chat(Outbox):
    """One conversation, while a handler works on it."""

    def __init__(
        self,
        chats: Chats,
        now: float,
        states: States,
        conversation: Conversation,
        message: Incoming | None = None,
        member: Member | None = None,
        scope: Scope | None = None,
    ) -> None:
        super().__init__(chats, now)
        self._states = states
        self.conversation = conversation
        self.message = message
        self.member = member
        self.scope = scope if message is None else message.scope
        """For whom it was said in a group, if not for everybody. What is said here is for the same ones."""

    @property
    def id(self) -> str:
        """Of the conversation: it stays the same over restarts."""
        return self.conversation.id

    @property
    def contact(self) -> Contact | None:
        return self.conversation if isinstance(self.conversation, Contact) else None

    @property
    def group(self) -> Group | None:
        return self.conversation if isinstance(self.conversation, Group) else None

    @property
    def sender(self) -> str:
        """The sender's name."""
        return self.conversation.name if self.member is None else self.member.name

    @property
    def text(self) -> str:
        return "" if self.message is None else self.message.text

    def send(self, text: str, *, key: str | None = None, ttl: int | None = None) -> Said:
        """A text in this conversation; with a `key`, sent once, however often this is called."""
        return self._event(self.id, NewMessage(Content(text), ttl=ttl, scope=self.scope), key)

    def reply(
        self, text: str, *, quote: bool = False, ttl: int | None = None, live: bool | None = None
    ) -> Said:
        """An answer in the same conversation; with `quote` it shows what it answers."""
        quoted: Quote | None = None
        if quote and self.message is not None:
            quoted = self.message.as_quote(self.member)
        return self._event(self.id, NewMessage(Content(text), quoted, ttl=ttl, live=live, scope=self.scope))

    def welcome(self, text: str) -> Said:
        """Welcome a new contact. An app that already shows the welcome from our link gets this as an edit of
        that, so that it does not appear twice."""
        known = None if self.contact is None else self.contact.welcome_id
        return self.reply(text) if known is None else self.edit(known, text)

    def edit(self, said: Said | bytes, text: str, *, live: bool | None = None) -> Said:
        """Change the text of one of our messages."""
        return self._event(self.id, EditMessage(_id(said), Content(text), live=live, scope=self.scope))

    def delete(self, said: Said | bytes | Incoming) -> Said:
        """Delete a message: ours, or as a group's moderator that of the member who sent it."""
        if isinstance(said, Incoming):
            author = None if self.member is None else self.member.id
            return self._event(self.id, DeleteMessage(said.id or b"\0", author, self.scope))
        return self._event(self.id, DeleteMessage(_id(said), scope=self.scope))

    def react(self, emoji: str, *, add: bool = True) -> Said | None:
        """A reaction to what was said."""
        if self.message is None or self.message.id is None:
            return None
        author = None if self.member is None else self.member.id
        return self._event(self.id, React(self.message.id, emoji, add, author, scope=self.scope))

    def remove(self, member: Member) -> None:
        """Remove a member from the group, as an admin may."""
        group = self.group
        if group is not None:
            self._intents.append(lambda draft: draft.remove(group, member.id))

    def leave(self) -> None:
        """End the conversation and tell the other side."""
        self._intents.append(lambda draft: draft.leave(self.conversation))

    def remind(self, seconds: float, job: str, data: str = "") -> None:
        """`later`, in this conversation."""
        self.later(seconds, job, data, to=self.id)

    def state(self, kind: type[T]) -> T:
        """What the bot remembers of this conversation: a dataclass whose fields all have defaults. Change
        it, and it is stored together with the answer, or neither is."""
        return self._states.get(self.id, kind)

    def shared(self, kind: type[T]) -> T:
        """As `state`, for all conversations. If two handlers change it at once, one of them starts over."""
        return self._states.get(EVERYBODY, kind)


def state_key(owner: str, kind: type[object]) -> str:
    return f"{owner} {kind.__qualname__}"


def _storing(key: str, before: bytes | None, data: bytes) -> Callable[[Transaction], None]:
    def change(tx: Transaction) -> None:
        if tx.get(STATES, key) != before:
            raise StateChangedError("the state was changed meanwhile")
        tx.put(STATES, key, data)

    return change


def _id(said: Said | bytes) -> bytes:
    return said.id if isinstance(said, Said) else said
