"""Keys and authorizations as the vectors and transcripts of SMP describe them."""

from __future__ import annotations

from typing import Any

from blindpost.crypto.authorizers import AuthenticatorKeys, check_of
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.verifying import OneByOne
from blindpost.wire.keys import Algorithm, PublicKey

ALGORITHMS = {algorithm.label: algorithm for algorithm in Algorithm}


def private_key(entry: dict[str, Any]) -> PrivateKey:
    """The private key of a `keys` entry; the public key beside it must belong to it."""
    key = PrivateKey(ALGORITHMS[entry["alg"]], bytes.fromhex(entry.get("private") or entry["priv"]))
    assert key.public.raw.hex() == entry.get("public", entry.get("pub"))
    return key


def verified(
    key: PublicKey, authorization: bytes, authorized: bytes, corr_id: bytes, session: PrivateKey
) -> bool:
    """Whether a router with the session key accepts the authorization."""
    check = check_of(key, authorization, authorized, corr_id, AuthenticatorKeys(session))
    return OneByOne().verify_many([check]) == [True]
