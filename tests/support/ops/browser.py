"""A real Chromium, which tells of every message on its console and every request it makes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import BrowserContext, async_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine; Debian has it as the package chromium"
)


@dataclass
class Seen:
    """What a page did."""

    context: BrowserContext
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> set[str]:
        """Hosts that were asked for anything."""
        parts = [urlsplit(url) for url in self.requests]
        return {part.hostname or "" for part in parts if part.scheme not in ("data", "blob", "file")}


@contextlib.asynccontextmanager
async def browser(folder: Path, *, width: int = 1100, dark: bool = False) -> AsyncIterator[Seen]:
    """A browser with an empty profile in `folder`."""
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            folder / "profile",
            executable_path=CHROMIUM,
            args=list(QUIET),
            viewport={"width": width, "height": 800},
            color_scheme="dark" if dark else "light",
            ignore_https_errors=True,
        )
        seen = Seen(context)
        context.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
        context.on("weberror", lambda error: seen.console.append(f"error: {error.error}"))
        context.on("request", lambda request: seen.requests.append(request.url))
        try:
            yield seen
        finally:
            await context.close()
