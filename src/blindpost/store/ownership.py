"""Waiting for a database that another server owns, and taking it over when that one is dead or silent.

The owner's session says something every second. A session that the database waits for in vain was frozen, or
its network is gone: the database ends it on request. Only then is its lock free, so that an owner that comes
back finds itself without the database and cannot write to it. It is silent if the database shows the same
last sign of it for long enough: whose clock jumps does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import asyncpg

from blindpost.store.contract import Durability, StoreVersionError, of_another, seen
from blindpost.store.postgres import (
    CONNECT_S,
    FAILURES,
    OWNED,
    OWNER,
    Connection,
    Schema,
    demand_writable,
    session_settings,
    told,
)
from blindpost.wire.frozen import dataclass

log = logging.getLogger(__name__)

POLL_S = 0.5
RETRY_S = 2.0
ANSWER_S = 10.0
LIVES_S = 5.0
"""A server that waits asks every half second: one that was silent for so long is frozen, or gone."""
CANDIDATE = "blindpost standby"
"""How a session of a server that waits is named, before the name of its schema and its own."""
_TOLD = 12
"""So much of an identity is enough to tell two apart; the name of a session is short."""

_FREE = "SELECT pg_try_advisory_xact_lock($1)"
"""Gives the lock back at once: the store takes it itself when it is opened."""

_CUT_SILENT = """
SELECT
    count(CASE WHEN wait_event_type = 'Client' AND state_change = $4
        THEN pg_terminate_backend(pid) END) AS cut,
    count(*) FILTER (WHERE state_change IS NULL) AS hidden,
    max(state_change) AS heard
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = $1::bigint::oid AND objid = $2::bigint::oid
    AND application_name = $3
"""
"""What a session does is hidden from other roles, and when nothing is tracked."""

_CANDIDATES = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1
    AND clock_timestamp() - state_change < $2 * interval '1 second'
"""

LOOKS = "it has not heard of the database yet"
FOLLOWS = "another server owns the database; this one takes over when that one ends"
BLIND = (
    f"{FOLLOWS}, but not when it freezes: its session cannot be seen. Both need the same database role, "
    "and the database track_activities"
)


@dataclass(frozen=True, slots=True)
class Shared:
    """A database that servers of one kind own in turn."""

    dsn: str
    schema: Schema
    takeover_s: float
    """An owner that was silent for this long is cut off."""
    identity: str = ""
    """By which name clients know this server; empty where it has none that they keep to."""


class Candidate:
    """A server that waits for its turn."""

    def __init__(
        self,
        shared: Shared,
        *,
        yields_s: float = 0.0,
        failure: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """For `yields_s` another goes first, if one comes; `failure` is why this one could not go before."""
        self.shared = shared
        """What takes its place counts from the next connection on."""
        self._now = now
        self._yields_until = now() + yields_s
        self._failure = failure
        self._heard: datetime | None = None
        """When the owner said something last, as the database tells it."""
        self._heard_at = now()
        """Since when the database tells that."""
        self.sentence = failure or LOOKS
        """What it waits for."""
        self.follows = False
        """Whether the database is there, so that all is well."""

    async def wait(self) -> None:
        """Return when nobody owns the database."""
        while True:
            shared = self.shared
            try:
                async with _connected(shared) as connection:
                    return await self._watch(connection, shared)
            except (*FAILURES, ValueError, StoreVersionError) as error:
                self.follows = False
                sentence = f"the database cannot be used: {told(error, shared.dsn)}"
                if sentence != self.sentence:
                    log.warning("%s", sentence)
                self.sentence = sentence
                await asyncio.sleep(RETRY_S)

    async def _watch(self, connection: Connection, shared: Shared) -> None:
        await demand_writable(connection)
        if not await self._is_of_another(connection, shared):
            self.sentence, self.follows = self._failure or FOLLOWS, not self._failure
        lock = shared.schema.lock
        while True:
            if await self._is_of_another(connection, shared):
                await asyncio.sleep(POLL_S)
                continue
            if await connection.fetchval(_FREE, lock):
                if self._now() >= self._yields_until:
                    return
                await asyncio.sleep(POLL_S)
                continue
            self._yields_until, self._failure = 0.0, ""
            named: tuple[Any, ...] = divmod(lock % 2**64, 2**32)
            silent = self._heard if self._now() - self._heard_at >= shared.takeover_s else None
            ((cut, hidden, heard),) = await connection.fetch(_CUT_SILENT, *named, OWNER, silent)
            if heard != self._heard:
                self._heard, self._heard_at = heard, self._now()
            if cut:
                log.warning("the owner of the database was silent for %g s: it is cut off", shared.takeover_s)
            self._judge(is_blind=hidden > 0)
            await asyncio.sleep(POLL_S)

    async def _is_of_another(self, connection: Connection, shared: Shared) -> bool:
        """Whether clients of this database's owner would refuse us: who started with keys of its own must
        not take over. `StoreVersionError` if this program is too old for it."""
        row = None
        with contextlib.suppress(asyncpg.UndefinedTableError):  # nobody has owned it yet
            row = await connection.fetchrow(OWNED.format("state"))
        if row is None:
            return False
        seen(row["version"], len(shared.schema.migrations))
        own, theirs = shared.identity, row["identity"]
        if not own or theirs in (None, own):
            return False
        sentence = f"the database belongs to {of_another(theirs, own)}"
        if self.sentence != sentence:
            log.error("%s", sentence)
        self.sentence, self.follows = sentence, False
        return True

    def _judge(self, *, is_blind: bool) -> None:
        sentence = BLIND if is_blind else FOLLOWS
        if is_blind and self.sentence != sentence:
            log.warning("%s", sentence)
        self.sentence, self.follows = sentence, not is_blind


async def has_candidate(shared: Shared) -> bool:
    """Whether some server waits for this database."""
    async with _connected(shared, "blindpost") as connection:
        return bool(await connection.fetchval(_CANDIDATES, _name(shared), LIVES_S))


def _name(shared: Shared) -> str:
    return f"{CANDIDATE} {shared.schema.name} {shared.identity[:_TOLD]}".rstrip()


@contextlib.asynccontextmanager
async def _connected(shared: Shared, name: str = "") -> Any:
    connection = await asyncpg.connect(
        shared.dsn,
        timeout=CONNECT_S,
        command_timeout=ANSWER_S,
        server_settings=session_settings(shared.schema, Durability.FULL)
        | {"application_name": name or _name(shared)},
    )
    try:
        yield connection
    finally:
        connection.terminate()
