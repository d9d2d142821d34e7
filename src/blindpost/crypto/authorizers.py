"""Authorization of commands: signatures, X25519 authenticators, and the second signature of services.

Verification goes through `Verifier`, which takes many checks at once, so that a library that verifies in
batches can take over. A refusal costs what the offered kind of authorization costs, whether the queue is
unknown, its key is of another kind or the authorization is wrong: see `check_of`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.transmission import AUTHENTICATOR_SIZE, ED448_SIGNATURE_SIZE, ED25519_SIGNATURE_SIZE
from blindpost.wire.value import Buffer, shown

FINGERPRINT_SIZE = 32

ED448_WORK = 18
"""What a verification with Ed448 costs, in verifications with Ed25519."""

_KINDS = {
    ED25519_SIGNATURE_SIZE: Algorithm.ED25519,
    ED448_SIGNATURE_SIZE: Algorithm.ED448,
    AUTHENTICATOR_SIZE: Algorithm.X25519,
}


class NoRouterKeyError(CryptoError):
    """An X25519 key cannot authorize: the router sent no session key."""


def kind_of(authorization: bytes) -> Algorithm:
    """The algorithm of the key that could have made this authorization; its length tells."""
    kind = _KINDS.get(len(authorization))
    if kind is None:
        raise CryptoError("an authorization of 64, 80 or 114 bytes expected")
    return kind


def authenticator(box_key: BoxKey, corr_id: bytes, authorized: Buffer) -> bytes:
    """80 bytes that only the two owners of `box_key` can make."""
    return box_key.seal(nonce_of(corr_id), hashlib.sha512(authorized).digest())


def authorize(key: PrivateKey, authorized: Buffer, corr_id: bytes, router_key: PublicKey | None) -> bytes:
    """The authorization by `key`; `router_key` is the session key of the router that will verify it."""
    if key.algorithm is not Algorithm.X25519:
        return key.sign(authorized)
    if router_key is None:
        raise NoRouterKeyError("an X25519 key authorizes only for a router that sent its session key")
    return authenticator(BoxKey.agreed(key, router_key), corr_id, authorized)


def with_fingerprint(fingerprint: bytes, authorized: Buffer) -> bytes:
    """What the queue key covers on a service connection: it vouches for the service too."""
    if len(fingerprint) != FINGERPRINT_SIZE:
        raise CryptoError("a certificate fingerprint of 32 bytes expected")
    return b"".join((fingerprint, authorized))


class AuthenticatorKeys:
    """The secrets one router session shares with the X25519 keys of queues.

    Only a secret that has verified something is kept. Otherwise the first attempt on a known queue would
    cost an agreement and the next would not, while an unknown queue always costs one.
    """

    __slots__ = ("_kept", "_kept_max", "_session")

    def __init__(self, session: PrivateKey, kept_max: int = 1024) -> None:
        self._session = session
        self._kept: dict[bytes, BoxKey] = {}
        self._kept_max = kept_max

    def secret_with(self, public: PublicKey) -> BoxKey:
        return self._kept.get(public.raw) or BoxKey.agreed(self._session, public)

    def keep(self, check: AuthenticatorCheck) -> None:
        """Remember the secret of a check that succeeded; the one kept longest makes room."""
        if check.key.raw in self._kept:
            return
        if len(self._kept) >= self._kept_max:
            del self._kept[next(iter(self._kept))]
        self._kept[check.key.raw] = check.secret


class SignatureCheck(NamedTuple):
    """A signature to verify."""

    key: PublicKey
    authorization: bytes
    authorized: Buffer
    genuine: bool = True
    """False when a dummy key is used: the work is done and the answer is no."""

    def __repr__(self) -> str:
        return shown(self)


class AuthenticatorCheck(NamedTuple):
    """An authenticator to verify with a secret that is ready."""

    key: PublicKey
    secret: BoxKey
    corr_id: bytes
    authorization: bytes
    authorized: Buffer
    genuine: bool

    def __repr__(self) -> str:
        return shown(self)


Check = SignatureCheck | AuthenticatorCheck


class Verifier(Protocol):
    """Verifies checks, one by one or in batches."""

    def verify_many(self, checks: Sequence[Check]) -> list[bool]:
        """For each check, whether the authorization is valid."""
        ...


def _dummy(algorithm: Algorithm) -> PublicKey:
    label = f"a dummy {algorithm.label} key".encode("ascii")
    return PrivateKey(algorithm, hashlib.shake_256(label).digest(algorithm.raw_size)).public


DUMMY_KEYS = {algorithm: _dummy(algorithm) for algorithm in _KINDS.values()}
"""One valid key of each kind. Their private keys are no secret; a check with one never succeeds."""


def check_of(
    key: PublicKey | None,
    authorization: bytes,
    authorized: Buffer,
    corr_id: bytes,
    secrets: AuthenticatorKeys,
) -> Check:
    """The check of an offered authorization against `key`, or against a dummy of the offered kind.

    The dummy is used where there is no key or one of another kind, so that the sender cannot tell from
    the time which of these it was. `secrets` belong to the session key of this connection; a router that sent
    none (version 6) may pass those of any of its keys.
    """
    offered = kind_of(authorization)
    genuine = key is not None and key.algorithm is offered
    used = key if key is not None and genuine else DUMMY_KEYS[offered]
    if offered is not Algorithm.X25519:
        return SignatureCheck(used, authorization, authorized, genuine)
    return AuthenticatorCheck(used, secrets.secret_with(used), corr_id, authorization, authorized, genuine)
