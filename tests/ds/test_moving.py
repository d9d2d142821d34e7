"""Files of the described service: read completely or not at all, left unchanged, written as V2."""

from __future__ import annotations

import random
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from blindpost.ds import moving
from blindpost.ds.bincode import ImportFileError, read_queues
from blindpost.ds.model import PAYLOAD_BYTES_MAX, delivery_queue
from blindpost.ds.moving import export_file, import_file
from blindpost.ds.tables import DsStore, LmdbTables
from blindpost.ds.tables_postgres import PostgresTables
from tests.support.ds.delivery import ALICE, BOB, running

CONTENT: dict[tuple[bytes, bytes], list[bytes]] = {
    (b"chan-1", ALICE): [b"msg_1", b"msg_2", b"msg_3"],
    (b"chan-1", BOB): [b"msg_4"],
    (b"", ALICE): [b"msg_7" * 1000, b"8" * PAYLOAD_BYTES_MAX],
}


def data(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def datas(contents: list[bytes]) -> bytes:
    return struct.pack("<Q", len(contents)) + b"".join(map(data, contents))


def v2(content: dict[tuple[bytes, bytes], list[bytes]]) -> bytes:
    rows = (data(channel) + data(key) + datas(payloads) for (channel, key), payloads in content.items())
    return struct.pack("<Q", len(content)) + b"".join(rows)


def v1(content: dict[bytes, list[bytes]]) -> bytes:
    rows = (data(key) + datas(payloads) for key, payloads in content.items())
    return struct.pack("<Q", len(content)) + b"".join(rows)


V1 = v1({ALICE: [b"old 1", b"old 2"], BOB: [b"old 3"]})


OpenStore = Callable[[], Awaitable[DsStore]]


@pytest.fixture(params=["lmdb", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same store each time it is called."""
    dsn = request.getfixturevalue("database") if request.param == "postgres" else None

    async def open_it() -> DsStore:
        return LmdbTables(tmp_path / "store") if dsn is None else await PostgresTables.open(dsn)

    return open_it


async def stored(store: DsStore) -> dict[tuple[bytes, bytes], list[bytes]]:
    return {
        (channel, key): [payload async for payload in store.payloads(delivery_queue(key, channel))]
        async for key, channel, _ in store.queues()
    }


@pytest.mark.claim("DLV-34")
async def test_import_and_export_have_equal_content(tmp_path: Path, open_store: OpenStore) -> None:
    file, again = tmp_path / "deliveries.bin", tmp_path / "again.bin"
    file.write_bytes(v2(CONTENT))
    store = await open_store()
    seen: list[tuple[int, int]] = []
    assert await import_file(file, store, lambda done, total: seen.append((done, total))) == (2, 3, 6)
    assert seen == [(number, 6) for number in range(1, 7)]
    assert await stored(store) == CONTENT
    assert store.totals() == (6, sum(len(p) for payloads in CONTENT.values() for p in payloads))
    assert await export_file(again, store, lambda done, total: seen.append((done, total))) == (3, 6)
    assert seen[6:] == seen[:6]
    store.close()
    version, queues = read_queues(memoryview(again.read_bytes()))
    assert version == 2
    found = {(queue.channel_id, queue.recipient_key): list(map(bytes, queue.payloads)) for queue in queues}
    assert found == CONTENT
    assert again.stat().st_size == file.stat().st_size
    assert file.read_bytes() == v2(CONTENT)


@pytest.mark.claim("DLV-35", "DLV-36")
async def test_a_v1_file_is_the_empty_channel(tmp_path: Path, open_store: OpenStore) -> None:
    file = tmp_path / "deliveries.bin"
    file.write_bytes(V1)
    store = await open_store()
    assert await import_file(file, store) == (1, 2, 3)
    async with running(tmp_path, store=store) as ds, await ds.client() as client:
        assert await client.fetch(ALICE) == (b"old 1", b"old 2")
        await client.enqueue(BOB, b"new")
        await ds.until(lambda: store.totals()[0] == 2)
    store = await open_store()
    await export_file(tmp_path / "new.bin", store)
    store.close()
    version, (queue,) = read_queues(memoryview((tmp_path / "new.bin").read_bytes()))
    assert version == 2
    assert (queue.channel_id, queue.recipient_key) == (b"", BOB)
    assert list(map(bytes, queue.payloads)) == [b"old 3", b"new"]


@pytest.mark.claim("DLV-37")
async def test_an_empty_folder_is_an_empty_store(tmp_path: Path) -> None:
    async with running(tmp_path) as ds, await ds.client() as client:
        assert await client.fetch(ALICE) == ()
        await client.enqueue(ALICE, b"first")
        assert await client.fetch(ALICE) == (b"first",)


def bad_files() -> dict[str, bytes]:
    whole = v2(CONTENT)
    return {
        "empty": b"",
        "short": whole[:-1],
        "long": whole + b"\0",
        "a V1 file that goes on": V1 + b"\0",
        "noise": random.Random(4).randbytes(500),
        "a count that cannot be": struct.pack("<Q", 2**62) + whole[8:],
        "a short key": v2({(b"c", b"short"): [b"p"]}),
        "a long channel id": v2({(b"c" * 256, ALICE): [b"p"]}),
        "an empty payload": v2({(b"c", ALICE): [b""]}),
        "a queue twice": struct.pack("<Q", 2) + v2({(b"c", ALICE): [b"p"]})[8:] * 2,
    }


@pytest.mark.claim("DLV-49")
@pytest.mark.parametrize("name", list(bad_files()))
async def test_a_file_in_neither_format_is_refused_as_a_whole(
    tmp_path: Path, name: str, open_store: OpenStore
) -> None:
    content = bad_files()[name]
    file = tmp_path / "deliveries.bin"
    file.write_bytes(content)
    store = await open_store()
    with pytest.raises(ImportFileError):
        await import_file(file, store)
    assert file.read_bytes() == content
    assert set(store.counts().values()) == {0}
    store.close()


class StoppedError(Exception):
    """Somebody ended the import."""


def test_every_truncation_is_refused() -> None:
    whole = v2({(b"chan", ALICE): [b"1", b"22"], (b"", BOB): [b"333"]})
    for size in range(len(whole)):
        with pytest.raises(ImportFileError):
            read_queues(memoryview(whole[:size]))


async def test_an_import_is_not_repeated(tmp_path: Path, open_store: OpenStore) -> None:
    file = tmp_path / "deliveries.bin"
    file.write_bytes(v2(CONTENT))
    store = await open_store()
    await import_file(file, store)
    with pytest.raises(ImportFileError, match="holds payloads already"):
        await import_file(file, store)
    assert await stored(store) == CONTENT
    store.close()


async def test_an_import_that_fails_in_the_middle_leaves_nothing(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deliveries.bin"
    file.write_bytes(v2(CONTENT))
    store = await open_store()

    def fail(done: int, total: int) -> None:
        if done == 4:
            raise StoppedError

    monkeypatch.setattr(moving, "CHUNK_PAYLOADS", 1)  # some are on their way when it fails
    with pytest.raises(StoppedError):
        await import_file(file, store, fail)
    assert set(store.counts().values()) == {0}
    assert store.totals() == (0, 0)
    store.close()

    store = await open_store()
    assert await import_file(file, store) == (2, 3, 6), "it can be tried again"
    store.close()
