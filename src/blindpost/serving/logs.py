"""Log lines for operators, plain or as JSON, without anything that could name a user.

The text of an exception may hold whatever data the failing code handled, so only its type and code locations
are written. Libraries log nothing: their lines may hold tokens and addresses. A repeated warning is written
once, then its count once a minute.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

log = logging.getLogger("blindpost")

COUNTED_S = 60.0
"""How long a repeated line is only counted."""
_KINDS_MAX = 1_000
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NUMBERS = re.compile(r"\d+(\.\d+)?")


class Ours(logging.Filter):
    """Only this program's own lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] == log.name


class Repeated(logging.Filter):
    """Lets a warning through once a minute, and counts those like it, whatever numbers they hold."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._kinds: dict[str, tuple[float, int, logging.LogRecord]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or getattr(record, "is_sum", False):
            return True
        kind = _NUMBERS.sub("#", record.getMessage()) + _where(record)
        found = self._kinds.get(kind)
        now = self._now()
        if found is not None and now - found[0] < COUNTED_S:
            self._kinds[kind] = found[0], found[1] + 1, record
            return False
        if found is None and len(self._kinds) >= _KINDS_MAX:
            self.tell(everything=True)
        if found is not None and found[1]:
            _tell_sum(found)
        self._kinds[kind] = now, 0, record
        return True

    def tell(self, *, everything: bool = False) -> None:
        """Log the repeat counts of lines whose minute has passed."""
        now = self._now()
        for kind, found in tuple(self._kinds.items()):
            if everything or now - found[0] >= COUNTED_S:
                del self._kinds[kind]
                if found[1]:
                    _tell_sum(found)


def _where(record: logging.LogRecord) -> str:
    """The failing line, so that different failures with the same message are counted separately."""
    trace = record.exc_info[2] if record.exc_info else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _tell_sum(found: tuple[float, int, logging.LogRecord]) -> None:
    _, count, record = found
    told = "this came %d times more in the last minute: %s"
    logging.getLogger(record.name).log(
        record.levelno, told, count, record.getMessage(), extra={"is_sum": True}
    )


_repeated = Repeated()


async def tell_repeated() -> None:
    """Log how often warnings were repeated, once their minute has passed."""
    _repeated.tell()


def tell_all_repeated() -> None:
    """The same at the end of the process."""
    _repeated.tell(everything=True)


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
    tell_all_repeated()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _Lines("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(Ours())
    handler.addFilter(_repeated)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.CRITICAL)
    log.setLevel(level.upper())


refused_by_system = 0
"""How often the system could not give us a connection, for lack of files or memory."""


def keep_quiet(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Errors that the event loop could not hand to anybody: logs what happened, not to whom."""
    global refused_by_system
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _NO_FILES:
        refused_by_system += 1
        log.error("no more files can be opened: new connections wait (raise LimitNOFILE, or allow fewer)")
        return
    if isinstance(error, asyncio.CancelledError):
        return  # how asyncio tells that a connection was served when the program ended
    info = None if error is None else (type(error), error, error.__traceback__)
    log.error("unexpected: %s", "a callback failed" if error is not None else "a problem", exc_info=info)
