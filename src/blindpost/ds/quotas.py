"""How much one identity may send and take from others in an hour; in memory, and forgotten with a restart."""

from __future__ import annotations

from blindpost.ds.auth import Caller
from blindpost.ds.checks import Refusal
from blindpost.ds.model import DsRules
from blindpost.wire.capnp.node import Enqueue, FetchKeyPackage, Request
from blindpost.wire.capnp.rpc import ExceptionType

WINDOW_S = 3600.0
_SWEEP_AT = 10_000

TOO_MUCH_SENT = Refusal("too much was sent by one identity, try again later", ExceptionType.OVERLOADED)
TOO_MANY_TAKEN = Refusal("too many key packages were taken, try again later", ExceptionType.OVERLOADED)


class Quotas:
    """Counts by identity; a service open to everybody has no identities and counts nothing."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, bytes, bytes], tuple[float, int]] = {}
        """What, by whom and of whom: since when, and how often."""
        self._sweep_at = _SWEEP_AT

    def refusal(self, request: Request, caller: Caller | None, rules: DsRules, now: float) -> Refusal | None:
        """Why an otherwise valid call is over quota; one that is not is counted."""
        who = None if caller is None else caller.identity_key
        if who is None:
            return None
        match request:
            case Enqueue():
                sent = [(("payloads", who, b""), 1, rules.sender_payloads)]
                sent.append((("bytes", who, b""), len(request.payload), rules.sender_bytes))
                return None if self._count(sent, now) else TOO_MUCH_SENT
            case FetchKeyPackage(identity_key=owner) if owner != who:
                taken = [(("taken", who, b""), 1, rules.taken_packages)]
                taken.append((("taken", who, owner), 1, rules.taken_packages_of_one))
                return None if self._count(taken, now) else TOO_MANY_TAKEN
        return None

    def _count(self, asked: list[tuple[tuple[str, bytes, bytes], int, int]], now: float) -> bool:
        counts = {}
        for key, by, most in asked:
            since, count = self._counted.get(key, (now, 0))
            if now - since >= WINDOW_S or now < since:
                since, count = now, 0
            if count + by > most:
                return False
            counts[key] = (since, count + by)
        self._counted.update(counts)
        if len(self._counted) >= self._sweep_at:
            self._counted = {key: one for key, one in self._counted.items() if now - one[0] < WINDOW_S}
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._counted))
        return True
