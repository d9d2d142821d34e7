"""A group as one member sees it: who joins and leaves, and how members reach each other.

The host introduces members. A new member makes a link for each older one and sends it through the host; an
older member joins the links of newer ones. Both tell the host when they reach each other.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from blindpost.agent import AgentError, Connection, Transaction
from blindpost.chat import book
from blindpost.chat.codec import events as e
from blindpost.chat.codec.bodies import write_info
from blindpost.chat.codec.groups import MemberInfo
from blindpost.chat.codec.profiles import Profile
from blindpost.chat.drafts import ID_SIZE, Draft
from blindpost.chat.events import ChatEvent, GroupOver, GroupUpdated, MemberCame, MemberGone
from blindpost.chat.model import Group, GroupState, Member
from blindpost.chat.speaking import spoken
from blindpost.crypto.entropy import system_entropy

MEMBERS_MAX = 5000
"""Introductions beyond this are not followed."""
NAME_MAX, ROLE_MAX, MEMBER_ID_MAX = 100, 32, 64
"""Of members no more is kept: all of a group is read and written with most of what is said there."""
HOSTS = ("owner", "admin")
"""The roles that may introduce, remove and change."""


def told(group: Group, member: Member, message: e.Message, sent_at: int) -> list[ChatEvent]:
    """What a member's message tells the program."""
    event = message.event
    match event:
        case e.GroupForwarded(member_id, inner, _, name) if member.role in HOSTS:
            author = group.member(member_id) or Member(member_id, name or "somebody", "member")
            return spoken(group, author, inner, sent_at)
        case e.MemberNew(info) if member.role in HOSTS and _is_new(group, info):
            return [MemberCame(group, _introduced(info))]
        case e.MemberRemoved(member_id) if member.role in HOSTS:
            if member_id == group.our_id:
                return [GroupOver(replace(group, state=GroupState.ENDED), removed=True)]
            gone = group.member(member_id)
            return [] if gone is None else [MemberGone(group.without(member_id), gone)]
        case e.GroupLeft():
            return [MemberGone(group.without(member.id), member)]
        case e.GroupDeleted() if member.role == "owner":
            return [GroupOver(replace(group, state=GroupState.ENDED), removed=False)]
        case e.GroupChanged() | e.MemberRole() if member.role in HOSTS:
            return [GroupUpdated(changed(group, member, message))]
    return spoken(group, member, message, sent_at)


def changed(group: Group, member: Member, message: e.Message) -> Group:
    """The group after a member's message, apart from what is needed to reach others."""
    version = max(member.version, e.OUR_VERSIONS.agreed(message.versions) or 1)
    group = group.with_member(replace(member, version=version))
    hosts = member.role in HOSTS
    match message.event:
        case e.Info(profile):
            return group.with_member(replace(member, version=version, name=profile.name[:NAME_MAX]))
        case e.MemberNew(info) if hosts and _is_new(group, info):
            return group.with_member(_introduced(info))
        case e.MemberRemoved(member_id) if hosts:
            if member_id == group.our_id:
                return replace(group, state=GroupState.ENDED)
            return group.without(member_id)
        case e.MemberRole(member_id, role) if hosts:
            role = role[:ROLE_MAX]
            if member_id == group.our_id:
                return replace(group, role=role)
            found = group.member(member_id)
            return group if found is None else group.with_member(replace(found, role=role))
        case e.GroupChanged(profile) if hosts:
            return replace(group, profile=profile)
        case e.GroupLeft():
            return group.without(member.id) if member.id != group.host_id else group
        case e.GroupDeleted() if member.role == "owner":
            return replace(group, state=GroupState.ENDED)
    return group


def settle(tx: Transaction, draft: Draft, conn: Connection, message: e.Message) -> None:
    """What a member's message changes, and what is done to reach those whom it introduces."""
    before = book.group_of(tx, conn.id)
    member = None if before is None else before.by_connection(conn.id)
    if before is None or member is None:
        return
    group = changed(before, member, message)
    match message.event:
        case e.MemberIntroduced(info) if member.role in HOSTS and _to_reach(group, info):
            made = tx.invite_later(_identity(draft, group), pq=False)
            group = group.with_member(replace(_introduced(info), conn_id=made.id))
        case e.MemberForwarded(info, link) if member.role in HOSTS and _to_reach(group, info):
            with contextlib.suppress(AgentError):  # with an invalid link there is no way to reach them
                made = tx.join(link, _identity(draft, group), pq=False)
                group = group.with_member(replace(_introduced(info), conn_id=made.id))
    if group != before:
        book.save_group(tx, group)


def _is_new(group: Group, info: MemberInfo) -> bool:
    """Whether somebody is to be counted among the members, as long as there is room."""
    return group.member(info.member_id) is None and _fits(group, info)


def _fits(group: Group, info: MemberInfo) -> bool:
    return len(info.member_id) <= MEMBER_ID_MAX and len(group.members) < MEMBERS_MAX


def _to_reach(group: Group, info: MemberInfo) -> bool:
    """Whether to connect with an introduced member: only once, and only up to a limit."""
    known = group.member(info.member_id)
    ours = info.member_id == group.our_id
    return not ours and (known is None or known.conn_id is None) and _fits(group, info)


def _introduced(info: MemberInfo) -> Member:
    version = e.OUR_VERSIONS.agreed(info.versions) or 1
    name, role = info.profile.name[:NAME_MAX], info.role[:ROLE_MAX]
    return Member(info.member_id, name, role, version=version)


def _identity(draft: Draft, group: Group) -> bytes:
    """What we tell a member when we connect: only our name."""
    ours = draft.profile
    profile = Profile(ours.name, ours.full_name)
    return write_info(e.Message(e.MemberIdentity(group.our_id, profile)), pq=False)


def link_made(
    tx: Transaction, draft: Draft, host: Connection, group: Group, member: Member, link: str
) -> None:
    """A link for an older member was made: it goes there through the host."""
    message = e.Message(e.MemberInvited(member.id, link), system_entropy(ID_SIZE))
    draft.to_member(tx, host, group.host, message)


def reached(tx: Transaction, draft: Draft, host: Connection, group: Group, member: Member) -> Group:
    """A member is connected: from now on it gets our messages; tell the host."""
    group = group.with_member(replace(member, reached=True))
    if member.id == group.host_id:
        group = replace(group, state=GroupState.JOINED)
    else:
        message = e.Message(e.MemberConnected(member.id), system_entropy(ID_SIZE))
        draft.to_member(tx, host, group.host, message)
    book.save_group(tx, group)
    return group
