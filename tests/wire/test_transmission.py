"""The layout of a transmission, for protocols that send the session id and for those that do not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.transmissions import parse_request
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.transmission import (
    AUTHORIZATION_SIZES,
    AuthorizationLengthError,
    Layout,
    SessionMismatchError,
    authorized_bytes,
    check_authorization,
    start_response,
    start_signed,
    transmission_of,
)
from tests.support.wire.taken_apart import read_transmission

LAYOUTS = [
    Layout(b"session", session_sent, service_field)
    for session_sent in (False, True)
    for service_field in (False, True)
]
short = st.binary(max_size=255)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40)
@given(
    corr_id=short,
    entity_id=short,
    command=st.binary(max_size=50),
    authorization=st.binary(max_size=120),
    signature=st.one_of(st.none(), st.binary(min_size=64, max_size=64)),
)
def test_round_trip(
    layout: Layout,
    corr_id: bytes,
    entity_id: bytes,
    command: bytes,
    authorization: bytes,
    signature: bytes | None,
) -> None:
    if not authorization or not layout.service_field:
        signature = None
    signed = start_signed(corr_id, entity_id).raw(command)
    data = transmission_of(layout, signed, authorization, signature).done()
    read = read_transmission(Reader(data), layout)
    assert (read.authorization, read.service_signature) == (authorization, signature)
    assert (read.corr_id, read.entity_id) == (corr_id, entity_id)
    assert read.signed == signed.done()
    assert read.authorized(layout) == authorized_bytes(layout, signed) == b"\x07session" + signed.done()
    assert read.command.rest() == command


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fields_by_layout(layout: Layout) -> None:
    signed = start_signed(b"c", b"e").raw(b"CMD")
    expected = (
        b"\x02au" + b"0" * layout.service_field + b"\x07session" * layout.session_sent + b"\x01c\x01eCMD"
    )
    assert transmission_of(layout, signed, b"au").done() == expected
    bare = b"\0" + b"\x07session" * layout.session_sent + b"\x01c\x01eCMD"
    assert transmission_of(layout, signed).done() == bare
    assert start_response(layout, b"c", b"e").raw(b"CMD").done() == bare


def test_another_session_is_reported_with_the_correlation_id() -> None:
    layout = Layout(b"session", session_sent=True, service_field=False)
    foreign = Layout(b"foreign", session_sent=True, service_field=False)
    data = transmission_of(foreign, start_signed(b"corr", b"e")).done()
    with pytest.raises(SessionMismatchError) as error:
        read_transmission(Reader(data), layout)
    assert error.value.corr_id == b"corr"


@pytest.mark.parametrize("size", range(256))
def test_lengths_of_authorizations(size: int) -> None:
    layout = LAYOUTS[0]
    data = transmission_of(layout, start_signed(b"corr", b"e"), bytes(size)).done()
    transmission = read_transmission(Reader(data), layout)
    assert {0, 64, 80, 114} == AUTHORIZATION_SIZES
    if size in AUTHORIZATION_SIZES:
        check_authorization(transmission.authorization, transmission.corr_id)
    else:
        with pytest.raises(AuthorizationLengthError) as error:
            check_authorization(transmission.authorization, transmission.corr_id)
        assert error.value.corr_id == b"corr"


@pytest.mark.parametrize("size", [0, 63, 65, 114])
def test_length_of_a_service_signature(size: int) -> None:
    layout = Layout(b"", session_sent=False, service_field=True)
    data = transmission_of(layout, start_signed(b"c", b"e"), b"a", bytes(size)).done()
    with pytest.raises(WireError):
        read_transmission(Reader(data), layout)


def test_ids_that_are_too_long_are_not_written() -> None:
    for ids in ((bytes(256), b""), (b"", bytes(256))):
        with pytest.raises(WireError):
            start_signed(*ids)
        with pytest.raises(WireError):
            start_response(LAYOUTS[0], *ids)
    with pytest.raises(WireError):
        transmission_of(LAYOUTS[0], Writer(), bytes(256))


def test_a_request_prints_no_bytes() -> None:
    data = transmission_of(LAYOUTS[0], start_signed(b"corr-id", b"entity").raw(b"SUB"), bytes(64)).done()
    shown = repr(parse_request(Reader(data), LAYOUTS[0], SMP_VERSIONS.high))
    assert "corr-id" not in shown
    assert shown == (
        "Request(corr_id=<7 bytes>, entity_id=<6 bytes>, command=SUB(), authorization=<64 bytes>, "
        "service_signature=None, signed=<18 bytes>)"
    )
