"""Fixtures for pytest: say `pytest_plugins = ["blindpost.testing.plugin"]` in your conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.testing.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world of its own for a test with `@virtual`, which opens it."""
    return World(tmp_path)
