"""A server's database as a part of its backups."""

from __future__ import annotations

from pathlib import Path

from blindpost.engine.loop import StoreFailedError
from blindpost.serving.failures import OperatorError
from blindpost.store import dumps
from blindpost.store.postgres import Schema


class DatabaseCopies:
    """The database that a configuration names, copied and filled."""

    def __init__(self, dsn: str, schema: Schema) -> None:
        self._dsn = dsn
        self._schema = schema

    def dump(self, target: Path) -> None:
        try:
            dumps.dump(self._dsn, self._schema, target)
        except StoreFailedError as error:
            raise OperatorError(f"the database cannot be backed up: {error}.") from error

    def load(self, source: Path, *, replace: bool) -> str | None:
        try:
            return dumps.load(self._dsn, self._schema, source, replace=replace)
        except dumps.DatabaseFilledError as error:
            raise OperatorError(
                f"{error}. Name an empty one in the backup's [store], or replace what is there with --force: "
                "it is kept as another schema."
            ) from error
        except StoreFailedError as error:
            raise OperatorError(f"the database cannot be restored: {error}.") from error
