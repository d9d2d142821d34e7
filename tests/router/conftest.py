"""A router for each test, on a network in memory; tests of claims run on both stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blindpost.testing.network import MemoryNetwork
from tests.support.router.routers import DATABASE_FILE, RunningRouter, running_router
from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]
STORES = ("lmdb", "postgres")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What the router promises about subscriptions and services, it promises with either store."""
    claims = [claim for mark in metafunc.definition.iter_markers("claim") for claim in mark.args]
    on_both = any(claim.startswith(("SUB-", "SVC-")) for claim in claims)
    chooses = "database" in metafunc.fixturenames
    if on_both and "tmp_path" in metafunc.fixturenames and not chooses:
        metafunc.parametrize("store_kind", STORES, indirect=True)


@pytest.fixture(autouse=True)
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store the routers of a test have; a database stands for the folder `tmp_path`."""
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
