"""The process that makes KEM key pairs for `KemKeyPool`: a byte in, a pair out, until its input ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from blindpost.crypto.kem import generate_key_pair


def serve(requests: int, replies: int) -> None:
    """Answer each byte read from the descriptor `requests` with a public and a secret key on `replies`."""
    while os.read(requests, 1):
        pair = generate_key_pair()
        answer = memoryview(pair.public_key + pair.secret_key)
        while answer:
            answer = answer[os.write(replies, answer) :]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):  # whoever asked has gone without waiting for the answer
        serve(sys.stdin.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()
