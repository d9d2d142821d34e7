"""Files that are replaced whole, also by several commands at once."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier

import pytest

from blindpost.serving.failures import OperatorError
from blindpost.serving.files import PUBLIC, write_file, write_pair

COMMANDS, EACH, SIZE = 8, 6, 100_000


def test_of_commands_that_write_a_file_at_once_none_fails_and_none_is_mixed_with_another(
    tmp_path: Path,
) -> None:
    file, together = tmp_path / "key", Barrier(COMMANDS)

    def write(command: int) -> None:
        together.wait()
        for _ in range(EACH):
            write_file(file, bytes([command]) * SIZE)
            seen = file.read_bytes()
            assert len(seen) == SIZE
            assert len(set(seen)) == 1

    with ThreadPoolExecutor(COMMANDS) as commands:
        list(commands.map(write, range(COMMANDS)))
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_two_files_that_belong_together_are_never_mixed(tmp_path: Path) -> None:
    key, certificate, together = tmp_path / "a" / "key", tmp_path / "b" / "certificate", Barrier(COMMANDS)
    for path in (key, certificate):
        path.parent.mkdir()
        path.write_bytes(b"")

    def write(command: int) -> None:
        together.wait()
        for _ in range(EACH):
            write_pair(key, bytes([command]), certificate, bytes([command]), PUBLIC)

    with ThreadPoolExecutor(COMMANDS) as commands:
        list(commands.map(write, range(COMMANDS)))
    assert key.read_bytes() == certificate.read_bytes()
    assert {path.name for path in tmp_path.rglob("*")} == {"a", "b", "key", "certificate"}


@pytest.mark.parametrize("failing", range(5))
def test_a_failure_leaves_both_files_as_they_were(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three writes and two renames fails once."""
    key, certificate, steps = tmp_path / "key", tmp_path / "certificate", count()
    for path in (key, certificate):
        path.write_bytes(b"old")
    fsync, replace = os.fsync, Path.replace

    def step() -> None:
        if next(steps) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def synced(descriptor: int) -> None:
        step()
        fsync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        step()
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    with pytest.raises(OperatorError, match="the disk is full"):
        write_pair(key, b"new", certificate, b"new", PUBLIC)
    assert [path.read_bytes() for path in (key, certificate)] == [b"old", b"old"]
    assert {path.name for path in tmp_path.iterdir()} == {"key", "certificate"}
    write_pair(key, b"new", certificate, b"new", PUBLIC)
    assert [path.read_bytes() for path in (key, certificate)] == [b"new", b"new"]
    assert [path.stat().st_mode & 0o777 for path in (key, certificate)] == [0o600, 0o644]
    assert {path.name for path in tmp_path.iterdir()} == {"key", "certificate"}


def test_a_pair_of_which_one_is_missing_is_made_whole_or_stays_so(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    certificate.mkdir()
    with pytest.raises(OperatorError, match="certificate"):
        write_pair(key, b"new", certificate, b"new", PUBLIC)
    assert not key.exists()
    certificate.rmdir()
    write_pair(key, b"new", certificate, b"new", PUBLIC)
    assert [path.read_bytes() for path in (key, certificate)] == [b"new", b"new"]
