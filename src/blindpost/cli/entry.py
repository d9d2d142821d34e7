"""Where the command begins: until it is loaded, Ctrl-C ends it without a word."""

from __future__ import annotations

import signal


def main() -> None:
    """Load the command and run it."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from blindpost.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    run()
