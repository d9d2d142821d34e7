"""Local files and files managed by Hadoop keep the same promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline.files import Files, HadoopFiles, LocalFiles, join, local_path, open_root
from blindpost.pipeline.sizing import SMALL_BYTES, is_small

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=["local", "hadoop"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "local":
        return LocalFiles()
    return HadoopFiles(request.getfixturevalue("spark"), f"file://{tmp_path}")


def test_the_operations_publishing_needs(files: Files, tmp_path: Path) -> None:
    root = str(tmp_path)
    file = join(root, "a", "b", "x")
    assert files.read(file) is None
    assert list(files.listed(join(root, "nowhere"))) == []
    for content in (b"one", b"two\x00\xff", b""):
        files.replace(file, content)
        assert files.read(file) == content
    files.replace(file, b"shown")
    for _ in range(2):  # the second time both are the same already
        files.show(file, join(root, "c", "y.parquet"))
        assert files.read(join(root, "c", "y.parquet")) == b"shown"
    files.replace(file, b"other")
    assert files.read(join(root, "c", "y.parquet")) == b"shown"
    files.move(join(root, "a", "b"), join(root, "d", "e"))
    assert files.read(join(root, "d", "e", "x")) == b"other"
    assert not files.exists(join(root, "a", "b"))
    visible = {found.path.rsplit("/", 1)[1] for found in files.listed(root)}
    assert {name for name in visible if not name.endswith(".crc")} == {"x", "y.parquet"}
    (found,) = [found for found in files.listed(join(root, "d")) if found.path.endswith("x")]
    assert found.size == 5
    for path in (join(root, "d"), join(root, "c", "y.parquet"), join(root, "nowhere")):
        files.remove(path)
        assert not files.exists(path)
    with files.locked(root):
        pass
    zone = tmp_path / "zone"
    for _ in range(2):
        files.make_private(str(zone))
        assert zone.stat().st_mode & 0o777 == 0o700
        zone.chmod(0o755)  # as an earlier version made it
    assert not files.is_closed(str(zone))
    assert not files.is_closed(str(tmp_path / "nowhere"))


def test_a_folder_that_we_may_not_enter_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # as for anybody but root
    assert LocalFiles().is_closed(str(tmp_path))
    assert not LocalFiles().is_closed(str(tmp_path / "nowhere"))


def test_links_to_folders_are_followed_and_those_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    journal, elsewhere = tmp_path / "journal", tmp_path / "disk" / "smp-2"
    for folder in (journal / "smp-1", elsewhere):
        folder.mkdir(parents=True)
        (folder / "x.parquet").write_bytes(b"rows")
    (journal / "smp-2").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(journal)
    (elsewhere / "itself").symlink_to(elsewhere)
    (lost := journal / "smp-3").symlink_to(tmp_path / "unmounted")
    (journal / ".#x").symlink_to("an editor's lock")
    files = LocalFiles()
    found = {str(Path(folder).relative_to(journal)) for folder, _ in files.folders(str(journal))}
    assert found == {"smp-1", "smp-2"}
    assert files.closed == {str(lost): "No such file or directory"}
    assert is_small(str(journal))
    (elsewhere / "y.parquet").touch()
    os.truncate(elsewhere / "y.parquet", SMALL_BYTES)
    assert not is_small(str(journal))
    lost.unlink()
    assert len(list(files.listed(str(journal)))) == 3
    assert files.closed == {}


def test_paths_and_uris(spark: SparkSession, tmp_path: Path) -> None:
    assert local_path("/a/b") == local_path("file:///a/b") == "/a/b"
    assert local_path("hdfs://host/a") is None
    opened, root = open_root(spark, f"file://{tmp_path}/with%20space")
    assert isinstance(opened, LocalFiles)
    assert root == f"{tmp_path}/with space"
