"""Databases for routers that the real command starts."""

from __future__ import annotations

from tests.support.postgres import database, postgres

__all__ = ["database", "postgres"]
