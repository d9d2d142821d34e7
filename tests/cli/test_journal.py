"""The journal of a real router: its totals equal the router's counters, and it identifies nobody."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blindpost.crypto.ids_hash import id_hash
from blindpost.journal.author import Author
from blindpost.journal.folder import DAY_S, day_of, partition
from blindpost.journal.keeping import Keeping
from blindpost.journal.schema import (
    ALL_TABLES,
    S_MIGRATION,
    S_QUEUES,
    S_SERVICE_CLAIMS,
    S_SNAPSHOT,
    TABLES,
    Tier,
)
from blindpost.journal.seal import seal_folder
from blindpost.journal.state import lanes
from blindpost.router.meters import Meter
from blindpost.router.running.settings import RouterPlace
from blindpost.router.running.template import config_text
from blindpost.serving import journal as journal_settings
from blindpost.serving.failures import OperatorError
from blindpost.serving.journal import JournalSection, keeping_of
from blindpost.wire.text import b64
from tests.support.journal.balance import MESSAGE_BALANCE
from tests.support.journal.lives import Lives, traffic, with_journal
from tests.support.serving.commands import init, run, started, until


def rows(root: Path, name: str) -> list[dict[str, Any]]:
    table = TABLES[name]
    found: list[dict[str, Any]] = []
    for path in sorted((root / table.tier.value / name).glob("date=*/*.parquet")):
        found += pq.ParquetFile(path).read().to_pylist()
    return found


def counted(root: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows(root, "p_counters"):
        found[row["name"]] += row["value"]
    return found


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """Two runs, sealed by the processes that the router starts and by this one."""
    lived = Lives(tmp_path_factory.mktemp("journal") / "router")
    with_journal(lived.folder)
    for _ in range(2):
        asyncio.run(lived.live())
    seal_folder(lived.journal)
    return lived


def test_the_totals_of_the_journal_are_the_counters_of_the_router(lives: Lives) -> None:
    folder, journal = lives.folder, lives.journal
    kept = json.loads((folder / "counters.json").read_text())["counts"]
    found = counted(journal)
    assert {name: found[name] for name in kept} == kept
    assert kept["msgSent"] == 2 * 5
    assert kept["msgDeleted"] == 2 * 2
    boots = rows(journal, "p_boots")
    assert [(row["router"], row["role"], row["seq"]) for row in boots] == [("smp-1", "smp", 0)] * 2
    for boot in (row["boot"] for row in boots):
        levels = [
            (row["seq"], row["value"])
            for row in rows(journal, "p_gauges")
            if row["boot"] == boot and row["name"] == "messages"
        ]
        grown = Counter(
            dict.fromkeys(MESSAGE_BALANCE, 0)
            | {row["name"]: row["value"] for row in rows(journal, "p_counters") if row["boot"] == boot}
        )
        balance = sum(sign * grown[name] for name, sign in MESSAGE_BALANCE.items())
        assert max(levels)[1] - min(levels)[1] == balance == 2
    services = rows(journal, "p_services")
    assert [(row["ordinal"], row["service_role"], row["agreed"]) for row in services] == [
        (0, "messaging", False)
    ] * 2
    assert [row["times"] for row in services] == [3, 3]
    (sizes,) = {len(row["sketch"]) for row in rows(journal, "p_sketches")}
    assert sizes > 4_000
    acks = [row for row in rows(journal, "p_histograms") if row["name"] == "ack_s"]
    assert [sum(row["counts"]) for row in acks] == [1, 1]


def forms(secret: bytes) -> Iterator[bytes]:
    """The forms in which an id may appear."""
    for raw in (secret, hashlib.md5(secret, usedforsecurity=False).digest()):
        yield raw
        yield raw.hex().encode()
        yield raw.hex().upper().encode()
        yield base64.b64encode(raw).rstrip(b"=")
        yield base64.urlsafe_b64encode(raw).rstrip(b"=")


def contents(path: Path) -> Iterator[bytes]:
    """A file as it is, and its unpacked content."""
    yield path.read_bytes()
    if path.suffix == ".parquet":
        for row in pq.ParquetFile(path).read().to_pylist():
            for value in row.values():
                yield value if isinstance(value, bytes) else str(value).encode()


def differences(root: Path) -> Iterator[bytes]:
    """The XOR of consecutive published values: two numbers as lanes, or two values of bytes."""
    for table in ALL_TABLES:
        if table.tier is not Tier.PRODUCTION:
            continue
        found = rows(root, table.name)
        for column in table.columns:
            values = [row[column.name] for row in found]
            for first, second in itertools.pairwise(values):
                if isinstance(first, bytes):
                    size = min(len(first), len(second))
                    number = int.from_bytes(first[:size], "big") ^ int.from_bytes(second[:size], "big")
                    yield number.to_bytes(size, "big")
                elif isinstance(first, int) and not isinstance(first, bool):
                    yield ((first ^ second) % 2**64).to_bytes(8, "big")


def none_is_in(secrets: Iterable[bytes], texts: Iterable[bytes]) -> None:
    everything = b"\n".join(texts)
    for secret in secrets:
        for form in forms(secret):
            assert form not in everything


def test_nothing_in_tier_p_identifies_anybody(lives: Lives) -> None:
    secrets, journal, bodies = lives.secrets, lives.journal, lives.records
    none_is_in(secrets, [lives.log])
    assert any(b"p_sketches" in body for body in bodies)
    files = [path for path in journal.rglob("*") if path.is_file()]
    texts = [text for path in files for text in contents(path)]
    names = [str(path.relative_to(journal)).encode() for path in files]
    none_is_in([*secrets, b"127.0.0.1", b"localhost"], [*bodies, *texts, *names])
    lane_pairs = [lanes(id_hash(secret)) for secret in secrets]
    none_is_in(secrets, differences(journal))
    numbers = set(differences(journal))
    for lane in (number for pair in lane_pairs for number in pair):
        assert (lane % 2**64).to_bytes(8, "big") not in numbers


async def test_a_killed_router_loses_only_its_last_minute(tmp_path: Path) -> None:
    """Its segments are sealed after the next start, by a process that the router itself starts."""
    folder = tmp_path / "router"
    with_journal(folder)
    async with started(folder) as router:
        await traffic(router)
        await router.end(signal.SIGKILL)
    async with started(folder) as router:
        assert await router.end() == 0
    # The process that seals may have outlived the router that started it.
    await until(lambda: seal_folder(folder / "journal") is not None)
    assert len(rows(folder / "journal", "p_boots")) == 2
    assert counted(folder / "journal")["qCreated"] == 0


def test_a_router_does_not_load_arrow() -> None:
    code = (
        "import sys, blindpost.router.running.process, blindpost.router.running.state_export\n"
        "import blindpost.ds.process\n"
        "assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("before", "after", "part"),
    [
        ('name = ""', 'name = "a/b"', "journal.name: up to 64 letters, digits, dots, - and _ expected"),
        (
            "minute_days = 30",
            "minute_days = 0",
            "journal.minute_days: Input should be greater than or equal to 1",
        ),
        ("lab_days = 7", "lab_day = 7", "unknown setting journal.lab_day. Did you mean journal.lab_days?"),
    ],
)
def test_mistakes_in_the_configuration_are_explained(before: str, after: str, part: str) -> None:
    text = config_text(["localhost"], 0, ["*"], b64(bytes(32)))
    assert text.count(before) == 1
    with pytest.raises(OperatorError) as caught:
        RouterPlace.parse(text.replace(before, after).encode(), Path("router.toml"))
    assert part in str(caught.value)
    assert "router.toml, line" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "host", "expected"),
    [("", "smp.example.org", "smp-example-org"), ("", "::1", "1"), ("", "::", "server"), ("a.b", "x", "a.b")],
)
def test_a_server_has_a_name_in_the_tables(name: str, host: str, expected: str, tmp_path: Path) -> None:
    section = JournalSection(enabled=True, name=name, minute_days=3)
    keeping = keeping_of(section, tmp_path, host)
    assert keeping == Keeping(tmp_path / "journal", expected, 10, 3, 7)
    assert Author.started(keeping.router, "smp").router == expected
    assert keeping_of(JournalSection(), tmp_path, host) is None


def test_without_arrow_a_journal_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_settings, "can_seal", lambda: False)
    with pytest.raises(OperatorError, match=r"pip install 'blindpost\[pipeline\]'"):
        keeping_of(JournalSection(enabled=True), tmp_path, "smp.example.org")
    assert keeping_of(JournalSection(), tmp_path, "smp.example.org") is None


async def exported(tmp_path: Path, folder: Path) -> None:
    """The state of a running router with any store: every queue, what waits, and matching claims."""
    target = tmp_path / "state"
    async with started(folder) as router:
        await traffic(router)
        told = json.loads(run("router", "export-state", target, "-c", folder, "--json").stdout)
        await router.end()
    assert told["router_runs"] is True
    queues, claims = rows(target, "s_queues"), rows(target, "s_service_claims")
    assert (told["rows_of_queues"], told["claims_of_services"]) == (len(queues), len(claims)) == (5, 1)
    manifest = {row["table"]: row["rows"] for row in rows(target, "s_snapshot")}
    assert manifest == {"s_queues": 5, "s_service_claims": 1}
    assert {
        row["snapshot"]
        for table in (S_QUEUES, S_SERVICE_CLAIMS, S_SNAPSHOT)
        for row in rows(target, table.name)
    } == {told["snapshot"]}
    for row in queues:
        assert (row["h_hi"], row["h_lo"]) == lanes(id_hash(row["queue_id"]))
        assert (row["router"], row["side"]) == ("smp-1", "router")
    by_role = Counter(row["role"] for row in queues)
    assert by_role == {"messaging": 4, "notifier": 1}
    messaging = [row for row in queues if row["role"] == "messaging"]
    assert sorted(row["waiting"] for row in messaging) == [0, 0, 1, 1]
    for row in messaging:
        assert (row["status"], row["mode"], row["secured"], row["full"]) == (
            "active",
            "messaging",
            False,
            False,
        )
        assert (row["oldest_s"] is None) == (row["waiting"] == 0)
        assert row["oldest_s"] is None or 0 <= row["oldest_s"] < 600
    (claim,) = claims
    own = [row for row in messaging if row["service_id"] == claim["service_id"]]
    high = low = 0
    for row in own:
        high, low = high ^ row["h_hi"], low ^ row["h_lo"]
    assert (claim["count"], claim["h_hi"], claim["h_lo"]) == (len(own), high, low) == (2, high, low)
    old, kept = (day_of(time.time()) - days * DAY_S for days in (30, 2))
    for table in (S_QUEUES, S_SNAPSHOT, S_MIGRATION):
        for day_s in (old, kept):
            partition(target, table, day_s).mkdir(parents=True)
    again = json.loads(run("router", "export-state", target, "-c", folder, "--json").stdout)
    assert again["router_runs"] is False
    assert again["snapshot"] != told["snapshot"]
    assert again["old_folders_deleted"] == 2
    assert not partition(target, S_QUEUES, old).exists()
    assert partition(target, S_QUEUES, kept).is_dir()
    assert partition(target, S_MIGRATION, old).is_dir(), "certificates are kept for ever"


def moved(tmp_path: Path, folder: Path) -> None:
    """A router filled by an import reports what its certificate says and what it stores."""
    other, target = tmp_path / "other", tmp_path / "moved"
    init(other)
    run("router", "import", "--to", other, "--from", folder, "--json")
    told = json.loads(run("router", "export-state", target, "-c", other, "--json").stdout)
    lines = rows(target, "s_migration")
    assert told["lines_of_an_import"] == len(lines)
    sides = {
        side: {
            (line["name"], line["service_id"], line["role"]): (
                line["count"],
                line["ids_hash"],
                line["content_hash"],
            )
            for line in lines
            if line["side"] == side
        }
        for side in ("source", "result")
    }
    assert sides["source"] == sides["result"]
    high = low = 0
    for row in rows(target, "s_queues"):
        if row["role"] == "messaging":
            high, low = high ^ row["h_hi"], low ^ row["h_lo"]
    ids_hash = f"{high % 2**64:016x}{low % 2**64:016x}"
    count, told_hash, contents_hash = sides["result"]["queues", None, None]
    assert (count, told_hash, len(contents_hash or "")) == (4, ids_hash, 64)
    (claim,) = rows(target, "s_service_claims")
    claimed = f"{claim['h_hi'] % 2**64:016x}{claim['h_lo'] % 2**64:016x}"
    assert sides["result"]["service", claim["service_id"], "messaging"] == (2, claimed, None)
    assert sides["result"]["messages", None, None][0] == 2
    run("router", "export-state", target, "-c", other, "--json")
    assert len(rows(target, "s_migration")) == len(lines)
    config = other / "router.toml"
    refused = run("router", "export-state", target, "-c", other, "--certificate", config, code=1).stderr
    assert "the certificate of `blindpost router import` expected" in refused


async def test_the_state_of_a_running_router_is_exported(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    with_journal(folder)
    await exported(tmp_path, folder)
    moved(tmp_path, folder)
    (tmp_path / "router" / "store" / "data.mdb").unlink()
    told = run("router", "export-state", tmp_path / "state", "-c", folder, code=1).stderr
    assert "the router's store is missing" in told


async def test_the_state_of_a_router_with_a_database_is_exported(tmp_path: Path, database: str) -> None:
    folder = tmp_path / "router"
    with_journal(folder, "--store", "postgres", "--dsn", database)
    await exported(tmp_path, folder)


def test_names_of_meters_do_not_clash() -> None:
    """The journal's own counters must not clash with the router's."""
    assert not {meter.value for meter in Meter} & {"engine.turns", "sockets.accepted", "newRefused"}
