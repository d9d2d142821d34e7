"""The shared store: one PostgreSQL database, owned by one server at a time, through one connection.

A session-level advisory lock says who the owner is. It also makes a lost connection safe: the database gives
the lock to a new connection only when the old one has ended, so that whatever the old one was asked to commit
is by then either there or never will be. A number counts the commits; it is written in the same transaction
and tells which of the two happened.

The statements of a commit are composed into one, so that a commit is one round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from blindpost.engine.loop import OutcomeUnknownError, StoreFailedError
from blindpost.store.contract import Durability, Seen, StoreVersionError, seen
from blindpost.wire.frozen import dataclass

log = logging.getLogger(__name__)

CONNECT_S = 10.0
STATEMENT_S = 30.0
"""The database aborts a statement that takes longer."""
SILENCE_S = 40.0
"""A database that does not answer for this long counts as lost."""
LOCK_WAIT_S = 10.0
"""How long a killed predecessor's connection may take to end; after that it is assumed alive."""
STANDBY_LOCK_WAIT_S = 2.0
"""A server that can wait as a standby does not hold its clients up for the lock."""
TURN_LOCK_WAIT_S = 0.2
"""Who has seen that the lock is free gets it at once, or another was quicker: others only look at it."""
MIGRATION_S = 86_400.0
ASIDE_MAX = 4
"""How many connections there are besides the owner's, for work that need not wait for it."""
ASIDE_IDLE_S = 20.0
"""Those that nobody needed for so long are closed: each is a process at the database."""
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

AWAY = "the database is away"
OWNER = "blindpost owner"
"""How the session of a database's owner is named, for those who wait for it."""
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
_ENDINGS = ("08", "57P")
"""Classes of errors that end the connection, whatever happened to the statement."""
_PASSING = ("53", "55P03", "57014")
"""Errors of a database that has no room, or of which others use the tables that a migration changes."""


class DatabaseInUseError(StoreFailedError):
    """Another server owns the database."""


class DatabaseAwayError(StoreFailedError):
    """The database cannot be used now; it may be later."""


@dataclass(frozen=True, slots=True)
class Step:
    """Puts or deletes rows of one table, given as arrays: one part of the statement of a commit.

    `{0}`, `{1}` ... stand for its arguments. It returns `fresh` for each row it touched, which is false
    where a row was there already. `counter` is None for a table whose rows nobody counts.
    """

    counter: str | None
    text: str
    is_delete: bool = False


Work = Sequence[tuple[Step, Sequence[Any]]]
"""Steps with their arguments; they do not see each other's effects."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one kind of server. `counters` are columns that its migrations add to `state`."""

    name: str
    migrations: Sequence[str]
    counters: Sequence[str]

    @property
    def lock(self) -> int:
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big", signed=True)


_STATE = """
CREATE TABLE IF NOT EXISTS state (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    commits bigint NOT NULL
) WITH (fillfactor = 20)
"""

_HAS_IDENTITY = """
SELECT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'state'::regclass AND attname = 'identity')
"""
"""Asked first: `ADD COLUMN IF NOT EXISTS` waits for everybody who reads the table, such as a backup."""

_BEGIN = "UPDATE state SET commits = commits + 2"
"""A former owner that is in doubt about one commit must not take the first of ours for it. Nor must it resume
with a schema that we have begun to change."""

OWNED = "SELECT version, to_jsonb(state) ->> 'identity' AS identity FROM {} AS state"
"""Older programs write no name down."""

_HAS_OWNER = """
SELECT EXISTS (SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = $1::bigint::oid AND objid = $2::bigint::oid)
"""


