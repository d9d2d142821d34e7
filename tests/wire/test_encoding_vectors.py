"""The primitive encodings, byte by byte, and what their readers refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import PASSWORD_BYTES, read_password, write_password
from blindpost.wire.errors import WireError
from blindpost.wire.keys import PublicKey, read_auth_key, read_key, read_x25519, write_key
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.smp.queue_info import (
    MessageInfo,
    MessageType,
    QueueInfo,
    queue_info_from_json,
    queue_info_to_json,
)
from blindpost.wire.smp.values import read_flags, read_nonce, write_flags, write_ids_hash, write_nonce
from blindpost.wire.text import b64, unb64
from blindpost.wire.versions import VersionRange, read_version_range, write_version_range
from tests.support.wire.hostile import changed_everywhere, truncated_everywhere
from tests.support.wire.long_values import same, whole
from tests.support.wire.smp_values import key_of
from tests.support.wire.vectors import named, vectors

FILE = "encoding.json"
Read = Callable[[Reader], Any]
Write = Callable[[Writer, Any], object]


def short_list(reader: Reader) -> tuple[bytes, ...]:
    return reader.list1(Reader.short)


def write_flags_alone(writer: Writer, notify: bool) -> None:
    """Flags are always followed by a space, which the vector leaves out."""
    whole_flags = encode(notify, write_flags)
    assert whole_flags[1:] == b" "
    writer.raw(whole_flags[:1])


def read_flags_alone(reader: Reader) -> bool:
    return decode_whole(bytes(reader.rest()) + b" ", read_flags)


def given(value: Any) -> bytes:
    return whole(value)


CODECS: dict[str, tuple[Read, Write, Callable[[Any], Any]]] = {
    "Word16": (Reader.u16, Writer.u16, int),
    "Word32": (Reader.u32, Writer.u32, int),
    "Int64": (Reader.i64, Writer.i64, int),
    "SystemTime": (Reader.i64, Writer.i64, int),
    "Version": (Reader.u16, Writer.u16, int),
    "Char": (Reader.u8, Writer.u8, ord),
    "Bool": (Reader.flag, Writer.flag, bool),
    "ByteString (s8)": (Reader.short, Writer.short, given),
    "Signature": (Reader.short, Writer.short, given),
    "CorrId": (Reader.short, Writer.short, given),
    "EntityId": (Reader.short, Writer.short, given),
    "IdsHash": (Reader.short, write_ids_hash, given),
    "Large (s16)": (Reader.large, Writer.large, given),
    "Tail": (Reader.rest, Writer.raw, given),
    "CbNonce": (read_nonce, write_nonce, given),
    "MsgFlags": (read_flags_alone, write_flags_alone, bool),
    "BasicAuth": (read_password, write_password, str.encode),
    "Maybe ByteString": (
        lambda reader: reader.opt(Reader.short),
        lambda writer, item: writer.opt(item, Writer.short),
        lambda value: None if value is None else given(value),
    ),
    "Maybe Bool": (
        lambda reader: reader.opt(Reader.flag),
        lambda writer, item: writer.opt(item, Writer.flag),
        lambda value: value,
    ),
    "NonEmpty ByteString": (
        short_list,
        lambda writer, items: writer.list1(items, Writer.short),
        lambda value: tuple(map(given, value)),
    ),
    "NonEmpty Word16": (
        lambda reader: reader.list1(Reader.u16),
        lambda writer, items: writer.list1(items, Writer.u16),
        lambda value: tuple(range(255)) if value == "0..254" else None,
    ),
    "list0 (smpEncodeList)": (
        lambda reader: reader.list0(Reader.short),
        lambda writer, items: writer.list0(items, Writer.short),
        lambda value: tuple(map(given, value)),
    ),
    "Text": (Reader.text, Writer.text, str),
    "String": (Reader.latin1, Writer.latin1, str),
    "VersionRange": (read_version_range, write_version_range, lambda value: VersionRange(*value)),
    "tuple": (
        lambda reader: (reader.u16(), reader.flag(), reader.short()),
        lambda writer, item: writer.u16(item[0]).flag(item[1]).short(item[2]),
        lambda value: (1, True, b"abc") if value == "(1, T, abc)" else None,
    ),
    "public key": (read_key, write_key, lambda value: key_of(value["public_spki"])),
    "private key": (Reader.short, Writer.short, lambda value: bytes.fromhex(value["private_pkcs8"])),
}
PARSERS: dict[str, tuple[Read, Callable[[Any], Any]]] = {
    "Bool parse": (Reader.flag, bool),
    "Maybe Bool parse": (lambda reader: reader.opt(Reader.flag), lambda value: value),
    "ByteString parse": (Reader.short, given),
    "Large parse": (Reader.large, given),
    "NonEmpty parse": (short_list, lambda value: tuple(map(given, value))),
    "Text parse": (Reader.text, str),
    "Word16 parse": (Reader.u16, int),
    "Int64 parse": (Reader.i64, int),
    "VersionRange parse": (read_version_range, lambda value: VersionRange(*value)),
    "auth key parse": (read_auth_key, key_of),
    "X25519 key parse": (read_x25519, key_of),
    "BasicAuth parse": (read_password, lambda value: value.encode("latin-1")),
}
OTHERS = {
    "VersionRange text",
    "VersionRange text parse",
    "compatible range",
    "BasicAuth accepted bytes",
    "text: ByteString",
    "text: ByteString parse",
    "text: time",
}


def entries(kinds: set[str]) -> list[dict[str, Any]]:
    return [vector for vector in vectors(FILE) if vector["kind"] in kinds]


def test_no_kind_of_vector_is_left_out() -> None:
    assert {vector["kind"] for vector in vectors(FILE)} == {*CODECS, *PARSERS, *OTHERS}


@pytest.mark.parametrize(
    "vector", entries(set(CODECS)), ids=lambda vector: f"{vector['kind']} {vector['name']}"
)
def test_encoding(vector: dict[str, Any]) -> None:
    read, write, of = CODECS[vector["kind"]]
    value = of(vector["value"])
    assert value is not None or vector["value"] is None
    if "length wraps" in vector["name"]:
        with pytest.raises(WireError):
            encode(value, write)
        return
    data = encode(value, write)
    assert same(data, vector["bytes"])
    assert decode_whole(data, read) == value
    if len(data) < 2000:
        truncated_everywhere(lambda piece: decode_whole(piece, read), data)
        changed_everywhere(lambda piece: decode_whole(piece, read), data, vector["name"])


@pytest.mark.parametrize("vector", entries({"public key", "private key"}), ids=named)
def test_key_texts(vector: dict[str, Any]) -> None:
    value = vector["value"]
    private = PrivateKey.from_pkcs8(bytes.fromhex(value["private_pkcs8"]))
    assert private.raw.hex() == value["private"]
    assert private.public.algorithm.label == value["alg"]
    assert private.public == PublicKey.from_spki(bytes.fromhex(value["public_spki"]))
    assert private.public.raw.hex() == value["public"]
    der = private.public.spki if vector["kind"] == "public key" else private.pkcs8
    assert b64(der) == vector["text"]


@pytest.mark.parametrize(
    "vector", entries(set(PARSERS)), ids=lambda vector: f"{vector['kind']} {vector['name']}"
)
def test_parse(vector: dict[str, Any]) -> None:
    read, of = PARSERS[vector["kind"]]
    data, result = bytes.fromhex(vector["bytes"]), vector["result"]
    if isinstance(result, dict):
        assert "error" in result
        with pytest.raises(WireError):
            decode_whole(data, read)
    else:
        assert decode_whole(data, read) == of(result)


@pytest.mark.parametrize("vector", entries({"VersionRange text"}), ids=named)
def test_version_range_text(vector: dict[str, Any]) -> None:
    assert VersionRange(*vector["value"]).text == vector["text"]
    assert VersionRange.from_text(vector["text"]) == VersionRange(*vector["value"])


@pytest.mark.parametrize("vector", entries({"VersionRange text parse"}), ids=named)
def test_version_range_text_parse(vector: dict[str, Any]) -> None:
    if isinstance(vector["result"], dict):
        with pytest.raises(WireError):
            VersionRange.from_text(vector["text"])
    else:
        assert VersionRange.from_text(vector["text"]) == VersionRange(*vector["result"])


@pytest.mark.parametrize("vector", entries({"compatible range"}), ids=named)
def test_agreed_version(vector: dict[str, Any]) -> None:
    first, second = VersionRange(*vector["a"]), VersionRange(*vector["b"])
    assert first.agreed(second) == second.agreed(first) == vector["agreed"]


@pytest.mark.parametrize("vector", entries({"BasicAuth accepted bytes"}), ids=named)
def test_bytes_of_passwords(vector: dict[str, Any]) -> None:
    assert bytes(sorted(PASSWORD_BYTES)).hex() == vector["bytes"]
    for byte in range(256):
        if byte in PASSWORD_BYTES:
            assert decode_whole(bytes((1, byte)), read_password) == bytes((byte,))
        else:
            with pytest.raises(WireError):
                decode_whole(bytes((1, byte)), read_password)


@pytest.mark.parametrize("vector", entries({"text: ByteString"}), ids=named)
def test_base64(vector: dict[str, Any]) -> None:
    assert b64(bytes.fromhex(vector["value"])) == vector["text"]


@pytest.mark.parametrize("vector", entries({"text: ByteString parse"}), ids=named)
def test_base64_parse(vector: dict[str, Any]) -> None:
    """Our reader is the one inside larger texts, which refuses the empty string."""
    inside = vector["as part of another string (EntityId in a pair)"]
    if isinstance(inside, dict):
        with pytest.raises(WireError):
            unb64(vector["text"])
    else:
        assert unb64(vector["text"]).hex() == inside[0] == vector["strDecode"]


@pytest.mark.parametrize("vector", entries({"text: time"}), ids=named)
def test_time_texts(vector: dict[str, Any]) -> None:
    nanoseconds = 1641032645 * 10**9
    if vector["name"] == "SystemTime":
        assert int(vector["text"]) * 10**9 == nanoseconds
        return
    assert vector["name"] == "UTCTime"
    info = QueueInfo(False, False, None, 1, MessageInfo(b"", nanoseconds + 10**9 // 2, MessageType.MESSAGE))
    data = queue_info_to_json(info)
    assert f'"msgTs":"{vector["text"]}"'.encode() in data
    assert queue_info_from_json(data) == info
