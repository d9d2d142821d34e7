"""A notification router for each test, on a network in memory; some tests run on both stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blindpost.testing.network import MemoryNetwork
from tests.support.ntf.routers import RunningNtf, running_ntf
from tests.support.router.routers import DATABASE_FILE
from tests.support.store.both import on_both_stores
from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]
STORES = ("sqlite", "postgres")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked for both stores on each of them."""
    on_both_stores(metafunc, STORES)


@pytest.fixture(autouse=True)
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store a notification router uses; with PostgreSQL, `tmp_path` stands for a database."""
    kind: str = getattr(request, "param", "sqlite")
    if kind == "postgres":
        folder: Path = request.getfixturevalue("tmp_path")
        (folder / DATABASE_FILE).write_text(request.getfixturevalue("database"))
    return kind


@pytest.fixture
async def ntf(tmp_path: Path, store_kind: str) -> AsyncIterator[RunningNtf]:
    """A notification router with the default rules."""
    async with running_ntf(tmp_path, network=MemoryNetwork()) as running:
        yield running
