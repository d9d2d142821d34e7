"""Bytes from strangers on either transport: the service keeps running and its store is unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from blindpost.ds import quic as quic_streams
from blindpost.ds.client import ConnectionLostError, DsClient
from blindpost.ds.meters import Meter
from blindpost.ds.quic import FIRST_BYTES_MIN
from blindpost.wire.capnp.node import NODE_SERVICE, Auth, Enqueue, Fetch, Lease, write_request
from blindpost.wire.capnp.rpc import write_bootstrap, write_call, write_finish
from tests.support.ds.delivery import ALICE, Running, running, silent, tokens

STRANGER = Auth(1, b"no token")
STREAM = b"".join(
    (
        write_bootstrap(0),
        write_call(1, None, NODE_SERVICE, 2, write_request(Enqueue(ALICE, b"x" * 50, b"c", 1, STRANGER))),
        write_call(2, 0, NODE_SERVICE, 3, write_request(Fetch(ALICE, b"", 1, STRANGER))),
        write_call(3, 0, NODE_SERVICE, 5, write_request(Lease(ALICE, b"", 1, 10, 10, 10, STRANGER))),
        write_finish(1),
    )
)


async def throw(ds: Running, noise: bytes, *, quic: bool) -> None:
    """Send bytes on a separate connection and hang up."""
    client = await ds.client(quic=quic)
    wire = client._wire
    assert wire is not None
    assert wire._transport is not None
    setattr(wire, "data_received", lambda data: None)  # noqa: B010 - a stranger does not listen
    wire._transport.write(noise)
    await asyncio.sleep(0)
    await client.close()


@pytest.mark.parametrize("quic", [False, True])
async def test_noise_on_a_stream_touches_nothing(tmp_path: Path, quic: bool) -> None:
    source = random.Random(5)
    async with running(tmp_path, authority=tokens()) as ds, await ds.client(b"token of alice") as alice:
        await alice.enqueue(ALICE, b"kept")
        before = ds.service.store.counts()
        for _ in range(25):
            changed = bytearray(STREAM)
            for _ in range(source.randrange(1, 6)):
                changed[source.randrange(len(changed))] = source.randrange(256)
            await throw(ds, bytes(changed[: source.randrange(len(changed))]), quic=quic)
            await throw(ds, source.randbytes(source.randrange(1, 3000)), quic=quic)
        await ds.until(lambda: len(ds.service.connections) == 1)
        assert ds.service.store.counts() == before
        assert ds.count(Meter.INTERNAL_ERRORS) == 0
        assert len(ds.service.plan.state.waiting) == len(ds.service.plan.state.held) == 0
        assert await alice.fetch(ALICE) == (b"kept",)


def first_datagram(token: bytes, version: int = 1, size: int = FIRST_BYTES_MIN) -> bytes:
    """What a caller sends first, with noise where its handshake would be."""
    ids = 2 * bytes((8, *range(8)))
    head = b"\xc3" + version.to_bytes(4, "big") + ids + number(len(token)) + token
    return (head + number(size - len(head) - 2)).ljust(size, b"\xaa")


def number(value: int) -> bytes:
    """As QUIC writes it, in two bytes."""
    return (0x4000 | value).to_bytes(2, "big")


async def test_tokens_that_strangers_made_up_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of 256 bytes, as long as the library's own, cost two milliseconds and an entry in the log."""
    told: list[dict[str, Any]] = []
    source = random.Random(7)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    async with running(tmp_path) as ds:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            for size in (1, 7, 8, 11, 12, 13, 27, 28, 29, 60, 256):
                noise = first_datagram(source.randbytes(size))
                await loop.sock_sendto(sock, noise, ("127.0.0.1", ds.quic_port))
            await loop.sock_sendto(sock, first_datagram(b""), ("127.0.0.1", ds.quic_port))
            async with asyncio.timeout(10):
                answer = await loop.sock_recv(sock, 2048)
            assert answer[0] & 0xF0 == 0xF0, "only who shows no token is sent one"
            with pytest.raises(BlockingIOError):
                sock.recv(2048)
        assert ds.service.limits.handshakes == 0
    assert (told, caplog.text) == ([], "")


