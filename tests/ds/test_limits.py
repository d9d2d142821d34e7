"""What strangers can make the delivery service hold is counted, bounded and freed in time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blindpost.ds import connection, quic, server
from blindpost.ds.auth import Caller
from blindpost.ds.client import ConnectionLostError, DsClient, RefusedError
from blindpost.ds.model import PAYLOAD_BYTES_MAX, DsRules
from blindpost.ds.quotas import WINDOW_S, Quotas
from blindpost.engine.undo import Undo
from blindpost.serving.limits import LimitSizes
from blindpost.wire.capnp.node import Auth, Enqueue
from tests.support.ds.delivery import Running, running, until

BOB, CAROL = b"b" * 32, b"c" * 32
UNFINISHED = 1 << 20
FIRST_WORDS = (0).to_bytes(4, "little") + (UNFINISHED // 4).to_bytes(4, "little")
"""The beginning of a message that announces twice as many bytes as follow."""


def context() -> ssl.SSLContext:
    chosen = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    chosen.check_hostname, chosen.verify_mode = False, ssl.CERT_NONE
    chosen.set_alpn_protocols(["capnp"])
    return chosen


@asynccontextmanager
async def stranger(
    ds: Running, *, tls: bool = True, address: str = "127.0.0.2"
) -> AsyncIterator[asyncio.StreamWriter]:
    _, writer = await asyncio.open_connection(
        "127.0.0.1", ds.port, ssl=context() if tls else None, local_addr=(address, 0)
    )
    try:
        yield writer
    finally:
        writer.transport.abort()


async def served(ds: Running) -> None:
    async with await ds.client() as client:
        await client.enqueue(BOB, b"hello")
        assert await client.fetch(BOB) == (b"hello",)


async def test_unfinished_messages_are_bounded_in_total(tmp_path: Path) -> None:
    sizes = LimitSizes(memory=16 * UNFINISHED)
    async with running(tmp_path, sizes=sizes) as ds, AsyncExitStack() as stack:
        for _ in range(8):
            writer = await stack.enter_async_context(stranger(ds))
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # it does not hear that it is closed
            writer.write(FIRST_WORDS + bytes(UNFINISHED))
        await until(lambda: ds.service.limits.meters.made_room >= 3)
        held = sum(one.in_hand for one in ds.service.connections.values())
        assert held <= sizes.buffers + UNFINISHED
        await served(ds)
    assert not ds.service._heavy


async def test_unread_answers_are_bounded_in_total(tmp_path: Path) -> None:
    """One large answer fits; if three callers read nothing, some are cut and nothing is lost.

    The kernel buffers some megabytes for each, so each asks for more than that.
    """
    queues = [bytes([number]) * 32 for number in range(9)]
    async with running(tmp_path, sizes=LimitSizes(memory=32 << 20)) as ds, await ds.client() as client:
        for queue in queues:
            await client.enqueue(queue, bytes(PAYLOAD_BYTES_MAX))
        deaf = [await ds.client(quic=False) for _ in range(3)]
        for caller in deaf:
            wire_of(caller).pause_reading()
        asked = [asyncio.create_task(deaf[number % 3].fetch(queue)) for number, queue in enumerate(queues)]
        await until(lambda: ds.service.limits.meters.made_room >= 1)
        for caller in deaf:
            wire_of(caller).abort()
        await until(lambda: len(ds.service.connections) == 1)
        for queue in queues:
            assert await client.fetch_wait(queue, timeout_s=30) == (bytes(PAYLOAD_BYTES_MAX),)
        lost = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(error, ConnectionLostError) for error in lost)


async def test_a_caller_that_does_not_read_large_payloads_does_not_hold_up_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for the one before it to be taken. What was not is still there."""
    monkeypatch.setattr(server, "UNREAD_S", 0.2)
    queues = [bytes([number]) * 32 for number in range(6)]
    async with running(tmp_path) as ds:
        async with await ds.client(quic=False) as client:
            for queue in queues:
                await client.enqueue(queue, bytes(PAYLOAD_BYTES_MAX))
        deaf = await ds.client(quic=False)
        wire_of(deaf).pause_reading()
        asked = [asyncio.create_task(deaf.fetch(queue)) for queue in queues]
        await until(lambda: any(one.congested and one.large.locked() for one in connections_of(ds)))
        ds.service.stop()
        await until(lambda: not ds.service._large)
        assert ds.service.store.totals() == (len(queues), len(queues) * PAYLOAD_BYTES_MAX)
        wire_of(deaf).abort()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_a_deaf_caller_does_not_stay_after_a_service_has_ended(tmp_path: Path) -> None:
    """It does not close TLS on its side, which the library waits for half a minute."""
    async with running(tmp_path) as ds, await ds.client() as client:
        await client.enqueue(BOB, b"hello")
        deaf = await ds.client(quic=False)
        asked = asyncio.create_task(deaf.fetch_wait(BOB, timeout_s=0))
        await until(lambda: len(ds.service.connections) == 2)
        wire_of(deaf).pause_reading()
        await client.fetch(BOB)
        await ds.service.hang_up(0.1)
        await until(lambda: not ds.service.connections)
        wire_of(deaf).abort()
        await asyncio.gather(asked, return_exceptions=True)


