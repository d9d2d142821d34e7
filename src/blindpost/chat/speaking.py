"""Messages, edits and reactions, in conversations of both kinds."""

from __future__ import annotations

from dataclasses import replace

from blindpost.chat.codec import events as e
from blindpost.chat.codec.content import Scope
from blindpost.chat.events import ChatEvent, Incoming, MessageDeleted, MessageEdited, MessageReceived, Reacted
from blindpost.chat.model import Conversation, Member

REPORT = "report"
"""The kind of a message by which a member tells the moderators of another one: never for everybody."""


def spoken(chat: Conversation, member: Member | None, message: e.Message, sent_at: int) -> list[ChatEvent]:
    """What an event tells, if it is something said."""
    event = message.event
    match event:
        case e.NewMessage():
            said = incoming(message.msg_id, event, sent_at)
            if said.kind == REPORT and member is not None and said.scope is None:
                said = replace(said, scope=Scope(member.id))
            return [MessageReceived(chat, said, member)]
        case e.EditMessage(msg_id, content, ttl, live, scope):
            edited = Incoming(msg_id, content, sent_at, ttl=ttl, live=bool(live), scope=scope)
            return [MessageEdited(chat, edited, member)]
        case e.DeleteMessage(msg_id, author_id, scope):
            return [MessageDeleted(chat, msg_id, member, author_id, scope)]
        case e.React(msg_id, emoji, add, scope=scope):
            return [Reacted(chat, msg_id, emoji, add, member, scope)]
    return []


def incoming(msg_id: bytes | None, event: e.NewMessage, sent_at: int) -> Incoming:
    return Incoming(
        msg_id,
        event.content,
        sent_at,
        event.quote,
        event.file,
        event.ttl,
        bool(event.live),
        bool(event.forward),
        event.mentions,
        event.scope,
    )
