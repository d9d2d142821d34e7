"""Payloads in flight: none is lost, delivered twice or out of order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blindpost.ds.client import ConnectionLostError, DsClient, RefusedError
from blindpost.ds.meters import Meter
from blindpost.ds.model import DsRules
from tests.support.ds.delivery import ALICE, BOB, Running, cut, running, silent

pytestmark = pytest.mark.usefixtures("way")

LONG_S = 60.0
MEGABYTE = 1 << 20
LARGE = int(os.environ.get("BLINDPOST_DS_LARGE", "4"))
"""How many payloads of 5 MiB there are where not 30; the long form has 30 everywhere."""


@pytest.fixture
async def ds(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


@pytest.fixture
async def client(ds: Running) -> AsyncIterator[DsClient]:
    async with await ds.client() as connected:
        yield connected


def stored(ds: Running) -> int:
    return ds.service.store.totals()[0]


async def enqueue(client: DsClient, *payloads: bytes) -> None:
    for payload in payloads:
        await client.enqueue(ALICE, payload)


@pytest.mark.claim("DLV-40")
async def test_an_answer_that_was_not_taken_is_put_back(ds: Running, client: DsClient) -> None:
    await enqueue(client, b"1", b"2", b"3")
    other = await ds.client()
    silent(other)
    assert await other.fetch(ALICE) == (b"1", b"2", b"3")
    await enqueue(client, b"4")
    assert await client.fetch(ALICE) == (), "what may come back is not overtaken"
    assert stored(ds) == 4
    cut(other)
    assert await client.fetch_wait(ALICE, timeout_s=LONG_S) == (b"1", b"2", b"3", b"4")
    await ds.until(lambda: stored(ds) == 0)
    assert ds.count(Meter.PUT_BACK) == 3


async def test_a_connection_skips_what_it_holds_itself(ds: Running, client: DsClient) -> None:
    silent(client)
    await enqueue(client, b"1")
    assert await client.fetch(ALICE) == (b"1",)
    await enqueue(client, b"2")
    assert await client.fetch(ALICE) == (b"2",)
    assert stored(ds) == 2


async def test_a_hold_keeps_others_off_for_a_limited_time(tmp_path: Path) -> None:
    async with running(tmp_path, DsRules(hold_s=1.0)) as ds, await ds.client() as client:
        await enqueue(client, b"1", b"2")
        async with await ds.client() as other:
            silent(other)
            assert await other.fetch(ALICE) == (b"1", b"2")
            assert await client.fetch_wait(ALICE, timeout_s=LONG_S) == (b"1", b"2")
            assert ds.count(Meter.DISPLACED) == 2
            await ds.until(lambda: stored(ds) == 0)
            assert len(ds.service.plan.state.held) == 0


async def test_answers_that_are_kept_too_long_do_not_keep_their_connection_from_the_rest(
    tmp_path: Path,
) -> None:
    """They fill what a turn looks at, and are nobody else's yet."""
    rules = DsRules(hold_s=0.0, response_payloads=2)
    async with running(tmp_path, rules) as ds, await ds.client() as client, asyncio.timeout(LONG_S / 2):
        silent(client)
        await enqueue(client, b"1", b"2", b"3")
        assert await client.fetch(ALICE) == (b"1", b"2")
        assert await client.fetch(ALICE) == (b"3",)
        assert await client.fetch(ALICE) == ()
        assert await client.fetch_wait(ALICE, timeout_s=0.01) == ()
        waiting = asyncio.create_task(client.fetch_wait(ALICE, timeout_s=LONG_S))
        await ds.until(lambda: len(ds.service.plan.state.waiting) == 1)
        await enqueue(client, b"4")
        assert await waiting == (b"4",)


@pytest.mark.claim("DLV-20")
async def test_what_was_taken_does_not_reappear(tmp_path: Path) -> None:
    async with running(tmp_path) as ds, await ds.client() as client:
        await enqueue(client, b"1", b"2")
        assert await client.fetch(ALICE) == (b"1", b"2")
        await ds.until(lambda: stored(ds) == 0)
    async with running(tmp_path) as ds, await ds.client() as client:
        assert await client.fetch(ALICE) == ()


