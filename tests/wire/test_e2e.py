"""Parameters of the key agreement and ratchet messages: round trips, version rules, hostile bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.e2e import (
    E2E_VERSIONS,
    E2EParams,
    E2EParamsUri,
    EncryptedHeader,
    KemAccepted,
    KemParams,
    KemProposed,
    RatchetHeader,
    RatchetMessage,
    read_e2e_params,
    read_e2e_uri,
    read_encrypted_header,
    read_proposed_e2e_params,
    read_ratchet_header,
    read_ratchet_message,
    write_e2e_params,
    write_e2e_uri,
    write_encrypted_header,
    write_ratchet_header,
    write_ratchet_message,
)
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.text import b64, read_query, ub64
from blindpost.wire.versions import VersionRange, read_version_range, write_version_range
from tests.support.wire.hostile import calls_made, changed_everywhere, memory_peak, truncated_everywhere
from tests.support.wire.vectors import vectors

KEY1 = PublicKey(Algorithm.X448, bytes(range(56)))
KEY2 = PublicKey(Algorithm.X448, bytes(range(56, 112)))
PROPOSED = KemProposed(bytes(i % 256 for i in range(1158)))
ACCEPTED = KemAccepted(bytes(7 + i % 249 for i in range(1039)), PROPOSED.public_key)
KEMS: tuple[KemParams | None, ...] = (None, PROPOSED, ACCEPTED)

x448_keys = st.binary(min_size=56, max_size=56).map(lambda raw: PublicKey(Algorithm.X448, raw))
proposed = st.binary(min_size=32, max_size=32).map(lambda seed: KemProposed((seed * 37)[:1158]))
accepted = st.tuples(st.binary(min_size=32, max_size=32), proposed).map(
    lambda made: KemAccepted((made[0] * 33)[:1039], made[1].public_key)
)
kems = st.none() | proposed | accepted
ranges = st.tuples(st.integers(0, 65535), st.integers(0, 65535)).map(
    lambda ends: VersionRange(min(ends), max(ends))
)
u32 = st.integers(0, 2**32 - 1)


@given(st.integers(0, 2), x448_keys, x448_keys, kems)
def test_parameters_below_version_3_have_no_kem(
    version: int, key1: PublicKey, key2: PublicKey, kem: KemParams | None
) -> None:
    data = encode(E2EParams(version, key1, key2, kem), write_e2e_params)
    assert len(data) == 2 + 69 + 69
    assert decode_whole(data, read_e2e_params) == E2EParams(version, key1, key2)


@given(st.integers(3, 65535), x448_keys, x448_keys, kems)
def test_parameters_from_version_3(
    version: int, key1: PublicKey, key2: PublicKey, kem: KemParams | None
) -> None:
    params = E2EParams(version, key1, key2, kem)
    data = encode(params, write_e2e_params)
    assert decode_whole(data, read_e2e_params) == params
    if isinstance(kem, KemAccepted):
        with pytest.raises(WireError):
            decode_whole(data, read_proposed_e2e_params)
    else:
        assert decode_whole(data, read_proposed_e2e_params) == params


@given(ranges, x448_keys, x448_keys, st.none() | proposed)
def test_link_parameters(
    versions: VersionRange, key1: PublicKey, key2: PublicKey, kem: KemProposed | None
) -> None:
    params = E2EParamsUri(versions, key1, key2, kem)
    data = encode(params, write_e2e_uri)
    assert decode_whole(data, read_e2e_uri) == params
    written = E2EParamsUri(versions, key1, key2, kem if versions.high >= 3 else None)
    assert E2EParamsUri.from_text(params.text) == written
    assert params.at(versions.high) == E2EParams(versions.high, key1, key2, kem)


def test_link_parameters_cannot_accept_a_kem() -> None:
    writer = Writer()
    write_version_range(writer, E2E_VERSIONS)
    writer.short(KEY1.spki).short(KEY2.spki).raw(b"1A")
    writer.large(ACCEPTED.ciphertext).large(ACCEPTED.public_key)
    with pytest.raises(WireError):
        decode_whole(writer.done(), read_e2e_uri)


def test_text_as_in_links() -> None:
    params = E2EParamsUri(E2E_VERSIONS, KEY1, KEY2, PROPOSED)
    keys = f"x3dh={b64(KEY1.spki)},{b64(KEY2.spki)}"
    assert params.text == f"v=2-3&{keys}&kem_key={b64(PROPOSED.public_key)}"
    assert E2EParamsUri(VersionRange(2, 2), KEY1, KEY2, PROPOSED).text == f"v=2&{keys}"


KEYS = f"x3dh={b64(KEY1.spki)},{b64(KEY2.spki)}"
KEM_KEY = f"kem_key={b64(PROPOSED.public_key)}"
KEM_CT = f"kem_ct={b64(ACCEPTED.ciphertext)}"
PLAIN = E2EParamsUri(E2E_VERSIONS, KEY1, KEY2)
WITH_KEM = E2EParamsUri(E2E_VERSIONS, KEY1, KEY2, PROPOSED)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        (f"v=2-3&{KEYS}", PLAIN),
        (f"{KEYS}&v=2-3", PLAIN),
        (f"x=1;v=2-3;{KEYS};y", PLAIN),
        (f"v=2-3&v=9&{KEYS}", PLAIN),
        (f"v=2-3&x3dh={ub64(KEY1.spki)},{ub64(KEY2.spki)}", PLAIN),
        (f"v=2-3&{KEYS.replace(',', '%2C').replace('==', '%3D%3D')}", PLAIN),
        (f"v=2-3&{KEYS}&{KEM_KEY}", WITH_KEM),
        (f"{KEM_KEY}&v=2-3&{KEYS}", WITH_KEM),
        (f"v=2-3&{KEYS}&{KEM_CT}", PLAIN),
        (f"v=2&{KEYS}&{KEM_KEY}", E2EParamsUri(VersionRange(2, 2), KEY1, KEY2)),
        (f"v=2&{KEYS}&{KEM_KEY}&{KEM_CT}", E2EParamsUri(VersionRange(2, 2), KEY1, KEY2)),
        (f"v=4&{KEYS}", E2EParamsUri(VersionRange(4, 4), KEY1, KEY2)),
    ],
)
def test_texts_that_are_read(text: str, params: E2EParamsUri) -> None:
    assert E2EParamsUri.from_text(text) == params


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v=2-3",
        KEYS,
        f"v=&{KEYS}",
        f"v=3-2&{KEYS}",
        f"v=65536&{KEYS}",
        f"v=2-3 &{KEYS}",
        f"v=2-3&{KEYS}\n",
        f"v=2-3&x3dh={b64(KEY1.spki)}",
        f"v=2-3&{KEYS},{b64(KEY1.spki)}",
        f"v=2-3&x3dh={b64(KEY1.spki)},",
        f"v=2-3&x3dh={b64(KEY1.spki)},{b64(PublicKey(Algorithm.X25519, bytes(32)).spki)}",
        f"v=2-3&x3dh={b64(KEY1.spki)},{b64(KEY2.spki + bytes(300))}",
        f"v=2-3&{KEYS}&{KEM_KEY}&{KEM_CT}",
        f"v=2-3&{KEYS}&kem_key={b64(bytes(1157))}",
        f"v=2-3&{KEYS}&kem_key={b64(bytes(1159))}",
        f"v=2-3&{KEYS}&kem_key=",
        f"v=2-3&{KEYS}&kem_key=%FF",
    ],
)
def test_texts_that_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        E2EParamsUri.from_text(text)


@pytest.mark.parametrize("size", [0, 1, 1157, 1159])
def test_kem_keys_of_wrong_length(size: int) -> None:
    with pytest.raises(WireError):
        KemProposed(bytes(size))
    with pytest.raises(WireError):
        KemAccepted(ACCEPTED.ciphertext, bytes(size))
    head = encode(E2EParams(3, KEY1, KEY2), write_e2e_params)[:-1]
    for start in (b"1P", b"1A" + Writer().large(ACCEPTED.ciphertext).done()):
        with pytest.raises(WireError):
            decode_whole(head + start + Writer().large(bytes(size)).done(), read_e2e_params)


@pytest.mark.parametrize("size", [0, 1038, 1040])
def test_kem_ciphertexts_of_wrong_length(size: int) -> None:
    with pytest.raises(WireError):
        KemAccepted(bytes(size), PROPOSED.public_key)


@given(x448_keys, kems, st.integers(0, 65535), u32, u32, st.integers(0, 65535), st.binary(max_size=20))
def test_headers(
    key: PublicKey,
    kem: KemParams | None,
    max_version: int,
    previous_count: int,
    number: int,
    version: int,
    extra: bytes,
) -> None:
    header = RatchetHeader(max_version, key, kem if version >= 3 else None, previous_count, number)
    writer = Writer()
    write_ratchet_header(writer, header, version)
    data = writer.done()
    sizes = {type(None): 80, KemProposed: 1241, KemAccepted: 2282}
    assert len(data) == (sizes[type(header.kem)] if version >= 3 else 79)
    reader = Reader(data + extra)
    assert read_ratchet_header(reader, version) == header
    assert reader.remaining == len(extra)


@given(st.integers(0, 65535), st.binary(min_size=32, max_size=255), st.binary(max_size=60))
def test_messages_of_both_length_forms(version: int, ciphertext: bytes, body: bytes) -> None:
    sealed = EncryptedHeader(version, bytes(16), bytes(range(16)), ciphertext)
    encoded = encode(sealed, write_encrypted_header)
    assert len(encoded) == 34 + (2 if version >= 3 else 1) + len(ciphertext)
    assert decode_whole(encoded, read_encrypted_header) == sealed
    message = RatchetMessage(encoded[:200], bytes(range(16)), body)
    for form in (2, 3):
        writer = Writer()
        write_ratchet_message(writer, message, form)
        data = writer.done()
        assert len(data) == (1 if form == 2 else 2) + len(message.encoded_header) + 16 + len(body)
        assert decode_whole(data, read_ratchet_message) == message


def test_boundary_between_the_length_forms() -> None:
    """A first byte below 32 is half of a two-byte length."""
    assert bytes(decode_whole(b"\x1f\xff" + bytes(8191 + 16), read_ratchet_message).encoded_header) == bytes(
        8191
    )
    assert len(decode_whole(b"\x20" + bytes(32 + 16), read_ratchet_message).encoded_header) == 32
    with pytest.raises(WireError):
        decode_whole(b"\x1f" + bytes(31 + 16), read_ratchet_message)
    with pytest.raises(WireError):
        decode_whole(b"", read_ratchet_message)


SAMPLES: dict[str, tuple[Any, bytes]] = {
    f"params {version} {number}": (
        lambda data: decode_whole(data, read_e2e_params),
        encode(E2EParams(version, KEY1, KEY2, kem), write_e2e_params),
    )
    for version in (2, 3)
    for number, kem in enumerate(KEMS)
}
SAMPLES["link"] = (lambda data: decode_whole(data, read_e2e_uri), encode(WITH_KEM, write_e2e_uri))
SAMPLES["message"] = (
    lambda data: decode_whole(decode_whole(data, read_ratchet_message).encoded_header, read_encrypted_header),
    bytes.fromhex(
        next(entry for entry in vectors("doc_golden.json") if entry["name"] == "first message v3")["bytes"]
    ),
)
for entry in vectors("ratchet.json", "header"):
    SAMPLES[f"header {entry['name']}"] = (
        lambda data, version=entry["current_version"]: read_ratchet_header(Reader(data), version),
        bytes.fromhex(entry["bytes"]),
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_parameters_and_messages_cut_or_changed_anywhere(name: str) -> None:
    decode, good = SAMPLES[name]
    decode(good)
    whole = truncated_everywhere(decode, good)
    assert whole == 0 or name == "message"
    changed_everywhere(decode, good, name)


def test_cost_does_not_grow_with_hostile_lengths() -> None:
    def decode(data: bytes) -> object:
        return decode_whole(data, read_e2e_params)

    head = encode(E2EParams(3, KEY1, KEY2), write_e2e_params)[:-1]
    announced = head + b"1P" + b"\xff\xff" + bytes(65535)
    assert calls_made(decode, announced) <= calls_made(decode, encode_with(PROPOSED)) + 10
    assert memory_peak(decode, announced) < 200_000


def encode_with(kem: KemParams) -> bytes:
    return encode(E2EParams(3, KEY1, KEY2, kem), write_e2e_params)


def test_cost_of_a_query_depends_only_on_its_length() -> None:
    def decode(data: bytes) -> object:
        return E2EParamsUri.from_text(data.decode())

    assert calls_made(decode, b"&" * 2000) <= 12 * 2000 + 100
    assert calls_made(decode, b"%" * 2000) <= 2 * calls_made(decode, b"%" * 1000) + 100
    assert memory_peak(decode, b"a=b&" * 1000) < 2_000_000


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("", {"": ""}),
        ("a=1&b=2;c=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1&a=2", {"a": "1"}),
        ("a=x+y%20z%2B", {"a": "x y z+"}),
        ("a", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("%61=%zz", {"a": "%zz"}),
        ("a=%C3%A9", {"a": "\u00e9"}),
        ("a=%FF", {"a": "\udcff"}),
    ],
)
def test_queries(text: str, parameters: dict[str, str]) -> None:
    assert read_query(text) == parameters


@given(ranges, ranges)
def test_version_ranges(first: VersionRange, second: VersionRange) -> None:
    assert decode_whole(encode(first, write_version_range), read_version_range) == first
    assert VersionRange.from_text(first.text) == first
    agreed = first.agreed(second)
    assert agreed == second.agreed(first)
    if agreed is None:
        assert first.high < second.low or second.high < first.low
    else:
        assert agreed in first
        assert agreed in second
        assert (agreed + 1 not in first) or (agreed + 1 not in second)


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-1", "2-1", "1-2-3", "1 ", "+1", "65536", "1-65536", "\u0661"]
)
def test_version_ranges_that_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        VersionRange.from_text(text)


def test_version_range_in_the_wrong_order() -> None:
    with pytest.raises(WireError):
        decode_whole(b"\0\2\0\1", read_version_range)
    assert VersionRange.from_text("3").text == "3"
    assert VersionRange.from_text("3-3").text == "3"
