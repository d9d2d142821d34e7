"""Large payloads and slow storage: nobody else waits, nothing is half there, order is kept."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from blindpost.ds.client import DsClient, RefusedError
from blindpost.ds.large import LargeFiles
from blindpost.ds.meters import Meter
from blindpost.ds.model import LARGE_BYTES, PAYLOAD_BYTES_MAX, DsRules, Ends, Entry, delivery_queue
from blindpost.ds.state import Reach
from blindpost.ds.tables import DsStore, LmdbTables, Reaches
from blindpost.ds.tables_postgres import PostgresTables
from blindpost.ds.view import AddEntry, Change, PutEnds, PutTotals, View, Wanted
from blindpost.engine.loop import StoreFailedError
from blindpost.engine.undo import Undo
from tests.support.ds.delivery import ALICE, BOB, WAY, Running, cut, running, silent, tokens

pytestmark = pytest.mark.usefixtures("way")

LONG_S = 60.0
QUEUE = delivery_queue(ALICE, b"")


def large(mark: bytes = b"a") -> bytes:
    return mark * PAYLOAD_BYTES_MAX


class Gate:
    """Holds up whoever comes, in a thread or a task, until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = 0

    def pass_thread(self) -> None:
        self.reached += 1
        assert self.open.wait(LONG_S)

    async def pass_task(self) -> None:
        self.reached += 1
        assert await asyncio.to_thread(self.open.wait, LONG_S)


def slow_storage(monkeypatch: pytest.MonkeyPatch, store: DsStore, does: str) -> Gate:
    """Hold up the writing ("write") or reading ("look") of large payloads that begin with `a` (Alice's)."""
    gate = Gate()
    if isinstance(store, LmdbTables):
        method: Callable[..., Any] = getattr(LargeFiles, f"_{does}" if does == "write" else does)

        def slow_file(files: LargeFiles, name: bytes, *payload: bytes) -> Any:
            if does == "look" or payload[0].startswith(b"a"):
                gate.pass_thread()
            return method(files, name, *payload)

        monkeypatch.setattr(LargeFiles, f"_{does}" if does == "write" else does, slow_file)
    else:
        assert isinstance(store, PostgresTables)
        aside = store.store.aside

        async def slow_statement(statement: str, *arguments: Any) -> Any:
            is_write = "INSERT INTO pieces" in statement
            is_read = "SELECT content FROM pieces" in statement
            if (is_write if does == "write" else is_read) and arguments[0] == QUEUE:
                await gate.pass_task()
            return await aside(statement, *arguments)

        monkeypatch.setattr(store.store, "aside", slow_statement)
    return gate


@contextlib.asynccontextmanager
async def releasing(held: asyncio.Event) -> AsyncIterator[None]:
    """A test that fails must not leave the service waiting."""
    try:
        yield
    finally:
        held.set()


