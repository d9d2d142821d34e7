"""Authorizations that a front has verified, and how much of that the engine believes.

A front says with which key it verified an authorization. It counts only if that key is the one that the
queue has when the engine looks: a queue with another key, with several, or without one is verified as if
nobody had said anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from blindpost.crypto.authorizers import kind_of
from blindpost.router.authority import Keys
from blindpost.router.state import RouterClient
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.transmissions import Refused


class Attested(bytes):
    """An authorization, with the raw key that it was verified with.

    It is part of the request, so that whatever becomes of the block, it speaks of no other one.
    """

    key: bytes


def attested(items: Sequence[Request | Refused], keys: Sequence[bytes]) -> Sequence[Request | Refused]:
    """The items of a block, with the keys that a front named for them, empty for none."""
    if len(keys) != len(items):
        return items
    return [_attested(item, key) if key else item for item, key in zip(items, keys, strict=True)]


def _attested(item: Request | Refused, key: bytes) -> Request | Refused:
    if not isinstance(item, Request) or not item.authorization:
        return item
    authorization = Attested(item.authorization)
    authorization.key = key
    return Request(item[0], item[1], item[2], authorization, item[4], item[5])


def is_settled(client: RouterClient, request: Request, keys: Keys) -> bool:
    """Whether a front verified the request with the one key that may authorize it."""
    authorization = request.authorization
    if type(authorization) is not Attested or keys is None or len(keys) != 1 or client.service is not None:
        return False
    key = keys[0]
    return key.raw == authorization.key and key.algorithm is kind_of(authorization)