class PostgresStore:
    """A database that this process owns until `close`."""

    def __init__(self, dsn: str, schema: Schema, durability: Durability) -> None:
        """Use `open`."""
        self.statements = 0
        """How many statements were sent, for measurements."""
        self.connects = 0
        self.counts: dict[str, int] = {}
        self._dsn = dsn
        self._schema = schema
        self._durability = durability
        self._commits = 0
        self._sure_since = 0.0
        """When the last statement was sent that the owner's connection answered."""
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._outcome: asyncio.Future[bool] | None = None
        self._aside: asyncpg.Pool[asyncpg.Record] | None = None
        self.on_displaced: Callable[[], None] | None = None
        """Called when another server has taken over; without it this one waits for the database for ever."""
        self.takeover_s = math.inf
        """If it is away for so long, another server may own it, whoever of the two cannot reach it."""

    @classmethod
    async def open(
        cls, dsn: str, schema: Schema, durability: Durability = Durability.FULL, *, in_turn: bool = False
    ) -> PostgresStore:
        """Own the database and migrate its schema, or raise why not.

        One that servers own `in_turn` is refused at once if another has it.
        """
        store = cls(dsn, schema, durability)
        try:
            connection = await store._connect(TURN_LOCK_WAIT_S if in_turn else LOCK_WAIT_S)
        except StoreFailedError:
            raise
        except (*FAILURES, ValueError) as error:
            raise DatabaseAwayError(f"the database cannot be opened: {store._told(error)}") from None
        try:
            await store._migrate(connection)
            store._commits, store.counts = await store._state(connection)
        except FAILURES as error:
            may_pass = _may_be_over(connection, error) or _is_of(error, _PASSING)
            failed = DatabaseAwayError if may_pass else StoreFailedError
            connection.terminate()
            raise failed(f"the database cannot be prepared: {store._told(error)}") from None
        except BaseException:
            connection.terminate()
            raise
        store._connection = connection
        store._aside = await asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=ASIDE_MAX,
            max_inactive_connection_lifetime=ASIDE_IDLE_S,
            timeout=CONNECT_S,
            command_timeout=SILENCE_S,
            server_settings=session_settings(schema, durability),
        )
        return store

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """The rows that one statement reads; `StoreFailedError` if they cannot be read."""
        async with self._turn:
            connection = self._connected()
            self.statements += 1
            asked = _loop_time()
            try:
                rows = await connection.fetch(statement, *arguments)
            except asyncpg.DataError:
                # An argument that no column can hold. The database is well: only who passed it has to know.
                raise
            except FAILURES as error:
                if _may_be_over(connection, error):
                    self._lost(connection, error)
                    raise DatabaseAwayError(AWAY) from error
                log.error("the database refused to read: %s", self._told(error))
                raise StoreFailedError("the database refused to read") from error
            self._sure_since = asked
            return rows

    async def probe(self) -> None:
        """Write what is already there, to find out whether the database takes writes."""
        await self.fetch("UPDATE state SET version = version RETURNING version")

    @property
    def is_away(self) -> bool:
        return self._connection is None or self._connection.is_closed()

    @property
    def is_sure(self) -> bool:
        """Whether no other server can own it yet: one that waits takes `takeover_s` of silence for an end."""
        return _loop_time() - self._sure_since < self.takeover_s

    async def claim(self, identity: str) -> None:
        """Say by which name clients know its owner, to those who wait for it."""
        await self.fetch("UPDATE state SET identity = $1 WHERE identity IS DISTINCT FROM $1", identity)

    async def sign(self) -> None:
        """Show the database that its owner lives: a standby cuts off one that is silent."""
        if self._connection is not None and not self.is_busy:
            with contextlib.suppress(StoreFailedError):  # it is logged, and the next turn finds it too
                await self.fetch("SELECT 1")

    @property
    def is_busy(self) -> bool:
        """Whether the owner's connection is busy: callers that need not wait for it use `aside`."""
        return self._turn.locked()

    async def aside(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """Run one statement beside whatever the owner's connection is doing; durable when this returns.

        It checks neither the lock nor the number: nobody may read what it writes until a `commit` says so.
        """
        self.statements += 1
        if self._aside is None:
            raise StoreFailedError(AWAY)
        try:
            return await self._aside.fetch(statement, *arguments)
        except FAILURES as error:
            log.error("the database refused a statement: %s", self._told(error))
            raise StoreFailedError("the database refused, or cannot be reached") from error

    async def commit(self, phases: Iterable[Work], adjust: Mapping[str, int]) -> None:
        """Make all steps durable, phase after phase, or none of them.

        `adjust` corrects counters that no step counts. `OutcomeUnknownError` if the connection is lost on
        the way.
        """
        async with self._turn:
            connection, asked = self._connected(), _loop_time()
            try:
                rows = await self._write(connection, phases, adjust)
            except FAILURES as error:
                if _may_be_over(connection, error):
                    self._outcome = asyncio.get_running_loop().create_future()
                    self._lost(connection, error)
                    raise OutcomeUnknownError(AWAY, self._outcome) from error
                log.error("the database refused a commit: %s", self._told(error))
                raise StoreFailedError("the database refused a commit") from error
            self._commits += 1
            self._sure_since = asked
            self.counts.update(rows)

    async def _write(
        self, connection: Connection, phases: Iterable[Work], adjust: Mapping[str, int]
    ) -> dict[str, int]:
        """One statement is a transaction by itself; more of them need one around them."""
        if isinstance(phases, Sequence) and len(phases) == 1:
            return await self._write_phase(connection, phases[0], adjust)
        counts: dict[str, int] = {}
        async with connection.transaction():
            for phase in phases:
                counts |= await self._write_phase(connection, phase, adjust)
                adjust = {}
        return counts

    async def _write_phase(
        self, connection: Connection, work: Work, adjust: Mapping[str, int]
    ) -> dict[str, int]:
        statement = _composed(tuple((step, len(arguments)) for step, arguments in work), tuple(adjust))
        arguments: list[Any] = [self._commits + 1, *adjust.values()]
        for _, of_step in work:
            arguments += of_step
        self.statements += 1
        row = await connection.fetchrow(statement, *arguments)
        if row is None:
            raise asyncpg.InterfaceError("the state of the store is missing")
        return dict(row)

    def close(self) -> None:
        """Release the database; it notices at once. No statement may be in flight."""
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        if self._aside is not None:
            self._aside.terminate()
            self._aside = None
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and connection.is_closed():
            self._lost(connection, ConnectionResetError("closed by the database"))
            connection = None
        if connection is None:
            raise DatabaseAwayError(AWAY)
        return connection

    def _lost(self, connection: Connection, error: Exception) -> None:
        log.error("the connection to the database is lost: %s", self._told(error))
        connection.terminate()
        self._connection = None
        self._reconnecting = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Own the database again as soon as possible, and find out what happened to the last commit."""
        wait_s, clock = RETRY_FIRST_S, asyncio.get_running_loop().time
        lost = clock()
        while True:
            try:
                connection, commits, counts = await self._connect_again()
                break
            except (*FAILURES, StoreFailedError, ValueError) as error:
                is_over = isinstance(error, DatabaseInUseError) or clock() - lost >= self.takeover_s
                if is_over and self.on_displaced is not None:
                    self._displaced(self.on_displaced)
                    return
                if wait_s == RETRY_FIRST_S:
                    log.warning("the database cannot be used, trying again: %s", self._told(error))
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MAX_S)
        self.connects += 1
        self._resume(connection, commits, counts)

    async def _connect_again(self) -> tuple[Connection, int, dict[str, int]]:
        wait_s = LOCK_WAIT_S if self.on_displaced is None else STANDBY_LOCK_WAIT_S
        connection = await self._connect(wait_s)
        try:
            return connection, *await self._state(connection)
        except BaseException:
            connection.terminate()
            raise

    def _resume(self, connection: Connection, commits: int, counts: dict[str, int]) -> None:
        outcome, self._outcome = self._outcome, None
        known = {self._commits} if outcome is None else {self._commits, self._commits + 1}
        if commits not in known:
            # What this server remembers of its queues and what is stored date from different times.
            connection.terminate()
            if self.on_displaced is not None:
                if commits < self._commits:
                    told = "the database is at commit %d, not at %d: it lost commits that were answered"
                    log.critical(told, commits, self._commits)
                self._outcome = outcome
                self._displaced(self.on_displaced)
                return
            log.critical(
                "the database is at commit %d, not at %d: it lost commits, or another server wrote to it. "
                "Nothing more is accepted; restart this server",
                commits,
                self._commits,
            )
            return
        if outcome is not None and not outcome.done():
            outcome.set_result(commits > self._commits)
        self._commits, self.counts, self._connection = commits, counts, connection
        log.warning("the database is back")

    def _displaced(self, tell: Callable[[], None]) -> None:
        """The new owner's commits hide what became of our last one: nobody is told that it failed."""
        log.warning("another server has taken the database over, or may have")
        outcome, self._outcome = self._outcome, None
        if outcome is not None and not outcome.done():
            outcome.set_exception(OutcomeUnknownError(AWAY, outcome))
        tell()

    async def _connect(self, wait_s: float) -> Connection:
        """A connection that owns the database."""
        connection = await asyncpg.connect(
            self._dsn,
            timeout=CONNECT_S,
            command_timeout=SILENCE_S,
            statement_cache_size=256,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
            server_settings=session_settings(self._schema, self._durability) | {"application_name": OWNER},
        )
        try:
            await demand_writable(connection)
            await connection.execute(f"SET lock_timeout = {wait_s * 1000:.0f}")
            await connection.execute("SELECT pg_advisory_lock($1)", self._schema.lock)
            await connection.execute("RESET lock_timeout")
        except asyncpg.LockNotAvailableError:
            connection.terminate()
            raise DatabaseInUseError(
                "another server uses this database; stop it, or give each server a database of its own"
            ) from None
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _migrate(self, connection: Connection) -> None:
        migrations = self._schema.migrations
        async with connection.transaction():
            await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema.name}"')
            await connection.execute(_STATE)
            if not await connection.fetchval(_HAS_IDENTITY):
                await connection.execute("ALTER TABLE state ADD COLUMN identity text")
            await connection.execute(
                "INSERT INTO state (version, commits) VALUES (0, 0) ON CONFLICT DO NOTHING"
            )
        done: int = await connection.fetchval("SELECT version FROM state")
        if done > len(migrations):
            raise StoreVersionError(done, len(migrations))
        await connection.execute(_BEGIN)
        for number, migration in enumerate(migrations[done:], start=done + 1):
            async with connection.transaction():
                await connection.execute("SET LOCAL statement_timeout = 0")
                await connection.execute(migration, timeout=MIGRATION_S)
                await connection.execute("UPDATE state SET version = $1", number)

    async def _state(self, connection: Connection) -> tuple[int, dict[str, int]]:
        row = await connection.fetchrow("SELECT * FROM state")
        if row is None:
            raise asyncpg.InterfaceError("the state of the store is missing")
        return row["commits"], {name: row[name] for name in self._schema.counters}

    def _told(self, error: Exception) -> str:
        return told(error, self._dsn)


