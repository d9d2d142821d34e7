"""A client made only from the schema file and the public Cap'n Proto library, and its bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import capnp
import pytest

import blindpost.ds
from blindpost.ds.meters import Meter
from blindpost.ds.model import DS_PORT
from blindpost.ds.streams import client_context
from blindpost.wire.capnp.building import Builder, StructBuilder
from blindpost.wire.capnp.framing import Framer
from blindpost.wire.capnp.node import (
    METHODS,
    NODE_SERVICE,
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
from blindpost.wire.capnp.rpc import Call, Results, read_rpc, write_call, write_results
from blindpost.wire.capnp.structs import Message
from tests.support.ds.delivery import ALICE, Running, running

capnp.remove_import_hook()
LIBRARY = Path(capnp.__file__).parent
SCHEMA: Any = capnp.load(str(Path(blindpost.ds.__file__).with_name("node.capnp")))
RPC: Any = capnp.load(str(LIBRARY / "rpc.capnp"), imports=[str(LIBRARY.parent)])

AUTH = Auth(1, b"token", b"device")
REQUESTS: tuple[Request, ...] = (
    UploadKeyPackage(b"i" * 32, b"package", AUTH),
    FetchKeyPackage(b"i" * 32, AUTH),
    Enqueue(b"r" * 32, b"payload!!", b"channel", 1, AUTH),
    Fetch(b"r" * 32, b"channel", 1, AUTH),
    FetchWait(b"r" * 32, b"channel", 1, 2**33 + 5, AUTH),
    Lease(b"r" * 32, b"channel", 1, 2**33 + 5, 77, 88, AUTH),
    Ack(b"r" * 32, b"channel", 1, (b"1" * 16, b"2" * 16), AUTH),
)
RESULTS: tuple[Result, ...] = (
    Fingerprint(b"f" * 32),
    KeyPackage(b"package"),
    Done(),
    Payloads((b"one", b"another payload")),
    Payloads(()),
    Deliveries((Delivery(b"1" * 16, b"one"), Delivery(b"2" * 16, b"two"))),
    Done(),
)


def methods() -> list[Any]:
    return list(SCHEMA.NodeService.schema.methods.items())


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def as_dict(value: Any) -> dict[str, Any]:
    """A value of ours as the library's `to_dict` shows one."""
    found: dict[str, Any] = {}
    for name in value.__dataclass_fields__:
        item = getattr(value, name)
        if isinstance(item, Auth):
            item = as_dict(item)
        elif isinstance(item, tuple):
            item = [as_dict(one) if isinstance(one, Delivery) else one for one in item]
        found[camel(name)] = item
    return found


def rpc_message(frame: bytes) -> Any:
    framer = Framer(1 << 20)
    framer.feed(frame)
    ((message, size),) = framer.messages()
    assert size == len(frame)
    return read_rpc(message)


@pytest.mark.claim("DLV-03")
def test_the_ordinals_are_those_of_the_schema() -> None:
    assert SCHEMA.NodeService.schema.node.id == NODE_SERVICE
    names = [camel(kind.__name__[0].lower() + kind.__name__[1:]) for kind in METHODS]
    assert [name for name, _ in methods()] == names
    assert names[2:5] == ["enqueue", "fetch", "fetchWait"]
    assert DS_PORT == 7000


@pytest.mark.parametrize("ordinal", range(len(METHODS)))
def test_our_calls_are_read_by_the_library(ordinal: int) -> None:
    frame = write_call(3, 0, NODE_SERVICE, ordinal, write_request(REQUESTS[ordinal]))
    with RPC.Message.from_bytes(frame) as message:
        call = message.call
        assert (call.questionId, call.interfaceId, call.methodId) == (3, NODE_SERVICE, ordinal)
        params = call.params.content.as_struct(methods()[ordinal][1].param_type)
        assert params.to_dict() == as_dict(REQUESTS[ordinal])


@pytest.mark.parametrize("ordinal", range(len(METHODS)))
def test_our_results_are_read_by_the_library(ordinal: int) -> None:
    with RPC.Message.from_bytes(write_results(4, write_result(RESULTS[ordinal]))) as message:
        found = getattr(message, "return")
        assert (found.answerId, found.which()) == (4, "results")
        content = found.results.content.as_struct(methods()[ordinal][1].result_type)
        assert content.to_dict() == as_dict(RESULTS[ordinal])


@pytest.mark.parametrize("ordinal", range(len(METHODS)))
def test_we_read_what_we_write(ordinal: int) -> None:
    call = rpc_message(write_call(3, 0, NODE_SERVICE, ordinal, write_request(REQUESTS[ordinal])))
    assert isinstance(call, Call)
    assert read_request(call.method, call.params) == REQUESTS[ordinal]
    results = rpc_message(write_results(4, write_result(RESULTS[ordinal])))
    assert isinstance(results, Results)
    assert read_result(ordinal, results.content) == RESULTS[ordinal]


def alone(write: Callable[[StructBuilder, int], None]) -> bytes:
    """A struct as a separate message, without the segment table."""
    builder = Builder()
    write(StructBuilder(builder, 0, 0), 0)
    return builder.framed()[8:]


