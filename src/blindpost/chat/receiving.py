"""What a message means: events for the program, and what changes in the records once it is taken."""

from __future__ import annotations

from dataclasses import replace

from blindpost.agent import Connection, Transaction
from blindpost.chat import book, grouping
from blindpost.chat.codec import events as e
from blindpost.chat.codec.bodies import Item
from blindpost.chat.drafts import Draft
from blindpost.chat.events import (
    ChatEvent,
    ContactGone,
    GroupOffered,
    ProfileChanged,
)
from blindpost.chat.model import Contact, ContactState, Conversation, Group
from blindpost.chat.speaking import spoken


def told(chat: Conversation, conn_id: str, sent_at: int, items: tuple[Item, ...]) -> list[ChatEvent]:
    """What happened, for the program."""
    found: list[ChatEvent] = []
    for item in items:
        if not isinstance(item, e.Message):
            continue
        if isinstance(chat, Contact):
            found += _from_contact(chat, item, sent_at)
        else:
            member = chat.by_connection(conn_id)
            if member is not None:
                found += grouping.told(chat, member, item, sent_at)
    return found


def _from_contact(contact: Contact, message: e.Message, sent_at: int) -> list[ChatEvent]:
    event = message.event
    match event:
        case e.Info(profile) if profile != contact.profile:
            return [ProfileChanged(replace(contact, profile=profile))]
        case e.ContactLeft():
            return [ContactGone(replace(contact, state=ContactState.LEFT))]
        case e.GroupInvited(invitation):
            return [GroupOffered(contact, invitation)]
    return spoken(contact, None, message, sent_at)


def settle(tx: Transaction, draft: Draft, conn: Connection, items: tuple[Item, ...]) -> None:
    """What a message changes in the records. The other side's version never goes down."""
    messages = [item for item in items if isinstance(item, e.Message)]
    chat = book.conversation(tx, conn.id)
    if isinstance(chat, Contact):
        contact = chat
        for message in messages:
            contact = contact.heard(message.versions)
            match message.event:
                case e.Info(profile):
                    contact = replace(contact, profile=replace(profile, image=None))
                case e.ContactLeft():
                    contact = replace(contact, state=ContactState.LEFT)
                    tx.put(book.LEFT, contact.id, b"")
        if contact != chat:
            book.save_contact(tx, contact)
    elif isinstance(chat, Group):
        for message in messages:
            grouping.settle(tx, draft, conn, message)
