"""Agent messages: every vector, every tag, and what a hostile peer may send."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.agent.messages import (
    AgentConnInfo,
    AgentConnInfoReply,
    AgentMessage,
    AgentRatchetInfo,
    AMessage,
    AMsg,
    AnyAgentMessage,
    ARcvd,
    EReady,
    QKey,
    QTest,
    Receipt,
    read_a_message,
    read_agent_message,
    write_a_message,
    write_agent_message,
)
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import decode_whole, encode
from blindpost.wire.queue_addresses import read_sender_address
from blindpost.wire.smp.values import QueueMode
from tests.support.wire import agent_strategies as some
from tests.support.wire import agent_values as build
from tests.support.wire.hostile import (
    calls_made,
    changed_everywhere,
    memory_peak,
    survives,
    truncated_everywhere,
)
from tests.support.wire.vectors import named, vector_file, vectors

A_MESSAGES = vectors("agent_messages.json", "AMessage")
AGENT_MESSAGES = vectors("agent_messages.json", "AgentMessage")
GOLDEN = {vector["name"]: vector for vector in vectors("doc_golden.json")}
TAGS = [b"H", b"M", b"V", b"QC", b"QA", b"QK", b"QU", b"QT", b"E"]
HEADER = b"M" + bytes(7) + b"\5\x20" + bytes(32)
"""Type, number 5 and a hash."""


@pytest.mark.claim("CON-51")
@pytest.mark.parametrize("vector", A_MESSAGES, ids=named)
def test_messages(vector: dict[str, Any]) -> None:
    message = build.a_message(vector["type"], vector["value"])
    data = bytes.fromhex(vector["bytes"])
    assert data.startswith(vector["type"].encode())
    assert encode(message, write_a_message) == data
    assert decode_whole(data, read_a_message) == message


@pytest.mark.claim("CON-51")
def test_unknown_messages_are_rejected() -> None:
    """There are golden bytes of all nine types; any other tag fails before any of their contents."""
    assert {vector["type"].encode() for vector in A_MESSAGES} == set(TAGS)
    contents = {bytes.fromhex(vector["bytes"])[len(vector["type"]) :] for vector in A_MESSAGES}
    other = [bytes([first]) for first in range(256) if first not in b"HMVQE"]
    other += [b"Q" + bytes([second]) for second in range(256) if second not in b"CAKUT"]
    for tag in other:
        for content in contents:
            with pytest.raises(WireError):
                decode_whole(tag + content, read_a_message)
    for cut in (b"", b"Q"):
        with pytest.raises(WireError):
            decode_whole(cut, read_a_message)


def agent_message(vector: dict[str, Any]) -> AnyAgentMessage:
    value = vector["value"]
    match vector["name"][0]:
        case "M":
            inner = decode_whole(bytes.fromhex(value["aMessage"]), read_a_message)
            return AgentMessage(value["sndMsgId"], bytes.fromhex(value["prevMsgHash"]), inner)
        case "I":
            return AgentConnInfo(bytes.fromhex(value["connInfo"]))
        case "D":
            queues = tuple(build.queue_info(queue) for queue in value["queues"])
            return AgentConnInfoReply(queues, bytes.fromhex(value["connInfo"]))
        case "R":
            return AgentRatchetInfo(bytes.fromhex(value["info"]))
    raise AssertionError(f"a vector of an unknown agent message {vector['name']}")


def readable(message: AnyAgentMessage) -> AnyAgentMessage:
    """The message as its bytes encode it: old versions do not encode the mode of a queue."""
    if not isinstance(message, AgentConnInfoReply):
        return message

    def telling(version: int, mode: QueueMode | None) -> QueueMode | None:
        if version >= 4 or (version == 3 and mode is QueueMode.MESSAGING):
            return mode
        return None

    queues = tuple(
        replace(queue, address=replace(queue.address, mode=telling(queue.version, queue.address.mode)))
        for queue in message.queues
    )
    return replace(message, queues=queues)


@pytest.mark.claim("CON-50")
@pytest.mark.parametrize("vector", AGENT_MESSAGES, ids=named)
def test_agent_messages(vector: dict[str, Any]) -> None:
    message = agent_message(vector)
    data = bytes.fromhex(vector["bytes"])
    assert data[:1].decode() == vector["name"][0]
    assert encode(message, write_agent_message) == data
    assert decode_whole(data, read_agent_message) == readable(message)
    assert encode(readable(message), write_agent_message) == data
    chained = vector.get("sha256 (next prevMsgHash)")
    if chained is not None:
        assert hashlib.sha256(data).hexdigest() == chained


@pytest.mark.claim("CON-50")
def test_truncated_headers_and_unknown_agent_messages_are_rejected() -> None:
    assert {vector["name"][0] for vector in AGENT_MESSAGES} == set("IDRM")
    for vector in AGENT_MESSAGES:
        data = bytes.fromhex(vector["bytes"])
        for tag in sorted(set(range(256)) - set(b"IDRM")):
            with pytest.raises(WireError):
                decode_whole(bytes([tag]) + data[1:], read_agent_message)
    assert decode_whole(HEADER + b"H", read_agent_message).__class__ is AgentMessage
    for count in range(len(HEADER) + 1):
        with pytest.raises(WireError):
            decode_whole(HEADER[:count], read_agent_message)


@pytest.mark.claim("CON-50")
@given(some.agent_messages)
def test_agent_messages_round_trip(message: AnyAgentMessage) -> None:
    assert decode_whole(encode(message, write_agent_message), read_agent_message) == message


@given(some.a_messages)
def test_messages_round_trip(message: AMessage) -> None:
    assert decode_whole(encode(message, write_a_message), read_a_message) == message


def test_messages_of_the_document() -> None:
    none = hashlib.sha256(b"").digest()
    second = AgentMessage(2, none, AMsg(b"hello"))
    receipt = Receipt(2, hashlib.sha256(encode(second, write_agent_message)).digest(), b"")
    for name, message in (
        ("agent message 2", second),
        ("receipt 3", AgentMessage(3, none, ARcvd((receipt,)))),
        ("EREADY 9", AgentMessage(9, none, EReady(7))),
    ):
        data = bytes.fromhex(GOLDEN[name]["bytes"])
        assert encode(message, write_agent_message) == data
        assert decode_whole(data, read_agent_message) == message


def test_info_that_would_lose_its_first_byte_is_not_written() -> None:
    for vector in AGENT_MESSAGES:
        message, told = agent_message(vector), readable(agent_message(vector))
        if not isinstance(message, AgentConnInfoReply) or not isinstance(told, AgentConnInfoReply):
            continue
        tells = told.queues[-1].address.mode is not None
        for first in range(256):
            info = bytes([first]) + b"nfo"
            again = replace(message, info=info)
            if not tells and first in b"MCTF":
                with pytest.raises(WireError):
                    encode(again, write_agent_message)
            else:
                data = encode(again, write_agent_message)
                assert decode_whole(data, read_agent_message) == readable(again)
    with pytest.raises(WireError):
        encode(AgentConnInfoReply((), b"info"), write_agent_message)


def test_only_the_last_queue_can_swallow_the_info() -> None:
    keyed = decode_whole(bytes.fromhex(named_message("QKEY")["bytes"]), read_a_message)
    assert isinstance(keyed, QKey)
    telling = keyed.queues[0].queue
    silent = replace(telling, address=replace(telling.address, mode=None))
    fine = AgentConnInfoReply((silent, telling), b"Mine")
    assert decode_whole(encode(fine, write_agent_message), read_agent_message) == fine
    with pytest.raises(WireError):
        encode(AgentConnInfoReply((telling, silent), b"Mine"), write_agent_message)


def test_the_key_of_a_new_queue_must_be_able_to_authorize() -> None:
    data = bytes.fromhex(named_message("QKEY")["bytes"])
    x448 = b"\x44" + Algorithm.X448.spki_prefix + bytes(56)
    with pytest.raises(WireError):
        decode_whole(data[:-45] + x448, read_a_message)


def named_message(name: str) -> dict[str, Any]:
    return next(vector for vector in A_MESSAGES if vector["name"] == name)


def test_trailing_bytes_are_refused() -> None:
    for vector in A_MESSAGES:
        data = bytes.fromhex(vector["bytes"])
        if vector["type"] != "M":
            with pytest.raises(WireError):
                decode_whole(data + b"\0", read_a_message)
    for tag in (b"V", b"QA", b"QK", b"QU", b"QT"):
        with pytest.raises(WireError):
            decode_whole(tag + b"\0", read_a_message)


def read_message(data: bytes) -> object:
    return decode_whole(data, read_agent_message)


@pytest.mark.parametrize("vector", AGENT_MESSAGES, ids=named)
def test_agent_messages_cut_and_changed(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    truncated_everywhere(read_message, data)
    changed_everywhere(read_message, data, vector["name"])


@pytest.mark.parametrize("vector", A_MESSAGES, ids=named)
def test_messages_cut_and_changed(vector: dict[str, Any]) -> None:
    data = HEADER + bytes.fromhex(vector["bytes"])
    values = truncated_everywhere(read_message, data)
    assert values == (len(vector["bytes"]) // 2 - 1 if vector["type"] == "M" else 0)
    changed_everywhere(read_message, data, vector["name"])


@given(st.sampled_from(TAGS), st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(tag: bytes, data: bytes) -> None:
    survives(read_message, data)
    survives(read_message, HEADER + tag + data)


def test_cost_of_the_longest_lists_is_linear() -> None:
    address = next(vector["bytes"] for vector in A_MESSAGES if vector["type"] == "QC")
    one = decode_whole(bytes.fromhex(address)[2:], read_sender_address)

    def data(count: int) -> bytes:
        return HEADER + encode(QTest((one,) * count), write_a_message)

    assert calls_made(read_message, data(250)) <= 2.1 * calls_made(read_message, data(125)) + 50
    assert memory_peak(read_message, data(250)) < 30 * len(data(250))
    many_hosts = b"QT\xff" + (b"\xff" + b"\1a" * 255) * 60
    assert calls_made(read_message, HEADER + many_hosts) < 20 * len(many_hosts)
    assert memory_peak(read_message, HEADER + many_hosts) < 300_000


def test_bodies_are_not_copied() -> None:
    for data in (HEADER + b"M" + bytes(15000), b"I" + bytes(14000), b"R" + bytes(14000)):
        assert memory_peak(read_message, data) < 4000


def test_no_kind_of_vector_is_left_out() -> None:
    """Compressed texts have a test of their own."""
    kinds = {vector["kind"] for vector in vector_file("agent_messages.json")["vectors"]}
    here = {"AMessage", "AgentMessage"}
    envelopes = {"AgentMsgEnvelope", "AgentMsgEnvelope parse", "PrivHeader", "PubHeader", "ClientMsgEnvelope"}
    others = {"e2eParams", "padded sizes", "queueInfo parse"}
    assert kinds == here | envelopes | others | {"Compressed"}
