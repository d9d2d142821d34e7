"""Containing failures: code that makes calls on behalf of many continues when one call fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


def contained(what: str, work: Callable[..., object], *arguments: object) -> bool:
    """Run `work`; returns whether it succeeded. A failure is logged and stops nothing else."""
    try:
        work(*arguments)
    except Exception:
        log.exception("%s failed; nothing else is affected", what)
        return False
    return True
