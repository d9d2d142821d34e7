"""Queue addresses: every vector both ways, the mode rules of every version, and hostile input."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.addresses import Host, Server
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, decode_whole, encode
from blindpost.wire.queue_addresses import (
    QueueAddress,
    QueueInfo,
    QueueUri,
    SenderAddress,
    read_queue_info,
    read_queue_uri,
    read_sender_address,
    same_queue,
    swallows,
    write_queue_info,
    write_queue_uri,
    write_sender_address,
)
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.versions import VersionRange
from tests.support.wire import agent_strategies as some
from tests.support.wire import agent_values as build
from tests.support.wire.hostile import calls_made, changed_everywhere, truncated_everywhere
from tests.support.wire.vectors import named, vector_file, vectors

URIS = vectors("links.json", "queue_uri")
INFOS = vectors("links.json", "queue_info")
URI_TEXTS = vectors("links.json", "queue_uri_parse")
INFO_BYTES = vectors("agent_messages.json", "queueInfo parse")
GOLDEN = {vector["name"]: vector for vector in vectors("doc_golden.json")}

SERVER = Server((Host("a.b"), Host("c.d")), "443", b"hash")
DH_KEY = PublicKey(Algorithm.X25519, bytes(32))
MESSAGING = QueueMode.MESSAGING
CONTACT = QueueMode.CONTACT


def decoded(vector: dict[str, Any], form: str) -> dict[str, Any]:
    """What the reference reads back from its own encoding."""
    value: dict[str, Any] = vector["value"] if vector[form] == "same as value" else vector[form]
    return value


@pytest.mark.parametrize("vector", URIS, ids=named)
def test_addresses_for_a_range(vector: dict[str, Any]) -> None:
    uri = build.queue_uri(vector["value"])
    assert encode(uri, write_queue_uri).hex() == vector["binary"]
    assert uri.text == vector["text"]
    read_back = build.queue_uri(decoded(vector, "binary_decoded"))
    assert decode_whole(bytes.fromhex(vector["binary"]), read_queue_uri) == read_back
    assert encode(read_back, write_queue_uri).hex() == vector["binary"]
    read_text = build.queue_uri(decoded(vector, "text_decoded"))
    assert QueueUri.from_text(vector["text"]) == read_text
    assert read_text.text == vector["text"]


@pytest.mark.parametrize("vector", INFOS, ids=named)
def test_addresses_for_one_version(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["binary"])
    assert encode(build.queue_info(vector["value"]), write_queue_info) == data
    read_back = decode_whole(data, read_queue_info)
    assert read_back == build.queue_info(decoded(vector, "binary_decoded"))
    assert encode(read_back, write_queue_info) == data


@pytest.mark.parametrize("vector", URI_TEXTS, ids=named)
def test_texts_of_addresses(vector: dict[str, Any]) -> None:
    if "error" in vector["result"]:
        with pytest.raises(WireError):
            QueueUri.from_text(vector["text"])
        return
    uri = QueueUri.from_text(vector["text"])
    assert uri == build.queue_uri(vector["result"]["value"])
    assert uri.text == vector["result"]["encoded"]


@pytest.mark.parametrize("vector", INFO_BYTES, ids=named)
def test_bytes_of_addresses(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    if "error" in vector["result"]:
        with pytest.raises(WireError):
            decode_whole(data, read_queue_info)
        return
    assert decode_whole(data, read_queue_info) == build.queue_info(vector["result"])


def golden_uri() -> QueueUri:
    """The queue of the wire document's golden section."""
    server = Server((Host("smp.example.org"), Host("abcd.onion")), "5223", bytes(range(32)))
    raw = bytes.fromhex("13be4feaeaf204c7fd3358fc9c00721881d174278128227ec674f37f7fe97b6d")
    dh_key = PublicKey(Algorithm.X25519, raw)
    return QueueUri(VersionRange(1, 4), QueueAddress(server, bytes(range(0x64, 0x7C)), dh_key, MESSAGING))


def test_queue_of_the_document() -> None:
    uri = golden_uri()
    assert encode(uri, write_queue_uri).hex() == GOLDEN["queueUri 1-4 messaging"]["bytes"]
    assert decode_whole(bytes.fromhex(GOLDEN["queueUri 1-4 messaging"]["bytes"]), read_queue_uri) == uri
    assert encode(uri.at(4), write_queue_info).hex() == GOLDEN["queueInfo v4"]["bytes"]
    assert decode_whole(bytes.fromhex(GOLDEN["queueInfo v4"]["bytes"]), read_queue_info) == uri.at(4)
    assert uri.text == GOLDEN["queue URI text"]["text"]
    assert QueueUri.from_text(GOLDEN["queue URI text"]["text"]) == uri


