"""Bytes that nobody else may know, as a field of values that are kept."""

from __future__ import annotations

import hmac

from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Secret(Value):
    """Prints as nothing, compares in constant time."""

    raw: bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self.raw, other.raw)

    def __repr__(self) -> str:
        return "Secret"
