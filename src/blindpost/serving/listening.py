"""Opening a port, and the message for one that cannot be opened."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterable

from blindpost.serving.failures import OperatorError
from blindpost.serving.ports import held_elsewhere
from blindpost.serving.sections import EVERYWHERE
from blindpost.transport.listening import passed_at

_ASK_S_MAX = 5.0

Listen = Callable[[str | None, int], Awaitable[int]]
"""Opens a port at an address, or at all addresses; returns the port, which the system chooses if 0."""


async def listen_at(listen: Listen, address: str, port: int) -> int:
    try:
        return await listen(None if address == EVERYWHERE else address, port)
    except OSError as error:
        raise OperatorError(refused(error, address, port, passed_at())) from error


def refused(error: OSError, address: str, port: int, passed: Iterable[tuple[str, int]] = ()) -> str:
    """Why a port cannot be opened, and what to do; `passed` is what a supervisor holds for the server."""
    where = f"port {port}" if address == EVERYWHERE else f"{address} port {port}"
    if error.errno == errno.EADDRINUSE and (at := held_elsewhere(passed, address, port)) is not None:
        return (
            f"{where} cannot be listened on: the supervisor holds it at {at}. Name that address in [listen], "
            "or stop the server and its socket unit, change the unit, and start both."
        )
    if error.errno == errno.EADDRINUSE and (held := held_by_systemd(port)) is not None:
        unit, service = held
        return (
            f"{where} is held by systemd ({unit}) for {service}. Start the server with `systemctl start "
            f"{service}`, or stop {unit} first."
        )
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use by another program. Stop it, or choose another port in [listen]."
    if error.errno == errno.EACCES:
        return (
            f"{where}: permission denied. Ports below 1024 need the capability CAP_NET_BIND_SERVICE; "
            "or choose a higher port in [listen]."
        )
    return f"{where} cannot be listened on: {error.strerror or error}. Correct [listen]."


def held_by_systemd(port: int) -> tuple[str, str] | None:
    """The unit that holds a TCP port open for a service, and that service; None if there is none."""
    program = shutil.which("systemctl")
    if program is None:
        return None
    try:
        told = subprocess.run(  # noqa: S603 - a program of the system
            [program, "list-sockets", "--no-legend", "--no-pager", "--plain"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_ASK_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = (line.split() for line in told.stdout.splitlines())
    return next(
        (
            (unit, service.rstrip(","))
            for listen, unit, service, *_ in (row for row in rows if len(row) >= 3)
            if listen.endswith(f":{port}")
        ),
        None,
    )
