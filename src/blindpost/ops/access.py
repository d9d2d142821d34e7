"""Who may see the page: anyone with the token, from any address.

Loopback proves nothing: a proxy on this machine connects from it for the whole world, under any name.
Requests that change or start something must come from the page itself.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from starlette.requests import Request

COOKIE = "blindpost"


@dataclass(frozen=True, slots=True)
class Access:
    """The token that opens the page."""

    token: str

    def allows(self, request: Request) -> bool:
        """Whether this visitor sees anything at all."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
        return self.matches(given)

    def matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def from_page(self, request: Request) -> bool:
        """Whether a request was made by our own page, or by a program that is not a browser."""
        origin = request.headers.get("origin")
        return origin is None or origin == f"{request.url.scheme}://{request.url.netloc}"
