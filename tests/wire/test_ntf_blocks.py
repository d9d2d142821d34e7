"""Blocks of the notification protocol: required signatures and entities, batches, hellos, errors."""

from __future__ import annotations

import pytest

from blindpost.wire.batch import batch_of_one, padded
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.blocks import pack_transmissions, unpack_payload
from blindpost.wire.ntf.commands import (
    PING,
    SCHK,
    SNEW,
    TCHK,
    TNEW,
    Command,
)
from blindpost.wire.ntf.handshake import ServerHello, read_client_hello, read_server_hello
from blindpost.wire.ntf.responses import ERR, IDSUB, IDTKN, OK, PONG, SUB, TKN, Response
from blindpost.wire.ntf.status import (
    SubState,
    SubStatus,
    TokenState,
    TokenStatus,
)
from blindpost.wire.ntf.transmissions import Received, Request, parse_requests, parse_responses
from blindpost.wire.ntf.versions import LEGACY_VERSIONS, NTF_VERSIONS, offered_versions
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.errors import (
    CMD,
    HAS_AUTH,
    NO_AUTH,
    NO_ENTITY,
    UNKNOWN_COMMAND,
    Code,
)
from blindpost.wire.transmission import Layout, transmission_of
from blindpost.wire.transmissions import BAD_BLOCK, Refused, response_transmission, signed_request
from blindpost.wire.versions import VersionRange
from tests.support.wire.blocks import payload_reader
from tests.support.wire.ntf_samples import (
    COMMANDS,
    CORR_ID,
    DH_KEY,
    ENTITY_ID,
    SIGNATURE,
    layout_of,
    parsed,
    sent,
)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.TAG.decode())
def test_credentials(command: Command, version: int) -> None:
    """A request must have exactly the combination of authorization and entity that its command needs."""
    if isinstance(command, TNEW | SNEW):
        errors = {
            (False, False): NO_AUTH,
            (False, True): NO_AUTH,
            (True, False): None,
            (True, True): HAS_AUTH,
        }
    elif isinstance(command, PING):
        errors = {
            (False, False): None,
            (False, True): HAS_AUTH,
            (True, False): HAS_AUTH,
            (True, True): HAS_AUTH,
        }
    else:
        errors = {(False, False): NO_AUTH, (False, True): NO_AUTH, (True, False): NO_AUTH, (True, True): None}
    for (authorized, with_entity), error in errors.items():
        entity_id = ENTITY_ID if with_entity else b""
        found = parsed(sent(command, SIGNATURE if authorized else b"", entity_id, version), version)
        if error is None:
            assert isinstance(found, Request)
            assert (found.command, found.corr_id, found.entity_id) == (command, CORR_ID, entity_id)
        else:
            assert found == Refused(CORR_ID, entity_id, error)


@pytest.mark.parametrize(
    ("response", "without", "given"),
    [
        (IDTKN(ENTITY_ID, DH_KEY), None, HAS_AUTH),
        (IDSUB(ENTITY_ID), None, HAS_AUTH),
        (PONG(), None, HAS_AUTH),
        (ERR(Code.AUTH), None, None),
        (OK(), NO_ENTITY, None),
        (TKN(TokenStatus(TokenState.ACTIVE)), NO_ENTITY, None),
        (SUB(SubStatus(SubState.ACTIVE)), NO_ENTITY, None),
    ],
)
def test_entities_of_responses(response: Response, without: CMD | None, given: CMD | None) -> None:
    for entity_id, error in ((b"", without), (ENTITY_ID, given)):
        reply = response_transmission(layout_of(3), 3, CORR_ID, entity_id, response)
        (found,) = parse_responses(Reader(batch_of_one(reply).done()), layout_of(3), 3)
        expected = (
            Received(CORR_ID, entity_id, response) if error is None else Refused(CORR_ID, entity_id, error)
        )
        assert found == expected


def test_a_bad_transmission_does_not_affect_its_neighbours() -> None:
    good = sent(TCHK(), SIGNATURE, ENTITY_ID).done()
    unknown = b"\0\x01a\x01bWHAT"
    bad_length = b"\x3f" + bytes(63) + b"\x01a\x01bTCHK"
    batch = Writer().u8(5)
    for item in (good, b"\0\x18short", unknown, bad_length, good):
        batch.large(item)
    first, *middle, last = parse_requests(Reader(batch.done()), layout_of(3), 3)
    assert isinstance(first, Request)
    assert first == last
    assert middle == [BAD_BLOCK, Refused(b"a", b"b", UNKNOWN_COMMAND), Refused(b"a", b"", Code.BLOCK)]


