"""Log lines for operators, plain or as JSON, without anything that could name a user.

The text of an exception may hold whatever the failing code had in its hands, so only its type and the
places in the code are written.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import traceback
from types import TracebackType
from typing import Any

log = logging.getLogger("blindpost")


class _Lines(logging.Formatter):
    def formatException(  # noqa: N802 - the name that logging calls
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        kind, _, trace = ei
        places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)]
        return " <- ".join([kind.__name__ if kind is not None else "no exception", *reversed(places)])

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - as above
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))


class _JsonLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(form: str, level: str) -> None:
    """Everything that is logged in this process goes to standard error in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _Lines("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def keep_quiet(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the event loop could not hand to anybody: only what happened, not to whom."""
    error = context.get("exception")
    info = None if error is None else (type(error), error, error.__traceback__)
    log.error("unexpected: %s", "a callback failed" if error is not None else "a problem", exc_info=info)
