"""Who may see the page: anyone with the token, from any address.

Loopback proves nothing: a proxy on this machine connects from it for the whole world, under any name.
Requests that start something must come from the page itself: a browser sends its cookie for any site on the
same host, whatever its port, but says which site asked.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class Access:
    """The token that opens the page."""

    token: str

    @property
    def cookie(self) -> str:
        """The name of its cookie: two pages on one host must not take each other's place."""
        return f"blindpost-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    @property
    def kept(self) -> str:
        """What a browser keeps in place of the token."""
        return hmac.new(self.token.encode(), b"blindpost page", hashlib.sha256).hexdigest()

    def allows(self, request: Request) -> bool:
        """Whether this visitor sees anything at all."""
        return self._is_program(request) or _same(request.cookies.get(self.cookie, ""), self.kept)

    def matches(self, given: str) -> bool:
        return _same(given, self.token)

    def may_act(self, request: Request) -> bool:
        """Whether one who may look may also start something: our own page, or a program with the token."""
        origin = request.headers.get("origin")
        if origin is None:
            return self._is_program(request)
        return origin.partition("://")[2] == request.headers.get("host")

    def _is_program(self, request: Request) -> bool:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.matches(bearer)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