@pytest.mark.claim("DLV-21")
async def test_draining_under_load_returns_everything_once(ds: Running, client: DsClient) -> None:
    producers = [await ds.client() for _ in range(4)]

    async def produce(number: int) -> None:
        for step in range(100):
            await producers[number].enqueue(ALICE, b"%d %d" % (number, step))

    producing = asyncio.gather(*(produce(number) for number in range(4)))
    found: list[bytes] = []
    while not producing.done():
        found += await client.fetch(ALICE)
    await producing
    found += await client.fetch(ALICE)
    assert sorted(found) == sorted(b"%d %d" % (number, step) for number in range(4) for step in range(100))
    assert await client.fetch(ALICE) == ()
    for producer in producers:
        await producer.close()


@pytest.mark.claim("DLV-22")
async def test_concurrent_fetches_share_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, DsRules(response_payloads=10)) as ds:
        clients = [await ds.client() for _ in range(5)]
        await enqueue(clients[0], *(b"%d" % number for number in range(200)))
        found: list[bytes] = []

        async def drain(client: DsClient) -> None:
            while stored(ds):
                for payloads in await asyncio.gather(*(client.fetch(ALICE) for _ in range(3))):
                    found.extend(payloads)

        await asyncio.gather(*map(drain, clients))
        assert sorted(found) == sorted(b"%d" % number for number in range(200))
        for client in clients:
            await client.close()


@pytest.mark.claim("DLV-10")
async def test_producers_are_in_one_order_that_lasts(tmp_path: Path) -> None:
    """More than 256 payloads, to expose a one-byte number, from producers that do not wait."""
    count, steps = 4, 80

    async def seen(ds: Running) -> list[bytes]:
        found: list[bytes] = []
        back = ds.count(Meter.PUT_BACK)
        async with await ds.client() as reader:
            while part := await reader.lease(ALICE):
                found += [delivery.payload for delivery in part]
        await ds.until(lambda: ds.count(Meter.PUT_BACK) == back + count * steps)
        return found

    async with running(tmp_path, DsRules(response_payloads=100)) as ds:
        producers = [await ds.client() for _ in range(count)]
        await asyncio.gather(
            *(
                producers[number].enqueue(ALICE, b"%d %02d" % (number, step))
                for step in range(steps)
                for number in range(count)
            )
        )
        before = await seen(ds)
        assert await seen(ds) == before
        for producer in producers:
            await producer.close()
    async with running(tmp_path) as ds, await ds.client() as reader:
        after: list[bytes] = []
        while part := await reader.fetch(ALICE):
            after += part
    assert after == before
    for number in range(count):
        own = [payload for payload in before if payload.startswith(b"%d " % number)]
        assert own == [b"%d %02d" % (number, step) for step in range(steps)]


@pytest.mark.claim("DLV-46")
async def test_a_large_queue_comes_in_parts(ds: Running, client: DsClient, way: str) -> None:
    count = 30 if way == "tls" else LARGE
    payloads = [bytes((number,)) * (5 * MEGABYTE) for number in range(1, count + 1)]
    for payload in payloads:
        await client.enqueue(ALICE, payload)
    found: list[bytes] = []
    while part := await client.fetch(ALICE):
        assert sum(map(len, part)) <= ds.service.plan.rules.response_bytes
        found += part
    assert found == payloads


@pytest.mark.claim("DLV-45")
@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (DsRules(queue_payloads=3), "queue is full (3 payloads)"),
        (DsRules(queue_bytes=30), "queue is full (30 bytes)"),
        (DsRules(total_payloads=3), "the delivery service is full"),
        (DsRules(total_bytes=30), "the delivery service is full"),
    ],
)
async def test_a_full_queue_refuses_and_loses_nothing(tmp_path: Path, rules: DsRules, text: str) -> None:
    async with running(tmp_path, rules) as ds, await ds.client() as client:
        payloads = [b"%d" % number * 10 for number in range(3)]
        await enqueue(client, *payloads)
        with pytest.raises(RefusedError) as caught:
            await client.enqueue(ALICE, b"too much")
        assert (str(caught.value), caught.value.is_overloaded) == (text, True)
        if "queue" in text:
            await client.enqueue(BOB, b"of another queue")
        assert await client.fetch(ALICE) == tuple(payloads)
        await client.enqueue(ALICE, b"again")
        assert await client.fetch(ALICE) == (b"again",)


