"""The encodings of short-link data, with their room for later versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from blindpost.wire.errors import WireError
from blindpost.wire.links.data import (
    ContactLinkData,
    FixedLinkData,
    InvitationLinkData,
    OwnerAuth,
    Signed,
    UserLinkData,
    read_fixed_link_data,
    read_owner_auth,
    read_signed,
    read_user_link_data,
    write_fixed_link_data,
    write_owner_auth,
    write_signed,
    write_user_link_data,
)
from blindpost.wire.primitives import decode_whole, encode
from blindpost.wire.versions import VersionRange
from tests.support.wire import agent_strategies as some
from tests.support.wire import agent_values as build
from tests.support.wire.hostile import calls_made, changed_everywhere, memory_peak, truncated_everywhere
from tests.support.wire.long_values import ramp
from tests.support.wire.vectors import named, vectors

LINK_DATA = vectors("links.json", "link_data")
OWNERS = vectors("links.json", "owner_auth")
USER_DATA = vectors("links.json", "user_data")
VERSIONS = VersionRange(2, 7)


@pytest.mark.parametrize("vector", LINK_DATA, ids=named)
def test_link_data(vector: dict[str, Any]) -> None:
    fixed = bytes.fromhex(vector["fixedData"])
    assert encode(decode_whole(fixed, read_fixed_link_data), write_fixed_link_data) == fixed
    user = bytes.fromhex(vector["userData_encoded"])
    assert encode(decode_whole(user, read_user_link_data), write_user_link_data) == user
    for name in ("signed_fixedData", "signed_userData"):
        data = bytes.fromhex(vector[name])
        both = decode_whole(data, read_signed)
        assert data == bytes([64]) + both.signature + bytes(both.content)
        assert encode(both, write_signed) == data
    assert decode_whole(bytes.fromhex(vector["signed_fixedData"]), read_signed).content == fixed
    assert decode_whole(bytes.fromhex(vector["signed_userData"]), read_signed).content == user
    if "error" not in vector["decrypted"]:
        check_content(fixed, user, vector["decrypted"])


def check_content(fixed: bytes, user: bytes, expected: dict[str, Any]) -> None:
    entity = expected["linkEntityId"]
    read_fixed = decode_whole(fixed, read_fixed_link_data)
    assert read_fixed.entity_id == (None if entity is None else bytes.fromhex(entity))
    assert read_fixed.agent_versions == VersionRange(expected["agent_min"], expected["agent_max"])
    read_user = decode_whole(user, read_user_link_data)
    assert read_user.user_data == bytes.fromhex(expected["userData"])
    assert read_user.agent_versions == VersionRange(expected["agent_min"], expected["agent_max"])


@pytest.mark.parametrize("vector", OWNERS, ids=named)
def test_owners(vector: dict[str, Any]) -> None:
    owner = OwnerAuth(
        bytes.fromhex(vector["ownerId"]), build.key(vector["ownerKey"]), bytes.fromhex(vector["signature"])
    )
    assert encode(owner, write_owner_auth).hex() == vector["bytes"]
    assert decode_whole(bytes.fromhex(vector["bytes"]), read_owner_auth) == owner
    assert owner.signed_bytes.hex() == vector["signed_bytes"]


@pytest.mark.parametrize("vector", USER_DATA, ids=named)
def test_user_data_of_every_length(vector: dict[str, Any]) -> None:
    content = ramp(0, vector["length"])
    data = encode(InvitationLinkData(VERSIONS, content), write_user_link_data)
    assert data.hex() == "4900020007" + vector["bytes"]
    read_back = decode_whole(data, read_user_link_data)
    assert read_back == InvitationLinkData(VERSIONS, content)


FIXED = bytes.fromhex(LINK_DATA[0]["fixedData"])


@pytest.mark.parametrize(
    ("tail", "entity_id"),
    [
        (b"", None),
        (b"\x00", b""),
        (b"\x03abc", b"abc"),
        (b"\x03abcdef", b"abc"),
        (b"\x03ab", None),
        (b"\xff", None),
    ],
)
def test_an_incomplete_entity_id_is_left_to_later_versions(tail: bytes, entity_id: bytes | None) -> None:
    assert decode_whole(FIXED + tail, read_fixed_link_data).entity_id == entity_id


def test_bytes_of_later_versions_are_ignored() -> None:
    for vector in LINK_DATA:
        user = bytes.fromhex(vector["userData_encoded"])
        assert decode_whole(user + b"later", read_user_link_data) == decode_whole(user, read_user_link_data)
    owner = bytes.fromhex(OWNERS[0]["bytes"])
    longer = bytes([owner[0] + 5]) + owner[1:] + b"later"
    assert decode_whole(longer, read_owner_auth) == decode_whole(owner, read_owner_auth)
    with pytest.raises(WireError):
        decode_whole(owner + b"later", read_owner_auth)


def test_signatures_have_64_bytes() -> None:
    owner = decode_whole(bytes.fromhex(OWNERS[0]["bytes"]), read_owner_auth)
    for size in (0, 63, 65, 114):
        with pytest.raises(WireError):
            encode(Signed(bytes(size), b""), write_signed)
        with pytest.raises(WireError):
            decode_whole(bytes([size]) + bytes(size), read_signed)
        with pytest.raises(WireError):
            encode(OwnerAuth(b"", owner.owner_key, bytes(size)), write_owner_auth)


@pytest.mark.parametrize("tag", sorted(set(range(256)) - set(b"IC")))
def test_unknown_kinds_of_user_data(tag: int) -> None:
    user = bytes.fromhex(LINK_DATA[0]["userData_encoded"])
    with pytest.raises(WireError):
        decode_whole(bytes([tag]) + user[1:], read_user_link_data)


@given(some.fixed_link_data)
def test_fixed_data_round_trips(data: FixedLinkData) -> None:
    assert decode_whole(encode(data, write_fixed_link_data), read_fixed_link_data) == data


@given(some.user_link_data)
def test_user_data_round_trips(data: UserLinkData) -> None:
    assert decode_whole(encode(data, write_user_link_data), read_user_link_data) == data


@given(some.signed)
def test_signed_round_trips(value: Signed) -> None:
    assert decode_whole(encode(value, write_signed), read_signed) == value


@pytest.mark.parametrize("vector", LINK_DATA, ids=named)
def test_data_cut_and_changed(vector: dict[str, Any]) -> None:
    fixed, user = bytes.fromhex(vector["fixedData"]), bytes.fromhex(vector["userData_encoded"])
    truncated_everywhere(lambda cut: decode_whole(cut, read_fixed_link_data), fixed)
    changed_everywhere(lambda changed: decode_whole(changed, read_fixed_link_data), fixed, vector["name"])
    assert truncated_everywhere(lambda cut: decode_whole(cut, read_user_link_data), user) == 0
    changed_everywhere(lambda changed: decode_whole(changed, read_user_link_data), user, vector["name"])


def test_cost_of_the_longest_lists_is_linear() -> None:
    """As many owners and relays as their counts allow, in data larger than any blob."""
    owner = decode_whole(bytes.fromhex(OWNERS[0]["bytes"]), read_owner_auth)
    full = next(vector for vector in LINK_DATA if vector["name"] == "contact, owners and relays")
    relays = decode_whole(bytes.fromhex(full["userData_encoded"]), read_user_link_data)
    assert isinstance(relays, ContactLinkData)
    assert relays.relays

    def data(count: int) -> bytes:
        listed = ContactLinkData(VERSIONS, True, (owner,) * count, relays.relays[:1] * count, b"")
        return encode(listed, write_user_link_data)

    def decode(raw: bytes) -> object:
        return decode_whole(raw, read_user_link_data)

    assert calls_made(decode, data(250)) <= 2.1 * calls_made(decode, data(125)) + 50
    assert memory_peak(decode, data(250)) < 40 * len(data(250))