@pytest.fixture
async def ds(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


@pytest.fixture
async def client(ds: Running) -> AsyncIterator[DsClient]:
    async with await ds.client() as connected:
        yield connected


async def call_everything(ds: Running, key: bytes) -> None:
    """Every call, each on a separate connection."""
    async with await ds.client() as sender, await ds.client() as receiver, asyncio.timeout(LONG_S / 2):
        waiting = asyncio.create_task(receiver.fetch_wait(key, timeout_s=LONG_S))
        await ds.until(lambda: len(ds.service.plan.state.waiting) == 1)
        await sender.enqueue(key, b"1")
        assert await waiting == (b"1",)
        await sender.enqueue(key, b"2")
        assert await receiver.fetch(key) == (b"2",)
        await sender.enqueue(key, b"3")
        (leased,) = await receiver.lease(key)
        await receiver.ack(key, (leased.id,))
        await sender.upload_key_package(key, b"package")
        assert await receiver.fetch_key_package(key) == b"package"


@pytest.mark.claim("DLV-52")
async def test_slow_writing_of_a_large_payload_stalls_nobody_else(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = slow_storage(monkeypatch, ds.service.store, "write")
    sending = asyncio.create_task(client.enqueue(ALICE, large()))
    await ds.until(lambda: gate.reached > 0)
    await call_everything(ds, BOB)
    await call_everything(ds, ALICE)
    async with await ds.client() as other:
        await other.enqueue(BOB, large(b"b"))
        assert await other.fetch(BOB) == (large(b"b"),), "another large one neither"
        assert not sending.done()
        gate.open.set()
        await sending
        assert await other.fetch(ALICE) == (large(),)


@pytest.mark.claim("DLV-52")
async def test_slow_reading_of_a_large_payload_stalls_nobody_else(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.enqueue(ALICE, b"before")
    await client.enqueue(ALICE, large())
    await client.enqueue(ALICE, b"after")
    gate = slow_storage(monkeypatch, ds.service.store, "look")
    taking = asyncio.create_task(client.fetch(ALICE))
    await ds.until(lambda: gate.reached > 0)
    await call_everything(ds, BOB)
    assert not taking.done()
    gate.open.set()
    assert await taking == (b"before", large(), b"after")
    await ds.until(lambda: ds.service.store.totals() == (0, 0))


def slow_commits(monkeypatch: pytest.MonkeyPatch, store: DsStore, *, fails: bool = False) -> asyncio.Event:
    """Hold up commits that add to Alice's queue until the event is set; then they may fail."""
    commit, held = store.commit, asyncio.Event()

    async def slow(changes: Sequence[Change]) -> None:
        if any(isinstance(change, AddEntry) and change.queue == QUEUE for change in changes):
            await held.wait()
            if fails:
                raise StoreFailedError("the disk is full")
        await commit(changes)

    monkeypatch.setattr(store, "commit", slow)
    return held


@pytest.mark.claim("DLV-52")
async def test_a_slow_commit_does_not_stall_fetches_from_other_queues(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ds.service.store
    await client.enqueue(BOB, b"there")
    held = slow_commits(monkeypatch, store)
    sending = asyncio.create_task(client.enqueue(ALICE, b"slow"))
    await ds.until(lambda: ds.service.beside._commit is not None)
    async with (
        releasing(held),
        await ds.client() as bob,
        await ds.client() as other,
        asyncio.timeout(LONG_S / 2),
    ):
        assert await bob.fetch(BOB) == (b"there",)
        assert await bob.fetch(BOB, b"channel") == ()
        waiting = asyncio.create_task(bob.fetch_wait(BOB, b"channel", timeout_s=LONG_S))
        assert await other.fetch_wait(BOB, timeout_s=0.01) == (), "it ends in its time, by the next turn"
        own = asyncio.create_task(other.fetch(ALICE))
        ordered = asyncio.gather(bob.enqueue(BOB, b"1", b"order"), bob.fetch(BOB, b"order"))
        await ds.until(lambda: ds.service.engine.waiting >= 3)
        assert not sending.done()
        assert not own.done(), "what depends on the commit waits for it"
        held.set()
        await sending
        assert await own == (b"slow",)
        assert (await ordered)[1] == (b"1",), "nobody overtakes a call that came before"
        await other.enqueue(BOB, b"woken", b"channel")
        assert await waiting == (b"woken",)
    await ds.until(lambda: store.totals() == (0, 0))


@pytest.mark.claim("DLV-52")
async def test_what_was_decided_during_a_commit_stays_when_it_fails(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, state = ds.service.store, ds.service.plan.state
    await client.enqueue(BOB, b"there")
    held = slow_commits(monkeypatch, store, fails=True)
    sending = asyncio.create_task(client.enqueue(ALICE, b"slow"))
    await ds.until(lambda: ds.service.beside._commit is not None)
    async with releasing(held), await ds.client() as bob, asyncio.timeout(LONG_S / 2):
        (leased,) = await bob.lease(BOB)
        waiting = asyncio.create_task(bob.fetch_wait(BOB, b"channel", timeout_s=LONG_S))
        await ds.until(lambda: len(state.waiting) == 1)
        held.set()
        with pytest.raises(RefusedError, match="the disk is full"):
            await sending
        assert (len(state.held), len(state.waiting), ds.count(Meter.HANDED_OUT)) == (1, 1, 1)
        assert await client.fetch(BOB) == (), "it is leased"
        await client.enqueue(BOB, b"woken", b"channel")
        assert await waiting == (b"woken",)
        await bob.ack(BOB, (leased.id,))


@pytest.mark.claim("DLV-52")
async def test_no_turn_handles_more_than_its_share(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of payloads that each turn reads and commits, while large and small ones come and go."""
    store, rules = ds.service.store, ds.service.plan.rules
    load, commit = store.load, store.commit
    read: list[int] = []
    written: list[int] = []

    async def counted_load(wanted: Wanted, view: View, reaches: Reaches, rules: DsRules) -> None:
        await load(wanted, view, reaches, rules)
        loaded = [entry.payload for queue in wanted.heads for entry in view.head(queue)]
        read.append(sum(map(len, filter(None, loaded))))

    async def counted_commit(changes: Sequence[Change]) -> None:
        added = [change.entry.payload for change in changes if isinstance(change, AddEntry)]
        written.append(sum(map(len, filter(None, added))))
        await commit(changes)

    monkeypatch.setattr(store, "load", counted_load)
    monkeypatch.setattr(store, "commit", counted_commit)
    middle = b"m" * LARGE_BYTES
    async with contextlib.AsyncExitStack() as stack:
        senders = [await stack.enter_async_context(await ds.client()) for _ in range(3)]
        for payload in (large(), middle, middle, middle):
            await asyncio.gather(*(sender.enqueue(ALICE, payload) for sender in senders))
    found: list[bytes] = []
    while part := await client.fetch(ALICE):
        assert sum(map(len, part)) <= rules.response_bytes
        found += part
    assert sorted(map(len, found)) == [LARGE_BYTES] * 9 + [PAYLOAD_BYTES_MAX] * 3
    assert 0 < max(read) <= rules.turn_bytes
    assert 0 < max(written) <= 2 * LARGE_BYTES, "a batch ends with the payload that fills it"


async def test_calls_of_one_connection_stay_in_order(ds: Running, client: DsClient) -> None:
    payloads = (b"first", large(), b"second", large(b"b"), b"third")
    await asyncio.gather(*(client.enqueue(ALICE, payload) for payload in payloads))
    found: list[bytes] = []
    while part := await client.fetch(ALICE):
        found += part
    assert tuple(found) == payloads


async def test_nothing_from_a_stranger_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, authority=tokens()) as ds, await ds.client(b"unknown") as stranger:
        gate = slow_storage(monkeypatch, ds.service.store, "write")
        with pytest.raises(RefusedError, match="authentication failed"):
            await stranger.enqueue(ALICE, large())
        assert gate.reached == 0


async def staged(store: DsStore) -> int:
    """How many large payloads are on disk, whether or not a queue has them."""
    if isinstance(store, LmdbTables):
        return len(list(store._files._folder.iterdir()))
    assert isinstance(store, PostgresTables)
    (row,) = await store.store.fetch("SELECT count(DISTINCT (queue, tag)) FROM pieces")
    return int(row[0])


async def until_staged(store: DsStore, count: int) -> None:
    async with asyncio.timeout(LONG_S):
        while True:
            if await staged(store) == count:
                return
            await asyncio.sleep(0.005)


async def test_a_queue_that_fills_meanwhile_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = DsRules(queue_payloads=1)
    async with running(tmp_path, rules) as ds, await ds.client() as client, await ds.client() as other:
        gate = slow_storage(monkeypatch, ds.service.store, "write")
        sending = asyncio.create_task(client.enqueue(ALICE, large()))
        await ds.until(lambda: gate.reached > 0)
        await other.enqueue(ALICE, b"sooner")
        gate.open.set()
        with pytest.raises(RefusedError, match="queue is full"):
            await sending
        assert ds.count(Meter.REFUSED_FULL) == 1
        await until_staged(ds.service.store, 0)
        assert await other.fetch(ALICE) == (b"sooner",)
        await client.enqueue(ALICE, large())
        await until_staged(ds.service.store, 1)
        assert await other.fetch(ALICE) == (large(),)
        await until_staged(ds.service.store, 0)


async def test_a_failed_write_is_reported_and_leaves_nothing(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ds.service.store
    if isinstance(store, LmdbTables):
        monkeypatch.setattr(store._files, "_synced", True)
        monkeypatch.setattr(store._files, "_sync_folder", failing)
    else:
        assert isinstance(store, PostgresTables)
        aside = store.store.aside

        async def fail(statement: str, *arguments: Any) -> Any:
            if "INSERT INTO pieces" in statement and arguments[2] == 3:
                raise StoreFailedError("the disk is full")
            return await aside(statement, *arguments)

        monkeypatch.setattr(store.store, "aside", fail)
    with pytest.raises(RefusedError, match=r"^not stored: the disk is full$") as caught:
        await client.enqueue(ALICE, large())
    assert caught.value.is_overloaded
    await until_staged(store, 0)
    await client.enqueue(ALICE, b"small")
    assert await client.fetch(ALICE) == (b"small",)
    assert ds.count(Meter.STORE_ERRORS) == 1


def failing() -> None:
    raise OSError(28, "No space left on device")


async def test_a_commit_that_fails_after_the_write_leaves_nothing(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ds.service.store
    commit = store.commit

    async def fail(changes: Sequence[Change]) -> None:
        raise StoreFailedError("the disk is full")

    monkeypatch.setattr(store, "commit", fail)
    monkeypatch.setattr(ds.service.plan, "commit", lambda: store.commit(()))
    with pytest.raises(RefusedError, match=r"^not stored: the disk is full$"):
        await client.enqueue(ALICE, b"small")
    monkeypatch.undo()
    monkeypatch.setattr(store, "commit", lambda changes: fail(changes) if changes else commit(changes))
    with pytest.raises(RefusedError, match=r"^not stored: the disk is full$"):
        await client.enqueue(ALICE, large())
    monkeypatch.undo()
    await until_staged(store, 0)
    assert store.totals() == (0, 0)


async def test_a_failed_read_is_reported_and_puts_the_payload_back(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.enqueue(ALICE, large())

    async def fail(queue: bytes, entry: Entry) -> bytes | None:
        raise StoreFailedError("the disk is failing")

    monkeypatch.setattr(ds.service.store, "read_large", fail)
    with pytest.raises(RefusedError, match=r"^not stored: the disk is failing$"):
        await client.fetch(ALICE)
    monkeypatch.undo()
    await ds.until(lambda: ds.count(Meter.PUT_BACK) == 1)
    async with await ds.client() as other:
        assert await other.fetch(ALICE) == (large(),)


async def test_a_payload_acknowledged_while_it_is_read_is_not_delivered(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.enqueue(ALICE, large())
    await client.enqueue(ALICE, b"after")
    (leased, _) = await client.lease(ALICE)
    cut(client)
    await ds.until(lambda: len(ds.service.connections) == 0)
    gate = slow_storage(monkeypatch, ds.service.store, "look")
    async with await ds.client() as reader, await ds.client() as other:
        taking = asyncio.create_task(reader.lease(ALICE))
        await ds.until(lambda: gate.reached > 0)
        await other.ack(ALICE, (leased.id,))
        await until_staged(ds.service.store, 0)
        gate.open.set()
        assert [delivery.payload for delivery in await taking] == [b"after"]


async def test_an_answer_that_was_not_taken_is_put_back(ds: Running, client: DsClient) -> None:
    await client.enqueue(ALICE, large())
    other = await ds.client()
    silent(other)
    assert await other.fetch(ALICE) == (large(),)
    cut(other)
    assert await client.fetch_wait(ALICE, timeout_s=LONG_S) == (large(),)
    await until_staged(ds.service.store, 0)


async def open_store(folder: Path) -> DsStore:
    return LmdbTables(folder) if WAY.dsn is None else await PostgresTables.open(WAY.dsn)


async def test_leftovers_of_a_crash_are_removed_at_start(tmp_path: Path) -> None:
    """Whenever the process died: a large payload exists after its commit and not before."""
    store = await open_store(tmp_path / "store")
    kept, lost = b"k" * 8, b"l" * 8
    for tag in (kept, lost):
        await store.stage(QUEUE, tag, large(tag[:1]))
    await store.commit(
        [AddEntry(QUEUE, Entry(0, kept, PAYLOAD_BYTES_MAX)), PutEnds(QUEUE, Ends(1, 1, PAYLOAD_BYTES_MAX))]
    )
    assert await staged(store) == 2
    store.close()
    store = await open_store(tmp_path / "store")
    assert await staged(store) == 1
    assert await store.read_large(QUEUE, Entry(0, kept, PAYLOAD_BYTES_MAX)) == large(b"k")
    assert await store.read_large(QUEUE, Entry(1, lost, PAYLOAD_BYTES_MAX)) is None
    store.close()


async def test_no_payload_is_read_for_another_that_had_its_number(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "store")
    await store.commit([AddEntry(QUEUE, Entry(0, b"n" * 8, 3, b"new")), PutEnds(QUEUE, Ends(1, 1, 3))])
    assert await store.read_large(QUEUE, Entry(0, b"n" * 8, 3)) == b"new", "a large one may be a row"
    assert await store.read_large(QUEUE, Entry(0, b"o" * 8, PAYLOAD_BYTES_MAX)) is None
    store.close()


async def test_what_an_earlier_version_counted_wrong_is_counted_anew(tmp_path: Path) -> None:
    store, other = await open_store(tmp_path / "store"), delivery_queue(BOB, b"")
    added = [AddEntry(QUEUE, Entry(number, b"%8d" % number, 3, b"abc")) for number in range(4, 7)]
    added.append(AddEntry(other, Entry(0, b"t" * 8, 1, b"x")))
    wrong = [PutEnds(QUEUE, Ends(1, 1, 1)), PutEnds(delivery_queue(BOB, b"empty"), Ends(1, 1, 1))]
    await store.commit([*added, *wrong, PutTotals(2, 4)])
    if isinstance(store, LmdbTables):
        store.store.commit([("meta", b"schema version", (2).to_bytes(4, "big"))])
    else:
        assert isinstance(store, PostgresTables)
        await store.store.fetch("UPDATE state SET version = 2, bytes = 4 RETURNING version")
    store.close()
    store = await open_store(tmp_path / "store")
    view, reaches = View(Undo()), dict[bytes, Reach]()
    await store.load(Wanted({QUEUE, other}), view, reaches.__getitem__, DsRules())
    assert (view.ends(QUEUE), view.ends(other)) == (Ends(7, 3, 9), Ends(1, 1, 1))
    assert store.totals() == view.totals == (4, 10)
    assert store.counts()["queues"] == 2
    assert [count async for _, _, count in store.queues()] == [3, 1]
    store.close()


async def test_a_payload_deleted_in_a_turn_does_not_come_back_with_the_next_one(
    ds: Running, client: DsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ds.service.store
    await client.enqueue(BOB, b"old")
    await client.upload_key_package(BOB, b"old package")
    (old,) = await client.lease(BOB)
    async with await ds.client() as slow:
        held = slow_commits(monkeypatch, store)
        sending = asyncio.create_task(slow.enqueue(ALICE, b"slow"))
        await ds.until(lambda: ds.service.beside._commit is not None)
        async with releasing(held):
            calls = [
                client.ack(BOB, (old.id,)),
                client.enqueue(BOB, b"new"),
                client.fetch(BOB),
                client.fetch_key_package(BOB),
                client.upload_key_package(BOB, b"new package"),
                client.fetch_key_package(BOB),
            ]
            answered = asyncio.gather(*calls)
            await ds.until(lambda: ds.service.engine.waiting == len(calls))
        await sending
        _, _, payloads, first, _, second = await answered
        assert (payloads, first, second) == ((b"new",), b"old package", b"new package")
        assert await client.fetch_key_package(BOB) is None
        await ds.until(lambda: store.totals() == (1, len(b"slow")))
        assert await slow.fetch(ALICE) == (b"slow",)
        await ds.until(lambda: store.totals() == (0, 0))


async def test_a_stopping_service_completes_what_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as ds:
        client = await ds.client()
        gate = slow_storage(monkeypatch, ds.service.store, "write")
        sending = asyncio.create_task(client.enqueue(ALICE, large()))
        await ds.until(lambda: gate.reached > 0)
        ds.service.stop()
        await asyncio.sleep(0)
        gate.open.set()
        await sending
        await client.close()
    async with running(tmp_path) as ds, await ds.client() as client:
        assert await client.fetch(ALICE) == (large(),)
