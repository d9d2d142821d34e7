"""The events of the app that are understood here, as frozen values; every other one is an `Other`."""

from __future__ import annotations

from typing import ClassVar

from blindpost.chat.codec.content import Content, FileOffer, Quote, Scope
from blindpost.chat.codec.fields import Rest
from blindpost.chat.codec.groups import (
    GroupInvite,
    GroupProfile,
    MemberInfo,
)
from blindpost.chat.codec.profiles import Profile
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value
from blindpost.wire.versions import VersionRange

REACTIONS = ("👍", "👎", "😀", "😂", "😢", "❤️", "🚀", "✅")
"""The reactions that the app shows."""


class Event(Value):
    """The base of all events."""

    __slots__ = ()
    name: ClassVar[str]


@dataclass(frozen=True, slots=True, repr=False)
class Info(Event):
    """Who somebody is: in a handshake, or because it changed."""

    name = "x.info"
    profile: Profile
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class ContactRequest(Event):
    """Somebody wants to connect to an address, perhaps with a first message."""

    name = "x.contact"
    profile: Profile
    request_id: bytes | None = None
    welcome_id: bytes | None = None
    msg_id: bytes | None = None
    content: Content | None = None
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class NewMessage(Event):
    """A message. `ttl`: it disappears after so many seconds; `live`: updates of it follow."""

    name = "x.msg.new"
    content: Content
    quote: Quote | None = None
    file: FileOffer | None = None
    ttl: int | None = None
    live: bool | None = None
    forward: bool | None = None
    mentions: tuple[tuple[str, bytes], ...] = ()
    """Names in the text, and the members they mean."""
    scope: Scope | None = None
    """In a group: who may read it, if not everybody. So it is with edits, deletions and reactions."""
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class EditMessage(Event):
    """A message was edited; with an unknown id it is a new one."""

    name = "x.msg.update"
    msg_id: bytes
    content: Content
    ttl: int | None = None
    live: bool | None = None
    scope: Scope | None = None
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class DeleteMessage(Event):
    """A message is deleted; `member_id`: whose it was, if a moderator deletes it."""

    name = "x.msg.del"
    msg_id: bytes
    member_id: bytes | None = None
    scope: Scope | None = None
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class React(Event):
    """A reaction is added or taken back; `emoji` is None for a kind that is not known here."""

    name = "x.msg.react"
    msg_id: bytes
    emoji: str | None
    add: bool
    member_id: bytes | None = None
    reaction: Rest = ()
    """The reaction's fields other than an emoji."""
    scope: Scope | None = None
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class ContactLeft(Event):
    """The contact deleted us."""

    name = "x.direct.del"
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class FileAccepted(Event):
    """Somebody wants a file that was offered in an older way."""

    name = "x.file.acpt.inv"
    msg_id: bytes
    file_name: str
    link: str | None = None
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class GroupInvited(Event):
    """We are invited to a group."""

    name = "x.grp.inv"
    invitation: GroupInvite
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class GroupAccepted(Event):
    """The profile of a member who joins a group."""

    name = "x.grp.acpt"
    member_id: bytes
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class Accepted(Event):
    """The profile of a group's host, for the member who joined."""

    name = "x.ok"
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class MemberNew(Event):
    """The host says that somebody joined."""

    name = "x.grp.mem.new"
    member: MemberInfo
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class MemberIntroduced(Event):
    """The host tells a new member about an older one and asks for a link for it."""

    name = "x.grp.mem.intro"
    member: MemberInfo
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class MemberInvited(Event):
    """The link that a new member made for an older one, on its way to the host."""

    name = "x.grp.mem.inv"
    member_id: bytes
    link: str
    intro: Rest = ()
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class MemberForwarded(Event):
    """The link of a new member, from the host to an older one, who joins it."""

    name = "x.grp.mem.fwd"
    member: MemberInfo
    link: str
    intro: Rest = ()
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class MemberIdentity(Event):
    """What two members tell each other when they connect."""

    name = "x.grp.mem.info"
    member_id: bytes
    profile: Profile
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class MemberConnected(Event):
    """We and this member reach each other without the host."""

    name = "x.grp.mem.con"
    member_id: bytes
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class MemberRole(Event):
    """A member's role changed."""

    name = "x.grp.mem.role"
    member_id: bytes
    role: str
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class MemberRemoved(Event):
    """A member was removed from the group, perhaps us."""

    name = "x.grp.mem.del"
    member_id: bytes
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class GroupLeft(Event):
    """The sender leaves the group."""

    name = "x.grp.leave"
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class GroupDeleted(Event):
    """The group was deleted."""

    name = "x.grp.del"
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class GroupChanged(Event):
    """The group's profile changed."""

    name = "x.grp.info"
    profile: GroupProfile
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class GroupForwarded(Event):
    """A message of a member we have no connection with yet, forwarded by the host."""

    name = "x.grp.msg.forward"
    member_id: bytes
    message: Message
    sent_at: str
    member_name: str | None = None
    rest: Rest = ()


@dataclass(frozen=True, slots=True, repr=False)
class Other(Event):
    """An event that is not understood: ignored, acknowledged, and carried as it is."""

    event: str
    params: Rest

    @property
    def name(self) -> str:  # type: ignore[override]  # each one has its own
        return self.event


AnyEvent = (
    Info
    | ContactRequest
    | NewMessage
    | EditMessage
    | DeleteMessage
    | React
    | ContactLeft
    | FileAccepted
    | GroupInvited
    | GroupAccepted
    | Accepted
    | MemberNew
    | MemberIntroduced
    | MemberInvited
    | MemberForwarded
    | MemberIdentity
    | MemberConnected
    | MemberRole
    | MemberRemoved
    | GroupLeft
    | GroupDeleted
    | GroupChanged
    | GroupForwarded
    | Other
)

OUR_VERSIONS = VersionRange(1, 16)
"""The versions supported here: up to links with profiles, without relays of channels."""


@dataclass(frozen=True, slots=True, repr=False)
class Message(Value):
    """One event in its envelope. `versions` are those that its sender speaks."""

    event: AnyEvent
    msg_id: bytes | None = None
    versions: VersionRange = OUR_VERSIONS
    rest: Rest = ()
