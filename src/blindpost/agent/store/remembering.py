"""A connection to SQLite that remembers what was read of some tables until one of them changes.

Every message needs its connection, its queues and its ratchet, several times over and almost always
unchanged. Any statement that may change one of their tables, any that fails and any rollback clears
everything; the few that change a row with every message say themselves what is known after them.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from blindpost.store.sqlite import DiskFailedError, is_of_the_disk

TABLES = frozenset(
    {
        "users",
        "servers",
        "connections",
        "rcv_queues",
        "snd_queues",
        "ratchets",
        "ntf_servers",
        "ntf_tokens",
        "awaited_messages",
        "skipped_messages",
    }
)
"""What is remembered is made of these; where one of them loses rows by a cascade, another one is named."""

MESSAGES = frozenset({"messages", "snd_messages", "rcv_messages", "snd_message_deliveries", "commands"})
"""What is remembered of messages and commands that wait is made of these, and forgotten by itself."""

_KNOWN_MAX = 4096
_STATEMENTS_MAX = 1024
_READS = re.compile(r"\s*(?:SELECT|SAVEPOINT|RELEASE|BEGIN|COMMIT|PRAGMA wal_checkpoint)\b")
_WRITES = re.compile(r"\s*(?:INSERT(?: OR \w+)? INTO|UPDATE(?: OR \w+)?|DELETE FROM)\s+(\w+)")

V = TypeVar("V")
_Place = tuple[str, Hashable]


def may_change(statement: str) -> bool:
    """Whether this statement may change something remembered."""
    if _READS.match(statement):
        return False
    written = _WRITES.match(statement)
    return written is None or written[1] in TABLES


def may_change_messages(statement: str) -> bool:
    """The same of what is remembered of messages only."""
    written = _WRITES.match(statement)
    return written is not None and written[1] in MESSAGES


@functools.lru_cache(_STATEMENTS_MAX)
def _changes(statement: str) -> tuple[bool, bool]:
    return may_change(statement), may_change_messages(statement)


class RememberingConnection(sqlite3.Connection):
    """Used as any other connection; `known` is what functions of these tables add."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._known: dict[_Place, Any] = {}
        self._of_messages: set[_Place] = set()

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        self._look(statement)
        return self.execute_known(statement, values)

    def executemany(self, statement: str, values: Any, /) -> sqlite3.Cursor:
        self._look(statement)
        try:
            return super().executemany(statement, values)
        except BaseException as error:
            self._forget_all()
            if is_of_the_disk(error):
                raise DiskFailedError(error) from error
            raise

    def execute_known(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        """A statement of which the caller knows what it does to what is remembered."""
        try:
            return super().execute(statement, values)
        except BaseException as error:
            self._forget_all()
            if is_of_the_disk(error):
                raise DiskFailedError(error) from error
            raise

    def _look(self, statement: str) -> None:
        everything, messages = _changes(statement)
        if everything:
            self._forget_all()
        elif messages:
            for place in self._of_messages:
                self._known.pop(place, None)
            self._of_messages.clear()

    def _forget_all(self) -> None:
        self._known.clear()
        self._of_messages.clear()

    def known(self, kind: str, key: Hashable, read: Callable[[], V]) -> V:
        """What is remembered under this key; otherwise it is read. Nothing found is remembered too."""
        place = (kind, key)
        try:
            found: V = self._known[place]
        except KeyError:
            found = read()
            self._keep(place, found)
        return found

    def _keep(self, place: _Place, value: object) -> None:
        self._known[place] = value
        if len(self._known) > _KNOWN_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._of_messages.discard(oldest)

    def keep_of_message(self, kind: str, key: Hashable, value: object) -> None:
        """Remember something of a message that waits, until a statement that is not known to leave it as it
        is changes any message."""
        self._of_messages.add((kind, key))
        self._keep((kind, key), value)

    def of_message(self, kind: str, key: Hashable, default: V) -> V:
        """What was kept of a message."""
        found: V = self._known.get((kind, key), default)
        return found

    def forget_message(self, kind: str, key: Hashable) -> None:
        self._known.pop((kind, key), None)
        self._of_messages.discard((kind, key))

    def replace_known(self, kind: str, key: Hashable, change: Callable[[V], V]) -> None:
        """Replace what is remembered under this key; does nothing if nothing is."""
        place = (kind, key)
        if place in self._known:
            self._known[place] = change(self._known[place])
