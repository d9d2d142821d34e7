"""A notification router for each test, on a network in memory; tests of claims run on both stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blindpost.testing.network import MemoryNetwork
from tests.support.ntf.routers import RunningNtf, running_ntf
from tests.support.router.routers import DATABASE_FILE
from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]
STORES = ("sqlite", "postgres")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What the router promises, it promises with either store."""
    claims = [claim for mark in metafunc.definition.iter_markers("claim") for claim in mark.args]
    on_both = any(claim.startswith(("NTF-", "SVC-")) for claim in claims)
    chooses = "database" in metafunc.fixturenames
    uses_store = "tmp_path" in metafunc.fixturenames or "ntf" in metafunc.fixturenames
    if on_both and uses_store and not chooses:
        metafunc.parametrize("store_kind", STORES, indirect=True)


@pytest.fixture(autouse=True)
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store the notification routers of a test have; a database stands for the folder `tmp_path`."""
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
