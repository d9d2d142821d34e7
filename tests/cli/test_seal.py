"""`blindpost pipeline seal`: for a server that was killed and never starts again."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from blindpost.cli.main import app
from blindpost.journal.author import Author
from blindpost.journal.folder import SEGMENTS, locked
from blindpost.journal.frames import EventWriter
from blindpost.journal.schema import L_DELIVERY
from blindpost.journal.seal import LOCK
from blindpost.serving.failures import OperatorError

NOW_US = 4_000_000_000_000_000


def written(root: Path, name: str, events: int) -> EventWriter:
    """What a running service has handed to the system so far."""
    writer = EventWriter(root, L_DELIVERY, Author(name, "ds", "0" * 16))
    for number in range(events):
        writer.add(NOW_US, 1, number, 0, 3, 4)
    writer.flush()
    return writer


def invoke(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, ["pipeline", "seal", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_segments_of_a_killed_server_are_sealed_and_running_ones_left_alone(tmp_path: Path) -> None:
    alive = written(tmp_path / "journal", "alive", 2)
    (own,) = (tmp_path / "journal" / SEGMENTS).iterdir()
    written(tmp_path / "other", "dead", 5).close()
    (left,) = (tmp_path / "other" / SEGMENTS).iterdir()
    torn = left.read_bytes()[:-1]
    (own.parent / left.with_suffix(".open").name).write_bytes(torn)
    said = invoke(tmp_path / "journal")
    assert "sealed 4 rows of 1 segments" in said
    assert "Left alone: 1 that a running server is writing" in said
    assert "0 damaged frames, and " in said
    (file,) = (tmp_path / "journal" / "L" / "l_delivery").glob("date=*/*.parquet")
    assert [row["payload"] for row in pq.ParquetFile(file).read().to_pylist()] == [0, 1, 2, 3]
    alive.close()
    assert "sealed 2 rows of 1 segments" in invoke(tmp_path / "journal")
    assert "sealed 0 rows of 0 segments" in invoke(tmp_path / "journal")
    for name in ("a", "b"):
        file.with_name(f"{name}.parquet").write_bytes(b"no Parquet")
    said = invoke(tmp_path / "journal")
    assert f"Left alone, damaged or foreign: {file.with_name('a.parquet')}" in said.replace("\n", "")


def test_a_folder_of_exports_is_sealed_too(tmp_path: Path) -> None:
    (old := tmp_path / "S" / "s_queues" / "date=2001-01-01").mkdir(parents=True)
    invoke(tmp_path)
    assert old.is_dir()
    assert "Deleted: 1 folders of days that are too old" in invoke(tmp_path, "--lab-days", "7")
    assert not old.exists()


def test_failures_are_reported(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="not a server's journal"):
        invoke(tmp_path)
    assert list(tmp_path.iterdir()) == []
    segments = tmp_path / SEGMENTS
    segments.mkdir()
    with locked(segments / LOCK), pytest.raises(OperatorError, match="being sealed right now"):
        invoke(tmp_path)
    (segments / "l_delivery-x.seg").write_bytes(b"nothing")
    with pytest.raises(OperatorError, match=r"1 segments cannot be read; they are kept as \*\.bad"):
        invoke(tmp_path)
    assert "sealed 0 rows" in invoke(tmp_path)
