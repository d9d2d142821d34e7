"""The app's messages: every recording and any value round-trips; any bytes give a value or the one error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.chat.codec import events as e
from blindpost.chat.codec.bodies import (
    ITEMS_MAX,
    JSON_MAX,
    JSON_MAX_PQ,
    TooLongError,
    Unread,
    read_body,
    read_link_data,
    write_body,
    write_info,
    write_link_data,
)
from blindpost.chat.codec.compression import EXPANDED_MAX, compressed_body, expanded_parts
from blindpost.chat.codec.content import Content
from blindpost.chat.codec.events import Message
from blindpost.chat.codec.profiles import LinkProfile, Profile
from blindpost.chat.codec.rules import notifies, wants_receipt
from blindpost.wire.errors import WireError
from tests.support.chat.strategies import links, messages
from tests.support.wire.hostile import changed_everywhere, survives, truncated_everywhere
from tests.support.wire.vectors import named, vector_file, vectors

FILES = sorted(f"chat/{path.name}" for path in (Path(__file__).parents[1] / "vectors/chat").glob("*.json"))
RECORDED = [vector for name in FILES for vector in vectors(name)]
BODIES = [vector for vector in RECORDED if vector["tags"]]
LINKS = [vector for vector in RECORDED if not vector["tags"]]


def plain(data: bytes) -> Any:
    """The JSON of a body or of a link's data."""
    if data[:1] == b"X":
        data = expanded_parts(data[1:])[0] if data[1] < 32 else zstandard.decompress(data[1:])
    return json.loads(data)


def text_message(text: str) -> Message:
    return Message(e.NewMessage(Content(text)), b"0123456789ab")


