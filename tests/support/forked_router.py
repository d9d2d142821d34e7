"""Runs the real router, each life of it in a fresh fork of a process that has imported it already.

A line on standard input begins a life; `ready PID PORT` says that it serves, `ended STATUS` that it is over.
A restart costs milliseconds instead of an interpreter's start, and the router is a process of its own that
can be killed. It ends with the process that asked for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from blindpost.router.running.process import RouterProcess, serve
from blindpost.router.running.reading import read_place
from blindpost.serving import logs


def live(folder: Path) -> None:
    """One life of the router of this folder."""
    place = read_place(folder)
    logs.set_up(place.settings.log.format, place.settings.log.level)

    def ready(process: RouterProcess) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 1)
        print(f"ready {os.getpid()} {process.ports[0]}", flush=True)

    serve(place, ready)


def main() -> None:
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as commands:
        for _ in commands:
            child = os.fork()
            if child == 0:
                live(Path(sys.argv[1]))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
