"""What systemd is told about a server: that it is ready, reloads, works or stops, as notification datagrams.

Without NOTIFY_SOCKET nobody is told. The watchdog is fed by the event loop: a server whose loop hangs is
restarted. One that is not ready keeps running: a restart would not make its disk larger.
"""

from __future__ import annotations

import os
import socket
import time

WATCHDOG = "WATCHDOG=1"
PATIENCE_US = 86_400 * 10**6
"""A day: how long the watchdog waits for a drain, and for a store that is brought up to date."""
_VARIABLES = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


def unsupervised() -> dict[str, str]:
    """Our environment for a child, without the notification socket."""
    return {name: value for name, value in os.environ.items() if name not in _VARIABLES}


class Supervisor:
    """The other end of NOTIFY_SOCKET, if there is one."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self._status = ""

    @property
    def watchdog_s(self) -> float | None:
        """How often systemd expects a sign of life, if it does."""
        microseconds, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        if not self._address or not microseconds.isdecimal() or pid not in ("", str(os.getpid())):
            return None
        return int(microseconds) / 1e6

    def ready(self, status: str) -> None:
        """From now on the watchdog is as impatient as its unit says."""
        watched = self.watchdog_s
        self._tell("READY=1" if watched is None else f"READY=1\n{_patience(watched * 1e6)}", status)

    def busy(self, status: str) -> None:
        """It is neither ready nor stopping, for as long as a start may take; `ready` ends that."""
        self._tell(WATCHDOG if self.watchdog_s is None else _patience(PATIENCE_US), status)

    def reloading(self) -> None:
        """With the monotonic start time, which systemd compares with its own."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={microseconds}")

    def reloaded(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        """The watchdog's timeout starts again: what was accepted is answered within it."""
        self._tell(f"STOPPING=1\n{WATCHDOG}", "answering what was accepted")

    def alive(self, status: str) -> None:
        """The loop runs; the status is sent when it changes."""
        if status == self._status:
            self._send(WATCHDOG)
        else:
            self._tell(WATCHDOG, status)

    def _tell(self, what: str, status: str) -> None:
        self._status = status
        self._send(f"{what}\nSTATUS={status}")

    def _send(self, text: str) -> None:
        """A supervisor that cannot be reached is no reason to stop serving."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(text.encode(), address)
        except OSError:
            return


def _patience(microseconds: float) -> str:
    return f"WATCHDOG_USEC={microseconds:.0f}"
