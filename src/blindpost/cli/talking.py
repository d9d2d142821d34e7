"""The conversations of `blindpost chat`: what is typed, and what is shown.

Lines that are typed go to the chosen conversation; lines that begin with / are commands. What others say is
shown without control characters, names on one line and further lines of a message indented: nobody can
overwrite somebody else's screen, or write a line that looks as if another person said it.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable

from blindpost.agent import (
    AgentError,
    Connection,
    RatchetSync,
    StoreFailedError,
    SubscriptionsFailed,
    SyncState,
)
from blindpost.chat import (
    REACTIONS,
    AgentNews,
    Asked,
    ChatEvent,
    Chats,
    Contact,
    ContactConnected,
    ContactGone,
    Conversation,
    Delivered,
    GroupEntered,
    GroupOffered,
    GroupOver,
    Incoming,
    Member,
    MemberCame,
    MemberGone,
    MessageDeleted,
    MessageEdited,
    MessageReceived,
    ProfileChanged,
    Reacted,
    Scope,
    Trouble,
)
from blindpost.cli.output import say
from blindpost.wire.errors import WireError

OBEYED = ("Cc", "Cf", "Co", "Cs")
"""Categories of characters that a terminal may act upon: controls, changes of direction, surrogates."""
HARMLESS = "\n\t\u200d"
"""Of these: lines, tabs, and what joins emoji."""
INDENT = "    "
"""Before all lines of a message but its first."""
NAME_MAX = 64
DIGITS_MAX = 9
HELP = f"""\
/invite              make a link for one person, with a QR code
/address             show your address, a link for everybody; /address new makes another one
/join LINK MESSAGE   connect by a link of either kind; an address gets the message too
/accept NUMBER       accept a request or a group; /reject NUMBER refuses it
/list                show all conversations
/to NUMBER           choose who gets what you type
/reply TEXT          answer the last message, quoting it
/edit TEXT           change your last message; /delete deletes it
/react EMOJI         react to the last message: {" ".join(REACTIONS)}
/code                show the security code; the other side must see the same
/leave               end the conversation
/move                receive through another router
/fix                 offer new keys to somebody whose messages cannot be read
/quit                end the program; everything is kept"""


class Talk:
    """Who is there, who is being talked to, and what waits for a decision."""

    def __init__(self, chats: Chats, *, qr: bool) -> None:
        self._chats = chats
        self._qr = qr
        known: list[Conversation] = [*chats.contacts(), *chats.groups()]
        self._ids = [one.id for one in known]
        self._to: str | None = self._ids[0] if self._ids else None
        self._waiting: dict[int, Asked | GroupOffered] = {}
        """What waits for a decision, by a number that stays its own: nobody accepts somebody else by it."""
        self._asked = 0
        self._last: dict[str, tuple[Incoming, Member | None]] = {}
        self._own: dict[str, tuple[bytes, Scope | None]] = {}
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/invite": self._invite,
            "/address": self._address,
            "/join": self._join,
            "/accept": self._accept,
            "/reject": self._reject,
            "/list": self._list,
            "/to": self._choose,
            "/reply": self._reply,
            "/edit": self._edit,
            "/delete": self._delete,
            "/react": self._react,
            "/code": self._code,
            "/leave": self._leave,
            "/move": self._move,
            "/fix": self._fix,
            "/help": self._help,
        }

    @property
    def count(self) -> int:
        return len(self._ids)

    async def run(self, lines: AsyncIterator[str]) -> None:
        """Until the last line, or until nothing can be shown any more, which is raised."""
        work = [asyncio.create_task(one) for one in (self._show_events(), self._obey_all(lines))]
        try:
            ended, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in work:
                one.cancel()
            await asyncio.wait(work)
        for one in ended:
            one.result()

    async def _obey_all(self, lines: AsyncIterator[str]) -> None:
        async for line in lines:
            if line.strip() == "/quit":
                break
            await self._obey(line.strip())

    async def _obey(self, line: str) -> None:
        """Handle one line; an error is shown, and the next line can be typed."""
        word, _, rest = line.partition(" ")
        try:
            if not line.startswith("/"):
                await self._say(line)
            elif word in self._commands:
                await self._commands[word](rest.strip())
            else:
                say(f"There is no command {word}: /help lists them all")
        except AgentError as error:
            say(f"! {error}. {error.remedy}")
        except WireError as error:
            say(f"! {error}")
        except StoreFailedError as error:
            say(f"! nothing of this was done: {error}")

    # What is typed

    def _chosen(self) -> Conversation | None:
        if self._to is not None:
            found = self._chats.contact(self._to) or self._chats.group(self._to)
            if found is not None:
                return found
        say("There is nobody to talk to yet: use /invite or /join.")
        return None

    async def _say(self, text: str, *, quoting: bool = False) -> None:
        if not text:
            return
        chat = self._chosen()
        if chat is None:
            return
        last = self._last.get(chat.id) if quoting else None
        quote, scope = (None, None) if last is None else (last[0].as_quote(last[1]), last[0].scope)
        draft = self._chats.draft()
        self._own[chat.id] = draft.say(chat, text, quote=quote, scope=scope), scope
        await self._chats.commit(draft)

    async def _reply(self, text: str) -> None:
        await self._say(text, quoting=True)

    async def _edit(self, text: str) -> None:
        chat = self._chosen()
        if chat is None or not text or chat.id not in self._own:
            say("You have sent nothing here that can be edited.")
            return
        draft = self._chats.draft()
        msg_id, scope = self._own[chat.id]
        draft.edit(chat, msg_id, text, scope=scope)
        await self._chats.commit(draft)

    async def _delete(self, _: str) -> None:
        chat = self._chosen()
        if chat is None or chat.id not in self._own:
            say("You have sent nothing here that can be deleted.")
            return
        draft = self._chats.draft()
        msg_id, scope = self._own.pop(chat.id)
        draft.retract(chat, msg_id, scope=scope)
        await self._chats.commit(draft)

    async def _react(self, emoji: str) -> None:
        chat = self._chosen()
        last = None if chat is None else self._last.get(chat.id)
        if chat is None or last is None or last[0].id is None or emoji not in REACTIONS:
            say(f"/react needs a message to react to, and one of {' '.join(REACTIONS)}")
            return
        draft = self._chats.draft()
        message, member = last
        assert message.id is not None
        author_id = None if member is None else member.id
        draft.react(chat, message.id, emoji, author_id=author_id, scope=message.scope)
        await self._chats.commit(draft)

    async def _invite(self, _: str) -> None:
        created = await self._chats.invite()
        self._added(created.conn.id)
        self._show_link(str(created), "Send this link to the person you want to talk to:")

    async def _address(self, which: str) -> None:
        link = await (self._chats.new_address() if which == "new" else self._chats.address())
        self._show_link(str(link), "Anybody who has this link can ask to talk to you:")

    def _show_link(self, link: str, what: str) -> None:
        say(f"{what}\n{link}")
        if self._qr:
            import io

            import segno

            drawn = io.StringIO()
            segno.make(link).terminal(drawn, compact=True)
            say(drawn.getvalue())

    async def _join(self, rest: str) -> None:
        link, _, message = rest.partition(" ")
        if not link:
            say("/join needs a link")
            return
        contact = await self._chats.join(link, message.strip() or None)
        self._added(contact.id)
        say(f"Connecting with {shown_name(contact.name)} in the background.")

    async def _accept(self, number: str) -> None:
        await self._decide(number, self._chats.accept, self._chats.enter)

    async def _reject(self, number: str) -> None:
        async def leave_out(_: GroupOffered) -> None:
            """Nobody is told."""

        await self._decide(number, self._chats.reject, leave_out)

    async def _decide(
        self,
        number: str,
        about_person: Callable[[Asked], Awaitable[None]],
        about_group: Callable[[GroupOffered], Awaitable[None]],
    ) -> None:
        """The one of this number, or the only one; it waits on if it could not be done for now."""
        if not self._waiting:
            say("There are no requests or invitations.")
            return
        place = number_in(number) if number or len(self._waiting) > 1 else next(iter(self._waiting))
        event = self._waiting.get(place)
        if event is None:
            say("Which one? /accept and /reject need a number that /list shows.")
            return
        try:
            await (about_person(event) if isinstance(event, Asked) else about_group(event))
        except AgentError as error:
            if not error.retried:
                del self._waiting[place]
            raise
        del self._waiting[place]

    async def _list(self, _: str) -> None:
        for number, known in enumerate(self._ids, 1):
            chat = self._chats.contact(known) or self._chats.group(known)
            if chat is not None:
                say(
                    f"{'*' if known == self._to else ' '}{number:3}  {self._called(chat)}  {chat.state.value}"
                )
        for number, waiting in self._waiting.items():
            say(f"     {_waits(waiting)}: /accept {number} or /reject {number}")

    async def _choose(self, number: str) -> None:
        if not 0 < (place := number_in(number)) <= len(self._ids):
            say("/to needs a number that /list shows")
            return
        self._to = self._ids[place - 1]
        chat = self._chosen()
        if chat is not None:
            say(f"Now talking to {self._called(chat)}.")

    async def _code(self, _: str) -> None:
        chat = self._chosen()
        if chat is not None:
            conn = self._chats.agent.connection(chat.id)
            code = str(int.from_bytes(conn.security_code, "big"))
            say(" ".join(code[place : place + 5] for place in range(0, len(code), 5)))

    async def _leave(self, _: str) -> None:
        chat = self._chosen()
        if chat is not None:
            draft = self._chats.draft()
            draft.leave(chat)
            await self._chats.commit(draft)

    async def _move(self, _: str) -> None:
        chat = self._chosen()
        if chat is not None:
            await self._chats.agent.connection(chat.id).switch()

    async def _fix(self, _: str) -> None:
        chat = self._chosen()
        if chat is not None:
            await self._chats.agent.connection(chat.id).synchronize()
            say("New keys are offered. What you type is sent when the other side has answered.")

    async def _help(self, _: str) -> None:
        say(HELP)

    def _added(self, known: str) -> None:
        if known not in self._ids:
            self._ids.append(known)
        self._to = self._to or known

    def _called(self, chat: Conversation, member: Member | None = None) -> str:
        if isinstance(chat, Contact):
            return shown_name(chat.name)
        group = f"#{shown_name(chat.name)}"
        return group if member is None else f"{group} {shown_name(member.name)}"

    # What is shown

    async def _show_events(self) -> None:
        async for event in self._chats.events():
            self._show(event)

    def _show(self, event: ChatEvent) -> None:
        match event:
            case MessageReceived(chat, message, member):
                self._last[chat.id] = (message, member)
                quoted = "" if message.quoted is None else f"> {plain(message.quoted)}\n"
                say(f"{quoted}{self._called(chat, member)}: {plain(message.shown)}{_marks(message)}")
            case MessageEdited(chat, message, member):
                say(f"{self._called(chat, member)}, edited: {plain(message.text)}")
            case MessageDeleted(chat, _, member):
                say(f"{self._called(chat, member)} deleted a message.")
            case Reacted(chat, _, emoji, added, member):
                say(f"{self._called(chat, member)} {'' if added else 'no longer '}{plain(emoji or '?')}")
            case Delivered(chat, _) if isinstance(chat, Contact):
                say(f"  delivered to {self._called(chat)}")
            case Asked() | GroupOffered():
                self._asked += 1
                self._waiting[self._asked] = event
                say(f"{_waits(event)}: /accept {self._asked} or /reject {self._asked}")
            case ContactConnected(contact, first):
                self._connected(contact, first)
            case GroupEntered(group):
                self._added(group.id)
                say(f"You are in {self._called(group)}.")
            case ContactGone(contact):
                say(f"{self._called(contact)} left.")
            case GroupOver(group, removed):
                say(f"{self._called(group)}: {'you were removed' if removed else 'it was deleted'}.")
            case MemberCame(group, member):
                say(f"{self._called(group, member)} joined.")
            case MemberGone(group, member):
                say(f"{self._called(group, member)} left.")
            case ProfileChanged(contact):
                say(f"They are now called {self._called(contact)}.")
            case AgentNews(RatchetSync(conn, state)):
                self._show_step(self._chats.contact(conn.id), state)
            case AgentNews(SubscriptionsFailed(errors)):
                for conn, error in errors:
                    self._show_lost(conn, error)
            case Trouble(chat, error, numbers):
                where = "" if chat is None else f"{self._called(chat)}: "
                say(f"! {where}{'not sent, ' if numbers else ''}{error}")

    def _show_lost(self, conn: Connection, error: AgentError) -> None:
        chat = self._chats.contact(conn.id) or self._chats.group(conn.id)
        if conn.id == self._chats.address_id:
            say(f"! Nobody can reach you by your address any more: {error}. /address new makes another one")
        elif chat is not None:
            say(f"! {self._called(chat)} cannot be heard any more: {error}. Connect again by a new link")

    def _show_step(self, contact: Contact | None, state: SyncState) -> None:
        """Whether the two sides understand each other."""
        if contact is None:
            return
        if state is SyncState.REQUIRED:
            say(
                f"! {self._called(contact)} cannot be read: one side went back to an old state. /fix mends it"
            )
        elif state is SyncState.OK:
            say(f"{self._called(contact)} can be read again. The security code is a new one: /code shows it.")

    def _connected(self, contact: Contact, first: Incoming | None) -> None:
        self._added(contact.id)
        quantum = self._chats.agent.connection(contact.id).stats.pq_support
        # What is being typed is for the one who was chosen, not for the one who came just now.
        how = "" if self._to == contact.id else f" /to {self._ids.index(contact.id) + 1} talks to them."
        say(f"Connected with {self._called(contact)}{', post-quantum' if quantum else ''}.{how}")
        if first is not None:
            self._show(MessageReceived(contact, first))


def number_in(text: str) -> int:
    """A number that somebody typed; 0 if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX else 0


def _waits(event: Asked | GroupOffered) -> str:
    if isinstance(event, Asked):
        said = "" if event.text is None else f", saying: {plain(event.text)}"
        return f"{shown_name(event.profile.name)} wants to talk to you{said}"
    return f"{shown_name(event.contact.name)} invites you to #{shown_name(event.invite.profile.name)}"


def _marks(message: Incoming) -> str:
    """What a message is beside its text."""
    marks = [
        *(["to moderators only"] if message.scope is not None else []),
        *(["forwarded"] if message.forwarded else []),
        *([f"disappears after {message.ttl} s"] if message.ttl else []),
        *(["live"] if message.live else []),
    ]
    return f"   [{', '.join(marks)}]" if marks else ""


def plain(text: str) -> str:
    """What somebody else wrote, without anything that a terminal obeys or that looks like a new message."""
    kept = (one if one in HARMLESS or unicodedata.category(one) not in OBEYED else "�" for one in text)
    return f"\n{INDENT}".join("".join(kept).splitlines())


def shown_name(text: str) -> str:
    """How somebody calls themselves, on one line and not too long."""
    name = " ".join(plain(text).split())
    return f"{name[: NAME_MAX - 1]}…" if len(name) > NAME_MAX else name or "somebody without a name"
