"""Tier L of the delivery service: every event in the operator's own queues, none of others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blindpost.ds.lab import DsLab
from blindpost.ds.meters import Meter
from blindpost.ds.settings import DsJournalSection, Settings
from blindpost.journal.author import Author
from blindpost.journal.lab import LabJournal
from blindpost.journal.schema import L_DELIVERY
from blindpost.journal.seal import seal_folder
from tests.support.ds.delivery import ALICE, BOB, Running, running
from tests.support.ds.lab_deliveries import deliveries

CHANNEL = b"a channel"


def rows(root: Path) -> list[dict[str, Any]]:
    assert seal_folder(root) is not None
    paths = sorted((root / "L" / "l_delivery").glob("date=*/*.parquet"))
    found = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(found, key=lambda row: row["seq"])


def counted(found: Running) -> dict[str, int]:
    """What the events must add up to, by the service's own counters."""
    return {
        "enqueued": found.count(Meter.ENQUEUED),
        "waited": found.count(Meter.WAITS),
        "woken": found.service.plan.meters.wait_s.count,
        "timed_out": found.count(Meter.WAITS_EXPIRED),
        "leased": found.count(Meter.HANDED_OUT),
        "put_back": found.count(Meter.PUT_BACK),
        "acked": found.count(Meter.ACKNOWLEDGED) + found.count(Meter.FINISHED),
        "expired": found.count(Meter.DISPLACED),
    }


async def test_every_event_of_own_queues_and_nothing_of_others(tmp_path: Path, way: str) -> None:
    journal = LabJournal(tmp_path, L_DELIVERY, Author.started("ds-1", "ds"))
    async with running(tmp_path) as found:
        found.service.plan.lab = DsLab(journal, [ALICE])

        async def is_waiting() -> bool:
            return bool(len(found.service.plan.state.waiting))

        await deliveries(found.client, ALICE, CHANNEL, is_waiting)
        await found.until(lambda: not found.service.plan.state.held)
        told = counted(found)
        await deliveries(found.client, BOB, CHANNEL, is_waiting)
        async with await found.client() as one:
            await one.upload_key_package(ALICE, b"a key package")
    finish = journal.cut()
    assert finish is not None
    finish()
    written = rows(tmp_path)
    assert Counter(row["event"] for row in written) == told
    assert all(told.values())
    assert len({row["queue"] for row in written}) == 1
    lives: dict[int, list[str]] = {}
    depth = 0
    for row in written:
        depth += {"enqueued": 1, "acked": -1}.get(row["event"], 0)
        assert row["depth"] == depth
        assert row["age_us"] >= 0
        if row["payload"]:
            lives.setdefault(row["payload"], []).append(row["event"])
        else:
            assert row["event"] in ("waited", "woken", "timed_out")
    assert depth == 1
    assert sorted(map(tuple, lives.values())) == sorted(
        [("enqueued", "leased", "acked")] * 6
        + [("enqueued", "leased", "put_back", "leased", "expired", "leased", "acked"), ("enqueued",)]
    )
    ages = {row["event"]: row["age_us"] for row in written}
    assert ages["timed_out"] >= 50_000
    assert ages["expired"] >= 10_000


@pytest.mark.parametrize("text", ["00" * 31, "zz" * 32, ""])
def test_recipients_are_named_by_their_keys(text: str) -> None:
    assert Settings().journal.lab == []
    assert DsJournalSection(lab=["AB" * 32]).lab == ["ab" * 32]
    with pytest.raises(ValueError, match="64 hexadecimal digits expected"):
        DsJournalSection(lab=[text])
