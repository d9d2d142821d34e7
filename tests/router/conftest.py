"""A router for each test, on a network in memory; some tests run on both stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blindpost.testing.network import MemoryNetwork
from tests.support.router.routers import DATABASE_FILE, FRONTS, RunningRouter, running_router
from tests.support.store.both import on_both_stores
from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]
STORES = ("lmdb", "postgres")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked for both stores on each of them."""
    on_both_stores(metafunc, STORES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With fronts every connection is the system's, and connections overtake each other."""
    for item in items:
        if FRONTS and item.get_closest_marker("one_process"):
            item.add_marker(pytest.mark.skip(reason="its connections must be in the same process"))


@pytest.fixture(autouse=True)
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store the routers of a test use; with PostgreSQL, `tmp_path` stands for a database."""
    kind: str = getattr(request, "param", "lmdb")
    if kind == "postgres":
        folder: Path = request.getfixturevalue("tmp_path")
        (folder / DATABASE_FILE).write_text(request.getfixturevalue("database"))
    return kind


@pytest.fixture
async def running(tmp_path: Path, store_kind: str) -> AsyncIterator[RunningRouter]:
    """A router with the default rules."""
    async with running_router(tmp_path, network=MemoryNetwork()) as router:
        yield router
