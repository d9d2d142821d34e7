"""Authorizations that a front has verified, and how much of that the engine believes.

A front says with which key it verified an authorization. It counts only if that key is the one that the
queue has when the engine looks: a queue with another key, with several, or without one is verified as if
nobody had said anything.
"""

from __future__ import annotations

from blindpost.crypto.authorizers import kind_of
from blindpost.router.authority import Keys
from blindpost.router.state import RouterClient
from blindpost.wire.smp.transmissions import Request


def is_settled(client: RouterClient, request: Request, keys: Keys, verified_with: bytes) -> bool:
    """Whether a front verified the request with the one key that may authorize it."""
    if keys is None or len(keys) != 1 or client.service is not None or not request.authorization:
        return False
    key = keys[0]
    return key.raw == verified_with and key.algorithm is kind_of(request.authorization)