def info(version: int, mode: QueueMode | None) -> QueueInfo:
    return QueueInfo(version, QueueAddress(SERVER, b"id", DH_KEY, mode))


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("mode", [None, MESSAGING, CONTACT])
def test_how_an_info_encodes_the_mode(version: int, mode: QueueMode | None) -> None:
    if version >= 4:
        tail = {None: b"", MESSAGING: b"M", CONTACT: b"C"}[mode]
    else:
        tail = b"T" if version == 3 and mode is MESSAGING else b""
    data = encode(info(version, mode), write_queue_info)
    assert data.partition(DH_KEY.spki)[2] == tail
    assert swallows(info(version, mode), b"Mine") is (tail == b"")
    assert not swallows(info(version, mode), b"mine")
    assert not swallows(info(version, mode), b"")


@pytest.mark.parametrize("low", range(6))
@pytest.mark.parametrize("high", range(6))
@pytest.mark.parametrize("mode", [None, MESSAGING, CONTACT])
def test_how_a_range_encodes_the_mode(low: int, high: int, mode: QueueMode | None) -> None:
    if low > high:
        with pytest.raises(WireError):
            VersionRange(low, high)
        return
    if low >= 4:
        tail = {None: b"", MESSAGING: b"M", CONTACT: b"C"}[mode]
    elif mode is MESSAGING:
        tail = b"T" if high >= 3 else b""
    else:
        tail = b"F" if low == 3 else b""
    uri = QueueUri(VersionRange(low, high), QueueAddress(SERVER, b"id", DH_KEY, mode))
    assert encode(uri, write_queue_uri).partition(DH_KEY.spki)[2] == tail


@pytest.mark.parametrize(
    ("byte", "mode", "left"),
    [(b"M", MESSAGING, 0), (b"T", MESSAGING, 0), (b"C", CONTACT, 0), (b"F", CONTACT, 0), (b"0", None, 1)],
)
def test_the_byte_after_an_address_is_its_mode_if_it_can_be(
    byte: bytes, mode: QueueMode | None, left: int
) -> None:
    for version in range(6):
        reader = Reader(encode(info(version, None), write_queue_info) + byte)
        assert read_queue_info(reader).address.mode is mode
        assert reader.remaining == left


def test_version_1_names_one_host() -> None:
    old = encode(info(1, MESSAGING), write_queue_info)
    assert old.startswith(bytes.fromhex("000103612e6203343433"))
    assert decode_whole(old, read_queue_info).address.server.hosts == (Host("a.b"),)
    assert decode_whole(encode(info(2, None), write_queue_info), read_queue_info).address.server == SERVER


@pytest.mark.parametrize("number", [4, 5, 6, 8, 9, 10])
def test_public_routers_of_old_addresses_get_their_onion_host(number: int) -> None:
    only = Server((Host(f"smp{number}.simplex.im"),), "", b"hash")
    both = only.hosts[0].text
    for version, count in ((0, 2), (1, 2), (2, 1), (4, 1)):
        old = QueueInfo(version, QueueAddress(only, b"id", DH_KEY))
        hosts = decode_whole(encode(old, write_queue_info), read_queue_info).address.server.hosts
        assert len(hosts) == count
        assert hosts[0].text == both
        text = QueueUri(VersionRange(version, version), old.address).text
        assert QueueUri.from_text(text).address.server.hosts == hosts
    two = replace(only, hosts=(*only.hosts, Host("x.y")))
    text = QueueUri(VersionRange(1, 1), QueueAddress(two, b"id", DH_KEY)).text
    assert QueueUri.from_text(text).address.server == two


def test_an_address_needs_an_id_in_text() -> None:
    with pytest.raises(WireError):
        _ = QueueUri(VersionRange(1, 4), QueueAddress(SERVER, b"", DH_KEY)).text


def test_brackets_separate_an_ipv6_router_from_its_port() -> None:
    server = Server((Host("2001:db8::1"), Host("a.b")), "443", b"hash")
    for low in (1, 2):
        uri = QueueUri(VersionRange(low, 4), QueueAddress(server, b"id", DH_KEY, MESSAGING))
        assert QueueUri.from_text(uri.text) == uri


