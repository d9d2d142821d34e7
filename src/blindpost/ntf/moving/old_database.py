"""A connection to the database of an ntf-server: one transaction, kept completely or not at all."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator

import asyncpg

from blindpost.serving.failures import OperatorError
from blindpost.store import postgres

OLD_SCHEMA = "ntf_server"
LOCK_S = 10
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@contextlib.asynccontextmanager
async def old_database(
    dsn: str, schema: str = OLD_SCHEMA, *, writing: bool = False
) -> AsyncIterator[postgres.Connection]:
    """One consistent view of the old server's tables, for reading or for filling."""
    if _SCHEMA_NAME.fullmatch(schema) is None:
        raise OperatorError("--schema: the name of a schema expected, such as ntf_server.")
    try:
        connection = await asyncpg.connect(
            dsn,
            timeout=postgres.CONNECT_S,
            server_settings={"search_path": f'"{schema}", public', "lock_timeout": f"{LOCK_S}s"},
        )
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        raise OperatorError(
            f"ntf-server's database cannot be opened: {type(error).__name__}. Try its address with "
            "`psql`; it looks like postgresql://user@host/ntf_server_store."
        ) from None
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=not writing):
            yield connection
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise OperatorError(
            f"the schema {schema} of this database is not that of an ntf-server of version 7. "
            "Start ntf-server once in its newest version: it brings its tables up to date."
        ) from error
    except asyncpg.LockNotAvailableError as error:
        raise OperatorError("the tables are in use. Stop ntf-server first.") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise OperatorError(
            "this user may not do that with ntf-server's tables. Use the user that owns them."
        ) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        doing = "filled" if writing else "read"
        raise OperatorError(
            f"ntf-server's database cannot be {doing}: {type(error).__name__}. Nothing was changed in it."
        ) from error
    finally:
        connection.terminate()
