"""Cap'n Proto by hand: every call and result round-trips, and bad pointers are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.capnp.building import Builder, StructBuilder
from blindpost.wire.capnp.framing import Framer
from blindpost.wire.capnp.node import (
    ACK_IDS_MAX,
    METHODS,
    Ack,
    Auth,
    Deliveries,
    Delivery,
    Done,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    FetchWait,
    Fingerprint,
    KeyPackage,
    Lease,
    Payloads,
    Request,
    Result,
    UploadKeyPackage,
    read_request,
    read_result,
    write_request,
    write_result,
)
from blindpost.wire.capnp.structs import Message, Struct
from blindpost.wire.errors import WireError
from tests.support.wire.hostile import calls_made

datas = st.binary(max_size=50)
u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
auths = st.builds(Auth, u16, datas, datas)
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(UploadKeyPackage, datas, datas, auths),
    st.builds(FetchKeyPackage, datas, auths),
    st.builds(Enqueue, datas, datas, datas, u16, auths),
    st.builds(Fetch, datas, datas, u16, auths),
    st.builds(FetchWait, datas, datas, u16, u64, auths),
    st.builds(Lease, datas, datas, u16, u64, u32, u32, auths),
    st.builds(Ack, datas, datas, u16, st.lists(datas, max_size=5).map(tuple), auths),
)
results: st.SearchStrategy[tuple[int, Result]] = st.one_of(
    st.tuples(st.just(0), st.builds(Fingerprint, datas)),
    st.tuples(st.just(1), st.builds(KeyPackage, datas)),
    st.tuples(st.sampled_from([2, 6]), st.just(Done())),
    st.tuples(st.sampled_from([3, 4]), st.builds(Payloads, st.lists(datas, max_size=5).map(tuple))),
    st.tuples(
        st.just(5),
        st.builds(Deliveries, st.lists(st.builds(Delivery, datas, datas), max_size=5).map(tuple)),
    ),
)


def message(frame: bytes) -> Message:
    framer = Framer(1 << 20)
    framer.feed(frame)
    ((found, _),) = framer.messages()
    return found


def request_frame(request: Request) -> bytes:
    builder = Builder()
    write_request(request)(StructBuilder(builder, 0, 0), 0)
    return builder.framed()


@given(requests)
def test_requests_round_trip(request: Request) -> None:
    ordinal = METHODS.index(type(request))
    assert read_request(ordinal, message(request_frame(request)).root()) == request


@given(results)
def test_results_round_trip(of: tuple[int, Result]) -> None:
    ordinal, result = of
    builder = Builder()
    write_result(result)(StructBuilder(builder, 0, 0), 0)
    assert read_result(ordinal, message(builder.framed()).root()) == result


@given(requests, st.data())
def test_a_changed_request_is_read_or_refused(request: Request, data: st.DataObject) -> None:
    frame = bytearray(request_frame(request))
    frame[data.draw(st.integers(8, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = read_request(METHODS.index(type(request)), message(bytes(frame)).root())
    except WireError:
        return
    assert type(found) is type(request)


def test_fields_that_an_older_struct_does_not_have_are_zero() -> None:
    builder = Builder()
    builder.root(0, 0)
    root = message(builder.framed()).root()
    assert read_request(5, root) == Lease(b"", b"", 0, 0, 0, 0, Auth(0, b"", b""))


def words(*segments: list[int]) -> Message:
    return Message([memoryview(struct.pack(f"<{len(segment)}Q", *segment)) for segment in segments])


FAR, STRUCT_OF_1 = 2, 1 << 32


def test_far_pointers_are_followed() -> None:
    single = words([FAR | 0 << 3 | 1 << 32], [STRUCT_OF_1, 77])
    assert single.root().u64(0) == 77
    double = words([FAR | 4 | 0 << 3 | 1 << 32], [FAR | 0 << 3 | 2 << 32, STRUCT_OF_1], [88])
    assert double.root().u64(0) == 88


@pytest.mark.parametrize(
    "segments",
    [
        [[FAR | 1 << 32]],
        [[FAR | 9 << 3 | 1 << 32], [0]],
        [[FAR | 1 << 32], [FAR | 1 << 32]],
        [[FAR | 4 | 1 << 32], [STRUCT_OF_1, STRUCT_OF_1]],
        [[FAR | 4 | 1 << 32], [FAR | 9 << 32, STRUCT_OF_1]],
        [[5 << 2 | STRUCT_OF_1]],
        [[(-5 & 0x3FFFFFFF) << 2 | STRUCT_OF_1]],
        [[1 | 2 << 32]],
        [[3]],
    ],
)
def test_bad_pointers_are_refused(segments: list[list[int]]) -> None:
    with pytest.raises(WireError):
        words(*segments).root()


def test_a_list_of_structs_must_fit() -> None:
    for tag in (100 << 2 | STRUCT_OF_1, 1, 5 << 2):
        found = words([1 << 48, 1 | 7 << 32 | 2 << 35, tag, 0, 0])
        with pytest.raises(WireError):
            list(Struct(found, 0, 8, 0, 1).structs(0))


def test_cost_of_reading_is_linear() -> None:
    def cost(count: int) -> int:
        frame = request_frame(Ack(b"r" * 32, b"", 1, (b"x" * 16,) * count, Auth()))
        return calls_made(lambda data: read_request(6, message(data).root()), frame)

    assert cost(2000) < 12 * cost(200)


def test_a_message_of_only_null_pointers_is_not_walked() -> None:
    """Eight megabytes of null ids: only as many are read as an answer needs."""
    count = 1_000_000
    body = struct.pack("<QQ", 1 << 32 | 4 << 48, 1) + bytes(16)
    body += struct.pack("<QQ", 1 | 1 << 2 | 6 << 32 | count << 35, 0) + bytes(count * 8)
    frame = struct.pack("<II", 0, len(body) // 8) + body
    framer = Framer(16 << 20)
    framer.feed(frame)
    ((found, _),) = framer.messages()
    request = read_request(6, found.root())
    assert isinstance(request, Ack)
    assert request.ids == (b"",) * (ACK_IDS_MAX + 1)
