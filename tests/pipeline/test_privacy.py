"""Nothing that leaves the trust zone names a queue, a session, a token or an address, in any form we know.

The search covers every byte of tier P, of all that is computed outside the zone and of the report, as stored
and unpacked. It looks for the ids of a message router, a notification router and a delivery
service that really ran, and of the generated fleet.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.pipeline.fleet_lake import Fleet, the_fleet
from tests.support.pipeline.real_servers import DS, NTF

SAMPLE = 40
ADDRESSES = (b"127.0.0.1", b"localhost")
NTF_TABLES = (
    "notification_funnel",
    "notification_canaries",
    "token_transitions",
    "p_funnel",
    "l_notifications",
)
SMP_TABLES = (
    "canary_integrity",
    "canary_faults",
    "delivery_slo",
    "service_drift",
    "service_drift_queues",
    "p_services",
    "s_queues",
    "l_messages",
)
DS_TABLES = ("delivery_service", "delivery_lab", "l_delivery")
pytestmark = pytest.mark.timeout(900)  # the whole pipeline runs once, in the first test


@pytest.fixture(scope="module")
def fleet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return the_fleet(spark, tmp_path_factory)


def md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def forms(secret: bytes) -> Iterator[bytes]:
    """The forms in which an id may appear; the halves of its hash as numbers are two of them."""
    digest = md5(secret)
    for raw in (secret, digest):
        yield raw
        yield raw.hex().encode()
        yield raw.hex().upper().encode()
        yield base64.b64encode(raw).rstrip(b"=")
        yield base64.urlsafe_b64encode(raw).rstrip(b"=")
    for lane in (digest[:8], digest[8:]):
        yield lane
        yield str(int.from_bytes(lane, "big", signed=True)).encode()


def spelled(value: Any) -> Iterator[bytes]:
    """A value as bytes: numbers both as digits and as eight bytes."""
    if isinstance(value, list):
        for item in value:
            yield from spelled(item)
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value).encode()
        yield (value % 2**64).to_bytes(8, "big")
    elif value is not None:
        yield str(value).encode()


def columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a Parquet file; none if it cannot be read: its bytes are searched anyway."""
    try:
        found: dict[str, list[Any]] = pq.ParquetFile(path).read().to_pydict()
    except (pa.ArrowException, OSError):
        return {}
    return found


def published(fleet: Fleet) -> list[Path]:
    """Every file that may leave: tier P, all of the lake but the zone and the lab's events, the report."""
    lake = [
        path
        for path in fleet.out.rglob("*")
        if "zone" not in path.relative_to(fleet.out).parts
        and not any(part.startswith("l_") for part in path.relative_to(fleet.out).parts)
    ]
    found = [*(fleet.journal / "P").rglob("*"), *lake, fleet.folder / "report.html"]
    return [path for path in found if path.is_file()]


def differences(path: Path) -> Iterator[bytes]:
    """The XOR of consecutive values of a column."""
    for values in columns(path).values():
        for first, second in itertools.pairwise(values):
            if isinstance(first, bytes) and isinstance(second, bytes):
                size = min(len(first), len(second))
                yield bytes(one ^ other for one, other in zip(first[:size], second[:size], strict=True))
            elif isinstance(first, int) and isinstance(second, int):
                yield ((first ^ second) % 2**64).to_bytes(8, "big")


def queue_ids(fleet: Fleet) -> list[bytes]:
    """Of the fleet: every queue and every service."""
    found: set[bytes] = set()
    for path in (fleet.journal / "S").rglob("*.parquet"):
        read = columns(path)
        for name in ("queue_id", "service_id"):
            found.update(value for value in read.get(name, ()) if value is not None)
    return sorted(found)


def leaked(secrets: Iterable[bytes], texts: Iterable[bytes]) -> list[bytes]:
    """The forms of these secrets that appear in the texts, except those that may by coincidence."""
    everything = b"\n".join(texts)
    return [form for secret in secrets for form in forms(secret) if len(form) >= 8 and form in everything]