def connections_of(ds: Running) -> tuple[connection.DsConnection, ...]:
    return tuple(ds.service.connections.values())


def wire_of(client: DsClient) -> asyncio.Transport:
    assert client._wire is not None
    assert client._wire._transport is not None
    return client._wire._transport


async def test_a_caller_that_does_not_finish_a_message_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GREETING_S", 0.2)
    async with running(tmp_path) as ds, stranger(ds) as silent, stranger(ds) as slow:
        slow.write(FIRST_WORDS)
        await until(lambda: len(ds.service.connections) == 2)
        async with await ds.client() as waiting:
            assert await waiting.fetch(BOB) == ()
            closed = 0

            def looked() -> int:
                nonlocal closed
                closed += ds.service.close_overdue()
                return closed

            await until(lambda: looked() >= 2)
            await until(lambda: len(ds.service.connections) == 1)
            asked = asyncio.create_task(waiting.fetch_wait(BOB, timeout_s=0.3))
            await until(lambda: looked() > 2 or asked.done())
            assert await asked == (), "who asked may wait"
            assert closed == 2
        assert silent is not None


async def test_a_quic_connection_that_ends_takes_its_ids_along_and_looks_at_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of connections a look at all of them takes milliseconds, and all may end at once."""
    known: list[quic._Known] = []

    class Noted(quic._Known):
        def __init__(self) -> None:
            super().__init__()
            known.append(self)

        def items(self) -> Any:
            raise AssertionError("it looks at all of them")

    monkeypatch.setattr(quic, "_Known", Noted)
    async with running(tmp_path) as ds:
        one, other = [await ds.client(quic=True) for _ in range(2)]
        for client in (one, other):
            await client.enqueue(BOB, b"hello")
        (ids,) = known
        both = len(ids)
        await one.close()
        await until(lambda: len(ids) == both // 2)
        assert await other.fetch(BOB) == (b"hello", b"hello")
        await other.close()
        await until(lambda: not ids)


async def test_who_shakes_hands_while_the_service_ends_is_hung_up_on(tmp_path: Path) -> None:
    """Nobody would answer it: the process may live on as a standby."""
    async with running(tmp_path) as ds:
        reader, writer = await asyncio.open_connection("127.0.0.1", ds.port)
        await until(lambda: ds.service.limits.handshakes == 1)
        ds.service.close_all()
        await writer.start_tls(context())
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        await until(lambda: not ds.service.connections)
        writer.close()


async def test_handshakes_are_counted_by_address_and_make_room(tmp_path: Path) -> None:
    async with running(tmp_path, sizes=LimitSizes(handshakes=16)) as ds, AsyncExitStack() as stack:
        for number in range(20):
            await stack.enter_async_context(stranger(ds, tls=False, address=f"127.0.0.{2 + number % 2}"))
        await until(lambda: ds.service.limits.handshakes == 4)
        await served(ds)
        await stack.aclose()
        await until(lambda: not ds.service.limits.top())


async def test_connections_are_counted_by_address(tmp_path: Path) -> None:
    async with (
        running(tmp_path, sizes=LimitSizes(connections_per_address=3)) as ds,
        AsyncExitStack() as stack,
    ):
        for _ in range(3):
            await stack.enter_async_context(stranger(ds))
        with pytest.raises(OSError):  # noqa: PT011 - the connection is reset, or ends
            async with stranger(ds):
                pass
        await served(ds)


async def test_a_quic_peer_that_only_shakes_hands_is_counted_and_timed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic, "GREETING_S", 0.3)
    monkeypatch.setattr(quic, "CONNECT_S", 2.0)  # those that are refused hear nothing for so long
    async with running(tmp_path, sizes=LimitSizes(connections_per_address=5)) as ds:
        limits = ds.service.limits
        dialed = [Silent() for _ in range(8)]
        outcomes = await asyncio.gather(
            *(
                quic.dial(one, "127.0.0.1", ds.quic_port, authorities=None, pinned=ds.fingerprint)
                for one in dialed
            ),
            return_exceptions=True,
        )
        assert sum(outcome is None for outcome in outcomes) <= 5
        assert limits.meters.refused_address >= 3
        await until(lambda: not limits.top())
        async with await ds.client(quic=True) as client:
            assert await client.fetch(BOB) == ()


async def test_a_quic_caller_that_reads_slowly_is_heard_although_much_of_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among what it sends are the words that it has read something."""
    monkeypatch.setattr(quic, "IN_HAND_MAX", 1 << 10)
    async with running(tmp_path) as ds, await ds.client(quic=True) as client:
        assert await client.fetch(BOB) == ()
        ((_, served),) = ds.service.connections.items()
        ds.service.lag(served)
        sending = asyncio.gather(*(client.enqueue(BOB, bytes(60_000)) for _ in range(4)))
        async with asyncio.timeout(quic.IDLE_S / 2):
            await until(lambda: served.in_hand > 4 * 60_000)
            ds.service.relieve(served)
            await sending


