"""The control socket: one JSON object on a line asks, one on a line answers.

`{"command": "status"}` is answered `{"ok": true, "result": {...}}`, or `{"ok": false, "error": "..."}`. The
socket belongs to the server's user alone. Answers hold no ids, keys or addresses, not even those that the
question named.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from blindpost.serving.failures import OperatorError, about_file
from blindpost.serving.logs import log
from blindpost.transport.listening import ACCEPT_AT_ONCE, let_wait, stop_accepting

LINE_MAX = 64 * 1024
ASK_TIMEOUT_S = 60.0
CONNECTIONS_MAX = 64
"""The oldest makes room: a script that leaves connections open must not use up the descriptors."""
_PATH_MAX = 107
"""How long the path of a Unix socket may be."""

Answer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """The path of a socket, through its open folder if it is longer than the system allows."""
    if len(os.fsencode(path)) <= _PATH_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = f"/proc/self/fd/{folder}/{path.name}"
        if len(os.fsencode(short)) > _PATH_MAX:
            raise OperatorError(
                f"{path}: too long for a socket, the system allows {_PATH_MAX} bytes. "
                "Choose a shorter control.socket."
            )
        yield short
    finally:
        os.close(folder)


class ControlSocket:
    """Listens for operators; each command has one function that answers it."""

    def __init__(self, path: Path, commands: Mapping[str, Answer], otherwise: str = "") -> None:
        """`otherwise` is what is said of other commands, if not that they are unknown."""
        self._path = path
        self._commands = commands
        self._otherwise = otherwise or f"unknown command; commands are: {', '.join(sorted(commands))}"
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Replace a socket that a killed server left; the caller holds the folder's lock."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                with short_path(self._path) as path:
                    listening.bind(path)
            finally:
                os.umask(before)
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listening, limit=LINE_MAX, backlog=ACCEPT_AT_ONCE
            )
            let_wait(self._server)
        except OSError as error:
            listening.close()
            raise about_file(error, self._path) from error
        except OperatorError:
            listening.close()
            raise

    async def keep(self) -> None:
        """Open it again if its file was deleted: nobody could ask the server anything until its end."""
        before = self._server
        try:
            if before is None or self._path.exists():
                return
            log.warning("%s was deleted: it is opened again", self._path)
            await self.listen()
        except (OSError, OperatorError) as error:
            log.warning("the control socket cannot be opened: %s", error)
        else:
            stop_accepting(before)

    async def close(self) -> None:
        """Answer nobody any more, also not those who have asked: what they asked about is closed next."""
        if self._server is not None:
            stop_accepting(self._server)
            self._server = None
            await asyncio.sleep(0)
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio serves each connection in a task"
        if self._server is None:  # it was closed since it took this connection
            writer.close()
            return
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        if len(self._writers) >= CONNECTIONS_MAX:
            oldest = next(iter(self._writers))
            del self._writers[oldest]
            oldest.transport.abort()
        self._writers[writer] = None
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # the operator hung up, or sent a line without an end; or the server ends
        finally:
            self._writers.pop(writer, None)
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return _failure("a JSON object on one line expected")
        if not isinstance(request, dict):
            return _failure("a JSON object on one line expected")
        answer = self._commands.get(str(request.get("command")))
        if answer is None:
            return _failure(self._otherwise)
        try:
            return {"ok": True, "result": await answer(request)}
        except OperatorError as error:
            return _failure(str(error))
        except Exception:
            log.exception("an operator's command failed")
            return _failure("the server failed to answer; its log says where")


def _failure(message: str) -> dict[str, Any]:
    return {"ok": False, "error": message}


def ask(path: Path, command: str, *, timeout_s: float = ASK_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
    """The answer of the server that listens at `path`."""
    request = json.dumps({"command": command, **arguments}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            with short_path(path) as reachable:
                sock.connect(reachable)
            sock.sendall(request)
            with sock.makefile("rb") as lines:
                line = lines.readline()
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NotRunningError(path) from error
    except (ConnectionResetError, BrokenPipeError) as error:
        raise HungUpError(path) from error
    except TimeoutError as error:
        raise OperatorError(f"{path}: the server did not answer within {timeout_s:.0f} s.") from error
    except OSError as error:
        raise about_file(error, path) from error
    if not line.endswith(b"\n"):
        raise HungUpError(path)
    answer = json.loads(line)
    if not answer["ok"]:
        raise OperatorError(answer["error"])
    result: dict[str, Any] = answer["result"]
    return result


class HungUpError(OperatorError):
    """The server closed its control socket instead of answering."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: the server closed its control socket before it answered: "
            "it is stopping, restarting or taking over. Ask again."
        )


class NotRunningError(OperatorError):
    """Nobody listens at the control socket."""

    def __init__(self, path: Path, start: str = "", at_work: str = "") -> None:
        """`at_work` is the kind of server whose folder is locked all the same."""
        if at_work:
            super().__init__(
                f"{path}: nobody listens at this control socket, yet a {at_work}, or a command that needs it "
                f"stopped, is at work in this folder. It is starting or ending, or the socket was deleted: a "
                f"running {at_work} opens it again within seconds. Try again then."
            )
            return
        remedy = f"Start it with `{start}`" if start else "Start it"
        super().__init__(
            f"{path}: no server listens at this control socket. {remedy}, "
            "or name the right configuration with --config."
        )
