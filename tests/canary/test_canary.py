"""A canary over two real routers: every message is accounted for, also when a router is killed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pyarrow.parquet
import pytest

from blindpost.agent import ReceivedMessage, StoreFailedError
from blindpost.canary.book import Became, Entry
from blindpost.canary.process import CanaryService, clock_us
from blindpost.canary.settings import CONFIG_NAME, CanaryPlace, config_text
from blindpost.journal.seal import Rules, seal_folder
from blindpost.serving.control import ask
from blindpost.serving.failures import OperatorError
from tests.support.canary.canaries import reached, set_up, singing
from tests.support.serving.commands import run
from tests.support.serving.processes import RouterInProcess, router_in_process, until


@contextlib.asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[tuple[RouterInProcess, RouterInProcess]]:
    async with router_in_process(folder / "one") as one, router_in_process(folder / "two") as two:
        await asyncio.gather(one.start(), two.start())
        yield one, two


async def settled(canary: CanaryService) -> None:
    """Nothing is under way for a moment, and everything received is acknowledged."""

    async def quiet() -> bool:
        counts = canary.book.counts
        return not canary.book.under_way and counts[Became.ACKED] == counts[Became.DELIVERED]

    await until(quiet)


def rows(folder: Path) -> list[dict[str, object]]:
    seal_folder(folder / "journal", Rules())
    files = sorted((folder / "journal" / "L" / "l_messages").rglob("*.parquet"))
    return [row for file in files for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()]


async def test_every_message_is_accounted_for_while_a_router_is_killed(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (one, two):
        folder = set_up(tmp_path / "canary", one, two)
        async with singing(folder) as canary:
            await reached(canary, Became.ACKED, 6)
            told = await asyncio.to_thread(ask, folder / "control.sock", "status")
            assert (told["pairs"], told["connected"], told["lost"]) == (2, 2, 0)
            assert told["p50_ms"] > 0
            await two.end()
            sent = canary.book.counts[Became.SENT]
            await reached(canary, Became.SENT, sent + 4)
            await two.start()
            await reached(canary, Became.DELIVERED, sent + 6)
        counts = canary.book.counts
        assert counts[Became.LOST] == counts[Became.DUPLICATE] == canary.book.broken == 0
        # A new process goes on with the same connections; what was under way arrives there.
        async with singing(folder) as again:
            await reached(again, Became.ACKED, 6)
            assert again.book.broken == again.book.counts[Became.LOST] == 0
            assert len(again.fleet.ends) == 2
    written = rows(folder)
    events = Counter(str(row["event"]) for row in written)
    for became in Became:
        assert events[became.value] == counts[became] + again.book.counts[became], became
    assert {(row["from_router"], row["to_router"]) for row in written} == {("one", "two"), ("two", "one")}
    assert {row["integrity"] for row in written if row["event"] == "delivered"} == {"ok"}


async def test_a_message_stays_one_across_midnight_and_a_restart(tmp_path: Path) -> None:
    """Sent on one day, delivered on the next by another process: all its rows name one connection."""
    late_s = time.time_ns() // 10**9 // 86_400 * 86_400 - 600
    shift_us = [late_s * 1_000_000 - clock_us()]
    async with fleet(tmp_path) as (one, two):
        folder = set_up(tmp_path / "canary", one, two)
        async with singing(folder, lambda: clock_us() + shift_us[0]) as canary:
            await reached(canary, Became.ACKED, 4)
            await two.end()
            sent = canary.book.counts[Became.SENT]
            await reached(canary, Became.SENT, sent + 4)
        shift_us[0] += 3_600_000_000
        await two.start()
        async with singing(folder, lambda: clock_us() + shift_us[0]) as again:
            await reached(again, Became.ACKED, 8)
    messages: dict[object, list[dict[str, object]]] = {}
    for row in rows(folder):
        messages.setdefault(row["number"], []).append(row)
    spanning = [found for found in messages.values() if len({row["boot"] for row in found}) == 2]
    assert len(spanning) >= 2
    assert all(len({row["connection"] for row in found}) == 1 for found in messages.values())
    days = {len({int(str(row["time_us"])) // 86_400_000_000 for row in found}) for found in spanning}
    assert days == {2}


async def test_a_fleet_of_one_router_has_a_pair_too(tmp_path: Path) -> None:
    async with router_in_process(tmp_path / "one") as one:
        await one.start()
        async with singing(set_up(tmp_path / "canary", one)) as canary:
            await reached(canary, Became.ACKED, 4)
            await settled(canary)

            async def accepted() -> bool:
                return canary.book.counts[Became.ACCEPTED] == canary.book.counts[Became.SENT]

            await until(accepted)  # each direction finds its own message again


async def test_connections_that_a_store_does_not_have_are_made_anew(tmp_path: Path) -> None:
    """As after a disk was repaired by deleting what it had lost, and with a list that cannot be read."""
    async with fleet(tmp_path) as (one, two):
        folder = set_up(tmp_path / "canary", one, two)
        async with singing(folder) as canary:
            await reached(canary, Became.ACKED, 2)
        place, before = canary.place, canary.place.pairs.read_bytes()
        for file in place.agents.glob("one.db*"):
            file.unlink()
        async with singing(folder) as canary:
            await reached(canary, Became.ACKED, 2)
        assert place.pairs.read_bytes() != before
        for damaged in (b"[[1, 2]]", b"{", b"7", before + b"]"):
            place.pairs.write_bytes(damaged)
            async with singing(folder) as canary:
                await reached(canary, Became.ACKED, 2)
                assert canary.book.counts[Became.REFUSED] == 0
            assert place.pairs.with_suffix(".unreadable").read_bytes() == damaged


async def test_a_router_that_has_another_address_is_measured_there(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (one, two):
        folder = set_up(tmp_path / "canary", one, two)
        async with singing(folder) as canary:
            await reached(canary, Became.ACKED, 2)
        text = (folder / CONFIG_NAME).read_text()
        swapped = (
            text.replace('"one" =', '"new" =').replace('"two" =', '"one" =').replace('"new" =', '"two" =')
        )
        (folder / CONFIG_NAME).write_text(swapped)
        async with singing(folder) as canary:
            await reached(canary, Became.ACKED, 2)
            measured = {end.way.sender: end.connection.stats.rcv[0].server for end in canary.fleet.ends}
        assert measured == {"one": two.server, "two": one.server}


async def test_connections_that_a_router_lost_are_made_anew(tmp_path: Path) -> None:
    async with router_in_process(tmp_path / "one") as one, router_in_process(tmp_path / "two") as two:
        shutil.copytree(two.folder / "store", tmp_path / "empty")
        await asyncio.gather(one.start(), two.start())
        async with singing(set_up(tmp_path / "canary", one, two)) as canary:
            await reached(canary, Became.ACKED, 2)
            await two.end()
            shutil.rmtree(two.folder / "store")
            shutil.copytree(tmp_path / "empty", two.folder / "store")
            await two.start()
            await reached(canary, Became.REFUSED, 3)

            async def is_measured() -> bool:
                return canary.trouble() is None and canary.book.counts[Became.ACKED] > acked

            acked = canary.book.counts[Became.ACKED]
            await until(is_measured)
            stored = [agent.connections() for agent in canary.fleet._agents.values()]
            assert [len(connections) for connections in stored] == [1, 1]


async def test_a_message_that_never_arrives_is_lost(tmp_path: Path) -> None:
    async with (
        fleet(tmp_path) as (one, two),
        singing(set_up(tmp_path / "canary", one, two, lost_after_s=2.0)) as canary,
    ):
        await reached(canary, Became.ACKED, 2)
        await two.end()
        await reached(canary, Became.LOST, 1)


async def test_a_full_disk_is_not_told_as_messages_that_routers_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.agent.agent.STORE_PAUSE_S", 0.05)
    async with fleet(tmp_path) as (one, two), singing(set_up(tmp_path / "canary", one, two)) as canary:
        await reached(canary, Became.ACKED, 2)
        original, refused = ReceivedMessage.ack, 0

        async def ack(message: ReceivedMessage, receipt: bytes | None = None) -> None:
            nonlocal refused
            if refused < 6:
                refused += 1
                raise StoreFailedError("the disk is full")
            await original(message, receipt)

        monkeypatch.setattr(ReceivedMessage, "ack", ack)
        await reached(canary, Became.ACKED, canary.book.counts[Became.ACKED] + 8)
        assert refused == 6
        await settled(canary)
        assert canary.book.counts[Became.LOST] == 0


async def test_a_broken_store_is_told_and_nothing_is_sent_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path) as (one, two), singing(set_up(tmp_path / "canary", one, two)) as canary:
        await reached(canary, Became.ACKED, 2)
        await settled(canary)
        canary.fleet._agents["one"]._ground.store._break(StoreFailedError("its log cannot be synced"))
        told = canary.trouble()
        assert told is not None
        assert "the disk lost something of one: repair it" in told
        rounds, overdue = 0, canary.book.overdue

        def counted(now_us: int) -> Iterable[Entry]:
            nonlocal rounds
            rounds += 1
            return overdue(now_us)

        monkeypatch.setattr(canary.book, "overdue", counted)

        async def next_rounds() -> bool:
            return rounds >= 2

        await until(next_rounds)  # what was under way may still be counted in the first
        sent, rounds = canary.book.counts[Became.SENT], 0
        await until(next_rounds)
        assert canary.book.counts[Became.SENT] == sent


async def test_the_tables_identify_only_routers_by_name(tmp_path: Path) -> None:
    """Connections are blinded numbers; none of their keys, ids or addresses is written."""
    async with fleet(tmp_path) as (one, two):
        folder = set_up(tmp_path / "canary", one, two)
        async with singing(folder) as canary:
            await reached(canary, Became.ACKED, 4)
            ids = [end.connection.id.encode() for end in canary.fleet.ends]
    assert rows(folder)
    for file in (folder / "journal").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [name for name in ids if name in content]
            assert str(one.port).encode() not in content


def test_mistakes_are_reported(tmp_path: Path) -> None:
    told = run("canary", "start", "-c", tmp_path, code=1).stderr
    assert "no canary is set up here" in told
    told = run("canary", "init", tmp_path / "new", "--router", "home", code=1).stderr
    assert "NAME=smp://" in told
    told = run("canary", "init", tmp_path / "new", "--router", "home=smp://nonsense", code=1).stderr
    assert "a router's address expected" in told
    assert not (tmp_path / "new").exists()


def test_only_one_canary_runs_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / CONFIG_NAME).write_text(config_text({"one": f"smp://{'A' * 43}=@localhost"}))
    place = CanaryPlace.read(tmp_path)
    with place.locked(), pytest.raises(OperatorError, match="a canary is running"), place.locked():
        pass
