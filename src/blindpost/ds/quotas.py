"""How much one identity may send and take from others in an hour.

The counts are kept in a file, so that a restart does not reset them; it names no identity, only hashes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from blindpost.ds.auth import Caller
from blindpost.ds.checks import Refusal
from blindpost.ds.model import DsRules
from blindpost.engine.undo import Undo
from blindpost.serving.files import DAMAGED, read_file, set_aside, write_file
from blindpost.serving.logs import log
from blindpost.wire.capnp.node import Enqueue, FetchKeyPackage, Request
from blindpost.wire.capnp.rpc import ExceptionType

WINDOW_S = 3600.0
_SWEEP_AT = 10_000
_KEY_SIZE = 16

TOO_MUCH_SENT = Refusal("too much was sent by one identity, try again later", ExceptionType.OVERLOADED)
TOO_MANY_TAKEN = Refusal("too many key packages were taken, try again later", ExceptionType.OVERLOADED)


def _key(what: str, who: bytes, of: bytes = b"") -> bytes:
    return hashlib.blake2b(b"\0".join((what.encode(), who, of)), digest_size=_KEY_SIZE).digest()


def _uses(request: Request, caller: Caller | None, rules: DsRules) -> list[tuple[bytes, int, int]]:
    """What a call counts as, by how much, and how much is allowed."""
    who = None if caller is None else caller.identity_key
    if who is None:
        return []
    match request:
        case Enqueue():
            size = len(request.payload)
            return [
                (_key("payloads", who), 1, rules.sender_payloads),
                (_key("bytes", who), size, rules.sender_bytes),
            ]
        case FetchKeyPackage(identity_key=owner) if owner != who:
            of_one = _key("taken", who, owner)
            return [(_key("taken", who), 1, rules.taken_packages), (of_one, 1, rules.taken_packages_of_one)]
    return []


class Quotas:
    """Counts by identity; a service open to everybody has no identities and counts nothing."""

    def __init__(self, undo: Undo, now: Callable[[], float] = time.time) -> None:
        self._undo = undo
        self._now = now
        self._counted: dict[bytes, tuple[float, int]] = {}
        """By kind, identity and other party, hashed: since when, and how often."""
        self._sweep_at = _SWEEP_AT
        self._is_saved = True

    def refusal(self, request: Request, caller: Caller | None, rules: DsRules) -> Refusal | None:
        """Why an otherwise valid call is over quota."""
        now = self._now()
        if all(self._count(key, now)[1] + by <= most for key, by, most in _uses(request, caller, rules)):
            return None
        return TOO_MUCH_SENT if isinstance(request, Enqueue) else TOO_MANY_TAKEN

    def count(self, request: Request, caller: Caller | None, rules: DsRules) -> None:
        """A call did what it asked for; rolled back with its turn."""
        now = self._now()
        for key, by, _ in _uses(request, caller, rules):
            self._undo.add((self._put_back, key, self._counted.get(key)))
            since, count = self._count(key, now)
            self._counted[key] = (since, count + by)
            self._is_saved = False
        if len(self._counted) >= self._sweep_at:
            self._counted = self._current()
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._counted))

    def _count(self, key: bytes, now: float) -> tuple[float, int]:
        since, count = self._counted.get(key, (now, 0))
        return (since, count) if 0 <= now - since < WINDOW_S else (now, 0)  # also for what is no number

    def _put_back(self, key: bytes, before: tuple[float, int] | None) -> None:
        if before is None:
            self._counted.pop(key, None)
        else:
            self._counted[key] = before

    def _current(self) -> dict[bytes, tuple[float, int]]:
        now = self._now()
        return {key: one for key, one in self._counted.items() if 0 <= now - one[0] < WINDOW_S}

    def save(self, file: Path) -> None:
        """Save the counts if they changed."""
        if not self._is_saved:
            kept = {key.hex(): one for key, one in self._current().items()}
            write_file(file, json.dumps(kept).encode())
            self._is_saved = True

    def load(self, file: Path) -> None:
        """Continue the counts of an earlier process; an unreadable file is set aside."""
        if not file.exists():
            return
        try:
            kept = json.loads(read_file(file))
            counted = {bytes.fromhex(key): (float(since), int(count)) for key, (since, count) in kept.items()}
        except DAMAGED:
            log.warning(
                "the saved quotas cannot be read and start from zero; the file is kept as %s",
                set_aside(file),
            )
            return
        self._counted = counted
