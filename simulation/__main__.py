"""`python -m simulation` begins again where sets of texts have the same order in every process, and only then
loads what it is made of.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    from simulation.command import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
