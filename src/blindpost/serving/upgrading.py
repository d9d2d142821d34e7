"""A server that is replaced by the program as it is installed now, in the same process and on the same ports.

The running program drains as at a stop, but its listening sockets stay open, so that whoever connects
meanwhile waits instead of being refused. Then the process executes the new program: supervisors and
containers see the same process all the time. If a standby waits for the database, it takes over meanwhile:
then the sockets are closed, and the new program is the standby.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from blindpost.serving.children import COMMAND
from blindpost.serving.failures import OperatorError
from blindpost.serving.place import Place
from blindpost.serving.supervisor import unsupervised
from blindpost.transport import listening

COUNT = "BLINDPOST_UPGRADES"
GAVE_WAY = "BLINDPOST_GAVE_WAY"
CHECK_S_MAX = 60.0

Successor = Mapping[str, str]
"""What the new program finds in its environment."""


def count() -> int:
    """How often this process was replaced."""
    text = os.environ.get(COUNT, "")
    return int(text) if text.isdecimal() else 0


async def check(place: Place[Any]) -> None:
    """The new program must say that it would start here; otherwise the old one goes on."""
    words = (*COMMAND, place.word, "check", "-c", str(place.file), "--json")
    try:
        child = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=unsupervised()
        )
    except OSError as error:
        raise OperatorError(
            f"{words[0]}: the installed program cannot be started ({error.strerror}). Install it there, or "
            "restart the server from where it is. Nothing was changed."
        ) from error
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            output, errors = await child.communicate()
    except TimeoutError:
        raise OperatorError("the installed program does not answer. Nothing was changed.") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        raise OperatorError(
            f"the installed program would not start here: {_reason(output, errors)} Nothing was changed."
        )


def _reason(output: bytes, errors: bytes) -> str:
    try:
        findings = json.loads(output)["findings"]
        (first, *_) = (row["found"] for row in findings if row["grade"] == "error")
        return f"{str(first).removesuffix('.')}."
    except (ValueError, LookupError, TypeError):
        lines = errors.decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it says nothing.")


def gave_way() -> bool:
    """Whether the program before this one left its database to a standby. It is told once."""
    return bool(os.environ.pop(GAVE_WAY, ""))


def successor(*, gives_way: bool) -> Successor:
    """Keep the listening sockets for it, unless a standby serves meanwhile."""
    left = {GAVE_WAY: "1"} if gives_way else listening.left_open()
    return {**left, **listening.passed_on(), COUNT: str(count() + 1)}


def ignore_signals() -> None:
    """Those that the new program does not handle yet must not end it, nor the old one without its loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGHUP, signal.SIGUSR2):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def replace(found: Successor) -> NoReturn:
    """Become the new program."""
    words = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, words, {**os.environ, **found})  # noqa: S606 - our own command
