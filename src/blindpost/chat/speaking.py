"""Messages, edits and reactions, in conversations of both kinds."""

from __future__ import annotations

from blindpost.chat.codec import events as e
from blindpost.chat.events import ChatEvent, Incoming, MessageDeleted, MessageEdited, MessageReceived, Reacted
from blindpost.chat.model import Conversation, Member


def spoken(chat: Conversation, member: Member | None, message: e.Message, sent_at: int) -> list[ChatEvent]:
    """What an event tells, if it is something said."""
    event = message.event
    match event:
        case e.NewMessage():
            return [MessageReceived(chat, incoming(message.msg_id, event, sent_at), member)]
        case e.EditMessage(msg_id, content, ttl, live):
            edited = Incoming(msg_id, content, sent_at, ttl=ttl, live=bool(live))
            return [MessageEdited(chat, edited, member)]
        case e.DeleteMessage(msg_id, author_id):
            return [MessageDeleted(chat, msg_id, member, author_id)]
        case e.React(msg_id, emoji, add):
            return [Reacted(chat, msg_id, emoji, add, member)]
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
    )