GOLDEN_PARAMS = {
    2: "000000000100040001000000000000000d00000002010000190000004a0000001d0000003a0000001c00000001000200"
    "72727272727272727272727272727272727272727272727272727272727272727061796c6f6164212100000000000000"
    "6368616e6e656c000100000000000000050000002a0000000500000032000000746f6b656e0000006465766963650000",
    3: "000000000100030001000000000000000900000002010000150000003a0000001400000001000200"
    "7272727272727272727272727272727272727272727272727272727272727272"
    "6368616e6e656c000100000000000000050000002a0000000500000032000000746f6b656e0000006465766963650000",
    4: "0000000002000300010000000000000005000000020000000900000002010000150000003a0000001400000001000200"
    "7272727272727272727272727272727272727272727272727272727272727272"
    "6368616e6e656c000100000000000000050000002a0000000500000032000000746f6b656e0000006465766963650000",
}
"""Written by the library's compiled code of pycapnp 2.2.4 from the schema file."""
GOLDEN_RESULTS: dict[Result, str] = {
    Done(): "fcffffff00000000",
    Payloads(()): "00000000000001000100000006000000",
    Payloads((b"one", b"another payload")): "0000000000000100010000001600000005000000"
    "1a000000050000007a0000006f6e650000000000616e6f74686572207061796c6f616400",
}


@pytest.mark.claim("DLV-04", "DLV-05", "DLV-06")
@pytest.mark.parametrize("ordinal", list(GOLDEN_PARAMS))
def test_the_bytes_of_calls_and_results(ordinal: int) -> None:
    request = REQUESTS[ordinal]
    golden = bytes.fromhex(GOLDEN_PARAMS[ordinal])
    assert alone(write_request(request)) == golden
    assert read_request(ordinal, Message([memoryview(golden)]).root()) == request
    expected = [result for result in GOLDEN_RESULTS if isinstance(result, Done) is (ordinal == 2)]
    for result in expected:
        golden = bytes.fromhex(GOLDEN_RESULTS[result])
        assert alone(write_result(result)) == golden
        assert read_result(ordinal, Message([memoryview(golden)]).root()) == result


@asynccontextmanager
async def library_client(ds: Running) -> AsyncIterator[Any]:
    """A `NodeService` by the library's own RPC, over TLS."""
    context: ssl.SSLContext = client_context(ds.certificate)
    stream = await capnp.AsyncIoStream.create_connection(
        "127.0.0.1", ds.port, ssl=context, server_hostname="127.0.0.1"
    )
    client = capnp.TwoPartyClient(stream)
    try:
        yield client.bootstrap().cast_as(SCHEMA.NodeService)
    finally:
        client.close()
        stream.close()


@pytest.mark.claim("DLV-03")
async def test_a_client_of_the_schema_alone_calls_everything(tmp_path: Path) -> None:
    """By the library's RPC, with its own way of numbering, pipelining and finishing questions."""
    auth = {"version": 1, "accessToken": b"", "deviceId": b"phone"}
    queue = {"recipientKey": ALICE, "channelId": b"c", "version": 1, "auth": auth}
    async with running(tmp_path) as ds, capnp.kj_loop(), library_client(ds) as service:
        uploaded = await service.uploadKeyPackage(identityKey=ALICE, package=b"package", auth=auth)
        assert len(uploaded.fingerprint) == 32
        fetched = await service.fetchKeyPackage(identityKey=ALICE, auth=auth)
        assert fetched.package == b"package"
        for payload in (b"1", b"2" * 2_000_000, b"3"):
            await service.enqueue(payload=payload, **queue)
        leased = await service.lease(timeoutMs=0, leaseMs=0, maxPayloads=1, **queue)
        assert [delivery.payload for delivery in leased.deliveries] == [b"1"]
        await service.ack(ids=[delivery.id for delivery in leased.deliveries], **queue)
        waited = await service.fetchWait(timeoutMs=2**40, **queue)
        assert list(waited.payloads) == [b"2" * 2_000_000, b"3"]
        assert ds.service.store.totals()[0] == 2, "the answer is still in the caller's hands"
        del waited
        await ds.until(lambda: ds.service.store.totals()[0] == 0)
        assert list((await service.fetch(**queue)).payloads) == []
        with pytest.raises(capnp.KjException, match="unsupported wire version 9"):
            await service.fetch(recipientKey=ALICE, channelId=b"", version=9, auth=auth)


@pytest.mark.claim("DLV-40")
async def test_an_answer_never_released_by_the_library_is_put_back(tmp_path: Path) -> None:
    queue = {"recipientKey": ALICE, "channelId": b"", "version": 1, "auth": {"version": 1}}
    async with running(tmp_path) as ds, capnp.kj_loop():
        async with library_client(ds) as service:
            for payload in (b"1", b"2"):
                await service.enqueue(payload=payload, **queue)
            kept = await service.fetch(**queue)
            assert list(kept.payloads) == [b"1", b"2"]
        await ds.until(lambda: ds.count(Meter.PUT_BACK) == 2)
        async with await ds.client() as client:
            assert await client.fetch(ALICE) == (b"1", b"2")


async def test_a_call_canceled_by_the_library_stops_waiting(tmp_path: Path) -> None:
    queue = {"recipientKey": ALICE, "channelId": b"", "version": 1, "auth": {"version": 1}}
    async with running(tmp_path) as ds, capnp.kj_loop(), library_client(ds) as service:
        waiting = asyncio.ensure_future(service.fetchWait(timeoutMs=60_000, **queue))
        await ds.until(lambda: len(ds.service.plan.state.waiting) == 1)
        waiting.cancel()
        await ds.until(lambda: ds.count(Meter.WAITS_CANCELED) == 1)
        await service.enqueue(payload=b"later", **queue)
        assert list((await service.fetch(**queue)).payloads) == [b"later"]
