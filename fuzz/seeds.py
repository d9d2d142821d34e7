"""Good inputs for whole sessions: every command of the vectors, each by a party that may give it."""

from __future__ import annotations

from typing import Any

import h2.settings
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from blindpost.wire.capnp.node import (
    METHODS,
    NODE_SERVICE,
    Ack,
    Auth,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    FetchWait,
    Lease,
    Request,
    UploadKeyPackage,
    write_request,
)
from blindpost.wire.capnp.rpc import write_bootstrap, write_call, write_finish
from fuzz.target import piece
from tests.support.wire.vectors import vectors

RECIPIENT, SENDER, NOTIFIER, LINK, NOBODY = range(5)
PARTIES = {
    **dict.fromkeys(("SEND", "SKEY"), SENDER),
    **dict.fromkeys(("LKEY", "LGET"), LINK),
    **dict.fromkeys(("NEW", "PING", "PRXY", "PFWD", "RFWD", "RSLV"), NOBODY),
    "NSUB": NOTIFIER,
}
"""Who gives a command; the recipient gives all others."""
BY = {
    RECIPIENT: ((0, 1), (2, 2), (4, 3)),
    SENDER: ((1, 0), (1, 4), (5, 7)),
    NOTIFIER: ((6, 6),),
    LINK: ((7, 7), (8, 0)),
    NOBODY: ((12, 0), (12, 7)),
}
"""Numbers of ids and keys, as the attacked router has them."""
NTF_BY = {
    "TNEW": ((3, 3),),
    "SNEW": ((3, 1), (3, 0)),
    "SCHK": ((4, 1),),
    "SDEL": ((4, 1),),
    "PING": ((3, 0),),
}
COMMAND, PROXIED, SERVED = 1, 3, 6
"""Steps of the attacked router."""
VERSION, NTF_VERSION = 20, 3
OWN_TOKEN = b"<token-id-of-own-device>"
"""Stands for the id of a device's token, which is not known beforehand."""
LONG = 5_000


def commands(file: str, version: int, kind: str | None = None) -> list[tuple[str, bytes]]:
    """Tags and bytes of all commands that are valid at a version."""
    found: list[tuple[str, bytes]] = []
    for entry in vectors(file, kind):
        value: Any = entry.get("value")
        if version in entry["versions"] and isinstance(value, dict) and "tag" in value:
            found.append((str(value["tag"]), bytes.fromhex(entry["bytes"])))
    return found


def router_seeds() -> list[bytes]:
    found = []
    for tag, text in commands("smp_commands.json", VERSION):
        if len(text) > LONG:
            continue
        for entity, key in BY[PARTIES.get(tag, RECIPIENT)]:
            said = piece(text) + bytes([entity, key])
            found.append(bytes([COMMAND, 0]) + said)
            if tag in ("SEND", "SKEY", "LKEY", "LGET", "PING", "SUB"):
                found.append(bytes([PROXIED, 14, 0]) + said)
        if tag in ("NEW", "SUB", "NSUB", "SUBS", "NSUBS", "NKEY"):
            found += [bytes([SERVED, role]) + piece(text) + bytes(BY[RECIPIENT][0]) for role in (0, 1)]
    twice = [seed for seed in found if seed[0] == COMMAND and b"SUB" in seed[:8]]
    found += [one + other for one, other in zip(twice, found[::7], strict=False)]
    found += [bytes([0]) + piece(bytes(60)), bytes([4]) + piece(b"\x17\x03\x03\x00\x20" + bytes(32))]
    found += [bytes([PROXIED, 14, 1]) + piece(bytes(90)), bytes([5]) + piece(b"\0\x14" + bytes(44))]
    found += [bytes([7, 0]) + piece(bytes(8)), bytes([7, 1]) + piece(b"\0\x06" + bytes(40))]
    return found


def ntf_seeds() -> list[bytes]:
    found = [
        bytes([1]) + piece(_as_own(tag, text)) + bytes(by)
        for tag, text in commands("ntf.json", NTF_VERSION, "command")
        for by in NTF_BY.get(tag, ((0, 1), (1, 1)))
    ]
    return [*found, bytes([0]) + piece(bytes(60)), bytes([3]) + piece(b"\x17\x03\x03\x00\x20" + bytes(32))]


def _as_own(tag: str, text: bytes) -> bytes:
    size = len(b"SNEW S") + 1
    return text[:size] + OWN_TOKEN + text[size + len(OWN_TOKEN) :] if tag == "SNEW" else text


