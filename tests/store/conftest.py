"""Databases for tests of stores."""

from __future__ import annotations

from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]
