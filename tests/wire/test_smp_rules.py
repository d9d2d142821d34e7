"""Tables and small rules: credentials, errors by version, names, queue info, plaintexts of messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blindpost.wire.errors import WireError
from blindpost.wire.json_text import JsonObject, json_bytes
from blindpost.wire.primitives import Reader, decode_whole, encode
from blindpost.wire.smp import commands as c
from blindpost.wire.smp import errors as e
from blindpost.wire.smp import responses as r
from blindpost.wire.smp.commands import COMMANDS
from blindpost.wire.smp.credentials import RULES as COMMAND_RULES
from blindpost.wire.smp.credentials import (
    credentials_error,
    response_entity_error,
)
from blindpost.wire.smp.error_codec import PROXY_DEPTH_MAX, error_at, read_error, write_error
from blindpost.wire.smp.errors import HAS_AUTH, NO_AUTH, NO_ENTITY, SMPError
from blindpost.wire.smp.messages import (
    Message,
    NMsgMeta,
    QuotaMarker,
    read_message,
    read_nmsg_meta,
    write_message,
    write_nmsg_meta,
)
from blindpost.wire.smp.names import domain_from_bytes, domain_to_bytes, name_record_from_json
from blindpost.wire.smp.queue_info import (
    MessageInfo,
    MessageType,
    QueueInfo,
    queue_info_from_json,
    queue_info_to_json,
)
from blindpost.wire.smp.responses import RESPONSES
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.values import LinkData, NewLink, QueueMode, QueueRequest, write_nonce
from blindpost.wire.smp.versions import proxy_versions
from blindpost.wire.versions import VersionRange
from tests.support.wire.hostile import (
    calls_made,
    changed_everywhere,
    memory_peak,
    survives,
    truncated_everywhere,
)
from tests.support.wire.long_values import ramp
from tests.support.wire.smp_values import command_of, response_of
from tests.support.wire.vectors import vectors

EXAMPLES = {v["value"]["tag"]: command_of(v["value"]) for v in vectors("smp_commands.json") if "value" in v}
ANSWERS = {v["value"]["tag"]: response_of(v["value"]) for v in vectors("smp_responses.json") if "value" in v}

NOTHING, ENTITY, AUTH, BOTH = (False, False), (False, True), (True, False), (True, True)
ONLY_ENTITY = {NOTHING: NO_ENTITY, ENTITY: None, AUTH: NO_ENTITY, BOTH: HAS_AUTH}
NEITHER = {NOTHING: None, ENTITY: HAS_AUTH, AUTH: HAS_AUTH, BOTH: HAS_AUTH}
RULES: dict[str, dict[tuple[bool, bool], e.CMD | None]] = {
    "NEW": {NOTHING: NO_AUTH, ENTITY: NO_AUTH, AUTH: None, BOTH: HAS_AUTH},
    "SEND": {NOTHING: NO_ENTITY, ENTITY: None, AUTH: NO_ENTITY, BOTH: None},
    "LGET": ONLY_ENTITY,
    "PFWD": ONLY_ENTITY,
    "PING": NEITHER,
    "PRXY": NEITHER,
    "RFWD": NEITHER,
    "RSLV": NEITHER,
}
OTHERS = {NOTHING: NO_AUTH, ENTITY: NO_AUTH, AUTH: NO_AUTH, BOTH: None}


@pytest.mark.parametrize("tag", sorted(EXAMPLES))
def test_credentials(tag: str) -> None:
    assert set(EXAMPLES) == {known.decode() for known in COMMANDS}
    for given, error in RULES.get(tag, OTHERS).items():
        assert credentials_error(EXAMPLES[tag], *given) is error


@pytest.mark.parametrize("tag", sorted(ANSWERS))
def test_entities_of_responses(tag: str) -> None:
    assert set(ANSWERS) == {known.decode() for known in RESPONSES}
    found = [response_entity_error(ANSWERS[tag], entity) for entity in (False, True)]
    if tag in {"IDS", "ERR"}:
        assert found == [None, None]
    elif tag in {"PONG", "PKEY", "RRES", "ALLS", "RNAME"}:
        assert found == [None, HAS_AUTH]
    else:
        assert found == [NO_ENTITY, None]


def test_sets_of_commands() -> None:
    assert {command.TAG for command in COMMAND_RULES} == set(COMMANDS), "a row for each command of the wire"
    signed = {command.TAG for command, rule in COMMAND_RULES.items() if rule.service_signed}
    assert signed == {b"NEW", b"SUB", b"NSUB"}
    forwarded = {command.TAG for command, rule in COMMAND_RULES.items() if rule.forwarded}
    assert forwarded == {b"SEND", b"SKEY", b"LKEY", b"LGET", b"RSLV"}


BLOCKED = e.BLOCKED(e.BlockingReason.SPAM, e.Notice(5))
WRAPPED = e.PROXY(e.PROTOCOL(BLOCKED))


@pytest.mark.parametrize("version", range(6, 21))
def test_errors_by_version(version: int) -> None:
    told = e.Code.AUTH if version < 12 else e.BLOCKED(e.BlockingReason.SPAM)
    assert error_at(BLOCKED, version) == (BLOCKED if version >= 18 else told)
    assert error_at(WRAPPED, version) is WRAPPED
    assert error_at(e.Code.QUOTA, version) is e.Code.QUOTA


def nested(depth: int) -> SMPError:
    error: SMPError = e.Code.AUTH
    for _ in range(depth):
        error = e.PROXY(e.PROTOCOL(error))
    return error


def test_nesting_of_errors_is_bounded() -> None:
    deepest = encode(nested(PROXY_DEPTH_MAX), write_error)
    assert decode_whole(deepest, read_error) == nested(PROXY_DEPTH_MAX)
    with pytest.raises(WireError):
        decode_whole(b"PROXY PROTOCOL " + deepest, read_error)
    endless = b"PROXY PROTOCOL " * 1090
    assert not survives(lambda data: decode_whole(data, read_error), endless)
    assert calls_made(lambda data: decode_whole(data, read_error), endless) < 200


def test_error_texts_are_cut_and_never_fail() -> None:
    long = e.PROXY(e.BROKER(e.RESPONSE("é€" + "x" * 300)))
    data = encode(long, write_error)
    assert data == b"PROXY BROKER RESPONSE \xff\xe9?" + b"x" * 253
    unexpected = e.PROXY(e.BROKER(e.UNEXPECTED("y" * 256)))
    assert encode(unexpected, write_error) == b"PROXY BROKER UNEXPECTED \xff" + b"y" * 255
    assert encode(e.STORE("a\ud800b"), write_error) == b"STORE a?b"
    assert decode_whole(b"STORE \xff", read_error) == e.STORE("\ufffd")
    assert decode_whole(b"NAME RESOLVER \xff", read_error) == e.NAME(e.RESOLVER("\ufffd"))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" AUTH",
        b"AUTH ",
        b"AUTH x",
        b"CMD",
        b"CMD ",
        b"CMD OTHER",
        b"PROXY",
        b"PROXY OTHER",
        b"PROXY PROTOCOL",
        b"PROXY BROKER",
        b"PROXY BROKER OTHER",
        b"PROXY BROKER RESPONSE \x05abc",
        b"PROXY BROKER TRANSPORT OTHER",
        b"PROXY BROKER TRANSPORT HANDSHAKE",
        b"PROXY BROKER TRANSPORT HANDSHAKE OTHER",
        b"PROXY BROKER NETWORK ",
        b"PROXY BROKER NETWORK OTHER",
        b"PROXY BROKER NETWORK CONNECT",
        b"PROXY BROKER NETWORK FAILED x",
        b"STORE",
        b"NAME",
        b"NAME OTHER",
        b"BLOCKED",
        b"BLOCKED reason=",
        b"BLOCKED reason=spamx",
        b"BLOCKED reason=spam,",
        b"BLOCKED reason=spam,notice=",
        b"BLOCKED reason=spam,notice=[]",
        b'BLOCKED reason=spam,notice={"ttl":"1"}',
        b'BLOCKED reason=spam,notice={"ttl":true}',
        b'BLOCKED reason=spam,notice={"ttl":1.5}',
        b'BLOCKED reason=spam,notice={"ttl":9223372036854775808}',
        b'BLOCKED reason=spam,notice={"ttl":NaN}',
        b"BLOCKED reason=spam,notice=" + b"[" * 5000,
        b"BLOCKED reason=spam,notice={\xff}",
    ],
)
def test_malformed_errors_are_refused(text: bytes) -> None:
    with pytest.raises(WireError):
        decode_whole(text, read_error)


@pytest.mark.parametrize(("ttl", "read"), [(b"10", 10), (b"1e3", 1000), (b"-1", -1), (b"null", None)])
def test_ttl_of_a_notice(ttl: bytes, read: int | None) -> None:
    data = b'BLOCKED reason=content,notice={"ttl":' + ttl + b"}"
    assert decode_whole(data, read_error) == e.BLOCKED(e.BlockingReason.CONTENT, e.Notice(read))


@pytest.mark.parametrize(
    ("data", "domain"),
    [
        (b"a.b", "a.b"),
        (b"A-1.Z\tmore", "a-1.z"),
        (b"a.b\n", "a.b"),
        (b"x" * 63 + b".simplex", "x" * 63 + ".simplex"),
        (b".".join([b"x" * 62] * 4) + b".x", ".".join(["x" * 62] * 4) + ".x"),
        (b"a.b " + bytes(500), "a.b"),
    ],
)
def test_domains(data: bytes, domain: str) -> None:
    assert domain_from_bytes(data) == domain_from_bytes(memoryview(data)) == domain
    assert domain_to_bytes(domain).decode() == domain


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"a",
            b" a.b",
            b".a.b",
            b"a.b.",
            b"a..b",
            b"-a.b",
            b"a-.b",
            b"a--b.c",
            b"a_b.c",
            b"\xd0\xb0.b",
        ),
        *(b"x" * 64 + b".b", b".".join([b"x" * 62] * 4) + b".xx", b"a.b\0"),
    ],
)
def test_malformed_domains_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        domain_from_bytes(data)


@pytest.mark.parametrize("domain", ["A.b", "a.b c", "a", "ä.b", ""])
def test_invalid_domains_are_not_written(domain: str) -> None:
    with pytest.raises(WireError):
        encode(c.RSLV(domain), lambda writer, command: command.write(writer, 20))


def test_long_domains_cost_little() -> None:
    for pattern in (b"a-", b"a.", b"a", b"x" * 62 + b"."):
        data = (pattern * 16000)[:16000]
        assert calls_made(domain_from_bytes, data) < 1200
        assert memory_peak(domain_from_bytes, data) < 60_000


RECORD = {
    "name": "a.simplex",
    "nickname": "",
    "website": "",
    "location": "",
    "simplexContact": [],
    "simplexChannel": ["x"],
    "eth": None,
    "owner": "",
    "resolver": "",
}


@pytest.mark.parametrize("field", [name for name in RECORD if name != "eth"])
@pytest.mark.parametrize("value", [None, 1, {}, [1]])
def test_records_with_a_field_missing_or_wrong(field: str, value: Any) -> None:
    name_record_from_json(json.dumps(RECORD).encode())
    with pytest.raises(WireError):
        name_record_from_json(json.dumps(RECORD | {field: value}).encode())
    with pytest.raises(WireError):
        name_record_from_json(json.dumps({k: v for k, v in RECORD.items() if k != field}).encode())


def test_records_with_a_wrong_coin_or_bad_text() -> None:
    with pytest.raises(WireError):
        name_record_from_json(json.dumps(RECORD | {"eth": 1}).encode())
    with pytest.raises(WireError):
        name_record_from_json(json.dumps(RECORD | {"name": "\ud800"}).encode())
    for data in (b"", b"[]", b"{", b"\xef\xbb\xbf{}", b'"x"', b"[" * 16000, b"9" * 5000):
        with pytest.raises(WireError):
            name_record_from_json(data)


INFO: dict[str, Any] = {
    "qiSnd": True,
    "qiNtf": False,
    "qiSub": {"qSubThread": "noSub", "qDelivered": "AAAA"},
    "qiSize": 1,
    "qiMsg": {"msgId": "AAAA", "msgTs": "2023-11-14T22:13:20Z", "msgType": "message"},
}


@pytest.mark.parametrize(
    "change",
    [
        {"qiSnd": None},
        {"qiNtf": 1},
        {"qiSize": "1"},
        {"qiSize": True},
        {"qiSub": []},
        {"qiSub": {"qSubThread": "other"}},
        {"qiSub": {"qSubThread": "noSub", "qDelivered": "A"}},
        {"qiSub": {"qSubThread": "noSub", "qDelivered": "AA_A"}},
        {"qiMsg": INFO["qiMsg"] | {"msgType": "other"}},
        {"qiMsg": INFO["qiMsg"] | {"msgId": "ä"}},
        {"qiMsg": INFO["qiMsg"] | {"msgTs": "2023-11-14 22:13:20Z"}},
        {"qiMsg": INFO["qiMsg"] | {"msgTs": "2023-11-14T22:13:20"}},
        {"qiMsg": INFO["qiMsg"] | {"msgTs": "2023-13-14T22:13:20Z"}},
        {"qiMsg": INFO["qiMsg"] | {"msgTs": "2023-11-14T22:13:20.Z"}},
    ],
)
def test_malformed_queue_info_is_refused(change: dict[str, Any]) -> None:
    queue_info_from_json(json_bytes(INFO))
    with pytest.raises(WireError):
        queue_info_from_json(json_bytes(INFO | change))


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789Z"),
        (1_700_000_000_100_000_000, "2023-11-14T22:13:20.1Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (-62_135_596_800 * 10**9, "0001-01-01T00:00:00Z"),
    ],
)
def test_times_of_messages(nanoseconds: int, text: str) -> None:
    info = QueueInfo(True, True, None, 1, MessageInfo(b"id", nanoseconds, MessageType.QUOTA))
    data = queue_info_to_json(info)
    assert json.loads(data)["qiMsg"]["msgTs"] == text
    assert queue_info_from_json(data) == info


def test_times_without_a_text_form() -> None:
    for seconds in (10**12, -(10**12)):
        info = QueueInfo(True, True, None, 1, MessageInfo(b"", seconds * 10**9, MessageType.MESSAGE))
        with pytest.raises(WireError):
            queue_info_to_json(info)


def test_json_objects() -> None:
    fields = JsonObject.from_bytes(b'{"n":null,"i":5,"t":"x","o":{"f":true}}')
    assert fields.optional_integer("i") == fields.integer("i") == 5
    assert fields.optional_integer("n") is None
    assert fields.optional_text("n") is None
    assert fields.optional_object("n") is None
    inner = fields.optional_object("o")
    assert inner is not None
    assert inner.flag("f") is True
    with pytest.raises(WireError):
        fields.optional_object("t")


MESSAGES: list[tuple[str, Message | QuotaMarker]] = [
    ("000000006553f100542068656c6c6f", Message(1700000000, True, b"hello")),
    ("000000006553f1004620", Message(1700000000, False, b"")),
    ("51554f544120000000006553f100", QuotaMarker(1700000000)),
]


@pytest.mark.parametrize(("data", "message"), MESSAGES)
def test_plaintexts_of_messages(data: str, message: Message | QuotaMarker) -> None:
    assert encode(message, write_message).hex() == data
    assert decode_whole(bytes.fromhex(data), read_message) == message
    truncated_everywhere(lambda piece: decode_whole(piece, read_message), bytes.fromhex(data))
    changed_everywhere(lambda piece: decode_whole(piece, read_message), bytes.fromhex(data), data)


@pytest.mark.parametrize(
    "data",
    [
        b"QUOTA " + bytes(7),
        b"QUOTA " + bytes(9),
        bytes(8) + b"T",
        bytes(8) + b"Tx",
        bytes(8) + b"X body",
        bytes(7),
    ],
)
def test_malformed_plaintexts_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        read_message(Reader(data))


def test_flags_of_later_versions_are_ignored() -> None:
    assert decode_whole(bytes(8) + b"Tabcdefg body", read_message) == Message(0, True, b"body")
    assert decode_whole(bytes(8) + b"F  ", read_message) == Message(0, False, b" ")


def test_bytes_after_notification_metadata_are_for_later_versions() -> None:
    data = encode(NMsgMeta(b"id", 5), write_nmsg_meta)
    assert data == b"\x02id" + (5).to_bytes(8, "big")
    assert read_nmsg_meta(Reader(data + b"later")) == NMsgMeta(b"id", 5)


def test_only_contact_queues_have_link_ids() -> None:
    data = LinkData(b"", b"")
    with pytest.raises(WireError):
        QueueRequest(QueueMode.CONTACT, NewLink(b"s", data))
    with pytest.raises(WireError):
        QueueRequest(QueueMode.MESSAGING, NewLink(b"s", data, b"l"))


def test_nonces_have_one_size() -> None:
    for size in (23, 25):
        with pytest.raises(WireError):
            encode(bytes(size), write_nonce)


@pytest.mark.parametrize(
    ("own", "offered", "allowed"),
    [
        ((6, 20), (6, 20), (6, 20)),
        ((6, 20), (6, 14), (6, 20)),
        ((6, 20), (6, 13), (6, 10)),
        ((6, 8), (6, 12), (6, 8)),
        ((12, 20), (6, 12), (12, 12)),
    ],
)
def test_versions_of_proxies(
    own: tuple[int, int], offered: tuple[int, int], allowed: tuple[int, int]
) -> None:
    assert proxy_versions(VersionRange(*own), VersionRange(*offered)) == VersionRange(*allowed)


def test_values_print_lengths_and_fingerprints_only() -> None:
    shown = repr(c.SEND(True, b"secret body")) + repr(r.MSG(b"message-id", memoryview(b"secret")))
    assert "secret" not in shown
    assert "message-id" not in shown
    assert "<11 bytes>" in shown
    assert ramp(0, 32).hex() not in repr(EXAMPLES["NEW"])
    request = Request(b"corr", b"entity", c.SEND(True, b"secret"), bytes(64), None, memoryview(b"secret"))
    assert "secret" not in repr(request)
    assert "corr_id=<4 bytes>" in repr(request)
