"""The metrics listener: HTTP, GET only, one answer for each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from blindpost.serving.failures import OperatorError
from blindpost.serving.health import Health
from blindpost.serving.sections import EVERYWHERE, MetricsSection
from blindpost.transport.listening import ACCEPT_AT_ONCE, let_wait, stop_accepting

_HEAD_MAX = 8 * 1024
_TIMEOUT_S = 5.0
_CONNECTIONS_MAX = 16


class MetricsListener:
    """Answers GET /metrics with what `render` returns, GET /health with readiness, and GET /live."""

    def __init__(self, render: Callable[[], Awaitable[str]], health: Callable[[], Health]) -> None:
        self._render = render
        self._health = health
        self._server: asyncio.Server | None = None
        self._at: tuple[str, int] | None = None
        self._port: int | None = None
        self._open = 0

    async def move(self, metrics: MetricsSection) -> int | None:
        """Listen only where the settings say; returns the port. If that fails, nothing changes."""
        wanted = (metrics.address, metrics.port) if metrics.enabled else None
        if self._server is None or wanted is None or wanted != self._at:
            before = self._at if metrics.port == self._port else None
            if before is not None:
                await self.close()  # it would be in the way of another address at the same port
            try:
                fresh = None if wanted is None else await self._listening(*wanted)
            except OperatorError:
                if before is not None:
                    self._server = await self._listening(before[0], metrics.port)
                raise
            await self.close()
            self._server, self._at = fresh, wanted
            self._port = None if fresh is None else int(fresh.sockets[0].getsockname()[1])
        return self._port

    async def _listening(self, address: str, port: int) -> asyncio.Server:
        try:
            server = await asyncio.start_server(
                self._serve,
                None if address == EVERYWHERE else address,
                port,
                limit=_HEAD_MAX,
                backlog=ACCEPT_AT_ONCE,
            )
            let_wait(server)
        except OSError as error:
            raise OperatorError(
                f"metrics: {address} port {port} cannot be listened on: {error.strerror or error}. "
                "Choose another metrics.port, or stop what uses it."
            ) from error
        return server

    async def close(self) -> None:
        if self._server is not None:
            stop_accepting(self._server)
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(head.split(b"\r\n", 1)[0]))
                    writer.close()
                    await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.transport.abort()  # whoever does not read holds nothing here

    async def _answer(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return _response("405 Method Not Allowed", "only GET\n")
        if path == b"/metrics":
            return _response("200 OK", await self._render(), "text/plain; version=0.0.4")
        if path == b"/health":
            health = self._health()
            return _response("200 OK" if health.ready else "503 Service Unavailable", f"{health.sentence}\n")
        if path == b"/live":
            return _response("200 OK", "the event loop turns\n")
        return _response("404 Not Found", "try /metrics, /health or /live\n")


def _response(status: str, body: str, kind: str = "text/plain") -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content
