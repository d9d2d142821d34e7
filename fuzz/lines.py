"""Which lines of ours an input reached: guidance for the search where atheris cannot be had.

A function is followed while it has lines that no input reached yet. One that was reached whole costs nothing
any more, so the search becomes faster the more it has seen.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

Tracer = Callable[[FrameType, str, Any], Any]


class Lines:
    """The lines of one package, and those of them that were reached."""

    def __init__(self, package: str) -> None:
        self._part = f"/{package}/"
        self._left: dict[CodeType, set[int]] = {}
        """By function, the lines that no input reached."""
        self.reached = 0

    @property
    def known(self) -> int:
        """How many lines the functions have that were called at all."""
        return self.reached + sum(map(len, self._left.values()))

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Look at what runs in the block, in this thread and in those that it starts."""
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Tracer | None:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = _lines(code) if self._part in code.co_filename else set()
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Tracer | None:
        left = self._left[frame.f_code]
        if event == "line" and frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self.reached += 1
        return self._line if left else None


def _lines(code: CodeType) -> set[int]:
    """The lines of a function, its first one apart, which is not run when it is called."""
    found = {line for _, _, line in code.co_lines() if line is not None}
    return found - {code.co_firstlineno} or set()
