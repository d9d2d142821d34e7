"""Lives of a server, each in a fresh fork of a process that has imported it already.

A line on standard input begins a life; `ready PID PORT` says that it serves, `ended STATUS` that it is over.
A restart costs milliseconds instead of an interpreter's start, and the server is a process of its own that
can be killed. It ends with the process that asked for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable


def lives(live: Callable[[], None]) -> None:
    """One life after the other, as they are asked for."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as commands:
        for _ in commands:
            child = os.fork()
            if child == 0:
                live()
                os._exit(0)
            _, status = os.waitpid(child, 0)
            print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


def ready(port: int) -> None:
    """What a life calls, in its event loop, when it serves."""
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 1)
    print(f"ready {os.getpid()} {port}", flush=True)