def told(error: Exception, dsn: str) -> str:
    """What may be logged about an error: no password, and no ids, which are in its details."""
    is_detailed = isinstance(error, asyncpg.PostgresError) and error.args
    text = str(error.args[0] if is_detailed else error) or type(error).__name__
    for password in _passwords(dsn):
        text = text.replace(password, "***")
    return text


async def demand_writable(connection: Connection) -> None:
    """A replica gives out locks of its own, which say nothing of who owns the database.

    Others are set to read-only, as a provider does with one whose disk is full.
    """
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        raise asyncpg.InterfaceError("it is a replica, which takes no writes")
    if await connection.fetchval("SELECT current_setting('transaction_read_only')::boolean"):
        raise asyncpg.InterfaceError("it is set to read-only (default_transaction_read_only)")


@contextlib.asynccontextmanager
async def snapshot(dsn: str, schema: Schema) -> AsyncIterator[Connection]:
    """One read-only, consistent view of a database that its owner may keep writing to."""
    try:
        connection = await asyncpg.connect(
            dsn,
            timeout=CONNECT_S,
            command_timeout=SILENCE_S,
            server_settings=session_settings(schema, Durability.FULL),
        )
    except (*FAILURES, ValueError) as error:
        raise StoreFailedError(f"the database cannot be opened: {told(error, dsn)}") from None
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            found: int = await connection.fetchval("SELECT version FROM state")
            if found != len(schema.migrations):
                raise StoreVersionError(found, len(schema.migrations))
            yield connection
    except FAILURES as error:
        raise StoreFailedError(f"the database cannot be read: {told(error, dsn)}") from None
    finally:
        connection.terminate()


