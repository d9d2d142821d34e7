"""What tests of the agent share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from blindpost.agent.store.database import AgentStore
from blindpost.store.contract import Durability
from tests.support.agent.bench import Bench


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AgentStore]:
    """An empty store that does not wait for the disk."""
    with closing(AgentStore.open(tmp_path / "a.db", durability=Durability.OS)) as opened:
        yield opened


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(AgentStore.open(tmp_path / "a.db")) as store:
        assert store._file.defers_syncs
        made = Bench(store)
        yield made
        made.full = made.lost = False
