"""A second reader of the app's messages, written from the document alone: what it takes, the app takes.

It shares no line with `blindpost.chat.codec` and is stricter: no field may be there that the document lacks.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import zstandard

EMOJI = {"👍", "👎", "😀", "😂", "😢", "❤️", "🚀", "✅"}
ALLOW = {"always", "yes", "no"}
ISO_8601 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
CONTENTS = {"text", "link", "image", "video", "voice", "file", "report", "chat"}
PREFERENCES = {"timedMessages", "fullDelete", "reactions", "voice", "files", "calls"}


class RefusedError(Exception):
    """The app would not take this."""


def read(body: bytes, *, pq: bool) -> list[dict[str, Any]]:
    """The envelopes in a body, each checked."""
    if len(body) > (13_380 if pq else 15_602):
        raise RefusedError(f"{len(body)} bytes are too long")
    if body[:1] == b"X":
        return [one for part in _parts(body) for one in _plain(part)]
    return _plain(body)


def read_info(body: bytes, *, pq: bool) -> dict[str, Any]:
    if not body or len(body) > (10_968 if pq else 14_694):
        raise RefusedError("information in the handshake must be there and fit")
    found = [one for part in _parts(body) for one in _plain(part)] if body[:1] == b"X" else _plain(body)
    (one,) = found
    if one["event"] not in {"x.info", "x.contact", "x.grp.acpt", "x.ok", "x.grp.mem.info"}:
        raise RefusedError(f"{one['event']} in a handshake")
    return one


def read_link_data(data: bytes) -> dict[str, Any]:
    if data[:1] == b"X":
        data = zstandard.ZstdDecompressor().decompress(data[1:])
        _need(len(data) > 10_240, "a large link data")
    found: dict[str, Any] = json.loads(data)
    _only(found, {"profile", "message", "business"})
    _profile(found["profile"])
    if "message" in found:
        _content(found["message"])
    _need(isinstance(found["business"], bool), "business")
    return found


def _parts(body: bytes) -> list[bytes]:
    count, place, parts, total = body[1], 2, [], 0
    _need(count >= 1, "a part")
    for _ in range(count):
        mark = body[place : place + 1]
        if mark == b"0":
            size, place = body[place + 1], place + 2
            _need(size <= 180, "a short part")
            part = body[place : place + size]
        else:
            _need(mark == b"1", "0 or 1")
            size, place = int.from_bytes(body[place + 1 : place + 3], "big"), place + 3
            frame = body[place : place + size]
            _need(zstandard.frame_content_size(frame) >= 0, "a content size")
            part = zstandard.ZstdDecompressor().decompress(frame)
        place, total = place + size, total + len(part)
        parts.append(part)
    _need(place == len(body) and total <= 65_536, "whole parts within bounds")
    return parts


def _plain(data: bytes) -> list[dict[str, Any]]:
    _need(data[:1] in (b"{", b"["), "JSON without white space")
    found = json.loads(data)
    envelopes: list[dict[str, Any]] = found if isinstance(found, list) else [found]
    _need(json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode() == data, "compact JSON")
    for envelope in envelopes:
        _envelope(envelope)
    return envelopes


def _envelope(envelope: dict[str, Any]) -> None:
    _only(envelope, {"v", "msgId", "event", "params"})
    _need(re.fullmatch(r"\d+(-\d+)?", envelope.get("v", "1")) is not None, "v")
    if "msgId" in envelope:
        _id(envelope["msgId"])
    params = envelope["params"]
    _need(isinstance(params, dict), "params")
    CHECKS[envelope["event"]](params)


def _id(text: Any) -> None:
    _need(isinstance(text, str) and len(base64.urlsafe_b64decode(text)) > 0, "an id")


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise RefusedError(f"{what} expected")


def _only(found: dict[str, Any], names: set[str]) -> None:
    _need(isinstance(found, dict) and found.keys() <= names, f"nothing beside {sorted(names)}")


def _content(content: Any) -> None:
    _need(isinstance(content, dict), "content")
    _need(content["type"] in CONTENTS and isinstance(content["text"], str), "type and text")


def _profile(profile: Any) -> None:
    optional = {"shortDescr", "image", "contactLink", "peerType", "preferences"}
    _only(profile, {"displayName", "fullName"} | optional)
    _need(isinstance(profile["displayName"], str) and profile["displayName"] != "", "displayName")
    _need(isinstance(profile["fullName"], str), "fullName")
    _need(len(profile.get("shortDescr", "")) <= 160, "a short description")
    _need(profile.get("image", "data:").startswith("data:"), "an image")
    _need(profile.get("peerType", "bot") == "bot", "peerType")
    preferences = profile.get("preferences", {})
    _only(preferences, PREFERENCES | {"commands"})
    for name in PREFERENCES & preferences.keys():
        _only(preferences[name], {"allow", "ttl"} if name == "timedMessages" else {"allow"})
        _need(preferences[name]["allow"] in ALLOW, "allow")
    for entry in preferences.get("commands", []):
        _menu(entry)


def _menu(entry: Any) -> None:
    if entry["type"] == "menu":
        _only(entry, {"type", "label", "commands"})
        for inner in entry["commands"]:
            _menu(inner)
    else:
        _only(entry, {"type", "keyword", "label", "params"})
        _need(entry["type"] == "command", "a command")
        _need(re.fullmatch(r"\S+", entry["keyword"]) is not None, "a keyword")


def _info(params: dict[str, Any]) -> None:
    _only(params, {"profile"})
    _profile(params["profile"])


def _contact(params: dict[str, Any]) -> None:
    _only(params, {"profile", "contactReqId", "welcomeMsgId", "msgId", "content"})
    _profile(params["profile"])
    for name in {"contactReqId", "welcomeMsgId", "msgId"} & params.keys():
        _id(params[name])
    if "content" in params:
        _content(params["content"])


def _scope(params: dict[str, Any]) -> None:
    if "scope" in params:
        _only(params["scope"], {"type", "memberId"})
        _need(params["scope"]["type"] == "member", "a scope of one member")
        _id(params["scope"]["memberId"])


def _new(params: dict[str, Any]) -> None:
    _only(params, {"content", "quote", "file", "ttl", "live", "forward", "mentions", "scope"})
    _content(params["content"])
    _scope(params)
    if "quote" in params:
        quote = params["quote"]
        _only(quote, {"msgRef", "content"})
        ref = quote["msgRef"]
        _only(ref, {"msgId", "sentAt", "sent", "memberId"})
        _id(ref["msgId"])
        _need(ISO_8601.fullmatch(ref["sentAt"]) is not None, "a time")
        _need(isinstance(ref["sent"], bool), "sent")
        _content(quote["content"])
    _need(isinstance(params.get("ttl", 1), int), "ttl")
    _need(isinstance(params.get("live", True), bool), "live")


def _update(params: dict[str, Any]) -> None:
    _only(params, {"msgId", "content", "ttl", "live", "scope"})
    _id(params["msgId"])
    _scope(params)
    _content(params["content"])


def _delete(params: dict[str, Any]) -> None:
    _only(params, {"msgId", "memberId", "scope"})
    _id(params["msgId"])
    _scope(params)


def _react(params: dict[str, Any]) -> None:
    _only(params, {"msgId", "reaction", "add", "memberId", "scope"})
    _id(params["msgId"])
    _scope(params)
    _need(params["reaction"]["type"] == "emoji" and params["reaction"]["emoji"] in EMOJI, "an emoji")
    _need(isinstance(params["add"], bool), "add")


def _member(params: dict[str, Any]) -> None:
    _only(params, {"memberId"})
    _id(params["memberId"])


def _member_invited(params: dict[str, Any]) -> None:
    _only(params, {"memberId", "memberIntro"})
    _id(params["memberId"])
    _only(params["memberIntro"], {"groupConnReq"})


def _member_info(params: dict[str, Any]) -> None:
    _only(params, {"memberId", "profile"})
    _id(params["memberId"])
    _profile(params["profile"])


def _nothing(params: dict[str, Any]) -> None:
    _only(params, set())


CHECKS = {
    "x.info": _info,
    "x.contact": _contact,
    "x.msg.new": _new,
    "x.msg.update": _update,
    "x.msg.del": _delete,
    "x.msg.react": _react,
    "x.direct.del": _nothing,
    "x.ok": _nothing,
    "x.grp.acpt": _member,
    "x.grp.mem.con": _member,
    "x.grp.mem.inv": _member_invited,
    "x.grp.mem.info": _member_info,
    "x.grp.mem.del": _member,
    "x.grp.leave": _nothing,
}
