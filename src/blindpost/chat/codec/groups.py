"""Groups as their members see them: invitations, members and the profile of the group."""

from __future__ import annotations

from blindpost.chat.codec.fields import Fields, Json, Rest, id_text, written
from blindpost.chat.codec.profiles import Profile, read_profile, write_profile
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value
from blindpost.wire.versions import VersionRange


@dataclass(frozen=True, slots=True, repr=False)
class GroupProfile(Value):
    """How a group is shown."""

    name: str
    full_name: str = ""
    description: str | None = None
    image: str | None = None
    rest: Rest = ()


def read_group_profile(fields: Fields) -> GroupProfile:
    return GroupProfile(
        name=fields.text("displayName"),
        full_name=fields.text("fullName"),
        description=fields.opt_text("description"),
        image=fields.opt_text("image"),
        rest=fields.rest(),
    )


def write_group_profile(group: GroupProfile) -> dict[str, Json]:
    return written(
        group.rest,
        displayName=group.name,
        fullName=group.full_name,
        description=group.description,
        image=group.image,
    )


@dataclass(frozen=True, slots=True, repr=False)
class MemberRef(Value):
    """A member's id and role: owner, admin, moderator, member, observer, or one added later."""

    member_id: bytes
    role: str
    rest: Rest = ()


def read_member_ref(fields: Fields) -> MemberRef:
    return MemberRef(fields.id("memberId"), fields.text("memberRole"), fields.rest())


def write_member_ref(member: MemberRef) -> dict[str, Json]:
    return written(member.rest, memberId=id_text(member.member_id), memberRole=member.role)


@dataclass(frozen=True, slots=True, repr=False)
class GroupInvite(Value):
    """An invitation: who invites, our own id and role, and the link to join."""

    sender: MemberRef
    invited: MemberRef
    link: str
    profile: GroupProfile
    rest: Rest = ()


def read_group_invite(fields: Fields) -> GroupInvite:
    return GroupInvite(
        sender=fields.item("fromMember", read_member_ref),
        invited=fields.item("invitedMember", read_member_ref),
        link=fields.text("connRequest"),
        profile=fields.item("groupProfile", read_group_profile),
        rest=fields.rest(),
    )


def write_group_invite(invite: GroupInvite) -> dict[str, Json]:
    return written(
        invite.rest,
        fromMember=write_member_ref(invite.sender),
        invitedMember=write_member_ref(invite.invited),
        connRequest=invite.link,
        groupProfile=write_group_profile(invite.profile),
    )


@dataclass(frozen=True, slots=True, repr=False)
class MemberInfo(Value):
    """What the host says about a member."""

    member_id: bytes
    role: str
    profile: Profile
    versions: VersionRange
    rest: Rest = ()


def read_member_info(fields: Fields) -> MemberInfo:
    return MemberInfo(
        member_id=fields.id("memberId"),
        role=fields.text("memberRole"),
        profile=fields.item("profile", read_profile),
        versions=fields.versions("v"),
        rest=fields.rest(),
    )


def write_member_info(member: MemberInfo) -> dict[str, Json]:
    return written(
        member.rest,
        memberId=id_text(member.member_id),
        memberRole=member.role,
        profile=write_profile(member.profile),
        v=member.versions.text,
    )
