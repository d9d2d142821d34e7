"""The tokens that identify us to Apple: JWTs signed with ES256, reused and renewed in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from blindpost.crypto.webpush import es256
from blindpost.wire.json_text import json_bytes
from blindpost.wire.text import ub64

RENEWED_AFTER_S = 1800
"""Apple refuses tokens older than an hour, and tokens that change more often than every 20 minutes."""


class SigningKeyError(ValueError):
    """The key for provider tokens cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """A key that Apple issued to a team."""

    key: ec.EllipticCurvePrivateKey
    key_id: str
    team_id: str

    @classmethod
    def from_pem(cls, pem: bytes, key_id: str, team_id: str) -> SigningKey:
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise SigningKeyError(
                "the APNs key is not an unencrypted PKCS#8 PEM file, as Apple issues them"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise SigningKeyError("the APNs key is not a P-256 key, as Apple issues them")
        return cls(key, key_id, team_id)

    @classmethod
    def from_file(cls, path: Path, key_id: str, team_id: str) -> SigningKey:
        try:
            pem = path.read_bytes()
        except OSError as error:
            raise SigningKeyError(f"the APNs key cannot be read: {error.strerror}") from error
        return cls.from_pem(pem, key_id, team_id)

    def __repr__(self) -> str:
        return "SigningKey(P-256, private)"


def provider_token(signing: SigningKey, issued_at: int) -> str:
    """The token of a team from this second on."""
    header = json_bytes({"alg": "ES256", "kid": signing.key_id})
    claims = json_bytes({"iss": signing.team_id, "iat": issued_at})
    content = f"{ub64(header)}.{ub64(claims)}"
    return f"{content}.{ub64(es256(signing.key, content.encode('ascii')))}"


class ProviderTokens:
    """The token to use now, for half an hour: a signature costs as much as many pushes."""

    def __init__(self, signing: SigningKey, now: Callable[[], float]) -> None:
        self._signing = signing
        self.now = now
        self._token = ""
        self._issued_at: int | None = None
        self._good = ""
        """The last one that Apple took."""

    def current(self) -> str:
        now = int(self.now())
        if self._issued_at is None or not 0 <= now - self._issued_at < RENEWED_AFTER_S:
            self._token, self._issued_at = provider_token(self._signing, now), now
        return self._token

    def refused(self, token: str) -> None:
        """Apple reports this token as expired: the clocks disagree, and the next push gets a new one."""
        if token == self._token:
            self._issued_at = None
        if token == self._good:
            self._good = ""

    def accepted(self, token: str) -> None:
        """Apple has taken this token."""
        self._good = token

    def changed_too_often(self, token: str) -> None:
        """Apple takes no other token yet than the one before, since our clock was wrong and made others."""
        if token == self._token and self._good:
            self._token, self._issued_at = self._good, int(self.now())
