"""Settings of a process that does nothing but runs: they cost less and do the same."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from importlib import import_module

_MULTITHREAD, _MEMORY_STATUS = 2, 9
"""Options of `sqlite3_config`."""


def leave_out_locks() -> None:
    """Let SQLite take no lock and count no memory for each of its many small steps.

    A connection is still used by one thread at a time, as Python's module ensures. It is for the beginning
    of a process: the library is shut down meanwhile. Where its functions are not to be found nothing changes.
    """
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(import_module("_sqlite3").__file__)
        configure, begin, end = library.sqlite3_config, library.sqlite3_initialize, library.sqlite3_shutdown
        end()
        configure(_MULTITHREAD)
        configure(_MEMORY_STATUS, 0)
        begin()


def keep_for_good() -> None:
    """What is there now stays: it need not be looked through after each run."""
    gc.collect()
    gc.freeze()