@pytest.mark.parametrize("vector", BODIES, ids=named)
def test_every_recorded_body_round_trips(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    items = read_body(data)
    found = [item for item in items if isinstance(item, Message)]
    assert [item.event.name for item in items if isinstance(item, Message)] == vector["tags"]
    again = write_body(found, pq=vector.get("pq", True), version=16)
    assert plain(again) == plain(data)
    assert read_body(again) == items


@pytest.mark.parametrize("vector", LINKS, ids=named)
def test_every_recorded_link_round_trips(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    again = write_link_data(read_link_data(data))
    assert plain(again) == plain(data)
    assert again[:1] == data[:1]


@pytest.mark.parametrize("vector", [one for one in BODIES if "notify" in one], ids=named)
def test_pushes_are_requested_as_by_the_app(vector: dict[str, Any]) -> None:
    items = read_body(bytes.fromhex(vector["bytes"]))
    assert any(notifies(item.event) for item in items if isinstance(item, Message)) == vector["notify"]


def test_receipts_are_sent_as_by_the_app() -> None:
    """The recorded program also acknowledged one message without a receipt, from a switched-off contact."""
    recorded = [one for name in FILES for one in vector_file(name)["acknowledged"]]
    assert len(recorded) > 20
    for one in recorded:
        items = tuple(Message(e.Other(tag, ())) for tag in one["tags"])
        if one["receipt"] or set(one["tags"]) != {"x.msg.new"}:
            assert wants_receipt(items) == one["receipt"], one


def test_known_events_are_not_read_as_other() -> None:
    others = {
        item.event.name
        for vector in BODIES
        for item in read_body(bytes.fromhex(vector["bytes"]))
        if isinstance(item, Message) and isinstance(item.event, e.Other)
    }
    assert all(
        name.startswith(("x.info.probe", "x.call.", "x.msg.file.descr", "x.file.cancel"))
        for name in others - {"x.grp.mem.restrict", "x.grp.direct.inv"}
    )


@given(messages)
def test_any_message_round_trips(message: Message) -> None:
    assert read_body(write_body([message], pq=False)) == (message,)


@given(st.lists(messages, min_size=2, max_size=3))
def test_any_batch_round_trips(batch: list[Message]) -> None:
    assert read_body(write_body(batch, pq=False, version=16)) == tuple(batch)


@given(links)
def test_any_link_round_trips(link: LinkProfile) -> None:
    assert read_link_data(write_link_data(link)) == link


@settings(max_examples=300)
@given(
    st.binary(max_size=200)
    | st.sampled_from([b"{", b"[", b"X\x01"]).flatmap(
        lambda mark: st.binary(max_size=60).map(lambda tail: mark + tail)
    )
)
def test_any_bytes_are_a_value_or_the_error(data: bytes) -> None:
    survives(read_body, data)
    survives(read_link_data, data)


def test_damaged_bodies_are_values_or_the_error() -> None:
    for body in (
        write_body([text_message("hello"), text_message("you")], pq=True, version=16),
        compressed_body(write_body([text_message("hello" * 100)], pq=True)),
    ):
        truncated_everywhere(read_body, body)
        changed_everywhere(read_body, body, "chat")
    for vector in BODIES[::7]:
        changed_everywhere(read_body, bytes.fromhex(vector["bytes"])[:400], vector["name"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"v":"1","event":"x.msg.new","params":{}}',
        b'{"v":"1","event":"x.msg.new","params":{"content":{"type":"text","text":"\\ud800"}}}',
        b'{"v":"3-1","event":"x.ok","params":{}}',
        b'{"v":"1","event":"x.ok","params":[]}',
        b'{"v":"1","event":"x.later","params":{"n":NaN}}',
        b'{"v":"1","event":"x.later","params":{"n":1e999}}',
        b'{"v":"1","msgId":"","event":"x.ok","params":{}}',
        b'{"a":' * 50_000,
        b"[" * 100_000,
        b"[" * 100 + b"]" * 100,
        b"X\x00",
        b"X\x010\x02{}trailing",
        b"X\x010\x04X\x010\x00",
    ],
    ids=lambda data: data[:40].decode(errors="replace"),
)
def test_malformed_bodies_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        read_body(data)


@pytest.mark.parametrize("mark", [b"=", b"/", b">", b"F", b"\x00", b" "])
def test_bodies_of_other_kinds_are_left_alone(mark: bytes) -> None:
    (found,) = read_body(mark + b"whatever")
    assert isinstance(found, Unread)


def test_one_bad_message_of_a_batch_does_not_hide_the_others() -> None:
    good = write_body([text_message("kept")], pq=True)
    first, second = read_body(b'[{"event":"x.msg.new","params":{}},' + good + b"]")
    assert isinstance(first, Unread)
    assert second == text_message("kept")


def test_unknown_content_is_shown_by_its_text() -> None:
    body = (
        b'{"v":"1-30","event":"x.msg.new","params":{"content":{"type":"hologram","text":"look","beam":[1]}}}'
    )
    (found,) = read_body(body)
    assert isinstance(found, Message)
    assert isinstance(found.event, e.NewMessage)
    assert found.event.content.text == "look"


def bomb(size: int, *, told: bool = True) -> bytes:
    packer = zstandard.ZstdCompressor(write_content_size=told)
    if told:
        frame = packer.compress(b" " * size)
    else:
        stream = packer.compressobj()
        frame = stream.compress(b" " * size) + stream.flush()
    return b"X\x011" + len(frame).to_bytes(2, "big") + frame


def test_decompression_bombs_are_refused_before_expansion() -> None:
    for data in (bomb(EXPANDED_MAX + 1), bomb(50_000_000), bomb(1000, told=False)):
        with pytest.raises(WireError, match=r"compressed text|tells the size"):
            read_body(data)
    part = bomb(40_000)[2:]
    with pytest.raises(WireError, match="at most"):
        expanded_parts(b"\x02" + part + part)


def test_decompression_bombs_in_links_are_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(b" " * (EXPANDED_MAX + 1))
    with pytest.raises(WireError, match="at most"):
        read_link_data(b"X" + frame)


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(b"{" * 5000)
    size = 5000 - 256
    assert frame[5:7] == size.to_bytes(2, "little")
    for told in (10, 20_000):
        lying = frame[:5] + told.to_bytes(2, "little") + frame[7:]
        with pytest.raises(WireError):
            expanded_parts(b"\x011" + len(lying).to_bytes(2, "big") + lying)


def test_long_texts_are_compressed_only_where_needed() -> None:
    long = text_message("The quick brown fox. " * 700)
    size = len(write_body([long], pq=False))
    assert JSON_MAX_PQ < size <= JSON_MAX
    packed = write_body([long], pq=True)
    assert packed[:1] == b"X"
    assert len(packed) < JSON_MAX_PQ
    assert read_body(packed) == (long,)
    with pytest.raises(TooLongError):
        write_body([long], pq=True, version=7)
    with pytest.raises(TooLongError):
        write_body([text_message("x" * JSON_MAX)], pq=True)
    with pytest.raises(WireError):
        write_body([long, long], pq=False, version=8)


def test_large_pictures_fit_into_handshakes_and_links_when_compressed() -> None:
    image = "data:image/jpg;base64," + "/9j/4AAQ" * 1400
    profile = Profile("Ada", image=image)
    info = write_info(Message(e.Info(profile)), pq=True)
    assert (info[:1], len(info) < 1000) == (b"X", True)
    assert read_body(info) == (Message(e.Info(profile)),)
    data = write_link_data(LinkProfile(profile))
    assert (data[:1], len(data) < 1000) == (b"X", True)
    assert read_link_data(data) == LinkProfile(profile)


def test_values_do_not_print_what_they_carry() -> None:
    assert "secret" not in repr(text_message("secret"))


@pytest.mark.parametrize("count", [ITEMS_MAX, ITEMS_MAX + 1, 800])
def test_so_many_messages_of_one_body_are_read(count: int) -> None:
    """A small compressed one has room for a thousand, and each of them may be answered."""
    plain = b"[" + b",".join([b'{"event":"x.ok","params":{}}'] * count) + b"]"
    items = read_body(compressed_body(plain))
    assert [isinstance(one, e.Message) for one in items[:ITEMS_MAX]] == [True] * ITEMS_MAX
    assert [isinstance(one, Unread) for one in items[ITEMS_MAX:]] == [True] * (count > ITEMS_MAX)
