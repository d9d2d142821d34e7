"""Opening a port, and the message for one that cannot be opened."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

from blindpost.serving.failures import OperatorError
from blindpost.serving.sections import EVERYWHERE

Listen = Callable[[str | None, int], Awaitable[int]]
"""Opens a port at an address, or at all addresses; returns the port, which the system chooses if 0."""


async def listen_at(listen: Listen, address: str, port: int) -> int:
    try:
        return await listen(None if address == EVERYWHERE else address, port)
    except OSError as error:
        raise OperatorError(refused(error, address, port)) from error


def refused(error: OSError, address: str, port: int) -> str:
    """Why a port cannot be opened, and what to do."""
    where = f"port {port}" if address == EVERYWHERE else f"{address} port {port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use by another program. Stop it, or choose another port in [listen]."
    if error.errno == errno.EACCES:
        return (
            f"{where}: permission denied. Ports below 1024 need the capability CAP_NET_BIND_SERVICE; "
            "or choose a higher port in [listen]."
        )
    return f"{where} cannot be listened on: {error.strerror or error}. Correct [listen]."