async def look(dsn: str, schema: Schema) -> Seen:
    """Whose database it is and its schema version, by one read-only connection."""
    try:
        connection = await asyncpg.connect(dsn, timeout=CONNECT_S, command_timeout=SILENCE_S)
    except (*FAILURES, ValueError) as error:
        raise StoreFailedError(f"the database cannot be opened: {told(error, dsn)}") from None
    try:
        async with connection.transaction(readonly=True):
            if await connection.fetchval("SELECT to_regclass($1)", f'"{schema.name}".state') is None:
                raise StoreFailedError("the database holds no store of this kind of server")
            ((version, identity),) = await connection.fetch(OWNED.format(f'"{schema.name}".state'))
            in_use = await connection.fetchval(_HAS_OWNER, *divmod(schema.lock % 2**64, 2**32))
    except FAILURES as error:
        raise StoreFailedError(f"the database cannot be read: {told(error, dsn)}") from None
    finally:
        connection.terminate()
    return seen(version, len(schema.migrations), in_use=in_use, identity=identity or "")


@functools.lru_cache(maxsize=256)
def _composed(shape: tuple[tuple[Step, int], ...], adjusted: tuple[str, ...]) -> str:
    """One statement that performs all these steps, counts them and numbers the commit, which is `$1`."""
    parts: list[str] = []
    changed: dict[str, str] = {}
    used = 1
    for counter in adjusted:
        used += 1
        changed[counter] = f"{changed.get(counter, counter)} + ${used}::bigint"
    for number, (step, arguments) in enumerate(shape):
        text = step.text.format(*(f"${used + place}" for place in range(1, arguments + 1)))
        used += arguments
        parts.append(f"step{number} AS ({text})")
        if step.counter is None:
            continue
        sign = "-" if step.is_delete else "+"
        counted = f"(SELECT count(*) FROM step{number} WHERE fresh)"
        changed[step.counter] = f"{changed.get(step.counter, step.counter)} {sign} {counted}"
    settings = ", ".join(["commits = $1::bigint", *(f"{name} = {value}" for name, value in changed.items())])
    returned = ", ".join(changed) or "commits"
    head = f"WITH {', '.join(parts)} " if parts else ""
    return f"{head}UPDATE state SET {settings} RETURNING {returned}"


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _may_be_over(connection: Connection, error: Exception) -> bool:
    """Whether the connection may have ended with this error, leaving the statement's outcome unknown."""
    if connection.is_closed() or isinstance(error, OSError | asyncpg.InternalClientError):
        return True
    return _is_of(error, _ENDINGS)


def _is_of(error: Exception, classes: tuple[str, ...]) -> bool:
    return isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "08").startswith(classes)


def session_settings(schema: Schema, durability: Durability) -> dict[str, str]:
    """Plans are made once and use indexes: every statement names its rows."""
    return {
        "application_name": "blindpost",
        "search_path": f'"{schema.name}"',
        "synchronous_commit": "on" if durability is Durability.FULL else "off",
        "statement_timeout": f"{STATEMENT_S * 1000:.0f}",
        "lock_timeout": f"{LOCK_WAIT_S * 1000:.0f}",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "jit": "off",
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
    }


def _passwords(dsn: str) -> set[str]:
    """Every form in which the password may appear in a text."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(dsn)
        found = [parts.password or "", *parse_qs(parts.query).get("password", [])]
        return {form for text in found for form in (text, unquote(text)) if form}
    return {dsn}
