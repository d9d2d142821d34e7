"""A clock that a test can set, in any Python process whose path begins with this folder.

`BLINDPOST_TEST_CLOCK` names a file with the seconds by which wall clocks of these processes are ahead. The
steady clock goes on as it does.
"""

import os
import time

_FILE = os.environ["BLINDPOST_TEST_CLOCK"]
_time, _time_ns = time.time, time.time_ns


def _ahead_s() -> int:
    with open(_FILE) as file:
        return int(file.read() or 0)


time.time = lambda: _time() + _ahead_s()
time.time_ns = lambda: _time_ns() + _ahead_s() * 10**9
