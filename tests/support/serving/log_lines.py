"""Logging as it was, after a test that set it up for a server."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from blindpost.serving import logs


@pytest.fixture
def restored_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that another test repeated is told here, and no handler of this one outlives it."""
    monkeypatch.setattr(logs, "_repeated", logs.Repeated())
    root = logging.getLogger()
    before, level, own = root.handlers[:], root.level, logs.log.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    logs.log.setLevel(own)
