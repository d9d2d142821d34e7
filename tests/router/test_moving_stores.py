"""To files, into other stores and back, also when interrupted: the same certificate everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.store_logs import Shape, write_files
from blindpost.router.bulk import BulkStore
from blindpost.router.bulk_lmdb import LmdbBulk
from blindpost.router.bulk_postgres import PostgresBulk
from blindpost.router.changes import (
    AddMessage,
    Change,
    DeleteMessage,
    PutEnds,
    PutLink,
    PutQueue,
    PutService,
    SetMember,
    SetPending,
)
from blindpost.router.model import NO_QUEUES, Domain, Ends, StoredMessage
from blindpost.router.moving.certificate import Certificate, certificate_of, differences
from blindpost.router.moving.copying import Copier
from blindpost.router.moving.exporting import NO_BODY, NO_LINK, Files, certificate_of_files, export
from blindpost.router.moving.importing import Importer, Source
from blindpost.router.moving.progress import Report
from blindpost.router.moving.values import queue_of
from blindpost.router.tables import LmdbTables, RouterStore
from blindpost.router.tables_postgres import PostgresTables
from blindpost.serving.failures import OperatorError
from blindpost.store.contract import Durability
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.message_log import MessageLine, SavedQuota
from blindpost.wire.smp.errors import BLOCKED, BlockingReason, Notice
from blindpost.wire.smp.values import LinkData, QueueMode
from blindpost.wire.store_log import BlockQueue, CreateQueue, Party, QueueService, encode_store_line
from tests.support.router.moving import NOW, RULES, files, importer

SHAPE = Shape(250, served=500, notified=500, waiting=400, full=200)
KEY = PublicKey(Algorithm.ED25519, bytes(32))
QUEUE = CreateQueue(b"\1" * 24, (KEY,), bytes(32), b"\2" * 24, None, QueueMode.CONTACT)


@contextlib.asynccontextmanager
async def lmdb(folder: Path) -> AsyncIterator[tuple[RouterStore, BulkStore]]:
    tables = LmdbTables(folder, Durability.OS)
    try:
        yield tables, LmdbBulk(tables)
    finally:
        tables.close()


@contextlib.asynccontextmanager
async def postgresql(dsn: str) -> AsyncIterator[tuple[RouterStore, BulkStore]]:
    tables = await PostgresTables.open(dsn)
    try:
        yield tables, PostgresBulk(tables.store)
    finally:
        tables.close()


def files_of(folder: Path) -> Files:
    folder.mkdir()
    return Files(folder / "store.log", folder / "messages.log", folder / "ntfs.log")


async def exported(bulk: BulkStore, folder: Path) -> tuple[Files, list[str]]:
    written = files_of(folder)
    report = Report(folder / "report")
    await export(bulk, written, report)
    report.sync()
    report.close()
    return written, (folder / "report").read_text().splitlines()


async def took(source: Source, store: RouterStore, bulk: BulkStore, folder: Path) -> Certificate:
    work = importer(source, store, bulk, folder, chunk_lines=97)
    await work.run()
    told, found = await work.check(), await certificate_of(bulk)
    assert told == found
    await work.finish()
    return found


async def test_export_and_import(tmp_path: Path) -> None:
    source = write_files(tmp_path, SHAPE, NOW)
    async with lmdb(tmp_path / "first") as (store, bulk):
        first = await took(source, store, bulk, tmp_path)
        written, left_out = await exported(bulk, tmp_path / "out")
    assert left_out == []
    assert certificate_of_files(written) == first
    assert all(
        int(first[name]) > 10 for name in ("queues", "notifiers", "links", "messages", "notifications")
    )
    assert int(first["full queues"]) > 1
    again = Source(written.store_log, written.messages, notifications=written.notifications)
    async with lmdb(tmp_path / "second") as (store, bulk):
        assert await took(again, store, bulk, tmp_path) == first


async def test_moving_between_the_stores(tmp_path: Path, database: str) -> None:
    """Files into PostgreSQL, from there into LMDB."""
    source = write_files(tmp_path, SHAPE, NOW)
    async with lmdb(tmp_path / "straight") as (store, bulk):
        straight = await took(source, store, bulk, tmp_path)
    async with postgresql(database) as (store, bulk), lmdb(tmp_path / "copy") as (copied, copied_bulk):
        assert await took(source, store, bulk, tmp_path) == straight
        copier = Copier(bulk, "the database", copied, copied_bulk)
        assert await copier.run()
        assert await certificate_of(copied_bulk) == straight
        await copier.finish()
        assert not await Copier(bulk, "the database", copied, copied_bulk).run()
        with pytest.raises(OperatorError, match="another import"):
            await Copier(bulk, "another database", copied, copied_bulk).run()


async def test_a_copy_into_postgresql(tmp_path: Path, database: str) -> None:
    source = write_files(tmp_path, SHAPE, NOW)
    async with lmdb(tmp_path / "store") as (store, bulk), postgresql(database) as (copied, copied_bulk):
        before = await took(source, store, bulk, tmp_path)
        await Copier(bulk, "store", copied, copied_bulk).run()
        assert await certificate_of(copied_bulk) == before


class StoppedError(Exception):
    """The process was killed, as far as the store can tell."""


class Stopping(LmdbTables):
    """A store that accepts this many commits and then fails, with or without keeping the last one."""

    def __init__(self, folder: Path, commits: int, *, after: bool) -> None:
        super().__init__(folder, Durability.OS)
        self._left = commits
        self._after = after

    async def commit(self, changes: Sequence[Change]) -> None:
        self._left -= 1
        if self._left or self._after:
            await super().commit(changes)
        if not self._left:
            raise StoppedError


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("commits", [1, 2, 3, 7])
async def test_a_stopped_import_resumes(tmp_path: Path, commits: int, after: bool) -> None:
    source = write_files(tmp_path, SHAPE, NOW)
    with source.store_log.open("ab") as file:
        file.write(b"FOO\n" * 300)
    async with lmdb(tmp_path / "straight") as (store, bulk):
        straight = await took(source, store, bulk, tmp_path)
    whole_report = (tmp_path / "report").read_text()
    (tmp_path / "report").unlink()
    for _ in range(1 if commits == 1 else 100):
        tables = Stopping(tmp_path / "store", commits, after=after)
        try:
            await importer(source, tables, LmdbBulk(tables), tmp_path, 97).run()
            break
        except StoppedError:
            with (tmp_path / "report").open("ab") as file:
                file.write(b"what was written and not committed\n")
        finally:
            tables.close()
    async with lmdb(tmp_path / "store") as (store, bulk):
        assert await took(source, store, bulk, tmp_path) == straight
        assert (tmp_path / "report").read_text() == whole_report
        work = importer(source, store, bulk, tmp_path)
        assert not await work.run()
        assert work.mark.counts["queues: not taken"] == 300


@pytest.mark.parametrize("commits", [1, 3, 4, 6, 20])
async def test_a_stopped_copy_resumes(tmp_path: Path, commits: int) -> None:
    source = write_files(tmp_path, SHAPE, NOW)
    async with lmdb(tmp_path / "source") as (store, bulk):
        straight = await took(source, store, bulk, tmp_path)
        tables = Stopping(tmp_path / "store", commits, after=True)
        with contextlib.suppress(StoppedError):
            await Copier(bulk, "source", tables, LmdbBulk(tables)).run()
        tables.close()
        async with lmdb(tmp_path / "store") as (copied, copied_bulk):
            await Copier(bulk, "source", copied, copied_bulk).run()
            assert await certificate_of(copied_bulk) == straight


async def test_an_import_does_not_resume_with_other_files(tmp_path: Path) -> None:
    source = files(tmp_path, [QUEUE])
    async with lmdb(tmp_path / "store") as (store, bulk):
        await took(source, store, bulk, tmp_path)
        with source.store_log.open("ab") as file:
            file.write(b"SUSPEND " + b"A" * 32 + b"\n")
        with pytest.raises(OperatorError, match="other files"):
            await importer(source, store, bulk, tmp_path).run()


async def test_a_store_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    async with lmdb(tmp_path / "store") as (store, bulk):
        await store.commit([PutQueue(queue_of(QUEUE), None)])
        with pytest.raises(OperatorError, match="not empty"):
            await importer(files(tmp_path, [QUEUE]), store, bulk, tmp_path).run()
        with pytest.raises(OperatorError, match="not empty"):
            await Copier(bulk, "elsewhere", store, bulk).run()


async def test_messages_that_never_expire(tmp_path: Path) -> None:
    source = write_files(tmp_path, SHAPE, NOW)
    rules = replace(RULES, message_ttl_s=None)
    async with lmdb(tmp_path / "store") as (store, bulk):
        work = Importer(source, store, bulk, tmp_path / "report", rules, now=lambda: NOW)
        await work.run()
        assert "messages: expired" not in work.mark.counts
        assert await work.check() == await certificate_of(bulk)


async def test_what_files_cannot_express_is_left_out_and_reported(tmp_path: Path) -> None:
    """Empty link data or an empty body would make the whole line unreadable."""
    link_id = b"\5" * 24
    queue = queue_of(QUEUE)._replace(link_id=link_id)
    bodies = enumerate((b"x", b"", b"y"))
    messages = [StoredMessage(bytes([number]) * 24, NOW, False, body) for number, body in bodies]

    async with lmdb(tmp_path / "store") as (store, bulk):
        await store.commit(
            [
                PutQueue(queue, None),
                PutLink(link_id, queue.recipient_id, LinkData(b"fixed", b"")),
                PutEnds(queue.recipient_id, Ends(7, 10)),
                *(AddMessage(queue.recipient_id, 7 + number, one) for number, one in enumerate(messages)),
            ]
        )
        written, left_out = await exported(bulk, tmp_path / "out")
        assert left_out == [f"store.log, line 1: {NO_LINK}", f"messages.log, line 2: {NO_BODY}"]
        found = certificate_of_files(written)
        assert found == await certificate_of(bulk, as_lines=True)
        assert (found["queues"], found["messages"], found["links"]) == (1, 2, 0)
        assert differences(found, await certificate_of(bulk))


async def test_a_blocked_queue_with_notice_and_service_can_be_read_back(tmp_path: Path) -> None:
    source = write_files(tmp_path, Shape(0), NOW)
    service_id = source.store_log.read_text().split("service_id=")[1].split(" ")[0]
    with source.store_log.open("ab") as file:
        from blindpost.wire.text import unb64

        blocked = BLOCKED(BlockingReason.CONTENT, Notice(86_400))
        for line in (
            QUEUE,
            QueueService(QUEUE.recipient_id, Party.RECIPIENT, unb64(service_id)),
            BlockQueue(QUEUE.recipient_id, blocked),
        ):
            file.write(encode_store_line(line) + b"\n")
    async with lmdb(tmp_path / "store") as (store, bulk):
        first = await took(source, store, bulk, tmp_path)
        written, left_out = await exported(bulk, tmp_path / "out")
    assert left_out == []
    assert certificate_of_files(written) == first


@pytest.mark.parametrize("part", ["count", "member", "pending", "message", "ends"])
async def test_rows_that_disagree_are_found(tmp_path: Path, part: str) -> None:
    """The certificate covers what services answer with, not only the rows it was made from."""
    source = write_files(tmp_path, SHAPE, NOW)
    async with lmdb(tmp_path / "store") as (store, bulk):
        before = await took(source, store, bulk, tmp_path)
        (service, *_) = (await bulk.services(b"", 1)).items
        (member, *_) = (await bulk.members(b"", 1)).items
        (waiting, *_) = (await bulk.pending(b"", 1)).items
        (held, *_) = (await bulk.messages(b"", 1)).items

        harm: dict[str, Change] = {
            "count": PutService(replace(service, queues=NO_QUEUES, notifiers=NO_QUEUES)),
            "member": SetMember(member.domain, member.service_id, member.entity_id, False),
            "pending": SetPending(Domain.MESSAGES, waiting.service_id, waiting.entity_id, False),
            "message": DeleteMessage(held.recipient_id, held.number),
            "ends": PutEnds(held.recipient_id, Ends(0, 50)),
        }
        await store.commit([harm[part]])
        after = await certificate_of(bulk)
        assert after["derived rows that disagree"] == 1
        assert "derived rows that disagree" in differences(before, after)


async def test_markers_are_merged_across_a_stop(tmp_path: Path) -> None:
    markers = [MessageLine(QUEUE.recipient_id, SavedQuota(bytes([number]) * 24, NOW)) for number in (1, 2)]
    source = files(tmp_path, [QUEUE], markers)
    tables = Stopping(tmp_path / "store", 3, after=True)
    with pytest.raises(StoppedError):
        await importer(source, tables, LmdbBulk(tables), tmp_path, 1).run()
    (held,) = (await LmdbBulk(tables).messages(b"", 10)).items
    assert held.message.is_marker
    tables.close()
    async with lmdb(tmp_path / "store") as (store, bulk):
        await took(source, store, bulk, tmp_path)
        assert (await bulk.messages(b"", 10)).items == (held,)
