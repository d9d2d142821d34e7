"""The service as a whole: what it costs, what it says, what happens when its store fails."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from blindpost.ds.client import DsClient, RefusedError
from blindpost.ds.meters import Meter
from blindpost.ds.model import LARGE_BYTES, DsRules
from blindpost.ds.moving import import_file
from blindpost.ds.tables import LmdbTables
from blindpost.ds.view import Change
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.capnp.node import Request
from tests.support.ds.delivery import ALICE, BOB, cut, running, silent, tokens


@pytest.mark.claim("DLV-31")
async def test_the_client_sends_version_1(tmp_path: Path) -> None:
    async with running(tmp_path) as ds, await ds.client() as client:
        wire = client._wire
        assert wire is not None
        asked, seen = wire.ask, list[Request]()

        def remember(request: Request) -> object:
            seen.append(request)
            return asked(request)

        setattr(wire, "ask", remember)  # noqa: B010 - listens to what the client says
        await client.enqueue(ALICE, b"1")
        await client.fetch(ALICE)
        await client.fetch_wait(ALICE, timeout_s=0)
        await client.lease(ALICE)
        await client.ack(ALICE, ())
        assert [getattr(request, "version") for request in seen] == [1] * 5  # noqa: B009 - all of these have one
        assert [request.auth.version for request in seen] == [1] * 5


@pytest.mark.parametrize("quic", [False, True])
async def test_a_client_accepts_the_fingerprint_as_the_commands_print_it(tmp_path: Path, quic: bool) -> None:
    async with running(tmp_path, authority=tokens()) as ds:
        port, printed = ds.quic_port if quic else ds.port, ds.fingerprint.hex()
        connecting = DsClient.connect("127.0.0.1", port, token="token of bob", fingerprint=printed, quic=quic)
        async with await connecting as client:
            assert await client.fetch(BOB) == ()


@pytest.mark.claim("DLV-32")
@pytest.mark.parametrize("quic", [False, True])
async def test_end_to_end(tmp_path: Path, quic: bool) -> None:
    key, nonce = ChaCha20Poly1305.generate_key(), bytes(12)
    async with (
        running(tmp_path) as ds,
        await ds.client(quic=quic) as alice,
        await ds.client(quic=quic) as bob,
    ):
        waiting = asyncio.create_task(bob.fetch_wait(BOB, b"chat", timeout_s=60))
        await ds.until(lambda: len(ds.service.plan.state.waiting) == 1)
        sealed = ChaCha20Poly1305(key).encrypt(nonce, b"hello bob", None)
        await alice.enqueue(BOB, sealed, b"chat")
        (received,) = await waiting
        assert received == sealed
        assert ChaCha20Poly1305(key).decrypt(nonce, received, None) == b"hello bob"


def handed_to_write_calls() -> int:
    """By this process, so far; what goes to sockets is not among it."""
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("wchar:") + 1])


@pytest.mark.claim("DLV-39")
async def test_an_enqueue_costs_the_same_however_much_is_stored(tmp_path: Path) -> None:
    costs = []
    for stored in (10, 100_000):
        folder = tmp_path / str(stored)
        folder.mkdir()
        store, file = LmdbTables(folder / "store"), folder / "deliveries.bin"
        payloads = struct.pack("<Q", 100) + bytes(100)
        file.write_bytes(
            struct.pack("<QQQ", 1, 0, 32) + ALICE + struct.pack("<Q", stored) + payloads * stored
        )
        await import_file(file, store)
        async with running(folder, DsRules(queue_payloads=1_000_000), store=store) as ds:
            async with await ds.client() as client:
                await client.enqueue(ALICE, b"x" * 100)
                before, rows = handed_to_write_calls(), store.bytes_written
                for _ in range(20):
                    await client.enqueue(ALICE, b"x" * 100)
                costs.append((handed_to_write_calls() - before, store.bytes_written - rows))
            assert store.totals()[0] == stored + 21
    (few_pages, few_rows), (many_pages, many_rows) = costs
    assert many_rows == few_rows
    assert many_pages < 3 * few_pages, "the depth of the tree, not its size"


class Failing(LmdbTables):
    """A store whose disk fails when it is told to."""

    fails = False

    async def commit(self, changes: Sequence[Change]) -> None:
        if self.fails and changes:
            raise StoreFailedError("the disk is full")
        await super().commit(changes)


@pytest.mark.claim("DLV-11")
async def test_a_failing_store_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    store = Failing(tmp_path / "store")
    async with running(tmp_path, store=store) as ds, await ds.client() as client:
        await client.enqueue(ALICE, b"1")
        waiting = asyncio.create_task(client.fetch_wait(BOB, timeout_s=60))
        await ds.until(lambda: len(ds.service.plan.state.waiting) == 1)
        store.fails = True
        with pytest.raises(RefusedError, match=r"^not stored: the disk is full$") as caught:
            await client.enqueue(BOB, b"2")
        assert caught.value.is_overloaded
        assert ds.count(Meter.ENQUEUED) == 1
        assert await client.fetch(ALICE) == (b"1",), "reading goes on"
        await ds.until(lambda: ds.count(Meter.STORE_ERRORS) >= 2)
        assert store.totals()[0] == 1, "taken, but not removed yet"
        store.fails = False
        await ds.until(lambda: store.totals()[0] == 0)
        await client.enqueue(BOB, b"3")
        assert await waiting == (b"3",)


async def test_what_was_not_stored_or_not_there_counts_against_no_quota(tmp_path: Path) -> None:
    store, rules = Failing(tmp_path / "store"), DsRules(sender_payloads=1, taken_packages_of_one=1)
    async with (
        running(tmp_path, rules, tokens(), store) as ds,
        await ds.client(b"token of alice") as alice,
        await ds.client(b"token of bob") as bob,
    ):
        store.fails = True
        for _ in range(3):
            with pytest.raises(RefusedError, match="the disk is full"):
                await alice.enqueue(BOB, b"not stored")
        store.fails = False
        await alice.enqueue(BOB, b"stored")
        with pytest.raises(RefusedError, match="too much was sent"):
            await alice.enqueue(BOB, b"too much")
        for _ in range(3):
            assert await alice.fetch_key_package(BOB) is None
        for package in (b"1", b"2"):
            await bob.upload_key_package(BOB, package)
        assert await alice.fetch_key_package(BOB) == b"1"
        with pytest.raises(RefusedError, match="too many key packages"):
            await alice.fetch_key_package(BOB)


async def test_a_finish_that_the_store_refused_concerns_its_own_question_only(tmp_path: Path) -> None:
    """It is tried again later, when a library that uses ids again has asked something else by the same id."""
    store = Failing(tmp_path / "store")
    async with running(tmp_path, store=store) as ds, await ds.client() as other:
        await other.enqueue(ALICE, b"1", b"one")
        await other.enqueue(ALICE, b"2", b"two")
        client = await ds.client()
        wire = client._wire
        assert wire is not None
        setattr(wire, "_numbers", iter([7, 7]))  # noqa: B010 - as a library that uses ids again
        store.fails = True
        assert await client.fetch(ALICE, b"one") == (b"1",)
        await ds.until(lambda: ds.count(Meter.STORE_ERRORS) == 1)
        silent(client)
        assert await client.fetch(ALICE, b"two") == (b"2",)
        store.fails = False
        await ds.until(lambda: ds.count(Meter.FINISHED) == 1)
        cut(client)
        assert await other.fetch_wait(ALICE, b"two", timeout_s=60) == (b"2",), "it was not finished"
        assert await other.fetch(ALICE, b"one") == ()


async def test_a_large_commit_does_not_stop_the_event_loop(tmp_path: Path) -> None:
    """Another thread commits a large payload; the loop keeps running."""
    store = LmdbTables(tmp_path / "store")
    loop = asyncio.get_running_loop()
    committing, turns = store.store.commit, 0
    turned = asyncio.Event()

    def slow(changes: object) -> None:
        asyncio.run_coroutine_threadsafe(turned.wait(), loop).result(60)
        committing(changes)  # type: ignore[arg-type]  # as it was given

    setattr(store.store, "commit", slow)  # noqa: B010 - a disk that waits for the event loop
    async with running(tmp_path, store=store) as ds, await ds.client() as client:
        sending = asyncio.create_task(client.enqueue(ALICE, b"x" * LARGE_BYTES))
        while turns < 50:
            await asyncio.sleep(0.001)
            turns += 1
        assert not sending.done()
        turned.set()
        await sending
        setattr(store.store, "commit", committing)  # noqa: B010 - as it was
        assert ds.count(Meter.ENQUEUED) == 1
