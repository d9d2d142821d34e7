"""Listening sockets that outlive a server, passed to it as systemd does."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from blindpost.serving.children import Child

_PLACED = """
import os, sys
count, words = int(sys.argv[1]), sys.argv[2:]
names, words = words[:count], words[count:]
for place, descriptor in enumerate(names, 64):
    os.dup2(int(descriptor), place)
for place in range(count):
    os.dup2(64 + place, 3 + place)
    os.close(64 + place)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count))
os.execv(words[0], words)
"""


def pass_sockets(child: Child, sockets: Sequence[socket.socket]) -> None:
    """At every start it finds these from descriptor 3 on."""
    descriptors = [sock.fileno() for sock in sockets]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    child.descriptors = tuple(descriptors)
    child.wrapper = (sys.executable, "-c", _PLACED, str(len(descriptors)), *map(str, descriptors))
