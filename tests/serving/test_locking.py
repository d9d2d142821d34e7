"""One process at a time in a server's folder, and commands that look whether there is one."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

import pytest

from blindpost.serving.locking import RunningError, locked
from blindpost.store.file_locks import is_held


def test_whoever_looks_does_not_keep_a_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    with locked(lock, "it runs"):
        assert is_held(lock)
        with pytest.raises(RunningError, match="it runs"), locked(lock, "it runs"):
            pass
    assert not is_held(lock)
    with lock.open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(looked_at, fcntl.LOCK_UN))
        with locked(lock, "it runs"):
            assert is_held(lock)