async def test_a_leased_payload_goes_to_one_caller(ds: Running, client: DsClient) -> None:
    await enqueue(client, b"1", b"2", b"3")
    first = await client.lease(ALICE, max_payloads=2)
    assert [delivery.payload for delivery in first] == [b"1", b"2"]
    async with await ds.client() as other:
        assert await other.lease(ALICE) == ()
        assert await other.fetch(ALICE) == ()
        await client.ack(ALICE, tuple(delivery.id for delivery in first))
        assert await other.fetch(ALICE) == (b"3",)
    assert len({delivery.id for delivery in first}) == 2


async def test_an_expired_lease_is_delivered_again_with_the_same_ids(ds: Running, client: DsClient) -> None:
    await enqueue(client, b"1", b"2")
    first = await client.lease(ALICE, lease_s=0.2)
    async with await ds.client() as other:
        again = await other.lease(ALICE, timeout_s=LONG_S)
    assert again == first
    assert await client.lease(ALICE, timeout_s=LONG_S) == first, "the connection was closed"
    await client.ack(ALICE, tuple(delivery.id for delivery in first))
    assert stored(ds) == 0
    assert len(ds.service.plan.state.held) == 0


async def test_a_lease_can_be_acknowledged_after_reconnect_and_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as ds, await ds.client() as client:
        await enqueue(client, b"1", b"2")
        first, second = await client.lease(ALICE)
    async with running(tmp_path) as ds, await ds.client() as client:
        await client.ack(ALICE, (first.id,))
        await client.ack(ALICE, (first.id,))
        assert await client.lease(ALICE) == (second,)


async def test_an_acknowledgement_removes_only_what_it_was_given_for(ds: Running, client: DsClient) -> None:
    await enqueue(client, b"old")
    (old,) = await client.lease(ALICE)
    await client.ack(ALICE, (old.id,))
    await enqueue(client, b"new")
    await client.ack(ALICE, (old.id, b"", b"x" * 16, b"y" * 40, b"\xff" * 16))
    (new,) = await client.lease(ALICE)
    assert new.payload == b"new"
    assert new.id != old.id


async def test_too_many_ids_are_refused(client: DsClient) -> None:
    with pytest.raises(RefusedError, match=r"^too many ids \(4096 at most\)$"):
        await client.ack(ALICE, (b"",) * 5000)
    await client.ack(ALICE, (b"",) * 4096)


async def test_a_finished_lease_holds_although_its_question_id_is_reused(
    ds: Running, client: DsClient
) -> None:
    await enqueue(client, b"1", b"2")
    wire = client._wire
    assert wire is not None
    setattr(wire, "_numbers", iter([7, 7, 7, 8]))  # noqa: B010 - as a library that uses numbers again
    (one,) = await client.lease(ALICE, max_payloads=1)
    assert await client.fetch(ALICE) == (b"2",)
    assert await client.fetch(ALICE) == ()
    await ds.until(lambda: stored(ds) == 1)
    await client.ack(ALICE, (one.id,))
    assert stored(ds) == 0


async def test_receive_yields_each_payload_once_across_lost_connections(
    ds: Running, client: DsClient
) -> None:
    await enqueue(client, *(b"%d" % number for number in range(20)))
    reader = await ds.client()
    found: list[bytes] = []
    while len(found) < 20:
        try:
            async for payload in reader.receive(ALICE):
                found.append(payload)
                if len(found) % 3 == 0:
                    cut(reader)
                if len(found) == 20:
                    break
        except ConnectionLostError:
            await reader.reconnect()
    assert found == [b"%d" % number for number in range(20)]
    await reader.close()
