"""Where a failure ends: whoever calls others on behalf of many goes on when one of the calls fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


def contained(what: str, work: Callable[..., object], *arguments: object) -> bool:
    """Do one piece of work; whether it went well. A failure is logged and ends nothing else."""
    try:
        work(*arguments)
    except Exception:
        log.exception("%s failed; everything else goes on", what)
        return False
    return True
