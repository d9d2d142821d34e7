"""What is to happen in one transaction: messages, decisions and records, collected beforehand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from blindpost.agent import AgentError, Connection, ConnError, OutOfStepError, Transaction
from blindpost.chat import book, holding
from blindpost.chat.codec.bodies import write_body, write_info
from blindpost.chat.codec.content import Content, Quote, Scope
from blindpost.chat.codec.events import (
    AnyEvent,
    ContactLeft,
    DeleteMessage,
    EditMessage,
    GroupAccepted,
    GroupLeft,
    Info,
    MemberRemoved,
    Message,
    NewMessage,
    React,
)
from blindpost.chat.codec.profiles import Profile
from blindpost.chat.codec.rules import notifies
from blindpost.chat.events import Asked, GroupOffered
from blindpost.chat.model import Contact, ContactState, Conversation, FirstMessage, Group, GroupState, Member
from blindpost.chat.ourselves import Ourselves
from blindpost.crypto.entropy import system_entropy
from blindpost.wire.errors import WireError

ID_SIZE = 12
UNREAD_MAX = 500
"""So many messages may wait for one recipient. Until some are taken a member of a group is sent no more, and
a bot takes nothing more from a contact: whoever reads nothing cannot fill the store."""
MODERATORS = ("moderator", "admin", "owner")
"""The roles to which what a member says to moderators is sent."""
Change = Callable[[Transaction], None]


class NotConnectedError(WireError):
    """The conversation has ended, or has not begun."""


class Draft:
    """Collects what is to be done together; `Chats.commit` does all of it or nothing."""

    def __init__(self, ourselves: Ourselves) -> None:
        self._ourselves = ourselves
        self._changes: list[Change] = []
        self._conns: dict[str, Connection] = {}
        self.numbers: dict[bytes, list[int]] = {}
        """After the commit: the agent's numbers for each message, which `Delivered` names; none for one that
        waits until the ratchets of its connection are in step."""

    @property
    def profile(self) -> Profile:
        """Who we are."""
        return self._ourselves.profile

    @property
    def empty(self) -> bool:
        return not self._changes

    @property
    def connections(self) -> list[Connection]:
        return list(self._conns.values())

    def involve(self, conn_id: str) -> Connection:
        """Something is sent to this connection, or acknowledged."""
        try:
            return self._conns.setdefault(conn_id, self._ourselves.agent.connection(conn_id))
        except ConnError as error:
            raise NotConnectedError("nothing can be said: the connection was deleted") from error

    def add(self, change: Change) -> None:
        """Anything else that belongs to the same transaction."""
        self._changes.append(change)

    def extend(self, other: Draft) -> None:
        """Append everything in another draft."""
        self._changes += other._changes
        self._conns |= other._conns

    def when(
        self,
        holds: Callable[[Transaction], bool],
        other: Draft,
        *,
        passing: tuple[type[Exception], ...] = (),
    ) -> None:
        """Append another draft, to be done only if a condition holds at commit. If it ends for one of the
        reasons in `passing`, the rest is still done."""
        self._conns |= other._conns
        self.add(lambda tx: _passing(passing, lambda: other.apply(tx)) if holds(tx) else None)

    def apply(self, tx: Transaction) -> None:
        for change in self._changes:
            change(tx)

    # Messages

    def say(
        self,
        to: Conversation,
        text: str,
        *,
        quote: Quote | None = None,
        ttl: int | None = None,
        live: bool | None = None,
        scope: Scope | None = None,
    ) -> bytes:
        """Send a text; returns its id. `ttl`: it disappears after so many seconds; `live`: edits follow;
        `scope`: for whom in a group, if not for everybody."""
        return self.send(to, NewMessage(Content(text), quote, ttl=ttl, live=live, scope=scope))

    def edit(
        self,
        to: Conversation,
        msg_id: bytes,
        text: str,
        *,
        live: bool | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.send(to, EditMessage(msg_id, Content(text), live=live, scope=scope))

    def retract(
        self,
        to: Conversation,
        msg_id: bytes,
        author_id: bytes | None = None,
        *,
        scope: Scope | None = None,
    ) -> None:
        """Delete a message; a moderator names whose it is."""
        self.send(to, DeleteMessage(msg_id, author_id, scope))

    def react(
        self,
        to: Conversation,
        msg_id: bytes,
        emoji: str,
        *,
        add: bool = True,
        author_id: bytes | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.send(to, React(msg_id, emoji, add, author_id, scope=scope))

    def send(
        self,
        to: Conversation,
        event: AnyEvent,
        *,
        msg_id: bytes | None = None,
        passing: tuple[type[Exception], ...] = (),
    ) -> bytes:
        """Send any event to a contact, or to all we reach in a group; returns the message id. If it cannot be
        sent for one of the reasons in `passing`, the rest of the draft is still done."""
        msg_id = system_entropy(ID_SIZE) if msg_id is None else msg_id
        message = Message(event, msg_id)
        write_body([message], pq=isinstance(to, Contact))  # what does not fit is refused here
        if isinstance(to, Contact):
            conn = self.involve(to.id)
            self.add(lambda tx: _passing(passing, lambda: self._to_contact(tx, conn, message)))
        else:
            for member in to.reached:
                assert member.conn_id is not None
                self.involve(member.conn_id)
            group_id = to.id
            self.add(lambda tx: _passing(passing, lambda: self._to_group(tx, group_id, message)))
        return msg_id

    def _to_contact(self, tx: Transaction, conn: Connection, message: Message) -> None:
        contact = book.find_contact(tx, conn.id)
        if contact is None or contact.state is not ContactState.CONNECTED:
            raise NotConnectedError("nothing can be said: the contact left, or is not connected yet")
        told = self._ourselves.mark
        if contact.told != told:
            news = Message(Info(self._ourselves.profile), system_entropy(ID_SIZE))
            _sent_or_held(tx, conn, write_body([news], pq=True, version=contact.version), notify=False)
            book.save_contact(tx, replace(contact, told=told))
        self._say(tx, conn, message, write_body([message], pq=True, version=contact.version))

    def _to_group(self, tx: Transaction, group_id: str, message: Message) -> None:
        group = book.find_group(tx, group_id)
        if group is None or group.state is not GroupState.JOINED:
            raise NotConnectedError("nothing can be said: we are not in this group")
        for member in group.reached:
            if member.conn_id in self._conns and _may_read(member, message.event):
                self.to_member(tx, self._conns[member.conn_id], member, message)

    def to_member(self, tx: Transaction, conn: Connection, member: Member, message: Message) -> None:
        """One unreachable member must not keep the others from getting the message, nor fill the store."""
        if tx.waiting(conn) >= UNREAD_MAX:
            return
        with contextlib.suppress(AgentError):
            self._say(tx, conn, message, write_body([message], pq=False, version=member.version))

    def _say(self, tx: Transaction, conn: Connection, message: Message, body: bytes) -> None:
        number = _sent_or_held(tx, conn, body, notify=notifies(message.event))
        if number is not None and message.msg_id is not None:
            self.numbers.setdefault(message.msg_id, []).append(number)

    # Decisions

    def accept(self, asked: Asked) -> None:
        """Accept a request: its sender becomes a contact."""

        def change(tx: Transaction) -> None:
            request = self._ourselves.request(asked)
            if request is None:
                return
            conn = tx.accept(request, self._ourselves.info)
            first = None if asked.text is None else FirstMessage(asked.text, asked.msg_id)
            mark = self._ourselves.mark
            contact = Contact(
                conn.id,
                asked.profile,
                version=asked.version,
                told=mark,
                first=first,
                welcome_id=asked.welcome_id,
            )
            book.save_contact(tx, contact)
            book.note_accepted(tx, contact, self._ourselves.now())

        self.add(change)

    def reject(self, asked: Asked) -> None:
        """Forget a request; nothing is sent."""

        def change(tx: Transaction) -> None:
            request = self._ourselves.request(asked)
            if request is not None:
                tx.reject(request)

        self.add(change)

    def enter(self, offered: GroupOffered, *, passing: tuple[type[Exception], ...] = ()) -> None:
        """Join a group that a contact invites to. If its link cannot be joined for one of the reasons in
        `passing`, the rest of the draft is still done."""

        def change(tx: Transaction) -> None:
            invite = offered.invite
            info = write_info(Message(GroupAccepted(invite.invited.member_id)), pq=False)
            conn = tx.join(invite.link, info, pq=False)
            host = Member(invite.sender.member_id, offered.contact.name, invite.sender.role, conn.id)
            ours = invite.invited
            group = Group(conn.id, invite.profile, ours.member_id, ours.role, host.id, members=(host,))
            book.save_group(tx, group)

        self.add(lambda tx: _passing(passing, lambda: change(tx)))

    def remove(self, group: Group, member_id: bytes) -> None:
        """Remove a member, as an admin may."""
        self.send(group, MemberRemoved(member_id))

        def change(tx: Transaction) -> None:
            found = book.find_group(tx, group.id)
            if found is not None:
                book.save_group(tx, found.without(member_id))

        self.add(change)

    def leave(self, chat: Conversation) -> None:
        """Tell the other side that we leave, and leave."""
        if isinstance(chat, Contact):
            self.send(chat, ContactLeft(), passing=(OutOfStepError,))
        else:
            self.send(chat, GroupLeft())

        def change(tx: Transaction) -> None:
            found = book.conversation(tx, chat.id)
            if isinstance(found, Contact):
                book.save_contact(tx, replace(found, state=ContactState.LEFT))
                tx.put(book.LEFT, found.id, b"")
            elif found is not None:
                book.save_group(tx, replace(found, state=GroupState.ENDED))

        self.add(change)


def _may_read(member: Member, event: AnyEvent) -> bool:
    """Whether what is said in a group is for this member."""
    match event:
        case (
            NewMessage(scope=scope)
            | EditMessage(scope=scope)
            | DeleteMessage(scope=scope)
            | React(scope=scope)
        ):
            return scope is None or member.id == scope.member_id or member.role in MODERATORS
    return True


def _sent_or_held(tx: Transaction, conn: Connection, body: bytes, *, notify: bool) -> int | None:
    """The number of the message; None if it waits until the ratchets are in step."""
    try:
        holding.release(tx, conn)
        return tx.send(conn, body, notify=notify)
    except OutOfStepError:
        holding.hold(tx, conn, body, notify=notify)
        return None


def _passing(errors: tuple[type[Exception], ...], work: Callable[[], None]) -> None:
    """Do something, ignoring failures for these reasons."""
    with contextlib.suppress(*errors):
        work()
