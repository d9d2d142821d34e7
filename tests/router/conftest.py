"""A router for each test, on a network in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blindpost.testing.network import MemoryNetwork
from tests.support.routers import RunningRouter, running_router


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    """A router with the default rules."""
    async with running_router(tmp_path, network=MemoryNetwork()) as router:
        yield router
