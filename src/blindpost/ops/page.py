"""The operator's page: server-rendered, kept live by one stream of events, nothing from anywhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from blindpost.ops.access import COOKIE, Access
from blindpost.ops.model import Card, Report, Snapshot
from blindpost.ops.rendering import document
from blindpost.ops.servers import Watched
from blindpost.serving.failures import OperatorError

SAMPLE_S = 2.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_REPORT_HEADERS = {
    **_HEADERS,
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:",
}

Audit = Callable[[Path], Awaitable[str]]
"""Audits the server in a folder; what was found, in a sentence."""


class Page:
    """One page over some servers, for as long as `watching` lasts."""

    def __init__(
        self,
        servers: Sequence[Watched],
        *,
        token: str,
        report: Path | None = None,
        audit: Audit,
        sample_s: float = SAMPLE_S,
    ) -> None:
        self._servers = servers
        self._access = Access(token)
        self._report = report
        self._audit = audit
        self._sample_s = sample_s
        self._snapshot: Snapshot | None = None
        self._changed = asyncio.Condition()
        self._stopped = False
        self.app = Starlette(
            routes=[
                Route("/", self._index),
                Route("/page.css", self._asset),
                Route("/page.js", self._asset),
                Route("/snapshot", self._snapshot_now),
                Route("/events", self._events),
                Route("/report", self._show_report),
                Route("/audit/{number:int}", self._run_audit, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _refused},
        )

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Poll the servers; at the end, close every stream to a browser."""
        await self.sample()
        sampling = asyncio.create_task(self._sample_for_ever())
        try:
            yield
        finally:
            sampling.cancel()
            await self.stop()

    async def stop(self) -> None:
        async with self._changed:
            self._stopped = True
            self._changed.notify_all()

    async def sample(self) -> Snapshot:
        """Ask every server once."""
        cards: list[Card] = await asyncio.gather(*(server.look() for server in self._servers))
        number = 0 if self._snapshot is None else self._snapshot.number + 1
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        snapshot = Snapshot(at, tuple(cards), self._last_report(), number)
        async with self._changed:
            self._snapshot = snapshot
            self._changed.notify_all()
        return snapshot

    async def _sample_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._sample_s)
            await self.sample()

    def _last_report(self) -> Report | None:
        if self._report is None:
            return None
        try:
            made = self._report.stat().st_mtime
        except OSError:
            return None
        return Report(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made)))

    def _admit(self, request: Request) -> None:
        if not self._access.allows(request):
            raise HTTPException(401)

    async def _index(self, request: Request) -> Response:
        given = request.query_params.get("token")
        if given is not None and self._access.matches(given):
            response: Response = RedirectResponse("/", 303, _HEADERS)
            secure = request.url.scheme == "https"
            response.set_cookie(COOKIE, given, httponly=True, samesite="strict", secure=secure)
            return response
        self._admit(request)
        return Response(document(await self._current()), media_type="text/html", headers=_HEADERS)

    async def _current(self) -> Snapshot:
        return self._snapshot if self._snapshot is not None else await self.sample()

    async def _asset(self, request: Request) -> Response:
        self._admit(request)
        name = request.url.path.removeprefix("/")
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return Response(resources.files(__package__).joinpath(name).read_bytes(), 200, _HEADERS, kind)

    async def _snapshot_now(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse((await self.sample()).values(), headers=_HEADERS)

    async def _events(self, request: Request) -> Response:
        self._admit(request)
        return StreamingResponse(self._stream(), 200, _HEADERS, "text/event-stream")

    async def _stream(self) -> AsyncIterator[bytes]:
        seen = -1
        while not self._stopped:
            snapshot = await self._newer(seen)
            if snapshot is None:
                return
            seen = snapshot.number
            yield b"data: " + json.dumps(snapshot.values()).encode() + b"\n\n"

    async def _newer(self, seen: int) -> Snapshot | None:
        """The next snapshot after the one with this number; None when the page is stopped."""
        async with self._changed:
            while not self._stopped:
                if self._snapshot is not None and self._snapshot.number > seen:
                    return self._snapshot
                await self._changed.wait()
        return None

    async def _show_report(self, request: Request) -> Response:
        self._admit(request)
        if self._report is None or not self._report.exists():
            raise HTTPException(404)
        return FileResponse(self._report, 200, _REPORT_HEADERS, "text/html")

    async def _run_audit(self, request: Request) -> Response:
        self._admit(request)
        if not self._access.from_page(request):
            raise HTTPException(403)
        number: int = request.path_params["number"]
        if number >= len(self._servers) or not self._servers[number].kind.audits:
            raise HTTPException(404)
        try:
            return JSONResponse({"told": await self._audit(self._servers[number].folder)}, headers=_HEADERS)
        except OperatorError as error:
            return JSONResponse({"told": str(error)}, 409, headers=_HEADERS)


_TOLD = {
    401: "This page needs its token: open it as /?token=... once, as `blindpost page` printed it.\n",
    403: "Only the page itself may ask for this.\n",
    404: "There is nothing here.\n",
}


async def _refused(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 500
    return PlainTextResponse(_TOLD.get(code, "This cannot be asked.\n"), code, _HEADERS)
