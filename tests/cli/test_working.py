"""Work of unknown length shows that it is running: on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

WORK = """
from blindpost.cli.output import working
with working("starting Spark"):
    pass
print("done")
"""


def test_progress_is_shown_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", WORK],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm"},
            timeout=60,
            check=True,
        )
        assert b"starting Spark" in os.read(ours, 65_536)
        assert done.stdout == b"done\n"
    finally:
        os.close(ours)
        os.close(theirs)


def test_no_progress_is_written_to_a_file() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (b"done\n", b"")
