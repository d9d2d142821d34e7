"""What tests of the agent share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from blindpost.agent.store.database import AgentStore
from blindpost.store.contract import Durability


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AgentStore]:
    """An empty store that does not wait for the disk."""
    with closing(AgentStore.open(tmp_path / "a.db", durability=Durability.OS)) as opened:
        yield opened
