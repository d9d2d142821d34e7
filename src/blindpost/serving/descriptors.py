"""How many files may be open: as many as the connections need, as far as the system lets us."""

from __future__ import annotations

import os
import resource

from blindpost.serving.logs import log

SPARE = 64
"""For the store, the journal, the control socket, metrics and outgoing connections."""


def allow(connections: int) -> int:
    """Raise the limit for this many connections; returns how many are possible."""
    wanted = connections + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else max(soft, min(wanted, hard))
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, min(connections, allowed - SPARE))


def tell(connections: int, possible: int, setting: str) -> None:
    """Log it if fewer connections are possible than the setting asks for."""
    if possible < connections:
        log.warning(
            "%s = %d needs %d open files, and the system does not allow so many: more than %d connections "
            "at once are refused (raise LimitNOFILE, or `ulimit -n`)",
            *(setting, connections, connections + SPARE, possible),
        )


def left() -> int:
    """How many more files can be opened, at least: the system assigns the lowest free number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return SPARE
    try:
        lowest = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return 0
    os.close(lowest)
    return max(0, soft - lowest)
