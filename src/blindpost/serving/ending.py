"""A command that does not outlive the program that started it.

Its starter keeps the other end of standard input. The kernel closes that end however the starter dies, kill
-9 included; this works wherever there are pipes, and nothing has to run between fork and exec. What follows
is SIGTERM, as if the starter had still been able to send it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

OPTION = "--end-with-stdin"


def end_with_stdin() -> None:
    """Send this process SIGTERM when standard input ends."""
    threading.Thread(target=_wait, args=(sys.stdin.fileno(),), daemon=True).start()


def _wait(stdin: int) -> None:
    while os.read(stdin, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
