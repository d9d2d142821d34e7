"""A database for those attacks that have one."""

from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]