async def test_a_short_question_about_versions_gets_no_longer_answer(tmp_path: Path) -> None:
    """It may come from a forged address."""
    loop = asyncio.get_running_loop()
    async with running(tmp_path) as ds:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            for size in (40, FIRST_BYTES_MIN - 1, FIRST_BYTES_MIN):
                await loop.sock_sendto(
                    sock, first_datagram(b"", version=0x1A2A3A4A, size=size), ("127.0.0.1", ds.quic_port)
                )
            async with asyncio.timeout(10):
                answer = await loop.sock_recv(sock, 2048)
            assert answer[1:5] == bytes(4), "which versions are known"
            with pytest.raises(BlockingIOError):
                sock.recv(2048)


async def test_datagrams_and_handshakes_from_strangers(tmp_path: Path) -> None:
    source = random.Random(6)
    async with running(tmp_path) as ds:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            for size in (1, 20, 1200, 1400):
                for first in (0x00, 0x40, 0x80, 0xC0, 0xC3, 0xFF):
                    noise = bytes((first, 0, 0, 0, 1, 8)) + source.randbytes(size)
                    await loop.sock_sendto(sock, noise, ("127.0.0.1", ds.quic_port))
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", ds.port)
            writer.write(source.randbytes(500))
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        for quic in (False, True):
            async with await ds.client(quic=quic) as client:
                await client.enqueue(ALICE, b"alive")
                assert await client.fetch(ALICE) == (b"alive",)


async def test_a_client_that_falls_silent_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic_streams, "IDLE_S", 1.0)
    monkeypatch.setattr(quic_streams, "PING_S", 0.3)
    async with running(tmp_path) as ds, await ds.client(quic=False) as client:
        await client.enqueue(ALICE, b"1")
        lost = await ds.client(quic=True)
        silent(lost)
        assert await lost.fetch(ALICE) == (b"1",)
        idle = await ds.client(quic=True)
        await ds.until(lambda: len(ds.service.connections) == 3)
        wire = lost._wire
        assert wire is not None
        assert wire._transport is not None
        wire._transport.abort()
        assert await client.fetch_wait(ALICE, timeout_s=60) == (b"1",)
        assert len(ds.service.connections) == 2, "whoever answers pings stays"
        await idle.close()


async def test_another_certificate_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as ds:
        with pytest.raises(Exception, match="another certificate"):
            await DsClient.connect("127.0.0.1", ds.port, fingerprint=b"x" * 32)
        with pytest.raises(ConnectionLostError, match="another certificate"):
            await DsClient.connect("127.0.0.1", ds.quic_port, fingerprint=b"x" * 32, quic=True)
        with pytest.raises(ConnectionLostError, match="cannot connect"):
            await DsClient.connect("127.0.0.1", ds.port)
        async with await DsClient.connect("127.0.0.1", ds.port, authorities=ds.certificate) as client:
            assert await client.fetch(ALICE) == ()


@pytest.mark.parametrize("quic", [False, True])
async def test_an_answer_to_a_caller_that_left_ends_nothing(tmp_path: Path, quic: bool) -> None:
    async with running(tmp_path) as ds, await ds.client() as client:
        for _ in range(5):
            leaving = await ds.client(quic=quic)
            waiting = asyncio.create_task(leaving.fetch_wait(ALICE, timeout_s=60))
            await ds.until(lambda: len(ds.service.plan.state.waiting) == 1)
            storing = asyncio.create_task(client.enqueue(ALICE, b"x"))
            await leaving.close()
            await storing
            await asyncio.wait([waiting])
            await ds.until(lambda: len(ds.service.connections) == 1)
            found = () if waiting.exception() else waiting.result()
            assert found + await client.fetch(ALICE) == (b"x",)


async def test_a_stream_that_fails_ends_only_its_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as ds, await ds.client() as client:
        await client.enqueue(ALICE, b"x")
        broken = await ds.client()
        await broken.fetch(b"?" * 32)
        connection = list(ds.service.connections.values())[-1]

        def fail(data: bytes) -> None:
            raise RuntimeError

        setattr(connection._stream, "write", fail)  # noqa: B010 - a stream with a bug
        asking = asyncio.create_task(broken.fetch(ALICE))
        await ds.until(lambda: ds.count(Meter.PUT_BACK) == 1)
        assert await client.fetch(ALICE) == (b"x",)
        await broken.close()
        await asyncio.wait([asking])
        assert asking.exception() is not None