async def test_a_quic_caller_that_sends_too_much_and_reads_nothing_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic, "IN_HAND_MAX", 1 << 10)
    monkeypatch.setattr(quic, "IN_HAND_LAST", 100_000)
    async with running(tmp_path) as ds, await ds.client(quic=True) as client:
        assert await client.fetch(BOB) == ()
        ((_, served),) = ds.service.connections.items()
        ds.service.lag(served)
        sending = asyncio.gather(
            *(client.enqueue(BOB, bytes(60_000)) for _ in range(4)), return_exceptions=True
        )
        async with asyncio.timeout(quic.IDLE_S / 2):
            await until(lambda: not ds.service.connections)
            assert {type(error) for error in await sending} == {ConnectionLostError}


class Silent(asyncio.Protocol):
    """Shakes hands and says nothing."""


async def test_only_the_client_that_fills_the_service_is_refused(tmp_path: Path) -> None:
    rules = DsRules(total_bytes=1 << 20)
    async with running(tmp_path, rules) as ds, await ds.client() as greedy, await ds.client() as other:
        assert (await greedy.fetch(BOB), await other.fetch(BOB)) == ((), ())
        one, two = ds.service.connections.values()
        one.peer.account, two.peer.account = b"\x7f\0\0\2", b"\x7f\0\0\3"
        stored = 34
        for _ in range(stored):
            await greedy.enqueue(BOB, bytes(16 << 10))
        with pytest.raises(RefusedError, match="much of it came from this address"):
            await greedy.enqueue(BOB, bytes(16 << 10))
        for _ in range(40):
            await other.enqueue(CAROL, bytes(16 << 10))
            assert len(await other.fetch(CAROL)) == 1
        ds.service.plan.rules = replace(rules, total_bytes=4 << 20)
        await greedy.enqueue(BOB, b"more")
        assert len(await greedy.fetch(BOB)) == stored + 1, "nothing that was taken is lost"


async def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    file, now = tmp_path / "quotas.json", 1_000_000.0
    caller, rules = Caller(b"a" * 32), DsRules(sender_payloads=3)
    request = Enqueue(BOB, b"hello", b"", 1, Auth())

    def sent(quotas: Quotas, count: int) -> list[bool]:
        found = []
        for _ in range(count):
            found.append(quotas.refusal(request, caller, rules) is None)
            if found[-1]:
                quotas.count(request, caller, rules)
        return found

    before = Quotas(Undo(), lambda: now)
    assert sent(before, 2) == [True, True]
    before.save(file)
    assert caller.identity_key is not None
    saved = file.read_text()
    assert caller.identity_key.hex() not in saved
    after = Quotas(Undo(), lambda: now)
    after.load(file)
    assert sent(after, 2) == [True, False]
    now += WINDOW_S
    assert sent(after, 1) == [True]
    for damaged in (b"[]", b"{", b'{"zz": [1, 2]}', b'{"00": 5}', b'{"00": [1, Infinity]}', b"[" * 100_000):
        file.write_bytes(damaged)
        fresh = Quotas(Undo(), lambda: now)
        fresh.load(file)
        assert not file.exists(), "what cannot be read is set aside"
        assert sent(fresh, 1) == [True]
    file.write_text(saved.replace("1000000.0", "NaN"))
    fresh = Quotas(Undo(), lambda: now)
    fresh.load(file)
    assert sent(fresh, 4) == [True, True, True, False], "a time that is no number is one that has passed"
