"""What the site answers: prepared before anybody asks, so that a visit reads no file and computes nothing."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from blindpost.web.information import Facts
from blindpost.web.pages import LINK_KINDS, SOURCE_PATH, link_page, missing_page, server_page
from blindpost.web.source import running_source

log = logging.getLogger("blindpost.web")

Stamp = tuple[int, int, int]
"""What changes when a file does."""

FILE_MAX = 4 * 1024 * 1024
FILES_MAX, FILES_BYTES_MAX = 2_000, 32 * 1024 * 1024
"""How much of the operator's folder is held in memory; what is larger or more is not served."""

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
_STRANGE = re.compile(r"[\\\0%]")
_ASSETS = ("site.css", "link.mjs", "qr.mjs")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, whole."""

    status: int
    content_type: str
    body: bytes = field(repr=False)
    headers: tuple[tuple[str, str], ...] = SECURITY
    tag: str = ""
    """Equal for equal bodies, so that a browser need not fetch one again; computed once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tag", f'"{hashlib.sha256(self.body).hexdigest()[:32]}"')


class Site:
    """The site of one server. `facts` are asked for each page; `folder` holds the operator's own files."""

    def __init__(self, facts: Callable[[], Facts], folder: Path | None = None) -> None:
        self._facts = facts
        self._folder = None if folder is None else OwnFiles(folder)
        files = resources.files(__package__).joinpath("assets")
        self._assets: Mapping[str, Reply] = {
            f"/assets/{name}": Reply(200, _type_of(name), files.joinpath(name).read_bytes())
            for name in _ASSETS
        }
        self.refresh()
        _pages(facts())

    def refresh(self) -> None:
        """Take up what has changed in the operator's folder. It reads files: not for an event loop."""
        if self._folder is not None:
            self._folder.refresh()

    def answer(self, method: str, target: str) -> Reply:
        """The answer to a request for `target`, a path with or without a query."""
        if method not in {"GET", "HEAD"}:
            return _READ_ONLY
        path = target.partition("?")[0]
        found = self._own(path) or self._assets.get(path) or _pages(self._facts()).get(_page_of(path))
        if found is None and path == SOURCE_PATH:
            found = _source()
        return found or _MISSING

    def _own(self, path: str) -> Reply | None:
        """A file of the operator's folder, where there is one."""
        if self._folder is None:
            return None
        files = self._folder.files
        if path == "/":
            return files.get("/index.html")
        return files.get(path) or (files.get("/link.html") if _page_of(path) in LINK_KINDS else None)


def _page_of(path: str) -> str:
    """Which of our pages is meant: `/`, or the letter of a link, whatever follows it; empty for none."""
    if path == "/":
        return path
    first = path[1:].partition("/")[0] if path.startswith("/") else ""
    return first if first in LINK_KINDS and not _STRANGE.search(path) else ""


@functools.lru_cache(maxsize=4)
def _pages(facts: Facts) -> Mapping[str, Reply]:
    """Our own pages, made once for each change of the facts."""
    links = {letter: _html(200, link_page(letter, facts.host)) for letter in LINK_KINDS}
    return {"/": _html(200, server_page(facts)), **links}


@functools.lru_cache(maxsize=1)
def _source() -> Reply:
    return Reply(200, "application/gzip", running_source())


class OwnFiles:
    """The operator's own files in memory, by the path that visitors ask for; nothing else is ever reached."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamps: dict[str, Stamp] = {}
        self._told = ""
        self.files: Mapping[str, Reply] = {}

    def refresh(self) -> None:
        """Read what is new or has changed, and forget what is gone."""
        found: dict[str, Reply] = {}
        stamps: dict[str, Stamp] = {}
        held, left_out = 0, 0
        for path, file in _walked(self._folder):
            try:
                status = file.stat()
                stamp = status.st_mtime_ns, status.st_ino, status.st_size
                if status.st_size > FILE_MAX or held + status.st_size > FILES_BYTES_MAX:
                    left_out += 1
                    continue
                known = self.files.get(path) if self._stamps.get(path) == stamp else None
                found[path] = known or Reply(200, _type_of(file.name), file.read_bytes())
            except OSError:
                continue
            stamps[path], held = stamp, held + status.st_size
        self.files, self._stamps = found, stamps
        self._tell(left_out)

    def _tell(self, left_out: int) -> None:
        told = f"{self._folder}: {left_out} files are too large to be served" if left_out else ""
        if told and told != self._told:
            log.warning(
                "%s (at most %d MiB each, %d MiB together)", told, FILE_MAX >> 20, FILES_BYTES_MAX >> 20
            )
        self._told = told


def _walked(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder, as visitors name them: none that is hidden or lies outside."""
    try:
        root = folder.resolve(strict=True)
    except OSError:
        return
    count = 0
    for above, folders, names in os.walk(root):
        at = Path(above).relative_to(root)
        hidden_too = at == Path() and _WELL_KNOWN
        folders[:] = sorted(name for name in folders if not name.startswith(".") or name == hidden_too)
        for name in sorted(names):
            file = root / at / name
            count += 1
            if count > FILES_MAX:
                return
            if not name.startswith(".") and file.is_file() and file.resolve().is_relative_to(root):
                yield f"/{(at / name).as_posix()}", file


def _type_of(name: str) -> str:
    if name == "apple-app-site-association":
        return "application/json"
    return _TYPES.get(Path(name).suffix.lower(), "application/octet-stream")


def _html(status: int, body: bytes) -> Reply:
    return Reply(status, _TYPES[".html"], body)


_READ_ONLY = Reply(405, _TYPES[".txt"], b"This site can only be read.\n", (*SECURITY, ("allow", "GET, HEAD")))
_MISSING = _html(404, missing_page())
