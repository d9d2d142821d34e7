"""What the site answers: a pure function of a request, the server's facts and the files of its folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePosixPath

from blindpost.web.information import Facts
from blindpost.web.pages import LINK_KINDS, SOURCE_PATH, link_page, missing_page, server_page
from blindpost.web.source import running_source

FILE_MAX = 4 * 1024 * 1024
"""A larger file of the operator's folder is not served: it would be held in memory for every visitor."""

SECURITY = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-opener-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)
"""Sent with every answer. No script from elsewhere runs, and no other site learns of a visit."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
_WELL_KNOWN = ".well-known"
_ASSETS = ("site.css", "link.mjs", "qr.mjs")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, whole."""

    status: int
    content_type: str
    body: bytes = field(repr=False)
    headers: tuple[tuple[str, str], ...] = SECURITY

    @property
    def tag(self) -> str:
        """Equal for equal bodies, so that a browser need not fetch one again."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


class Site:
    """The site of one server: `facts` are asked for each page, `folder` holds the operator's own files."""

    def __init__(self, facts: Callable[[], Facts], folder: Path | None = None) -> None:
        self._facts = facts
        self._folder = folder
        files = resources.files(__package__).joinpath("assets")
        self._assets: Mapping[str, bytes] = {name: files.joinpath(name).read_bytes() for name in _ASSETS}

    def answer(self, method: str, target: str) -> Reply:
        """The answer to a request for `target`, a path with or without a query."""
        if method not in {"GET", "HEAD"}:
            return _text(405, "This site can only be read.\n", (("allow", "GET, HEAD"),))
        path = target.partition("?")[0]
        if not path.startswith("/") or "\\" in path or "\0" in path or "%" in path:
            return self._missing()
        return self._own(path) or self._built_in(path) or self._missing()

    def _built_in(self, path: str) -> Reply | None:
        if path == "/":
            return _html(200, server_page(self._facts()))
        first, *rest = path.removeprefix("/").split("/")
        if first in LINK_KINDS:
            return _html(200, link_page(first, self._facts().host))
        if first == "assets" and len(rest) == 1 and rest[0] in self._assets:
            return Reply(200, _type_of(rest[0]), self._assets[rest[0]])
        if path == SOURCE_PATH:
            return Reply(200, "application/gzip", running_source())
        return None

    def _own(self, path: str) -> Reply | None:
        """A file of the operator's folder, where there is one; nothing outside the folder is ever reached."""
        if self._folder is None:
            return None
        parts = PurePosixPath(path).parts[1:]
        hidden = any(part.startswith(".") for part in parts[1 if parts[:1] == (_WELL_KNOWN,) else 0 :])
        if hidden or ".." in parts:
            return None
        relative = "/".join(parts)
        if not parts:
            relative = "index.html"
        elif parts[0] in LINK_KINDS and not (self._folder / relative).is_file():
            relative = "link.html"
        try:
            root = self._folder.resolve(strict=True)
            file = (root / relative).resolve(strict=True)
            if not (file.is_relative_to(root) and file.is_file()) or file.stat().st_size > FILE_MAX:
                return None
            return Reply(200, _type_of(file.name), file.read_bytes())
        except (OSError, ValueError):
            return None

    def _missing(self) -> Reply:
        return _html(404, missing_page())


def _type_of(name: str) -> str:
    if name == "apple-app-site-association":
        return "application/json"
    return _TYPES.get(Path(name).suffix.lower(), "application/octet-stream")


def _html(status: int, body: bytes) -> Reply:
    return Reply(status, _TYPES[".html"], body)


def _text(status: int, text: str, more: tuple[tuple[str, str], ...] = ()) -> Reply:
    return Reply(status, _TYPES[".txt"], text.encode(), SECURITY + more)
