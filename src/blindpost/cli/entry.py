"""Where the command begins: until it is loaded, Ctrl-C ends it without a word."""

from __future__ import annotations

import os
import signal
import sys

_STANDARD = 2
"""The highest of the descriptors of standard input, output and errors."""


def main() -> None:
    """Load the command and run it."""
    _open_standard()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from blindpost.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    run()


def _open_standard() -> None:
    """Open what the caller closed: else a database could get the descriptor that errors are printed to."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _STANDARD:
        os.set_inheritable(opened, True)
    os.close(opened)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115 - open as long as the program runs
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115 - likewise
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115 - likewise
