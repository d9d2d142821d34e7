"""Stored notices: what the agent reports only once and the program has not taken yet."""

from __future__ import annotations

from blindpost.agent import Records
from blindpost.chat import book
from blindpost.chat.codec.content import Content
from blindpost.chat.codec.fields import Fields, id_text, json_bytes, json_value, opt, written
from blindpost.chat.codec.profiles import read_profile, write_profile
from blindpost.chat.events import Asked, ChatEvent, ContactConnected, GroupEntered, Incoming
from blindpost.chat.model import Contact, Group

Notice = Asked | ContactConnected | GroupEntered


def notice_key(notice: Notice) -> str:
    """Equal when the same thing is reported twice."""
    match notice:
        case Asked(request_id):
            return f"asked {request_id}"
        case ContactConnected(contact):
            return f"connected {contact.id}"
        case GroupEntered(group):
            return f"entered {group.id}"


def notice_bytes(notice: Notice, now: int) -> bytes:
    if isinstance(notice, Asked):
        return json_bytes(
            written(
                at=now,
                address=notice.address_id,
                profile=write_profile(notice.profile),
                text=notice.text,
                msgId=opt(notice.msg_id, id_text),
                version=notice.version,
                welcomeId=opt(notice.welcome_id, id_text),
            )
        )
    return json_bytes(written(at=now))


def notice_from(records: Records, key: str, data: bytes) -> tuple[str, ChatEvent] | None:
    """The conversation and the event of a stored notice; None if what it was about is gone."""
    kind, _, about = key.partition(" ")
    fields = Fields(json_value(data))
    at = fields.number("at")
    if kind == "asked":
        return about, Asked(
            about,
            fields.text("address"),
            fields.item("profile", read_profile),
            fields.opt_text("text"),
            fields.opt_id("msgId"),
            fields.number("version"),
            fields.opt_id("welcomeId"),
        )
    chat = book.conversation(records, about)
    if isinstance(chat, Contact):
        return chat.id, connected(chat, at)
    if isinstance(chat, Group):
        return chat.id, GroupEntered(chat)
    return None


def connected(contact: Contact, at: int) -> ContactConnected:
    first = contact.first
    said = None if first is None else Incoming(first.msg_id, Content(first.text), at)
    return ContactConnected(contact, said)
