"""The verifier of servers, where verification is the largest part of every command."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from blindpost.crypto import ed25519
from blindpost.crypto.authorizers import AuthenticatorCheck, Check, SignatureCheck
from blindpost.crypto.boxes import nonce_of
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import verify
from blindpost.wire.keys import Algorithm


class OneByOne:
    """The verifier that does each check on its own."""

    def verify_many(self, checks: Sequence[Check]) -> list[bool]:
        results = []
        for check in checks:
            valid = _signed(check) if isinstance(check, SignatureCheck) else _opened(check)
            results.append(valid and check.genuine)
        return results


def _opened(check: AuthenticatorCheck) -> bool:
    expected = hashlib.sha512(check.authorized).digest()
    try:
        found = check.secret.open(nonce_of(check.corr_id), check.authorization)
    except CryptoError:
        return False
    return hmac.compare_digest(found, expected)


def _signed(check: SignatureCheck) -> bool:
    if check.key.algorithm is Algorithm.ED25519:
        return ed25519.verify(check.key.raw, check.authorized, check.authorization)
    return verify(check.key, check.authorized, check.authorization)
