"""A server as a child process: started, waited for, asked and ended, always through this module.

Children import nothing from the folder they are started in (`-P`). They do not outlive us: each holds the
other end of a pipe, and stops cleanly when we are gone. Methods that wait block; in an event loop they are
for `asyncio.to_thread`.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blindpost.serving import ending
from blindpost.serving.control import HungUpError, NotRunningError, ask
from blindpost.serving.place import control_of
from blindpost.serving.supervisor import unsupervised

PYTHON = (sys.executable, "-P", "-m")
COMMAND = (*PYTHON, "blindpost.cli")
START_S_MAX = 60.0
STOP_S_MAX = 60.0
_POLL_S = 0.02
_LOG_TOLD = 2_000
_BELOW_EPHEMERAL = range(20_000, 32_000)
"""Ports the system gives to no outgoing connection, so that a killed server finds its port free again."""


class DidNotStartError(Exception):
    """What its log says."""


class Child:
    """The server of one folder; it may be started and ended repeatedly."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        descriptors: Sequence[int] = (),
    ) -> None:
        """`log` is a file for its output, which otherwise goes where ours goes; it gets our `descriptors`."""
        self.kind = kind
        self.folder = folder
        self.log_file = log
        self.environment = environment
        self.wrapper = tuple(wrapper)
        self.descriptors = tuple(descriptors)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        return self.folder / f"{self.kind}.toml"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> bytes:
        """What it has written, in all its runs."""
        return self.log_file.read_bytes() if self.log_file is not None and self.log_file.exists() else b""

    def spawn(self) -> None:
        """Start the process; it does not serve yet."""
        assert not self.runs, "it runs"
        words = (*self.wrapper, *COMMAND, ending.OPTION, self.kind, "start", "-c", str(self.folder))
        with contextlib.ExitStack() as stack:
            output = None if self.log_file is None else stack.enter_context(self.log_file.open("ab"))
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                words,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=unsupervised() if self.environment is None else self.environment,
                pass_fds=self.descriptors,
                start_new_session=True,
            )

    def start(self, given_up: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Start it and wait until it answers; its status."""
        self.spawn()
        return self.wait_up(given_up)

    def wait_up(self, given_up: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Wait until it answers at its control socket, which a server opens last; its status."""
        end = time.monotonic() + START_S_MAX
        while True:
            try:
                return self.ask("status")
            except (NotRunningError, HungUpError) as error:
                if not self.runs or given_up() or time.monotonic() > end:
                    told = self.log[-_LOG_TOLD:].decode(errors="replace")
                    raise DidNotStartError(f"{self.kind} did not start: {told}") from error
                time.sleep(_POLL_S)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Ask it at the control socket that its configuration names."""
        return ask(control_of(self.config), command, **arguments)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was not started"
        self._process.send_signal(number)

    def wait(self) -> int:
        """Until it ends; its exit code."""
        assert self._process is not None, "it was not started"
        try:
            return self._process.wait()
        finally:
            if self._process.stdin is not None:
                self._process.stdin.close()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        """Send a signal if it runs, kill it if that takes too long; its exit code."""
        if self._process is None:
            return None
        if self.runs:
            self.send(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S_MAX)
            if self.runs:
                self._process.kill()
        return self.wait()


def free_port() -> int:
    """A free loopback port for TCP and UDP, the same after a restart."""
    for port in random.sample(_BELOW_EPHEMERAL, len(_BELOW_EPHEMERAL)):
        with socket.socket() as sock, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            try:
                sock.bind(("127.0.0.1", port))
                datagrams.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DidNotStartError("no free port on loopback")