@pytest.mark.parametrize("payload", [b"", b"\0", b"\x01", b"\x01\0\x05abc", b"\x01\0\x01ax", b"\x02\0\x01a"])
def test_a_bad_batch_is_one_bad_block(payload: bytes) -> None:
    assert parse_requests(Reader(payload), layout_of(2), 2) == [BAD_BLOCK]
    assert parse_responses(Reader(payload), layout_of(2), 2) == [BAD_BLOCK]


def test_version_1_names_its_session() -> None:
    other = Layout(b"other", session_sent=True, service_field=False)
    signed = signed_request(CORR_ID, ENTITY_ID, TCHK(), 1)
    payload = transmission_of(other, signed, SIGNATURE).done()
    assert parse_requests(Reader(payload), layout_of(1), 1) == [Refused(CORR_ID, b"", Code.SESSION)]
    reply = response_transmission(other, 1, CORR_ID, ENTITY_ID, OK()).done()
    assert parse_responses(Reader(reply), layout_of(1), 1) == [Refused(CORR_ID, b"", Code.SESSION)]
    assert isinstance(parse_requests(Reader(payload), other, 1)[0], Request)


def sized(size: int) -> Writer:
    return Writer().raw(bytes((size % 251,)) * size)


def packed_sizes(sizes: list[int], version: int) -> tuple[list[list[int]], tuple[int, ...]]:
    """The sizes of transmissions in each payload, and the places of those that fit nowhere."""
    packed = pack_transmissions([sized(size) for size in sizes], version)
    blocks = []
    for payload in packed.payloads:
        block = padded(payload, 512)
        assert len(block) == 512
        readers = unpack_payload(payload_reader(block), version)
        blocks.append([reader.remaining for reader in readers])
    return blocks, packed.oversize


def test_a_batch_holds_493_bytes_and_a_single_transmission_507() -> None:
    assert packed_sizes([], 3) == ([], ())
    assert packed_sizes([491], 3) == ([[491]], ())
    assert packed_sizes([100, 200, 187], 3) == ([[100, 200, 187]], ()), "2 + 100 + 2 + 200 + 2 + 187 is 493"
    assert packed_sizes([100, 200, 188], 3) == ([[100], [200, 188]], ())
    assert packed_sizes([1, 492, 2, 507, 3], 3) == ([[1], [492], [2], [507], [3]], ())
    assert packed_sizes([1, 508, 2], 3) == ([[1, 2]], (1,))


def test_version_1_sends_one_transmission_per_block() -> None:
    assert packed_sizes([1, 510, 511, 2], 1) == ([[1], [510], [2]], (2,))


def test_four_checks_or_eight_oks_share_a_block() -> None:
    checks = [sent(SCHK(), SIGNATURE, ENTITY_ID)] * 5
    oks = [response_transmission(layout_of(3), 3, CORR_ID, ENTITY_ID, OK())] * 9
    assert [payload.parts[0] for payload in pack_transmissions(checks, 3).payloads] == [b"\x01", b"\x04"]
    assert [payload.parts[0] for payload in pack_transmissions(oks, 3).payloads] == [b"\x01", b"\x08"]


def test_versions_offered_depend_on_the_protocol_name() -> None:
    assert (
        offered_versions(NTF_VERSIONS, b"ntf/1")
        == offered_versions(NTF_VERSIONS, b"h2")
        == VersionRange(1, 3)
    )
    assert offered_versions(NTF_VERSIONS, None) == LEGACY_VERSIONS == VersionRange(1, 1)
    agreed = {high: NTF_VERSIONS.agreed(VersionRange(1, high)) for high in (1, 2, 3, 9)}
    assert agreed == {1: 1, 2: 2, 3: 3, 9: 3}
    assert NTF_VERSIONS.agreed(VersionRange(4, 5)) is None


def test_hellos_ignore_what_later_versions_add() -> None:
    content = b"\0\x01\0\x01\x04sess"
    hello = ServerHello(VersionRange(1, 1), b"sess", None)
    assert read_server_hello(Reader(content)) == hello
    assert read_server_hello(Reader(content + b"more")) == hello
    assert read_client_hello(Reader(b"\0\x03\x02khmore")).key_hash == b"kh"


def test_a_hello_has_a_signed_key_from_version_2_on() -> None:
    with pytest.raises(WireError):
        ServerHello(VersionRange(1, 2), b"", None)
    with pytest.raises(WireError):
        read_server_hello(Reader(b"\0\x01\0\x03\x04sess"))
