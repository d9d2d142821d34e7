"""fetchWait: who is woken, by what, when, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sized
from pathlib import Path

import pytest

from blindpost.ds.client import DsClient, RefusedError
from blindpost.ds.meters import Meter
from blindpost.ds.model import DsRules
from blindpost.ds.plan import Called
from blindpost.wire.capnp.node import Auth, FetchWait, Payloads
from tests.support.ds.delivery import ALICE, BOB, Running, running

pytestmark = pytest.mark.usefixtures("way")

LONG_S = 60.0
RECIPIENTS = int(os.environ.get("BLINDPOST_DS_RECIPIENTS", "1000"))
"""Long form: 100000."""
AT_ONCE = 50


@pytest.fixture
async def ds(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


@pytest.fixture
async def client(ds: Running) -> AsyncIterator[DsClient]:
    async with await ds.client() as connected:
        yield connected


def waits(ds: Running) -> int:
    return len(ds.service.plan.state.waiting)


async def blocked(
    ds: Running, client: DsClient, channel_id: bytes = b"", timeout_s: float = LONG_S, key: bytes = ALICE
) -> asyncio.Task[tuple[bytes, ...]]:
    """A call that waits in the service."""
    before = waits(ds)
    task = asyncio.create_task(client.fetch_wait(key, channel_id, timeout_s=timeout_s))
    await ds.until(lambda: waits(ds) == before + 1)
    return task


@pytest.mark.claim("DLV-23")
async def test_waiting_payloads_are_returned_at_once(client: DsClient) -> None:
    async with asyncio.timeout(LONG_S / 2):
        assert await client.fetch_wait(ALICE, timeout_s=0) == ()
        await client.enqueue(ALICE, b"1")
        await client.enqueue(ALICE, b"2")
        assert await client.fetch_wait(ALICE, timeout_s=LONG_S) == (b"1", b"2")
        await client.enqueue(ALICE, b"3")
        assert await client.fetch_wait(ALICE, timeout_s=0) == (b"3",)


@pytest.mark.claim("DLV-24")
async def test_a_payload_that_arrives_during_the_wait_is_returned_promptly(
    ds: Running, client: DsClient
) -> None:
    task = await blocked(ds, client)
    await client.enqueue(ALICE, b"late")
    async with asyncio.timeout(LONG_S / 2):
        assert await task == (b"late",)


async def test_a_queue_wakes_repeatedly(ds: Running, client: DsClient) -> None:
    for number in range(5):
        task = await blocked(ds, client)
        await client.enqueue(ALICE, b"%d" % number)
        async with asyncio.timeout(LONG_S / 2):
            assert await task == (b"%d" % number,)


@pytest.mark.claim("DLV-25")
async def test_an_expired_wait_is_an_empty_list(client: DsClient) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await client.fetch_wait(ALICE, timeout_s=0.2) == ()
    assert loop.time() - started >= 0.2


@pytest.mark.claim("DLV-26")
async def test_a_wait_holds_nobody_up(ds: Running, client: DsClient) -> None:
    task = await blocked(ds, client)
    await client.enqueue(ALICE, b"x", b"another channel")
    assert await client.fetch(ALICE, b"another channel") == (b"x",)
    async with await ds.client() as other:
        await other.enqueue(BOB, b"y")
        assert await other.fetch(BOB) == (b"y",)
    assert not task.done()
    await client.enqueue(ALICE, b"end")
    assert await task == (b"end",)


@pytest.mark.claim("DLV-18")
async def test_every_waiter_is_woken(ds: Running, client: DsClient) -> None:
    others = [await ds.client() for _ in range(3)]
    tasks = [await blocked(ds, other) for other in others]
    await client.enqueue(ALICE, b"one")
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert ds.count(Meter.WAKES) >= 3
    assert [task.result() for task in tasks if task.done()] == [(b"one",)]
    for task in tasks:
        task.cancel()
    for other in others:
        await other.close()


@pytest.mark.claim("DLV-27", "DLV-41")
async def test_another_channel_wakes_nobody(ds: Running, client: DsClient) -> None:
    task = await blocked(ds, client, b"A")
    for number in range(50):
        await client.enqueue(ALICE, b"%d" % number, b"B")
    assert ds.count(Meter.WAKES) == 0
    await client.enqueue(ALICE, b"of A", b"A")
    assert await task == (b"of A",)
    assert len(await client.fetch(ALICE, b"B")) == 50


@pytest.mark.claim("DLV-28")
async def test_an_old_wake_up_does_not_shorten_a_later_wait(client: DsClient) -> None:
    await client.enqueue(ALICE, b"early")
    assert await client.fetch_wait(ALICE, timeout_s=LONG_S) == (b"early",)
    await client.enqueue(ALICE, b"again")
    assert await client.fetch(ALICE) == (b"again",)
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await client.fetch_wait(ALICE, timeout_s=0.3) == ()
    assert loop.time() - started >= 0.3


@pytest.mark.claim("DLV-42")
async def test_a_woken_call_that_finds_nothing_keeps_waiting(ds: Running, client: DsClient) -> None:
    loop = asyncio.get_running_loop()
    async with await ds.client() as other:
        first = await blocked(ds, client)
        started = loop.time()
        second = await blocked(ds, other, timeout_s=1.0)
        await client.enqueue(ALICE, b"one")
        assert await first == (b"one",)
        assert await second == ()
        assert loop.time() - started >= 1.0


@pytest.mark.claim("DLV-43")
async def test_a_simultaneous_enqueue_is_not_missed(ds: Running, client: DsClient) -> None:
    """Looking and waiting are one decision, before or after the enqueue: there is no gap between them."""
    service = ds.service
    decided = service.plan.decide
    async with await ds.client() as other:

        def with_enqueue_in_the_gap(event: object) -> None:
            decided(event)  # type: ignore[arg-type]  # whatever the engine decides
            if isinstance(event, Called) and isinstance(event.request, FetchWait):
                enqueues.append(asyncio.ensure_future(other.enqueue(ALICE, b"in the gap")))

        enqueues: list[asyncio.Future[None]] = []
        service.plan.decide = with_enqueue_in_the_gap  # type: ignore[method-assign]  # the one gap there could be
        async with asyncio.timeout(LONG_S / 2):
            assert await client.fetch_wait(ALICE, timeout_s=LONG_S) == (b"in the gap",)
        await asyncio.gather(*enqueues)


@pytest.mark.claim("DLV-44")
@pytest.mark.timeout(1800)
async def test_nothing_is_left_of_those_who_were_here(ds: Running, client: DsClient) -> None:
    state, store = ds.service.plan.state, ds.service.store
    rows = store.counts()
    source = random.Random(44)
    for _ in range(RECIPIENTS // AT_ONCE):
        keys = [source.randbytes(32) for _ in range(AT_ONCE)]
        await asyncio.gather(*(client.enqueue(key, b"x") for key in keys))
        assert len(state.waiters) == 0
        assert set(await asyncio.gather(*(client.fetch(key) for key in keys))) == {(b"x",)}
        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(client.fetch_wait(key, timeout_s=0.01))
        await client.enqueue(ALICE, b"leased")
        (leased,) = await client.lease(ALICE)
        await client.ack(ALICE, (leased.id,))
    await ds.until(lambda: store.counts() == rows)
    peer = next(iter(ds.service.connections.values())).peer
    left: list[Sized] = [state.waiters, state.waiting, state.held, peer.waits, peer.holds, peer.answered]
    assert [len(table) for table in left] == [0] * len(left)
    assert not ds.service._timers
    assert not ds.service.plan._wakes
    assert len(ds.service.engine._timers) == 0


@pytest.mark.claim("DLV-47")
async def test_waits_are_bounded_in_time_and_number(tmp_path: Path) -> None:
    rules = DsRules(wait_s_max=1.5, waits_per_connection=2)
    loop = asyncio.get_running_loop()
    async with running(tmp_path, rules) as ds, await ds.client() as client:
        started = loop.time()
        request = FetchWait(ALICE, b"", 1, 2**64 - 1, Auth())
        assert (await client._ask(request, Payloads)).payloads == ()
        assert 1.5 <= loop.time() - started < LONG_S
        tasks = [await blocked(ds, client) for _ in range(2)]
        with pytest.raises(RefusedError, match=r"^too many waiting calls$") as caught:
            await client.fetch_wait(ALICE, timeout_s=1)
        assert caught.value.is_overloaded
        assert await asyncio.gather(*tasks) == [(), ()]


@pytest.mark.claim("DLV-51")
async def test_a_caller_that_leaves_takes_nothing(ds: Running, client: DsClient) -> None:
    other = await ds.client()
    task = await blocked(ds, other)
    await other.close()
    await ds.until(lambda: waits(ds) == 0)
    with pytest.raises(Exception, match="connection is closed"):
        await task
    await client.enqueue(ALICE, b"later")
    assert await client.fetch(ALICE) == (b"later",)


async def test_a_canceled_call_takes_nothing(ds: Running, client: DsClient) -> None:
    task = await blocked(ds, client)
    task.cancel()
    await ds.until(lambda: waits(ds) == 0)
    await client.enqueue(ALICE, b"later")
    assert await client.fetch(ALICE) == (b"later",)
    assert ds.count(Meter.WAITS_CANCELED) == 1


async def test_a_stopping_service_answers_waiting_calls(tmp_path: Path) -> None:
    async with running(tmp_path) as ds, await ds.client() as client:
        task = await blocked(ds, client)
        ds.service.stop()
        assert await task == ()
