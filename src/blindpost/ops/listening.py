"""The page on a socket, until stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from blindpost.ops.page import Page
from blindpost.serving.failures import OperatorError
from blindpost.transport.network import ACCEPT_AT_ONCE

_GRACE_S = 3
_BACKLOG = 128
REQUEST_S = 10.0
"""How long a visitor may take for the head of a request."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 lets the system choose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        told = error.strerror if isinstance(error, OSError) else None
        raise OperatorError(
            f"the page cannot listen on {host} port {port}: {told or error}. "
            "Choose another with --page-port or --listen, or stop what uses it."
        ) from error
    return listening


class _Hurried(H11Protocol):
    """A visitor who does not complete a request in time is disconnected."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self._look)

    def _look(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:
            self._wait()


class _Server(uvicorn.Server):
    """Leaves signals to its caller, and lets the system queue visitors."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(page: Page, listening: socket.socket) -> AsyncIterator[None]:
    """Serve the page while the block lasts."""
    config = uvicorn.Config(
        page.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        http=_Hurried,
        backlog=ACCEPT_AT_ONCE,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config)
    async with page.watching():
        running = asyncio.create_task(server.serve([listening]))
        try:
            yield
        finally:
            await page.stop()
            server.should_exit = True
            await running


async def serve(page: Page, listening: socket.socket, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve the page until `stop` is set."""
    async with serving(page, listening):
        ready()
        await stop.wait()
