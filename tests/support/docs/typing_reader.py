"""A reader who types what a document says: servers stay up until the end, everything else must end well.

What takes long is typed in its smallest form (`tests.support.docs.smallest`), a target of make as the lines
of its recipe. pip works in an environment of its own and finds on this machine what others fetch.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import httpx
from typer.testing import CliRunner

from blindpost.cli.main import app
from tests.support.docs.documents import ROOT
from tests.support.docs.smallest import recipe, smallest

PATIENCE_S = 300.0
BIN = Path(sys.executable).parent
PACKAGES = sysconfig.get_path("purelib")
_STAYS = re.compile(r"blindpost (\w+ start|up|page|chat)\b|python \S*examples/|&$")
_READY = re.compile(r"is ready|the canary is measuring|The page is at (\S+)|conversations\. /help| is at\n")
_IN_ROOT = re.compile(
    r"([A-Z_]+=\S+ )*(pytest|python -m pytest|python -m benchmarks\.\w+|python -m simulation)( |$)|make help$"
)
"""What belongs to the sources, and leaves nothing in them."""
_NESTED = ("PYTEST_", "COV_")
"""Variables by which a run of tests knows itself."""
_SHELL = re.compile(r"[|&;<>]|\$")


class Server:
    """A command that goes on; what it says is kept."""

    def __init__(self, line: str, folder: Path, environment: Mapping[str, str]) -> None:
        *before, last = line.removesuffix("&").strip().split("&&")
        script = "&&".join((*before, f" exec {last.strip()}"))
        self.line = line
        self.said = ""
        self.url: str | None = None
        self._told = threading.Event()
        self._process = subprocess.Popen(
            ["sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment,
        )
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            found = _READY.search(line)
            if found is not None:
                self.url = self.url or found[1]
                self._told.set()
        self._told.set()

    def wait_ready(self) -> None:
        assert self._told.wait(PATIENCE_S), f"{self.line}: not ready: {self.said}"
        assert _READY.search(self.said), f"{self.line}: ended: {self.said}"

    def end(self) -> None:
        """As an operator ends it; a messenger ends with its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if " chat " not in self.line:
            self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(PATIENCE_S)
        self._reading.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert code == 0, f"{self.line}: exit code {code}: {self.said}"


class Reader:
    """Types lines in a folder of their own, after the smallest changes that make them work here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replaced: list[tuple[str, str]] = []
        self.servers: list[Server] = []
        self.said: list[str] = []
        self._in_root: dict[str, str] = {}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_NESTED)},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(folder),
            # What programs would only compute again.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            "COLUMNS": "200",
            "NO_COLOR": "1",
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_servers()

    def end_servers(self) -> None:
        """All of them, the last one first, even if one does not end well."""
        with contextlib.ExitStack() as stack:
            while self.servers:
                stack.callback(self.servers.pop(0).end)

    def replace(self, *pairs: tuple[str, str]) -> None:
        """What stands in the document, and what is typed instead. The first pairs go first."""
        self.replaced += pairs

    def type(self, line: str, code: int = 0) -> str:
        """What it printed; it must end with this exit code."""
        for before, after in self.replaced:
            line = line.replace(before, after)
        if _STAYS.search(line):
            return self._start(line)
        if _IN_ROOT.match(line):
            return self._run_once(smallest(line))
        word, _, rest = line.partition(" ")
        match word:
            case "make":
                return "".join(self.type(step) for step in recipe(rest))
            case "pip":
                python = self._own_environment()
                return self._run(f"{BIN}/python -m pip --python {python} {rest}", self.folder)
            case "cd":
                self.folder = self.folder / rest
            case "export":
                said = self._run(f"{line}; env -0", self.folder)
                self.environment = dict(pair.split("=", 1) for pair in said.split("\0") if pair)
            case "blindpost" if not _SHELL.search(line):
                return self._invoke(shlex.split(rest), code)
            case _:
                return self._run(line, self.folder)
        return ""

    def _own_environment(self) -> Path:
        """Python of an environment of this reader, made when it is needed."""
        place = self.folder / "python"
        if not place.exists():
            self._run(f"{BIN}/python -m venv --without-pip {place}", self.folder)
            see_what_is_installed(place)
        return place / "bin" / "python"

    def _start(self, line: str) -> str:
        server = Server(line, self.folder, self.environment)
        self.servers.append(server)
        server.wait_ready()
        if server.url is not None:
            answer = httpx.get(server.url, timeout=PATIENCE_S)
            assert answer.status_code in (200, 303), answer
        return server.said

    def _run_once(self, line: str) -> str:
        """What belongs to the sources does the same the second time."""
        if line not in self._in_root:
            self._in_root[line] = self._run(line, ROOT)
        return self._in_root[line]

    def _run(self, line: str, folder: Path) -> str:
        done = subprocess.run(
            ["sh", "-c", line],
            capture_output=True,
            text=True,
            cwd=folder,
            env=self.environment,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _invoke(self, arguments: list[str], code: int) -> str:
        """In this process, which takes a moment where one of its own takes seconds."""
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(app, arguments, env=self.environment, catch_exceptions=False)
        assert done.exit_code == code, f"{arguments}: exit code {done.exit_code}\n{done.output}"
        return done.output


def see_what_is_installed(environment: Path) -> None:
    """Let an environment find on this machine what pip would fetch for it, before what it came with."""
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "installed.pth").write_text(f"import sys; sys.path.insert(0, {PACKAGES!r})\n")