@pytest.mark.parametrize("form", list(forms(b"an id of 24 bytes, known"))[:14])
def test_the_search_would_find_an_id(form: bytes, tmp_path: Path) -> None:
    number = [int.from_bytes(form[:8], "big", signed=True)]
    written = {"text": [form.decode("latin-1")], "raw": [form], "number": number}
    pq.write_table(pa.table(written), tmp_path / "x.parquet", compression="zstd")
    texts = [
        text
        for values in columns(tmp_path / "x.parquet").values()
        for value in values
        for text in spelled(value)
    ]
    assert form in leaked([b"an id of 24 bytes, known"], texts)


def test_no_id_is_published(fleet: Fleet) -> None:
    known = queue_ids(fleet)
    real = [bytes.fromhex(secret) for secret in fleet.real["secrets"]]
    drifted = [
        bytes.fromhex(name) for kind in ("gone", "unclaimed") for name in fleet.truth["drift"][0][kind]
    ]
    assert len(known) > 1_000
    assert len(real) > 40
    texts: list[bytes] = []
    cells: set[bytes] = set()
    for path in published(fleet):
        texts += [path.read_bytes(), str(path.relative_to(fleet.folder)).encode()]
        for values in columns(path).values():
            cells.update(form for value in values for form in spelled(value))
    assert not cells & {form for secret in [*known, *real] for form in forms(secret)}
    assert leaked([*real, *drifted, *known[:SAMPLE]], [*texts, *cells]) == []
    everything = b"\n".join([*texts, *cells])
    assert [address for address in ADDRESSES if address in everything] == []


def test_no_two_consecutive_values_differ_by_the_hash_of_an_id(fleet: Fleet) -> None:
    known = [*queue_ids(fleet), *(bytes.fromhex(secret) for secret in fleet.real["secrets"])]
    hashes = {part for one in known for part in (md5(one), md5(one)[:8], md5(one)[8:])}
    for path in published(fleet):
        assert not hashes & set(differences(path)), path


def test_joining_the_tables_of_two_kinds_of_servers_yields_nothing(fleet: Fleet) -> None:
    """No value but times, names of servers and small counts is on both sides."""

    def telling(tables: Iterable[str]) -> set[Any]:
        found: set[Any] = set()
        for path in [*fleet.out.rglob("*.parquet"), *fleet.journal.rglob("*.parquet")]:
            if not set(tables) & set(path.parts):
                continue
            for name, values in columns(path).items():
                if not name.endswith(("_s", "_us", "day", "_ms")):
                    found.update(value for value in values if _telling(value))
        return found

    messages, notified, delivered = map(telling, (SMP_TABLES, NTF_TABLES, DS_TABLES))
    assert min(map(len, (messages, notified, delivered))) > 5
    assert not messages & notified
    assert not (messages | notified) & delivered


def test_events_are_of_our_own_devices_and_queues_only_and_blinded(fleet: Fleet) -> None:
    """The real servers served others too: there is no event of those, and no id of ours."""
    real = [bytes.fromhex(secret) for secret in fleet.real["secrets"]]
    for table, what, name in (("l_notifications", "token", NTF), ("l_delivery", "queue", DS)):
        files = list((fleet.journal / "L" / table).rglob(f"{name}-*.parquet"))
        rows = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
        assert len({row[what] for row in rows}) == 1
        texts = [path.read_bytes() for path in files]
        texts += [form for row in rows for value in row.values() for form in spelled(value)]
        assert leaked(real, texts) == []


def _telling(value: Any) -> bool:
    """Whether a value could identify something: a number with many digits, or a long word."""
    if isinstance(value, bool) or value is None or isinstance(value, float | list):
        return False
    return abs(value) > 10**9 if isinstance(value, int) else len(str(value)) >= 16
