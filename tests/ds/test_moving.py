"""Files of the described service: read whole or not at all, kept as they are, written as V2."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from blindpost.ds.bincode import ImportFileError, read_queues
from blindpost.ds.model import delivery_queue
from blindpost.ds.moving import export_file, import_file
from blindpost.ds.tables import LmdbTables
from tests.support.delivery import ALICE, BOB, running

CONTENT: dict[tuple[bytes, bytes], list[bytes]] = {
    (b"chan-1", ALICE): [b"msg_1", b"msg_2", b"msg_3"],
    (b"chan-1", BOB): [b"msg_4"],
    (b"", ALICE): [b"msg_7" * 1000],
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


def stored(store: LmdbTables) -> dict[tuple[bytes, bytes], list[bytes]]:
    return {
        (channel, key): list(store.payloads(delivery_queue(key, channel)))
        for key, channel, _ in store.queues()
    }


@pytest.mark.claim("DLV-34")
def test_import_and_export_have_equal_content(tmp_path: Path) -> None:
    file, again = tmp_path / "deliveries.bin", tmp_path / "again.bin"
    file.write_bytes(v2(CONTENT))
    store = LmdbTables(tmp_path / "store")
    seen: list[tuple[int, int]] = []
    assert import_file(file, store, lambda done, total: seen.append((done, total))) == (2, 3, 5)
    assert seen == [(number, 5) for number in range(1, 6)]
    assert stored(store) == CONTENT
    assert store.totals() == (5, sum(len(p) for payloads in CONTENT.values() for p in payloads))
    assert export_file(again, store) == (3, 5)
    store.close()
    version, queues = read_queues(memoryview(again.read_bytes()))
    assert version == 2
    found = {(queue.channel_id, queue.recipient_key): list(map(bytes, queue.payloads)) for queue in queues}
    assert found == CONTENT
    assert again.stat().st_size == file.stat().st_size
    assert file.read_bytes() == v2(CONTENT)


@pytest.mark.claim("DLV-35", "DLV-36")
async def test_a_v1_file_is_the_empty_channel(tmp_path: Path) -> None:
    file = tmp_path / "deliveries.bin"
    file.write_bytes(V1)
    store = LmdbTables(tmp_path / "store")
    assert import_file(file, store) == (1, 2, 3)
    async with running(tmp_path, store=store) as ds, await ds.client() as client:
        assert await client.fetch(ALICE) == (b"old 1", b"old 2")
        await client.enqueue(BOB, b"new")
        await ds.until(lambda: store.totals()[0] == 2)
    store = LmdbTables(tmp_path / "store")
    export_file(tmp_path / "new.bin", store)
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
def test_a_file_that_fits_neither_is_refused_whole(tmp_path: Path, name: str) -> None:
    content = bad_files()[name]
    file = tmp_path / "deliveries.bin"
    file.write_bytes(content)
    store = LmdbTables(tmp_path / "store")
    with pytest.raises(ImportFileError):
        import_file(file, store)
    assert file.read_bytes() == content
    assert set(store.counts().values()) == {0}
    store.close()


def test_every_truncation_is_refused() -> None:
    whole = v2({(b"chan", ALICE): [b"1", b"22"], (b"", BOB): [b"333"]})
    for size in range(len(whole)):
        with pytest.raises(ImportFileError):
            read_queues(memoryview(whole[:size]))


def test_an_import_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "deliveries.bin"
    file.write_bytes(v2(CONTENT))
    store = LmdbTables(tmp_path / "store")
    import_file(file, store)
    with pytest.raises(ImportFileError, match="holds payloads already"):
        import_file(file, store)
    assert stored(store) == CONTENT
    store.close()


def test_an_import_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "deliveries.bin"
    file.write_bytes(v2(CONTENT))
    store = LmdbTables(tmp_path / "store")

    def fail(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_file(file, store, fail)
    assert set(store.counts().values()) == {0}
    assert store.totals() == (0, 0)
    store.close()
