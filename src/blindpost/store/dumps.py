"""Copies of a database by PostgreSQL's own programs: consistent while it is used, and restored as one change.

`pg_dump` reads one snapshot. A restore is one transaction of `psql`: it makes sure that no server owns the
database, moves a schema that is there aside, and fills a new one.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from blindpost.engine.loop import StoreFailedError
from blindpost.store.postgres import Schema

LOCK_WAIT_MS = 10_000
_ERROR = re.compile(r"\b(error|ERROR|FATAL):")
_FILLED, _IN_USE, _ASIDE = "blindpost: filled", "blindpost: in use", "blindpost: aside"
_OLDER = "server version mismatch"
_GET = "install PostgreSQL's client programs (postgresql-client) of the database's version or newer"


class DatabaseFilledError(StoreFailedError):
    """There is a store in the database already."""

    def __init__(self) -> None:
        super().__init__("the database holds a store of this kind of server already")


def dump(dsn: str, schema: Schema, target: Path) -> None:
    """Everything of a schema, into a new file that only its owner may read."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o600))
    with _program("pg_dump", dsn) as (command, environment):
        options = ("--no-owner", "--no-privileges", "--compress=6", f"--lock-wait-timeout={LOCK_WAIT_MS}")
        words = [*command, *options, f"--schema={schema.name}", f"--file={target}"]
        done = _run(words, environment, subprocess.DEVNULL)
    if _OLDER in done.stderr:
        raise StoreFailedError(f"the `pg_dump` on the PATH is older than the database: {_GET}")
    if done.returncode:
        raise StoreFailedError(f"pg_dump failed: {_cause(done.stderr, dsn)}")


def load(dsn: str, schema: Schema, source: Path, *, replace: bool) -> str | None:
    """Fill a database from such a file; the name under which its former schema is kept, if there was one."""
    with _program("psql", dsn) as (command, environment), _script(schema, source, replace) as script:
        quiet = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction")
        done = _run([*command, *quiet, "--file=-"], environment, script)
    if _IN_USE in done.stderr:
        raise StoreFailedError("a server uses this database: stop it first")
    if _FILLED in done.stderr:
        raise DatabaseFilledError
    if done.returncode:
        raise StoreFailedError(f"psql failed, and nothing was changed: {_cause(done.stderr, dsn)}")
    aside = re.search(rf"{_ASIDE} (\S+)", done.stderr)
    return None if aside is None else aside[1]


@contextlib.contextmanager
def _script(schema: Schema, source: Path, replace: bool) -> Iterator[IO[bytes]]:
    """The statements of a restore, unpacked."""
    aside = f"{schema.name}_replaced_{int(time.time())}"
    renamed = (
        f"WHILE to_regnamespace(quote_ident(aside)) IS NOT NULL LOOP\n"
        f"number := number + 1; aside := format('{aside}_%s', number);\nEND LOOP;\n"
        f"EXECUTE format('ALTER SCHEMA %I RENAME TO %I', '{schema.name}', aside);\n"
        f"RAISE NOTICE '{_ASIDE} %', aside;"
    )
    there = renamed if replace else f"RAISE EXCEPTION '{_FILLED}';"
    first = (
        "SET client_min_messages = notice;\n"
        f"DO $$ DECLARE aside text := '{aside}'; number int := 1; BEGIN\n"
        f"IF NOT pg_try_advisory_xact_lock({schema.lock}) THEN RAISE EXCEPTION '{_IN_USE}'; END IF;\n"
        f"IF to_regnamespace('\"{schema.name}\"') IS NOT NULL THEN {there} END IF;\nEND $$;\n"
    )
    with tempfile.TemporaryFile(dir=source.parent) as script, gzip.open(source) as packed:
        script.write(first.encode())
        try:
            shutil.copyfileobj(packed, script)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise StoreFailedError(f"{source} is damaged: take another backup") from error
        script.seek(0)
        yield script


@contextlib.contextmanager
def _program(name: str, dsn: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """A program of PostgreSQL with its address; a password goes where other users cannot see it."""
    found = shutil.which(name)
    if found is None:
        raise StoreFailedError(f"`{name}` is not on the PATH: {_GET}")
    address, password = _without_password(dsn)
    secret = {"PGPASSWORD": password} if password else {}
    yield [found, f"--dbname={address}", "--no-password"], {**os.environ, **secret, "LC_ALL": "C"}


def _run(
    words: list[str], environment: Mapping[str, str], given: IO[bytes] | int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  # a program of the operator's own
        words, env=environment, stdin=given, capture_output=True, text=True, errors="replace", check=False
    )


def _without_password(dsn: str) -> tuple[str, str]:
    parts = urlsplit(dsn)
    options = parse_qsl(parts.query, keep_blank_values=True)
    named = [value for name, value in options if name == "password"]
    password = unquote(parts.password) if parts.password else "".join(named[:1])
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}{at}{host}"
    query = urlencode([(name, value) for name, value in options if name != "password"], quote_via=quote)
    return urlunsplit(parts._replace(netloc=netloc, query=query)), password


def _cause(told: str, dsn: str) -> str:
    """The last line that tells an error; those after it say where it happened, or what to try."""
    lines = [line for line in told.strip().splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    text = (errors or lines or ["it said nothing"])[-1]
    password = _without_password(dsn)[1]
    return text.replace(password, "***") if password else text
