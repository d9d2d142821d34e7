"""Message content: text above all. Every other kind has a text to show instead."""

from __future__ import annotations

from blindpost.chat.codec.fields import Fields, Json, Rest, id_text, opt, written
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

TEXT = "text"


@dataclass(frozen=True, slots=True, repr=False)
class Content(Value):
    """A text and its kind: text, link, image, video, voice, file, report, chat, or one added later.

    `duration` is that of voice and video in seconds; everything else of a kind is in `rest`.
    """

    text: str
    kind: str = TEXT
    duration: int | None = None
    rest: Rest = ()


def read_content(fields: Fields) -> Content:
    return Content(
        text=fields.text("text"),
        kind=fields.text("type"),
        duration=fields.opt_number("duration"),
        rest=fields.rest(),
    )


def write_content(content: Content) -> dict[str, Json]:
    if not isinstance(content.text, str):
        raise TypeError(f"a message is a text, not {type(content.text).__name__}: str(...) makes one")
    return written(content.rest, type=content.kind, text=content.text, duration=content.duration)


@dataclass(frozen=True, slots=True, repr=False)
class MessageRef(Value):
    """Which message is quoted; `sent`: the one who quotes it also sent it. `sent_at` is ISO 8601."""

    msg_id: bytes | None
    sent_at: str
    sent: bool
    member_id: bytes | None = None
    rest: Rest = ()


def read_ref(fields: Fields) -> MessageRef:
    return MessageRef(
        msg_id=fields.opt_id("msgId"),
        sent_at=fields.text("sentAt"),
        sent=fields.flag("sent"),
        member_id=fields.opt_id("memberId"),
        rest=fields.rest(),
    )


def write_ref(ref: MessageRef) -> dict[str, Json]:
    return written(
        ref.rest,
        msgId=opt(ref.msg_id, id_text),
        sentAt=ref.sent_at,
        sent=ref.sent,
        memberId=opt(ref.member_id, id_text),
    )


@dataclass(frozen=True, slots=True, repr=False)
class Quote(Value):
    """An earlier message that is answered, and what it said."""

    ref: MessageRef
    content: Content
    rest: Rest = ()


def read_quote(fields: Fields) -> Quote:
    return Quote(fields.item("msgRef", read_ref), fields.item("content", read_content), fields.rest())


def write_quote(quote: Quote) -> dict[str, Json]:
    return written(quote.rest, msgRef=write_ref(quote.ref), content=write_content(quote.content))


@dataclass(frozen=True, slots=True, repr=False)
class FileOffer(Value):
    """A file that travels by another protocol: only its name and size can be shown."""

    name: str
    size: int
    rest: Rest = ()


def read_file(fields: Fields) -> FileOffer:
    return FileOffer(fields.text("fileName"), fields.number("fileSize"), fields.rest())


def write_file(file: FileOffer) -> dict[str, Json]:
    return written(file.rest, fileName=file.name, fileSize=file.size)


@dataclass(frozen=True, slots=True, repr=False)
class Scope(Value):
    """Who may read something in a group, if not everybody: with the kind "member", one member and the
    moderators."""

    member_id: bytes | None = None
    kind: str = "member"
    rest: Rest = ()


def read_scope(fields: Fields) -> Scope:
    return Scope(fields.opt_id("memberId"), fields.text("type"), fields.rest())


def write_scope(scope: Scope) -> dict[str, Json]:
    return written(scope.rest, type=scope.kind, memberId=opt(scope.member_id, id_text))
