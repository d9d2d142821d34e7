"""Whenever a publication is killed, readers see whole partitions and the next one completes it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.files import LocalFiles, join
from blindpost.pipeline.publish import Finished, Manifest, TableStore, fingerprint
from blindpost.pipeline.quality import NOTHING, Outcome

DAYS = ("2031-01-30", "2031-01-31")
CHANGES = {
    "open",
    "write",
    "close",
    "fsync",
    "rename",
    "replace",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "sendfile",
}
"""Built-in functions after which a folder or a file may look different."""


def _store(root: Path) -> TableStore:
    return TableStore(LocalFiles(), str(root), "gold", "letters", shown=True)


def _publish(root: Path, version: int, days: tuple[str, ...] = DAYS) -> None:
    """Every row holds its version's number; later versions have more rows."""
    store = _store(root)
    staging = store.new_staging()
    for day in days:
        folder = Path(staging) / f"partition={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"version": [version] * (100 * version)}), folder / "part-0.parquet")
        (folder / ".part-0.parquet.crc").write_bytes(b"sum")
    outcome = Outcome(100 * version, f"{version}", {"key": 0})
    folders = store.staged(staging)
    store.publish(Finished(day, folders.get(day), fingerprint(version), outcome) for day in days)


def _read_by_glob(root: Path) -> dict[int, int]:
    """Rows of each version that a glob of the published files sees."""
    rows = duckdb.read_parquet(f"{root}/gold/letters/*.parquet")
    return dict(rows.aggregate("version, count(*)").fetchall())


def _read_by_manifest(root: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for path in _store(root).paths():
        versions = pq.read_table(path, partitioning=None)["version"].to_pylist()
        found[versions[0]] = found.get(versions[0], 0) + len(versions)
    return found


def _whole(found: dict[int, int]) -> bool:
    return all(rows % (100 * version) == 0 for version, rows in found.items()) and sum(
        rows // (100 * version) for version, rows in found.items()
    ) == len(DAYS)


def _killed_after(number: int, work: Callable[[], None]) -> bool:
    """Whether the work was killed, without any cleanup, just after its `number`-th change."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    seen = 0

    def watch(_frame: object, event: str, function: object) -> None:
        nonlocal seen
        if event == "c_return" and getattr(function, "__name__", "") in CHANGES:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    work()
    os._exit(0)


def test_killed_anywhere(tmp_path: Path) -> None:
    number = 0
    killed = True
    while killed:
        number += 1
        root = tmp_path / str(number)
        _publish(root, 1)
        killed = _killed_after(number, lambda root=root: _publish(root, 2))  # type: ignore[misc] # bound now
        assert _whole(_read_by_glob(root))
        assert _whole(_read_by_manifest(root))
        _publish(root, 2)
        assert _read_by_glob(root) == _read_by_manifest(root) == {2: 400}
        leftovers = [path for path in (root / "gold").rglob("*") if path.name.endswith(".tmp")]
        assert len(leftovers) <= 1
    assert number > 20


def test_the_previous_version_stays_for_its_readers(tmp_path: Path) -> None:
    _publish(tmp_path, 1)
    opened = _store(tmp_path).paths()
    _publish(tmp_path, 2)
    assert all(Path(path).exists() for path in opened)
    _publish(tmp_path, 3)
    assert not any(Path(path).exists() for path in opened)
    assert _read_by_manifest(tmp_path) == {3: 600}


def test_a_day_that_loses_its_rows_is_not_visible(tmp_path: Path) -> None:
    _publish(tmp_path, 1)
    _store(tmp_path).publish([Finished(DAYS[0], None, fingerprint(2), NOTHING)])
    assert _read_by_glob(tmp_path) == _read_by_manifest(tmp_path) == {1: 100}
    assert _store(tmp_path).current().partitions[DAYS[0]].rows == 0


def test_one_day_is_switched_and_the_others_stay(tmp_path: Path) -> None:
    _publish(tmp_path, 1)
    _publish(tmp_path, 2, DAYS[:1])
    assert _read_by_glob(tmp_path) == _read_by_manifest(tmp_path) == {1: 100, 2: 200}


def test_a_manifest_round_trips(tmp_path: Path) -> None:
    _publish(tmp_path, 1)
    manifest = _store(tmp_path).current()
    assert Manifest.decode(manifest.encode()) == manifest
    assert manifest.partitions[DAYS[0]].broken == {"key": 0}
    assert _store(tmp_path / "elsewhere").current() == Manifest()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    files = LocalFiles()
    with (
        files.locked(str(tmp_path)),
        pytest.raises(PipelineError, match="another run"),
        LocalFiles().locked(str(tmp_path)),
    ):
        pass
    with files.locked(str(tmp_path)):
        assert files.exists(join(str(tmp_path), ".lock"))
