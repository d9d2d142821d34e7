"""Who calls: tokens bound to an identity key, or an operator's own authority. By default, nobody may."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from blindpost.wire.capnp.node import Auth
from blindpost.wire.value import Value

AUTH_VERSION = 1


@dataclass(frozen=True, slots=True, repr=False)
class Caller(Value):
    """An authenticated caller; without an identity where the service is open to everybody."""

    identity_key: bytes | None = None


class Authority(Protocol):
    """Identifies callers. It is asked once for each batch, before any other check."""

    async def identify(self, auths: Sequence[Auth]) -> Sequence[Caller | None]:
        """The caller behind each; None if refused."""


class Closed:
    """Nobody may call: the default of a service with no trusted callers configured."""

    async def identify(self, auths: Sequence[Auth]) -> Sequence[Caller | None]:
        return [None] * len(auths)


class Open:
    """Everybody may do everything, even drain every queue: for tests and closed networks."""

    async def identify(self, auths: Sequence[Auth]) -> Sequence[Caller | None]:
        return [Caller()] * len(auths)


class Tokens:
    """Tokens by their SHA-256, each bound to an identity key. The tokens themselves are not kept."""

    def __init__(self, identities: Mapping[bytes, bytes]) -> None:
        self._callers = {digest: Caller(identity_key) for digest, identity_key in identities.items()}

    async def identify(self, auths: Sequence[Auth]) -> Sequence[Caller | None]:
        # A lookup by digest tells a guesser nothing: similar digests belong to unrelated tokens.
        return [
            self._callers.get(token_digest(auth.access_token)) if auth.version == AUTH_VERSION else None
            for auth in auths
        ]


def token_digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
