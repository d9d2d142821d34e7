"""The operator's page: server-rendered, kept live by one stream of events, nothing from anywhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
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
from starlette.types import Receive, Scope, Send

from blindpost.ops import rendering
from blindpost.ops.access import Access
from blindpost.ops.actions import ACTIONS
from blindpost.ops.history import History
from blindpost.ops.model import Card, Snapshot
from blindpost.ops.servers import Watched
from blindpost.serving.failures import OperatorError
from blindpost.serving.logs import log

SAMPLE_S = 2.0
UNWATCHED_S = 15.0
"""How often servers are asked while nobody looks, to keep the last day."""
SAVE_S = 60.0
STREAMS_MAX = 32
"""How many browsers may follow at once."""
FORM_MAX = 4096

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_REPORT_HEADERS = {
    **_HEADERS,
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:",
}


class Page:
    """One page over some servers, for as long as `watching` lasts."""

    def __init__(
        self,
        servers: Sequence[Watched],
        *,
        token: str,
        report: Path | None = None,
        history: Path | None = None,
        sample_s: float = SAMPLE_S,
    ) -> None:
        """`history` is the file that keeps the last day over restarts of the page."""
        self._servers: list[Watched] = []
        self._access = Access(token)
        self._report = report
        self._history = History(history)
        self._sample_s = sample_s
        self._snapshot: Snapshot | None = None
        self._sampled = 0.0
        self._sampling = asyncio.Lock()
        self._changed = asyncio.Condition()
        self.streams = 0
        """How many browsers follow."""
        self._acting: set[tuple[str, str]] = set()
        self._stopped = False
        self._files = {name: _asset(name) for name in ("page.css", "page.js")}
        self._history.open()
        for server in servers:
            self.add(server)
        self.app = Starlette(
            routes=[
                Route("/", self._index),
                Route("/page.css", self._file),
                Route("/page.js", self._file),
                Route("/snapshot", self._snapshot_now),
                Route("/events", self._events),
                Route("/report", self._show_report),
                Route("/act/{number}/{action}", self._act, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _refused},
        )
        self.app.router.redirect_slashes = False  # every answer to a stranger is a refusal

    def add(self, server: Watched) -> None:
        """Show one more server."""
        server.track = self._history.track(str(server.folder))
        self._servers.append(server)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Poll the servers; at the end, close every stream to a browser."""
        await self.sample()
        tasks = [asyncio.create_task(work()) for work in (self._sample_for_ever, self._save_for_ever)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.stop()
            await asyncio.to_thread(self._history.close)

    async def stop(self) -> None:
        async with self._changed:
            self._stopped = True
            self._changed.notify_all()

    async def sample(self) -> Snapshot:
        """Ask every server once."""
        async with self._sampling:
            cards: list[Card] = await asyncio.gather(*(server.look() for server in self._servers))
            number = 0 if self._snapshot is None else self._snapshot.number + 1
            at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            snapshot = Snapshot(at, tuple(cards), self._last_report(), self._history.trouble, number)
            async with self._changed:
                self._snapshot, self._sampled = snapshot, time.monotonic()
                self._changed.notify_all()
        return snapshot

    async def _sample_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._sample_s)
            if not self.streams and time.monotonic() - self._sampled < UNWATCHED_S:
                continue
            try:
                await self.sample()
            except Exception:
                log.exception("a look at the servers failed")

    async def _save_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            try:
                await asyncio.to_thread(self._history.save)
            except Exception:
                log.exception("the page's history was not saved")

    def _last_report(self) -> str:
        try:
            made = 0.0 if self._report is None else self._report.stat().st_mtime
        except OSError:
            made = 0.0
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made)) if made else ""

    def _admit(self, request: Request) -> None:
        if not self._access.allows(request):
            raise HTTPException(401)

    async def _index(self, request: Request) -> Response:
        given = request.query_params.get("token")
        if given is not None and self._access.matches(given):
            response: Response = RedirectResponse("/", 303, _HEADERS)
            secure = request.url.scheme == "https"
            access = self._access
            response.set_cookie(access.cookie, access.kept, httponly=True, samesite="strict", secure=secure)
            return response
        self._admit(request)
        html = rendering.document(await self._current())
        return Response(html, media_type="text/html", headers=_HEADERS)

    async def _current(self) -> Snapshot:
        """The last look, if it was just now."""
        if self._snapshot is None or time.monotonic() - self._sampled > 2 * self._sample_s:
            return await self.sample()
        return self._snapshot

    async def _file(self, request: Request) -> Response:
        self._admit(request)
        kind, content = self._files[request.url.path.removeprefix("/")]
        return Response(content, 200, _HEADERS, kind)

    async def _snapshot_now(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse((await self.sample()).values(), headers=_HEADERS)

    async def _events(self, request: Request) -> Response:
        self._admit(request)
        if self.streams >= STREAMS_MAX:
            raise HTTPException(503)
        return _Followed(self, StreamingResponse(self._stream(), 200, _HEADERS, "text/event-stream"))

    async def _stream(self) -> AsyncIterator[bytes]:
        """Every look, as the parts of the page that differ from what was sent before."""
        seen, sent = -1, dict[str, str]()
        while (snapshot := await self._newer(seen)) is not None:
            seen, parts = snapshot.number, rendering.parts(snapshot)
            told = {
                "at": snapshot.at,
                "level": snapshot.verdict.level.value,
                "title": rendering.title(snapshot),
                "shape": rendering.shape(snapshot),
                "parts": {name: html for name, html in parts.items() if sent.get(name) != html},
            }
            sent = parts
            yield b"data: " + json.dumps(told).encode() + b"\n\n"

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

    async def _act(self, request: Request) -> Response:
        """One of the actions; the same one of the same server runs once at a time."""
        self._admit(request)
        if not self._access.may_act(request):
            raise HTTPException(403)
        number, action = request.path_params["number"], request.path_params["action"]
        server = {str(place): each for place, each in enumerate(self._servers)}.get(number)
        if server is None or action not in server.kind.actions:
            raise HTTPException(404)
        form = await _form(request)
        if (number, action) in self._acting:
            return _told("This runs already; wait for its end.", 409)
        self._acting.add((number, action))
        try:
            return _told(await ACTIONS[action](server.kind.word, server.folder, form))
        except OperatorError as error:
            return _told(str(error), 409)
        finally:
            self._acting.discard((number, action))


class _Followed(Response):
    """A stream that is counted from its first moment to its last, whichever way it ends."""

    def __init__(self, page: Page, stream: StreamingResponse) -> None:
        super().__init__()
        self._page, self._stream = page, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._page.streams += 1
        try:
            await self._stream(scope, receive, send)
        finally:
            self._page.streams -= 1


def _asset(name: str) -> tuple[str, bytes]:
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return kind, resources.files(__package__).joinpath(name).read_bytes()


async def _form(request: Request) -> dict[str, str]:
    """The fields of a small JSON object; empty without a body."""
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > FORM_MAX:
            raise HTTPException(413)
    try:
        fields = json.loads(content or b"{}")
    except (ValueError, RecursionError) as error:
        raise HTTPException(400) from error
    if not isinstance(fields, dict):
        raise HTTPException(400)
    return {str(name): str(value) for name, value in fields.items()}


def _told(text: str, code: int = 200) -> Response:
    return JSONResponse({"told": text}, code, headers=_HEADERS)


_WHY = {
    401: "This page needs its token: open it as /?token=... once, as `blindpost page` printed it.\n",
    403: "Only the page itself may ask for this.\n",
    404: "There is nothing here.\n",
    413: "This is too much.\n",
    503: "Too many browsers follow the page already.\n",
}


async def _refused(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 500
    headers = {**_HEADERS, "Connection": "close"}  # else one write could ask ten thousand times
    return PlainTextResponse(_WHY.get(code, "This cannot be asked.\n"), code, headers)
