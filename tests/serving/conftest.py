"""Fixtures of the tests of what every server has."""

from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]