@pytest.mark.parametrize(
    "change",
    [
        ("smp://", "ntf://"),
        ("/aWQ=", "aWQ="),
        ("aWQ=#", "aWQ=//#"),
        ("#/?", "#//?"),
        ("#/?", "#"),
        ("#/?", "/?"),
        ("v=2-4", "v=2-4x"),
        ("&srv=x", "&srv=x,"),
        ("dh=MCow", "dh=NCow"),
    ],
)
def test_texts_that_are_not_addresses(change: tuple[str, str]) -> None:
    server = replace(SERVER, hosts=SERVER.hosts[:1])
    good = QueueUri(VersionRange(2, 4), QueueAddress(server, b"id", DH_KEY)).text + "&srv=x"
    assert QueueUri.from_text(good).address.server.hosts == (Host("a.b"), Host("x"))
    assert change[0] in good
    with pytest.raises(WireError):
        QueueUri.from_text(good.replace(*change))


def test_same_queue() -> None:
    one = QueueAddress(SERVER, b"id", DH_KEY, MESSAGING)
    assert one.sender == SenderAddress(SERVER, b"id")
    assert same_queue(one, QueueAddress(replace(SERVER, key_hash=b"x"), b"id", DH_KEY, CONTACT))
    assert same_queue(one, one.sender)
    assert not same_queue(one, replace(one, sender_id=b"other"))
    assert not same_queue(one, replace(one, server=replace(SERVER, port="444")))
    assert not same_queue(one, replace(one, server=replace(SERVER, hosts=SERVER.hosts[:1])))


@given(some.queue_infos)
def test_infos_round_trip(value: QueueInfo) -> None:
    assert decode_whole(encode(value, write_queue_info), read_queue_info) == value


@given(some.queue_uris)
def test_uris_round_trip(value: QueueUri) -> None:
    assert decode_whole(encode(value, write_queue_uri), read_queue_uri) == value


@given(some.text_queue_uris)
def test_texts_round_trip(value: QueueUri) -> None:
    assert QueueUri.from_text(value.text) == value


@given(some.sender_addresses)
def test_sender_addresses_round_trip(value: SenderAddress) -> None:
    assert decode_whole(encode(value, write_sender_address), read_sender_address) == value


GOOD_TEXT = golden_uri().text


@given(st.text(max_size=40), st.integers(0, len(GOOD_TEXT)), st.integers(0, 20))
def test_any_text_is_an_address_or_a_wire_error(text: str, place: int, dropped: int) -> None:
    for hostile in (text, GOOD_TEXT[:place] + text + GOOD_TEXT[place + dropped :]):
        with contextlib.suppress(WireError):
            QueueUri.from_text(hostile)


def read_text(data: bytes) -> QueueUri:
    return QueueUri.from_text(data.decode("latin-1"))


@pytest.mark.parametrize("vector", [*URIS, *URI_TEXTS], ids=named)
def test_texts_cut_and_changed(vector: dict[str, Any]) -> None:
    truncated_everywhere(read_text, vector["text"].encode())
    changed_everywhere(read_text, vector["text"].encode(), vector["name"])


@pytest.mark.parametrize("vector", [*URIS, *INFOS], ids=named)
def test_bytes_cut_and_changed(vector: dict[str, Any]) -> None:
    read = read_queue_uri if vector["kind"] == "queue_uri" else read_queue_info
    data = bytes.fromhex(vector["binary"])
    has_mode = len(data.partition(bytes.fromhex(vector["value"]["address"]["dh"]))[2])
    assert truncated_everywhere(lambda cut: decode_whole(cut, read), data) == has_mode
    changed_everywhere(lambda changed: decode_whole(changed, read), data, vector["name"])


@pytest.mark.parametrize("repeated", ["&v=1", "&srv=a", ";", "&", "%41", "%", "+", "=", "/", "?", "#", "a,"])
@pytest.mark.parametrize("start", [GOOD_TEXT, GOOD_TEXT.partition("#")[0] + "#"])
def test_cost_of_long_texts_is_linear(repeated: str, start: str) -> None:
    def text(count: int) -> bytes:
        return (start + repeated * count).encode()

    assert calls_made(read_text, text(4_000)) <= 2.2 * calls_made(read_text, text(2_000)) + 100
    with contextlib.suppress(WireError):
        read_text(text(100_000))


def test_no_kind_of_vector_is_left_out() -> None:
    """The kinds of `links.json` that this file and its neighbours on links and link data read."""
    kinds = {vector["kind"] for vector in vector_file("links.json")["vectors"]}
    here = {"queue_uri", "queue_info", "queue_uri_parse"}
    links = {"full_link", "short_link", "link_parse", "shorten"}
    data = {"user_data", "owner_auth", "link_kdf", "link_data"}
    assert kinds == here | links | data
