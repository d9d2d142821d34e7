"""How push services know this router (RFC 8292): its keys, and the tokens signed with them.

Devices subscribe to one key. After a rotation the former keys are held for a while, because a push service
refuses pushes that are signed with another key than the subscription's.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric import ec

from blindpost.crypto.webpush import es256, point_of
from blindpost.wire.json_text import json_bytes
from blindpost.wire.text import ub64

TOKEN_LIFE_S = 3600
RENEWED_BEFORE_S = 60
TOKENS_MAX = 1024
TRIED_MAX = 3
"""How many keys one push is tried with."""
NAME_SIZE = 8


@dataclass(frozen=True, repr=False)
class VapidKey:
    """One key, and until when a key that was replaced is used."""

    private: ec.EllipticCurvePrivateKey
    until: float = math.inf

    @cached_property
    def public(self) -> str:
        """What applications give to their push service."""
        return ub64(point_of(self.private))

    @cached_property
    def name(self) -> bytes:
        """The name by which a token refers to it."""
        return hashlib.sha256(point_of(self.private)).digest()[:NAME_SIZE]


class VapidTokens:
    """A signed token for each push service and key, used until shortly before its end."""

    def __init__(self, keys: Sequence[VapidKey], subject: str, now: Callable[[], float]) -> None:
        """The current key first, then former ones, the newest first."""
        self.keys = tuple(keys)
        self._subject = subject
        self.now = now
        self._kept: OrderedDict[tuple[bytes, str], tuple[float, bytes]] = OrderedDict()

    @property
    def current(self) -> VapidKey:
        return self.keys[0]

    @property
    def former(self) -> tuple[VapidKey, ...]:
        """Keys that were replaced and are still used."""
        return tuple(key for key in self.keys[1:] if self.now() < key.until)

    def to_try(self, name: bytes) -> tuple[VapidKey, ...]:
        """The keys for a subscription, its own first; one with no recorded key predates all rotations."""
        held = (self.current, *self.former)
        own = [key for key in held if key.name == name] or ([] if name else [held[-1]])
        return (*own, *(key for key in held if key not in own))[:TRIED_MAX]

    def header(self, authority: str, key: VapidKey) -> bytes:
        """The value of `Authorization` for the push service there."""
        now, place = self.now(), (key.name, authority)
        until, header = self._kept.get(place, (0.0, b""))
        if not now < until <= now + TOKEN_LIFE_S:
            expires = int(now) + TOKEN_LIFE_S
            header = f"vapid t={self._token(authority, key, expires)},k={key.public}".encode("ascii")
            self._kept[place] = (expires - RENEWED_BEFORE_S, header)
        self._kept.move_to_end(place)
        while len(self._kept) > TOKENS_MAX:
            self._kept.popitem(last=False)
        return header

    def _token(self, authority: str, key: VapidKey, expires: int) -> str:
        head = json_bytes({"typ": "JWT", "alg": "ES256"})
        claims = json_bytes({"aud": f"https://{authority}", "exp": expires, "sub": self._subject})
        content = f"{ub64(head)}.{ub64(claims)}"
        return f"{content}.{ub64(es256(key.private, content.encode('ascii')))}"
