"""The page on a socket, until stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn

from blindpost.ops.page import Page
from blindpost.serving.failures import OperatorError

_GRACE_S = 3


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 lets the system choose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        told = error.strerror if isinstance(error, OSError) else None
        raise OperatorError(
            f"the page cannot listen on {host} port {port}: {told or error}. "
            "Choose another with --page-port or --listen, or stop what uses it."
        ) from error
    return listening


class _Server(uvicorn.Server):
    """Leaves signals to its caller."""

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
