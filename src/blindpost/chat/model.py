"""Stored contacts, groups and their members."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import lru_cache

from blindpost.chat.codec.events import OUR_VERSIONS
from blindpost.chat.codec.fields import Fields, Json, id_text, json_bytes, json_value, listed, opt, written
from blindpost.chat.codec.groups import GroupProfile, read_group_profile, write_group_profile
from blindpost.chat.codec.profiles import Profile, read_profile, write_profile
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value
from blindpost.wire.versions import VersionRange

GROUPS_KEPT = 16
"""So many are not read again as long as they do not change."""


class ContactState(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    LEFT = "left"


@dataclass(frozen=True, slots=True, repr=False)
class FirstMessage(Value):
    """What somebody said when they asked to connect."""

    text: str
    msg_id: bytes | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Contact(Value):
    """Somebody at the other end of a connection, by its id. `version` is the highest both sides speak."""

    id: str
    profile: Profile
    state: ContactState = ContactState.CONNECTING
    version: int = 1
    told: str = ""
    """Which of our profiles they have."""
    first: FirstMessage | None = None
    welcome_id: bytes | None = None
    """Under which id their app shows the welcome that is in our link."""

    @property
    def name(self) -> str:
        return self.profile.name

    def heard(self, versions: VersionRange) -> Contact:
        """The contact after a message with this version range: the version never goes down."""
        agreed = OUR_VERSIONS.agreed(versions)
        return self if agreed is None or agreed <= self.version else replace(self, version=agreed)


def contact_bytes(contact: Contact) -> bytes:
    return json_bytes(
        written(
            profile=write_profile(contact.profile),
            state=contact.state.value,
            version=contact.version,
            told=contact.told,
            first=opt(contact.first, _write_first),
            welcomeId=opt(contact.welcome_id, id_text),
        )
    )


def contact_from(contact_id: str, data: bytes) -> Contact:
    fields = Fields(json_value(data))
    return Contact(
        contact_id,
        fields.item("profile", read_profile),
        ContactState(fields.text("state")),
        fields.number("version"),
        fields.text("told"),
        fields.opt_item("first", _read_first),
        fields.opt_id("welcomeId"),
    )


def _write_first(first: FirstMessage) -> Json:
    return written(text=first.text, msgId=opt(first.msg_id, id_text))


def _read_first(fields: Fields) -> FirstMessage:
    return FirstMessage(fields.text("text"), fields.opt_id("msgId"))


class GroupState(Enum):
    JOINING = "joining"
    JOINED = "joined"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, repr=False)
class Member(Value):
    """Somebody in a group. `conn_id` is our connection with them, once one was begun."""

    id: bytes
    name: str
    role: str
    conn_id: str | None = None
    reached: bool = False
    version: int = 1


@dataclass(frozen=True, slots=True, repr=False)
class Group(Value):
    """A group that we are a member of, by the id of the connection with its host."""

    id: str
    profile: GroupProfile
    our_id: bytes
    role: str
    host_id: bytes
    state: GroupState = GroupState.JOINING
    members: tuple[Member, ...] = ()

    @property
    def name(self) -> str:
        return self.profile.name

    def member(self, member_id: bytes) -> Member | None:
        return next((one for one in self.members if one.id == member_id), None)

    def by_connection(self, conn_id: str) -> Member | None:
        return next((one for one in self.members if one.conn_id == conn_id), None)

    @property
    def host(self) -> Member:
        found = self.member(self.host_id)
        assert found is not None
        return found

    @property
    def reached(self) -> tuple[Member, ...]:
        """Those who get what we say."""
        return tuple(one for one in self.members if one.reached and one.conn_id is not None)

    def with_member(self, member: Member) -> Group:
        """The group with this member, new or changed."""
        if self.member(member.id) is None:
            return replace(self, members=(*self.members, member))
        return replace(self, members=tuple(member if one.id == member.id else one for one in self.members))

    def without(self, member_id: bytes) -> Group:
        return replace(self, members=tuple(one for one in self.members if one.id != member_id))


Conversation = Contact | Group


def group_bytes(group: Group) -> bytes:
    return json_bytes(
        written(
            profile=write_group_profile(group.profile),
            ourId=id_text(group.our_id),
            role=group.role,
            hostId=id_text(group.host_id),
            state=group.state.value,
            members=listed(group.members, _write_member),
        )
    )


@lru_cache(maxsize=GROUPS_KEPT)
def group_from(group_id: str, data: bytes) -> Group:
    """Reading one of thousands takes a tenth of a second, and each message in it asks several times."""
    fields = Fields(json_value(data))
    return Group(
        group_id,
        fields.item("profile", read_group_profile),
        fields.id("ourId"),
        fields.text("role"),
        fields.id("hostId"),
        GroupState(fields.text("state")),
        fields.items("members", _read_member),
    )


def _write_member(member: Member) -> dict[str, Json]:
    return written(
        id=id_text(member.id),
        name=member.name,
        role=member.role,
        conn=member.conn_id,
        reached=member.reached,
        version=member.version,
    )


def _read_member(fields: Fields) -> Member:
    return Member(
        fields.id("id"),
        fields.text("name"),
        fields.text("role"),
        fields.opt_text("conn"),
        fields.flag("reached"),
        fields.number("version"),
    )


def named(text: str) -> str:
    """A display name that the app takes; `WireError` for an empty one."""
    name = " ".join(text.split())
    if not name:
        raise WireError("a name expected: it is what people see")
    return name
