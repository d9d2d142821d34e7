"""Who may see the page: on loopback whoever is on this machine, elsewhere whoever has the token.

A page without a token answers only to names of this machine, so that another site in the same browser
cannot read it under a name of its own. What changes or starts something must come from the page itself.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass

from starlette.requests import Request

COOKIE = "blindpost"
_LOCAL_NAMES = frozenset({"localhost"})


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in _LOCAL_NAMES


@dataclass(frozen=True, slots=True)
class Access:
    """The token, or None where the page is for this machine alone."""

    token: str | None

    def allows(self, request: Request) -> bool:
        """Whether this visitor sees anything at all."""
        if self.token is None:
            return is_loopback(request.url.hostname or "")
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
        return self.matches(given)

    def matches(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def from_page(self, request: Request) -> bool:
        """Whether a request was made by our own page, or by a program that is not a browser."""
        origin = request.headers.get("origin")
        return origin is None or origin == f"{request.url.scheme}://{request.url.netloc}"