def ds_seeds() -> list[bytes]:
    """A bootstrap, a call of each method by one who knows how, its end, and several in one piece."""
    own, other = b"k" * 32, b"o" * 32
    requests: list[Request] = [
        UploadKeyPackage(own, b"a package", Auth()),
        FetchKeyPackage(own, Auth()),
        Enqueue(other, b"a payload", b"", 0, Auth()),
        Enqueue(other, b"a payload", b"channel", 0, Auth()),
        Fetch(other, b"", 0, Auth()),
        FetchWait(other, b"", 0, 5, Auth()),
        Lease(other, b"", 0, 5, 1, 10, Auth()),
        Ack(other, b"", 0, (bytes(16),), Auth()),
    ]
    calls = [
        write_call(2, 1, NODE_SERVICE, method, write_request(request))
        for request in requests
        for method in [METHODS.index(type(request))]
    ]
    begun, over = write_bootstrap(1), write_finish(2)
    found = [piece(begun) + piece(call) + piece(over) for call in calls]
    several = [
        write_call(2 + number, 1, NODE_SERVICE, METHODS.index(type(request)), write_request(request))
        for number, request in enumerate(requests)
    ]
    return [piece(bytes(16)), piece(begun), *found, piece(begun + b"".join(several)) + piece(over)]


def _frames(*frames: Frame) -> bytes:
    return b"".join(frame.serialize() for frame in frames)


def _head(stream: int, fields: list[tuple[str, str]], *flags: str) -> HeadersFrame:
    return HeadersFrame(stream, Encoder().encode(fields), flags=["END_HEADERS", *flags])


SETTINGS = SettingsFrame(0, {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1})


def answers() -> list[bytes]:
    """What Apple says to pushes over HTTP/2."""
    begun = piece(_frames(SETTINGS))
    ok = _head(1, [(":status", "200"), ("apns-id", "A")], "END_STREAM")
    busy = _head(1, [(":status", "429"), ("retry-after", "20")])
    told: list[list[Frame]] = [
        [ok, _head(3, [(":status", "200")], "END_STREAM")],
        [busy, DataFrame(1, b'{"reason": "TooManyRequests"}', flags=["END_STREAM"])],
        [RstStreamFrame(1, error_code=7), ok],
        [GoAwayFrame(0, last_stream_id=1, error_code=0), ok],
        [PingFrame(0, b"12345678"), WindowUpdateFrame(0, window_increment=70_000), ok],
        [_head(1, [(":status", "103")]), ok],
        [SettingsFrame(0, {1: 0, 4: 1}), WindowUpdateFrame(1, window_increment=9), ok],
    ]
    return [begun + piece(_frames(*each)) for each in told] + [
        begun + b"".join(piece(_frames(one)) for one in each) for each in told
    ]


def answers_1() -> list[bytes]:
    """What a push service says over HTTP/1.1."""
    told = [
        b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 410 Gone\r\nContent-Length: 4\r\n\r\ngone",
        b"HTTP/1.1 429 Slow\r\nRetry-After: 20\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall that comes",
    ]
    return [piece(each) + piece(told[0]) for each in told]


def requests_2() -> list[bytes]:
    """What browsers ask over HTTP/2, in the pieces in which it comes."""
    get = [(":method", "GET"), (":path", "/"), (":scheme", "https"), (":authority", "h")]
    post = [(":method", "POST"), *get[1:]]
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frames(SettingsFrame(0, {4: 65_535}))
    said: list[list[Frame]] = [
        [_head(1, get, "END_STREAM"), _head(3, get, "END_STREAM")],
        [_head(1, post), DataFrame(1, b"a body"), DataFrame(1, b"", flags=["END_STREAM"])],
        [_head(1, get, "END_STREAM"), RstStreamFrame(1, error_code=8)],
        [PingFrame(0, b"12345678"), WindowUpdateFrame(0, window_increment=9), GoAwayFrame(0)],
        [_head(1, [*get, ("if-none-match", '"a"')], "END_STREAM"), WindowUpdateFrame(1, window_increment=9)],
    ]
    return [b"\1" + piece(preface + _frames(*each)) for each in said]


def requests_1() -> list[bytes]:
    """What browsers ask over HTTP/1.1."""
    said = [
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HEAD /contact HTTP/1.0\r\n\r\n",
        b"GET /invitation#/?v=1 HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    ]
    return [b"\0" + piece(each[:30]) + piece(each[30:]) for each in said]
