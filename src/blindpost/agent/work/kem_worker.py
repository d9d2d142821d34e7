"""The process that makes KEM key pairs: a byte in, a pair out, until its input ends.

It is run as a file, so that it loads the library and no agent. Its arguments are folders to look for
modules in, behind those of the interpreter: nothing in them can stand in for the standard library.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path += sys.argv[1:]
    from blindpost.crypto.kem import generate_key_pair

    requests, replies = sys.stdin.fileno(), sys.stdout.fileno()
    try:
        while os.read(requests, 1):
            pair = generate_key_pair()
            answer = memoryview(pair.public_key + pair.secret_key)
            while answer:
                answer = answer[os.write(replies, answer) :]
    except BrokenPipeError:
        return  # the parent exited without waiting for the answer


if __name__ == "__main__":
    main()
