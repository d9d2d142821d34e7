"""The ways in which the calls are tested: over TLS and QUIC on LMDB, over TLS on PostgreSQL.

Streams and stores do not interact, so QUIC on PostgreSQL would show nothing new.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ds import delivery
from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]


@pytest.fixture(params=["tls", "quic", "postgres"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Everything that `running` starts and connects in a test goes this way."""
    kind: str = request.param
    delivery.WAY.quic = kind == "quic"
    delivery.WAY.dsn = request.getfixturevalue("database") if kind == "postgres" else None
    yield kind
    delivery.WAY.quic, delivery.WAY.dsn = False, None
