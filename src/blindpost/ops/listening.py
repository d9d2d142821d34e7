"""The page on a socket, until stopped: few visitors at once, none of whom keeps others out for long."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from blindpost.ops.page import Page
from blindpost.serving.failures import OperatorError
from blindpost.transport.listening import ACCEPT_AT_ONCE

VISITORS_MAX = 256
"""Connections at once; one more takes the place of the one that has been idle for the longest time."""
HEAD_MAX = 16 * 1024
_GRACE_S = 3
_BACKLOG = 128
REQUEST_S = 10.0
"""How long a visitor may take for the head of a request, the first or the next."""


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


class Visitor(H11Protocol):
    """A connection that must ask in time. Those that wait for nothing make room for those who come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._late = self.loop.call_later(REQUEST_S, transport.abort)
        if len(self.connections) > VISITORS_MAX:
            idle = (each for each in self.connections if isinstance(each, Visitor) and each.is_idle)
            oldest = min(idle, key=lambda each: each._late.when(), default=self)
            # At once: many may come before the loop tells of its end.
            self.connections.discard(oldest)
            oldest.transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether it has no request that is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def handle_events(self) -> None:
        super().handle_events()
        if not self.is_idle:
            self._late.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._late.cancel()
        if self.is_idle and not self.transport.is_closing():
            self._late = self.loop.call_later(REQUEST_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)


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
        http=Visitor,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        backlog=ACCEPT_AT_ONCE,
        h11_max_incomplete_event_size=HEAD_MAX,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config)
    async with page.watching():
        running: asyncio.Task[Any] = asyncio.create_task(server.serve([listening]))
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
