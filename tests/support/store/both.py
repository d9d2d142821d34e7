"""Tests that run once with each store, by the marker `both_stores`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def on_both_stores(metafunc: pytest.Metafunc, stores: Sequence[str]) -> None:
    """Give a marked test each of the stores in turn."""
    if metafunc.definition.get_closest_marker("both_stores") is None:
        return
    fixtures = metafunc.fixturenames
    if "tmp_path" not in fixtures or "database" in fixtures:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: both_stores is for a test whose store is in tmp_path and whose"
            " database is not its own"
        )
    metafunc.parametrize("store_kind", stores, indirect=True)
