"""Events and their envelopes as JSON, by the event's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from blindpost.chat.codec import events as e
from blindpost.chat.codec.content import (
    read_content,
    read_file,
    read_quote,
    read_scope,
    write_content,
    write_file,
    write_quote,
    write_scope,
)
from blindpost.chat.codec.fields import Fields, Json, Rest, id_text, opt, written
from blindpost.chat.codec.groups import (
    read_group_invite,
    read_group_profile,
    read_member_info,
    write_group_invite,
    write_group_profile,
    write_member_info,
)
from blindpost.chat.codec.profiles import read_profile, write_profile
from blindpost.wire.errors import WireError


def read_message(value: Json) -> e.Message:
    """One envelope, or `WireError`."""
    fields = Fields(value)
    versions, msg_id, name = fields.versions("v"), fields.opt_id("msgId"), fields.text("event")
    event = fields.item("params", READERS.get(name, lambda params: e.Other(name, params.rest())))
    return e.Message(event, msg_id, versions, fields.rest())


def write_message(message: e.Message) -> dict[str, Json]:
    return written(
        message.rest,
        v=message.versions.text,
        msgId=opt(message.msg_id, id_text),
        event=message.event.name,
        params=write_params(message.event),
    )


def _read_mentions(fields: Fields) -> tuple[tuple[str, bytes], ...]:
    named = fields.all()
    return tuple((name, Fields(item).id("memberId")) for name, item in named.items())


def _write_mentions(mentions: tuple[tuple[str, bytes], ...]) -> Json:
    return {name: {"memberId": id_text(member)} for name, member in mentions} or None


def _contact(p: Fields) -> e.ContactRequest:
    return e.ContactRequest(
        p.item("profile", read_profile),
        p.opt_id("contactReqId"),
        p.opt_id("welcomeMsgId"),
        p.opt_id("msgId"),
        p.opt_item("content", read_content),
        p.rest(),
    )


def _new(p: Fields) -> e.NewMessage:
    return e.NewMessage(
        content=p.item("content", read_content),
        quote=p.opt_item("quote", read_quote),
        file=p.opt_item("file", read_file),
        ttl=p.opt_number("ttl"),
        live=p.opt_flag("live"),
        forward=_forward(p),
        mentions=p.opt_item("mentions", _read_mentions) or (),
        scope=p.opt_item("scope", read_scope),
        rest=p.rest(),
    )


def _forward(p: Fields) -> bool | None:
    """True or false in the app; any other value also means forwarded."""
    found = p.take("forward")
    return found if found is None or isinstance(found, bool) else True


def _edit(p: Fields) -> e.EditMessage:
    content, msg_id = p.item("content", read_content), p.id("msgId")
    ttl, live, scope = p.opt_number("ttl"), p.opt_flag("live"), p.opt_item("scope", read_scope)
    return e.EditMessage(msg_id, content, ttl, live, scope, p.rest())


def _react(p: Fields) -> e.React:
    reaction = Fields(p.take("reaction"))
    kind = reaction.text("type")
    emoji = reaction.opt_text("emoji") if kind == "emoji" else None
    beside = reaction.rest() if emoji is not None else Fields({**reaction.all(), "type": kind}).rest()
    member_id, scope = p.opt_id("memberId"), p.opt_item("scope", read_scope)
    return e.React(p.id("msgId"), emoji, p.flag("add"), member_id, beside, scope, p.rest())


def _write_reaction(event: e.React) -> Json:
    if event.emoji is None:
        return written(event.reaction)
    return written(event.reaction, type="emoji", emoji=event.emoji)


def _intro(p: Fields) -> tuple[str, Rest]:
    """The link of a new member, and what came along with it."""
    intro = Fields(p.take("memberIntro"))
    return intro.text("groupConnReq"), intro.rest()


def _invited(p: Fields) -> e.MemberInvited:
    link, beside = _intro(p)
    return e.MemberInvited(p.id("memberId"), link, beside, p.rest())


def _forwarded_member(p: Fields) -> e.MemberForwarded:
    link, beside = _intro(p)
    return e.MemberForwarded(p.item("memberInfo", read_member_info), link, beside, p.rest())


def _forwarded(p: Fields) -> e.GroupForwarded:
    message = read_message(p.take("msg"))
    if isinstance(message.event, e.GroupForwarded):
        raise WireError("a message that is forwarded once expected")
    return e.GroupForwarded(p.id("memberId"), message, p.text("msgTs"), p.opt_text("memberName"), p.rest())


READERS: dict[str, Callable[[Fields], e.AnyEvent]] = {
    "x.info": lambda p: e.Info(p.item("profile", read_profile), p.rest()),
    "x.contact": _contact,
    "x.msg.new": _new,
    "x.msg.update": _edit,
    "x.msg.del": lambda p: e.DeleteMessage(
        p.id("msgId"), p.opt_id("memberId"), p.opt_item("scope", read_scope), p.rest()
    ),
    "x.msg.react": _react,
    "x.direct.del": lambda p: e.ContactLeft(p.rest()),
    "x.file.acpt.inv": lambda p: e.FileAccepted(
        p.id("msgId"), p.text("fileName"), p.opt_text("fileConnReq"), p.rest()
    ),
    "x.grp.inv": lambda p: e.GroupInvited(p.item("groupInvitation", read_group_invite), p.rest()),
    "x.grp.acpt": lambda p: e.GroupAccepted(p.id("memberId"), p.rest()),
    "x.ok": lambda p: e.Accepted(p.rest()),
    "x.grp.mem.new": lambda p: e.MemberNew(p.item("memberInfo", read_member_info), p.rest()),
    "x.grp.mem.intro": lambda p: e.MemberIntroduced(p.item("memberInfo", read_member_info), p.rest()),
    "x.grp.mem.inv": _invited,
    "x.grp.mem.fwd": _forwarded_member,
    "x.grp.mem.info": lambda p: e.MemberIdentity(p.id("memberId"), p.item("profile", read_profile), p.rest()),
    "x.grp.mem.con": lambda p: e.MemberConnected(p.id("memberId"), p.rest()),
    "x.grp.mem.role": lambda p: e.MemberRole(p.id("memberId"), p.text("role"), p.rest()),
    "x.grp.mem.del": lambda p: e.MemberRemoved(p.id("memberId"), p.rest()),
    "x.grp.leave": lambda p: e.GroupLeft(p.rest()),
    "x.grp.del": lambda p: e.GroupDeleted(p.rest()),
    "x.grp.info": lambda p: e.GroupChanged(p.item("groupProfile", read_group_profile), p.rest()),
    "x.grp.msg.forward": _forwarded,
}


def write_params(event: e.AnyEvent) -> dict[str, Json]:
    """The parameters of an event."""
    match event:
        case e.Info(profile, rest):
            return written(rest, profile=write_profile(profile))
        case e.ContactRequest():
            return written(
                event.rest,
                profile=write_profile(event.profile),
                contactReqId=opt(event.request_id, id_text),
                welcomeMsgId=opt(event.welcome_id, id_text),
                msgId=opt(event.msg_id, id_text),
                content=opt(event.content, write_content),
            )
        case e.NewMessage():
            return written(
                event.rest,
                content=write_content(event.content),
                quote=opt(event.quote, write_quote),
                file=opt(event.file, write_file),
                ttl=event.ttl,
                live=event.live,
                forward=event.forward,
                mentions=_write_mentions(event.mentions),
                scope=opt(event.scope, write_scope),
            )
        case e.EditMessage(msg_id, content, ttl, live, scope, rest):
            return written(
                rest,
                msgId=id_text(msg_id),
                content=write_content(content),
                ttl=ttl,
                live=live,
                scope=opt(scope, write_scope),
            )
        case e.DeleteMessage(msg_id, member_id, scope, rest):
            return written(
                rest,
                msgId=id_text(msg_id),
                memberId=opt(member_id, id_text),
                scope=opt(scope, write_scope),
            )
        case e.React():
            return written(
                event.rest,
                msgId=id_text(event.msg_id),
                memberId=opt(event.member_id, id_text),
                reaction=_write_reaction(event),
                add=event.add,
                scope=opt(event.scope, write_scope),
            )
        case e.FileAccepted(msg_id, file_name, link, rest):
            return written(rest, msgId=id_text(msg_id), fileName=file_name, fileConnReq=link)
        case e.ContactLeft(rest) | e.Accepted(rest) | e.GroupLeft(rest) | e.GroupDeleted(rest):
            return written(rest)
        case e.Other(_, params):
            return written(params)
        case e.GroupInvited(invitation, rest):
            return written(rest, groupInvitation=write_group_invite(invitation))
        case e.GroupChanged(group, rest):
            return written(rest, groupProfile=write_group_profile(group))
        case e.GroupForwarded(member_id, message, sent_at, member_name, rest):
            return written(
                rest,
                memberId=id_text(member_id),
                memberName=member_name,
                msg=write_message(message),
                msgTs=sent_at,
            )
        case _:
            return _write_member_params(event)


def _write_member_params(
    event: e.GroupAccepted
    | e.MemberConnected
    | e.MemberRemoved
    | e.MemberNew
    | e.MemberIntroduced
    | e.MemberInvited
    | e.MemberForwarded
    | e.MemberIdentity
    | e.MemberRole,
) -> dict[str, Json]:
    match event:
        case (
            e.GroupAccepted(member_id, rest)
            | e.MemberConnected(member_id, rest)
            | e.MemberRemoved(member_id, rest)
        ):
            return written(rest, memberId=id_text(member_id))
        case e.MemberNew(member, rest) | e.MemberIntroduced(member, rest):
            return written(rest, memberInfo=write_member_info(member))
        case e.MemberInvited(member_id, link, intro, rest):
            return written(rest, memberId=id_text(member_id), memberIntro=written(intro, groupConnReq=link))
        case e.MemberForwarded(member, link, intro, rest):
            member_intro = written(intro, groupConnReq=link)
            return written(rest, memberInfo=write_member_info(member), memberIntro=member_intro)
        case e.MemberIdentity(member_id, profile, rest):
            return written(rest, memberId=id_text(member_id), profile=write_profile(profile))
        case e.MemberRole(member_id, role, rest):
            return written(rest, memberId=id_text(member_id), role=role)
        case _:
            assert_never(event)
